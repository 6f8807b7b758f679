"""When each message was sent, received, acked and buried.

The final table is computed from these notes and from a count of the queue, alone.

Nothing is inferred from what should have happened: a message counts as sent when its producer was told so,
as acked when its consumer was told so, as dead when it came out of the dead-letter queue.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock

WINDOW_S = 2.0
"""What "now" means in a snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a run. Rates and latencies are those of the last two seconds."""

    seconds: float
    total: int
    sent: int
    done: int  # acked or dead
    redelivered: int
    per_second: float
    p50_ms: float | None
    p99_ms: float | None

    @property
    def depth(self) -> int:
        """Return how many messages are sent and not done."""
        return max(0, self.sent - self.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The account of every message and every tick.

    Attributes:
        messages: how many were to be sent.
        sent: acknowledged, or of unknown outcome and seen later.
        acked: handled, and the ack acknowledged.
        ack_unknown: handled, but no ack of it was acknowledged.
        dead: drained from the dead-letter queue.
        left: still in the queue and its dead-letter queue, by exact count; None if it could not be counted.
        lost: sent, never handled, not dead, not left; None if that is not known, as nothing could be counted.
        unsent: never stored: not reached, refused, or of unknown outcome and not seen.
        duplicates: deliveries of a message that had been handled or was dead already.
        redelivered: deliveries of a message beyond its first.
        altered: bodies that are not what was sent.
        errors: calls that failed and were repeated.
        per_second: messages acked per second, from the beginning to the last ack.
        p50_ms, p99_ms: from the call of send to the first delivery.
        ticks: seconds that the cron has fired.
        ticks_missed: seconds between its first and its last that it has not.
        ticks_repeated: seconds that it has fired once more than once.
    """

    messages: int
    sent: int
    acked: int
    ack_unknown: int
    dead: int
    left: int | None
    lost: int | None
    unsent: int
    duplicates: int
    redelivered: int
    altered: int
    errors: int
    seconds: float
    per_second: float
    p50_ms: float | None
    p99_ms: float | None
    ticks: int
    ticks_missed: int
    ticks_repeated: int
    interrupted: bool

    @property
    def balanced(self) -> bool:
        """Every message is accounted for: all sent, and sent = acked + dead; and so is every tick."""
        return (
            self.sent == self.messages == self.acked + self.ack_unknown + self.dead
            and self.left == 0
            and self.lost == 0
            and self.altered == 0
            and self.ticks_missed == 0
        )


class Ledger:
    """The records of all threads. Thread-safe."""

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self._now = now
        self._mutex = Lock()
        self._began = now()
        self._sending: dict[int, float] = {}
        self._stored: set[int] = set()
        self._unknown: set[int] = set()
        self._deliveries: Counter[int] = Counter()
        self._handled: set[int] = set()
        self._acked: set[int] = set()
        self._dead: set[int] = set()
        self._latencies: list[float] = []
        self._latency_times: list[float] = []
        self._done_times: list[float] = []
        self._last_ack = self._began
        self._duplicates = 0
        self._altered = 0
        self._errors = 0
        self._ticks: Counter[int] = Counter()
        self._first_tick: int | None = None

    # ── what threads tell ──

    def sending(self, numbers: Iterable[int]) -> None:
        """Note that send is about to be called; of several calls for a number the first counts."""
        now = self._now()
        with self._mutex:
            for number in numbers:
                self._sending.setdefault(number, now)

    def stored(self, numbers: Iterable[int]) -> None:
        """Note messages that send reported as stored."""
        with self._mutex:
            self._stored.update(numbers)

    def send_unknown(self, number: int) -> None:
        """Note messages of which send could not say whether they are stored."""
        with self._mutex:
            self._unknown.add(number)

    def delivered(self, numbers: Iterable[int]) -> None:
        """Note messages that a consumer received."""
        now = self._now()
        with self._mutex:
            for number in numbers:
                self._deliveries[number] += 1
                if self._deliveries[number] == 1:
                    self._latencies.append(now - self._sending[number])
                    self._latency_times.append(now)
                if number in self._handled or number in self._dead:
                    self._duplicates += 1

    def handled(self, numbers: Iterable[int]) -> None:
        """Note a message that was handled; its ack will be tried."""
        with self._mutex:
            self._handled.update(numbers)

    def acked(self, numbers: Iterable[int]) -> None:
        """Note messages that ack reported as deleted."""
        self._last_ack = self._now()
        self._done(self._acked, numbers)

    def dead(self, numbers: Iterable[int]) -> None:
        """Note messages that came out of the dead-letter queue."""
        numbers = list(numbers)
        with self._mutex:
            self._duplicates += sum(number in self._dead or number in self._handled for number in numbers)
        self._done(self._dead, numbers)

    def altered(self) -> None:
        """Note a body that came out and was never sent."""
        with self._mutex:
            self._altered += 1

    def error(self, count: int = 1) -> None:
        """Note calls that failed, and were or will be repeated."""
        with self._mutex:
            self._errors += count

    def ticks_from(self, first: datetime | None) -> None:
        """Note the first second of the cron, when it was made."""
        with self._mutex:
            self._first_tick = None if first is None else int(first.timestamp())

    def tick(self, fired_at: datetime) -> None:
        """Note a second in which the cron has fired."""
        with self._mutex:
            self._ticks[int(fired_at.timestamp())] += 1

    def _done(self, where: set[int], numbers: Iterable[int]) -> None:
        now, new = self._now(), set(numbers)
        with self._mutex:
            fresh = new - self._acked - self._dead
            where |= new
            self._done_times += [now] * len(fresh)

    # ── what they told, together ──

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the run."""
        now = self._now()
        with self._mutex:
            recent = self._latencies[bisect_right(self._latency_times, now - WINDOW_S) :]
            done = len(self._done_times) - bisect_right(self._done_times, now - WINDOW_S)
            return Snapshot(
                seconds=now - self._began,
                total=self.total,
                sent=len(self._sent()),
                done=len(self._done_times),
                redelivered=self._redelivered(),
                per_second=done / min(WINDOW_S, max(0.5, now - self._began)),
                p50_ms=percentile_ms(recent, 50),
                p99_ms=percentile_ms(recent, 99),
            )

    def report(self, left: int | None, *, interrupted: bool) -> Report:
        """Return the account, with the messages that an exact count found left."""
        with self._mutex:
            sent = self._sent()
            unseen = len(sent - self._handled - self._dead)
            return Report(
                messages=self.total,
                sent=len(sent),
                acked=len(self._acked - self._dead),
                ack_unknown=len(self._handled - self._acked - self._dead),
                dead=len(self._dead),
                left=left,
                lost=_lost(unseen, left),
                unsent=self.total - len(sent),
                duplicates=self._duplicates,
                redelivered=self._redelivered(),
                altered=self._altered,
                errors=self._errors,
                seconds=round(self._now() - self._began, 3),
                per_second=round(len(self._acked) / max(0.001, self._last_ack - self._began), 1),
                p50_ms=percentile_ms(self._latencies, 50),
                p99_ms=percentile_ms(self._latencies, 99),
                ticks=len(self._ticks),
                ticks_missed=self._ticks_missed(),
                ticks_repeated=self._ticks.total() - len(self._ticks),
                interrupted=interrupted,
            )

    def _sent(self) -> set[int]:
        """Return the messages known to be stored, by send's word or because they were received."""
        return self._stored | self._unknown & (self._deliveries.keys() | self._dead)

    def _ticks_missed(self) -> int:
        if not self._ticks:
            return 0
        first = min(self._ticks) if self._first_tick is None else self._first_tick
        return max(self._ticks) - first + 1 - len(self._ticks)

    def _redelivered(self) -> int:
        return self._deliveries.total() - len(self._deliveries)


def _lost(unseen: int, left: int | None) -> int | None:
    """Return how many messages that nobody has seen are not left either."""
    if left is None:
        return None if unseen else 0
    return max(0, unseen - left)


def percentile_ms(seconds: Sequence[float], percent: int) -> float | None:
    """Return the nearest-rank percentile, in ms; None of no values."""
    if not seconds:
        return None
    rank = max(1, -(-len(seconds) * percent // 100))
    return round(sorted(seconds)[rank - 1] * 1000, 1)
