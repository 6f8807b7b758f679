"""What the bare driver takes for the two things that a message cannot do without: to be stored, and claimed.

The sum of both medians is the floor of a latency: nobody hands out a message sooner that is stored by a plain
write and claimed by a conditional mutation.
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

from cqueue.bench.setup import percentile
from cqueue.bench.throughput import INSERT, PARTITIONS
from cqueue.errors import NotDone

_LOCK: Final = (
    "UPDATE messages SET state = 1, owner = ?, until = ?, fence = ?, tally = 0 "
    "WHERE queue = ? AND time_shard = 0 AND shard = ? AND kind = 1 AND priority = 0 AND id = ? IF fence = ?"
)
_LOCK_ID: Final = uuid_from_time(0, 0, 0)

Call = Callable[[bytes], Any]
"""Does something with a body, and returns when the server has answered."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often something is done, and for how long."""

    rate_per_s: float
    seconds: float

    @property
    def count(self) -> int:
        """How often in all, at least once."""
        return max(1, round(self.rate_per_s * self.seconds))

    def ticks(self) -> Iterator[int]:
        """Numbers, each when it is time for it; who is late makes up for it."""
        begin = time.monotonic()
        for number in range(self.count):
            time.sleep(max(0.0, begin + number / self.rate_per_s - time.monotonic()))
            yield number


class Floor:
    """Bare inserts and bare conditional mutations in turn, on a session of their own."""

    def __init__(self, session: Any, size: int) -> None:
        self._body = bytes(size)
        self._took_s: dict[str, list[float]] = {"insert": [], "mutation": []}
        calls = zip(self._took_s.values(), (bare_insert(session), bare_mutation(session)), strict=True)
        self._turns = cycle(calls)

    def measure(self, pace: Pace) -> None:
        """One of the two at each tick."""
        for _ in pace.ticks():
            took_s, call = next(self._turns)
            begin = time.monotonic()
            call(self._body)
            took_s.append(time.monotonic() - begin)

    def figures(self) -> dict[str, float]:
        """The floor, and what it consists of, in ms."""
        found = {
            f"bare_{name}_p{percent}_ms": round(percentile(took_s, percent) * 1000, 3)
            for name, took_s in self._took_s.items()
            for percent in (50, 99)
        }
        return {"floor_ms": round(found["bare_insert_p50_ms"] + found["bare_mutation_p50_ms"], 3), **found}


def bare_insert(session: Any) -> Call:
    """What stores the row of one message, with one bound insert."""
    insert, name = session.prepare(INSERT), f"bench-floor@{time.time_ns():x}"

    def call(body: bytes) -> None:
        now_us = time.time_ns() // 1000
        id_ = uuid_from_time(now_us / 1e6)
        session.execute(insert, (name, 0, now_us % PARTITIONS, id_, body, now_us // 1000, now_us))

    return call


def bare_mutation(session: Any) -> Call:
    """What takes the lock of a wide row as a claim does: one conditional batch, at serial consistency."""
    update, name, owner = session.prepare(_LOCK), f"bench-floor@{time.time_ns():x}", secrets.token_bytes(16)
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
