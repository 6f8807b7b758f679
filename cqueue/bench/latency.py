"""Latency between processes at a steady rate: from the call of send to the handler, beside its floor.

The sender is this process, the dispatchers are others, as in real life: what is sent within a process can be
found without asking Cassandra. The bare driver is measured in the same run at the same pace, before and after
the messages, while nobody else works.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, Final

from cqueue.bench.bare import Call, Floor, Pace, bare_insert, bare_mutation
from cqueue.bench.children import Signals, Work, children, threads
from cqueue.bench.options import Options
from cqueue.bench.setup import Bench, Progress, percentile, silent, times_ms
from cqueue.bench.throughput import bare_rows
from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.execution.context import Context
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.errors import NotDone
from cqueue.store.connection import open_session

RATES: Final = (1, 20, 200)
"""Messages a second."""
SECONDS: Final = 20
FEWEST: Final = 30
"""Messages of a slow rate, which takes longer for them."""
WARM_UP: Final = Pace(10, 2)
"""Messages that are not counted: a new process first prepares statements and learns where to read."""
PATIENCE: Final = timedelta(minutes=1)
UNUSED: Final = ("messages", "batch", "receive")
STAMP: Final = struct.Struct(">d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to measure.

    rates: messages a second, in turn. seconds: of each rate; None: 20, or as long as 30 messages take.
    dispatchers: how many. one_process: in threads of this process.
    """

    rates: Sequence[int] = RATES
    seconds: float | None = None
    dispatchers: int = 1
    one_process: bool = False

    def paces(self) -> list[Pace]:
        """Return how often messages are sent at each rate, and for how long."""
        return [Pace(rate, self.seconds or max(SECONDS, FEWEST / rate)) for rate in self.rates]

    @property
    def to(self) -> str:
        """Name what handles the messages."""
        many = f"{self.dispatchers} dispatcher{'s' * (self.dispatchers > 1)}"
        return f"{many}, here" if self.one_process else many


def latency(bench: Bench, options: Options, asked: Asked, progress: Progress = silent) -> dict[str, Any]:
    """Send one by one to dispatchers in other processes, at each rate: send to handler, in ms."""
    paces = asked.paces()
    rows: list[dict[str, Any]] = []
    with (
        open_session(bench.settings) as connection,
        bare_rows(connection.session) as inserted,
        bare_rows(connection.session) as locked,
    ):
        calls = bare_insert(connection.session, inserted), bare_mutation(connection.session, locked)
        for pace in paces:
            floor = Floor(*calls, options.size)
            rows.append(_at_rate(bench, options, asked, pace, floor))
            progress(len(rows) / len(paces))
    return bench.result("latency", options, {"rows": rows}, without=UNUSED)


def _at_rate(bench: Bench, options: Options, asked: Asked, pace: Pace, floor: Floor) -> dict[str, Any]:
    half = Pace(pace.rate_per_s, pace.seconds / 2)
    bench.calm()
    floor.measure(half)
    with bench.queue(options) as queue:
        works = [partial(_dispatch, queue.name)] * asked.dispatchers
        start = threads if asked.one_process else children
        found, sends_s = listened(bench, works, start, partial(send_all, queue.send, pace, options.size))
    floor.measure(half)
    took_s, bare = list(chain.from_iterable(found)), floor.figures()
    ratios = {
        f"p{percent}_to_floor": round(percentile(took_s, percent) * 1000 / bare["floor_ms"], 2)
        for percent in (50, 99)
    }
    return row(asked.to, pace, took_s, sends_s) | bare | ratios


def _dispatch(name: str, bench: Bench, signals: Signals) -> list[float]:
    """Handle messages until all are sent; return how long each took."""
    took_s: list[float] = []

    def handle(message: ReceivedMessage, _context: Context) -> None:
        note(message.body, took_s)

    with Dispatcher(bench.client.queue(name), handle) as dispatcher:
        signals.begin.wait()
        signals.over.wait()
        dispatcher.drain(PATIENCE)
    return took_s


# ── what followers of a log need as well ──


def listened(
    bench: Bench, works: Sequence[Work[list[float]]], start: Any, send: Callable[[], list[float]]
) -> tuple[list[list[float]], list[float]]:
    """Send while children listen; return what each child noted, and how long each send took."""
    with start(bench, works) as started:
        started.begin()
        sends_s = send()
        return started.results(), sends_s


def send_all(send: Call, pace: Pace, size: int) -> list[float]:
    """Send at the rate; how long each send took, in seconds. Its message carries when it began."""
    rest = bytes(max(0, size - STAMP.size))
    for _ in WARM_UP.ticks():
        send(STAMP.pack(0.0) + rest)
    sends_s: list[float] = []
    for _ in pace.ticks():
        begin = time.monotonic()
        send(STAMP.pack(begin) + rest)
        sends_s.append(time.monotonic() - begin)
    return sends_s


def note(body: bytes, took_s: list[float]) -> None:
    """Add how long a message took, unless it was sent to warm up."""
    now = time.monotonic()
    if began := STAMP.unpack_from(body)[0]:
        took_s.append(now - began)


def row(to: str, pace: Pace, took_s: list[float], sends_s: list[float]) -> dict[str, Any]:
    """The figures of one rate.

    Raises:
        NotDone: not all that was sent has come.
    """
    if len(took_s) < len(sends_s):
        raise NotDone(f"only {len(took_s):,} of {len(sends_s):,} came to {to} at {pace.rate_per_s}/s")
    return {
        "to": to,
        "rate_per_s": pace.rate_per_s,
        "received": len(took_s),
        **times_ms(took_s),
        **times_ms(sends_s, "send_"),
        "histogram": _histogram(took_s),
    }


def _histogram(values_s: list[float]) -> list[tuple[float, int]]:
    """(Upper bound in ms, how many below it and above the one before); ten bounds to a power of ten."""
    counts: dict[int, int] = {}
    for value_s in values_s:
        place = math.ceil(10 * math.log10(max(value_s * 1000, 0.01)))
        counts[place] = counts.get(place, 0) + 1
    places = range(min(counts) - 1, max(counts) + 1)
    return [(round(10 ** (place / 10), 3), counts.get(place, 0)) for place in places]
