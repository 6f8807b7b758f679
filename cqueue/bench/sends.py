"""Single sends from many threads: bare inserts, `send`, and `send` of a queue that lingers, in turn.

Each thread sends one message after the other and waits for each. What the bare driver does is one insert
of the same row, on a session of its own.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, Final

from cqueue.bench.bare import Call, bare_insert
from cqueue.bench.options import Options
from cqueue.bench.setup import (
    Bench,
    Figures,
    Progress,
    in_turn,
    medians_of,
    ratios_of,
    seconds_of,
    silent,
    times_ms,
)
from cqueue.bench.throughput import bare_rows
from cqueue.store.connection import open_session

LINGER: Final = timedelta()
"""Nobody is waited for: what comes while another send is under way goes together."""


def sends(
    bench: Bench, options: Options, rounds: int = 3, threads: int = 16, progress: Progress = silent
) -> dict[str, Any]:
    """Sends a second of all threads together, after one round to warm up: medians, and ratios."""
    with (
        open_session(bench.settings) as connection,
        bare_rows(connection.session) as name,
        bench.queue(options) as queue,
    ):
        lingering = bench.client.queue(queue.name, linger=LINGER)
        ways: dict[str, Call] = {
            "floor": bare_insert(connection.session, name),
            "send": queue.send,
            "linger": lingering.send,
        }
        measured = {name: partial(_measured, send, options, threads) for name, send in ways.items()}
        found = in_turn(measured, rounds, progress)
    figures = {
        **ratios_of(found["send"], found["floor"]),
        "linger_ratio": ratios_of(found["linger"], found["floor"])["ratio"],
        **{name: medians_of(results, ("per_s", "p50_ms", "p99_ms")) for name, results in found.items()},
    }
    return bench.result("sends", options, figures, threads=threads, rounds=rounds)


def _measured(send: Call, options: Options, threads: int, _part: Progress) -> Figures:
    each, rest = divmod(options.messages, threads)
    counts = [each + (number < rest) for number in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        begin = time.perf_counter()
        some = pool.map(partial(_send_some, send, bytes(options.size)), counts)
        took_s = list(chain.from_iterable(some))
        total_s = time.perf_counter() - begin
    return {"per_s": round(len(took_s) / total_s, 1), **times_ms(took_s)}


def _send_some(send: Call, body: bytes, count: int) -> list[float]:
    """The seconds that each took."""
    return [seconds_of(send, body) for _ in range(count)]
