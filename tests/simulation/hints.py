"""What becomes of a sender's hint on its way: a datagram is lost, late or doubled, and anybody can write one.

A hint says where something was sent. It must never matter, but for how soon that is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from cqueue.protocol.flush import Flush
from cqueue.protocol.hint import Hint
from cqueue.store.operations import WideRow

FATES = {
    "soon": 12,
    "lost": 5,
    "late": 3,
    "twice": 3,
    "another wide row": 1,
    "no such wide row": 1,
    "another queue": 1,
    "other priorities": 1,
}
"""What becomes of a hint, with the weight of each fate."""
LATEST_S = 4.0


def hint_of(flush: Flush) -> Hint:
    """The hint of a flush that is stored."""
    return Hint(flush.wide_row, frozenset(row.priority for row in flush.rows))


def deliveries(hint: Hint, fate: str, rng: Random, width_ms: int) -> Iterator[tuple[float, Hint]]:
    """What arrives of a hint, each after how many seconds."""
    if fate == "lost":
        return
    yield (rng.random() * LATEST_S if fate == "late" else 0.0), _changed(hint, fate, rng, width_ms)
    if fate == "twice":
        yield rng.random() ** 3 * LATEST_S, hint


def _changed(hint: Hint, fate: str, rng: Random, width_ms: int) -> Hint:
    row, priorities = hint
    if fate == "another wide row":
        shifted = row.time_shard + rng.choice((-2, -1, 0, 1)) * width_ms
        return Hint(WideRow(row.queue, shifted, rng.randrange(3)), priorities)
    if fate == "no such wide row":
        time_shard = rng.choice((0, row.time_shard - 7, row.time_shard - 1000 * width_ms, 1 << 62))
        return Hint(WideRow(row.queue, time_shard, rng.choice((row.shard, 999, -1, -9))), priorities)
    if fate == "another queue":
        return Hint(row._replace(queue=rng.choice(("q@0", "q.dead@1", "z@1", ""))), priorities)
    if fate == "other priorities":
        return Hint(row, frozenset(rng.sample(range(10), rng.randint(0, 3))))
    return hint
