"""Measure how long the bare driver takes to store a message, and to claim one.

The sum of both medians is the floor of a latency: no queue that stores messages by plain writes and claims
them by conditional mutations hands out a message sooner.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final

from cassandra.query import BatchStatement, BatchType
from cassandra.util import uuid_from_time

from cqueue.bench.setup import seconds_of, times_ms
from cqueue.bench.throughput import INSERT, PARTITIONS
from cqueue.errors import NotDone

_LOCK: Final = (
    "UPDATE messages SET state = 1, owner = ?, until = ?, fence = ?, tally = 0 "
    "WHERE queue = ? AND time_shard = 0 AND shard = ? AND kind = 1 AND priority = 0 AND id = ? IF fence = ?"
)
_LOCK_ID: Final = uuid_from_time(0, 0, 0)

Call = Callable[[bytes], Any]
"""Sends a request with a body, and returns when the server has answered."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A rate, and for how long it is kept."""

    rate_per_s: float
    seconds: float

    @property
    def count(self) -> int:
        """Return the number of ticks, at least one."""
        return max(1, round(self.rate_per_s * self.seconds))

    def ticks(self) -> Iterator[int]:
        """Yield each number when its time comes; after a late one the next follow sooner."""
        begin = time.monotonic()
        for number in range(self.count):
            time.sleep(max(0.0, begin + number / self.rate_per_s - time.monotonic()))
            yield number


class Floor:
    """Bare inserts and bare conditional mutations in turn."""

    def __init__(self, insert: Call, mutation: Call, size: int) -> None:
        self._body = bytes(size)
        self._took_s: dict[str, list[float]] = {"insert": [], "mutation": []}
        self._turns = cycle(zip(self._took_s.values(), (insert, mutation), strict=True))

    def measure(self, pace: Pace) -> None:
        """Insert or mutate at each tick, in turn."""
        for _ in pace.ticks():
            took_s, call = next(self._turns)
            took_s.append(seconds_of(call, self._body))

    def figures(self) -> dict[str, float]:
        """Return the floor and the figures that it is the sum of, in ms."""
        found: dict[str, float] = {}
        for name, took_s in self._took_s.items():
            found |= times_ms(took_s, f"bare_{name}_")
        return {"floor_ms": round(found["bare_insert_p50_ms"] + found["bare_mutation_p50_ms"], 3), **found}


def bare_insert(session: Any, name: str) -> Call:
    """Make a call that stores the row of one message, with one bound insert. name: of `bare_rows`."""
    insert = session.prepare(INSERT)

    def call(body: bytes) -> None:
        now_us = time.time_ns() // 1000
        id_ = uuid_from_time(now_us / 1e6)
        session.execute(insert, (name, 0, now_us % PARTITIONS, id_, body, now_us // 1000, now_us))

    return call


def bare_mutation(session: Any, name: str) -> Call:
    """Make a call that locks a wide row as a claim does: one conditional batch, at serial consistency.

    name: of `bare_rows`, and of no other call.
    """
    update, owner = session.prepare(_LOCK), secrets.token_bytes(16)
    fences: dict[int, int | None] = dict.fromkeys(range(PARTITIONS))

    def call(_body: bytes) -> None:
        now_us = time.time_ns() // 1000
        shard = now_us % PARTITIONS
        fence = fences[shard]
        fences[shard] = following = (fence or 0) + 1
        batch = BatchStatement(BatchType.UNLOGGED)
        batch.add(update, (owner, now_us, following, name, shard, _LOCK_ID, fence))
        if not session.execute(batch).was_applied:
            raise NotDone("a bare conditional mutation was not applied, although nobody else writes its row")

    return call
