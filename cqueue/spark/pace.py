"""A limit on the rows a second of a job, over all its tasks.

Spark does not tell a task how many others run beside it. So each task of a job with a rate writes a heartbeat
every second, into a partition of the log table that no reader looks into, counts the heartbeats of the
others, and keeps to its share.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import Final

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol.inspection import END
from cqueue.spark.ledger import hidden, note
from cqueue.spark.session import SparkSide
from cqueue.store.record_page import ReadRecordPage

BEAT_S: Final = 1.0
GONE_US: Final = 2_500_000
"""A task without a heartbeat for this long has ended: two and a half of its beats."""
KEPT_S: Final = 60
MOST_TASKS: Final = 10_000
BURST_S: Final = 0.25


class Pace:
    """One task's share of a rate. job: the name of one job, the same in all its tasks."""

    def __init__(self, side: SparkSide, job: str, rate: float) -> None:
        self._shard = hidden("spark-rate", job)
        self._side = side
        self._rate = rate
        self._name = secrets.token_hex(8)
        self._tasks = 1
        self._beat_s = float("-inf")
        self._free_s = time.monotonic()

    @property
    def most(self) -> int:
        """Return how many rows to write at a time, so that they come evenly."""
        return max(1, int(self._rate / self._tasks * BURST_S))

    def wait(self, rows: int) -> None:
        """Wait until `rows` more rows may be written."""
        self._keep_beating()
        free_s = max(self._free_s, time.monotonic())
        while (left_s := free_s - time.monotonic()) > 0:
            time.sleep(min(left_s, BEAT_S))
            self._keep_beating()  # or others take this task for ended, and share its part of the rate
        self._free_s = free_s + rows * self._tasks / self._rate

    def _keep_beating(self) -> None:
        if time.monotonic() - self._beat_s >= BEAT_S:
            with suppress(NotDone, OutcomeUnknown):  # rows are not stored either then, and are tried again
                self._beat()

    def _beat(self) -> None:
        first = self._beat_s == float("-inf")
        beat = note(self._side, self._shard, self._name, KEPT_S)
        if first:  # those that begin together shall see each other
            time.sleep(BURST_S)
        since = ids.lowest_at(ids.time_us(beat.id) - GONE_US)
        found = self._side.driver.ask(ReadRecordPage(self._shard, since, END, MOST_TASKS))
        self._tasks = max(1, len({each.topic for each in found.rows()}))
        self._beat_s = time.monotonic()
