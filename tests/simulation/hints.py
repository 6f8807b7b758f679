"""What becomes of a sender's hint on its way: a datagram is lost, late or doubled, and anybody can write one.

A hint says where something was sent. It must never matter, but for how soon that is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from cqueue import ids
from cqueue.protocol.row_memory import MAX_NAMED, Hint
from cqueue.protocol.send import Flush
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
    "other messages": 2,
}
"""What becomes of a hint, with the weight of each fate."""
LATEST_S = 4.0


def hint_of(flush: Flush) -> Hint:
    """The hint of a flush that is stored."""
    priorities = frozenset(row.priority for row in flush.rows)
    is_named = len(flush.rows) <= MAX_NAMED and len(priorities) == 1
    named = tuple(sorted(row.id for row in flush.rows)) if is_named else ()
    return Hint(flush.wide_row, priorities, named)


def deliveries(hint: Hint, fate: str, rng: Random, width_ms: int) -> Iterator[tuple[float, Hint]]:
    """What arrives of a hint, each after how many seconds."""
    if fate == "lost":
        return
    yield (rng.random() * LATEST_S if fate == "late" else 0.0), _changed(hint, fate, rng, width_ms)
    if fate == "twice":
        yield rng.random() ** 3 * LATEST_S, hint


def _changed(hint: Hint, fate: str, rng: Random, width_ms: int) -> Hint:
    row = hint.wide_row
    if fate == "another wide row":
        shifted = row.time_shard + rng.choice((-2, -1, 0, 1)) * width_ms
        return hint._replace(wide_row=WideRow(row.queue, shifted, rng.randrange(3)))
    if fate == "no such wide row":
        time_shard = rng.choice((0, row.time_shard - 7, row.time_shard - 1000 * width_ms, 1 << 62))
        return hint._replace(wide_row=WideRow(row.queue, time_shard, rng.choice((row.shard, 999, -1, -9))))
    if fate == "another queue":
        return hint._replace(wide_row=row._replace(queue=rng.choice(("q@0", "q.dead@1", "z@1", ""))))
    if fate == "other priorities":
        return hint._replace(priorities=frozenset(rng.sample(range(10), rng.randint(0, 3))))
    if fate == "other messages":
        return hint._replace(named=tuple(sorted(_other(hint.named, rng))))
    return hint


def _other(named: Sequence[int], rng: Random) -> set[int]:
    """Some of the messages, and some that never were, or that their sender knows nothing of."""
    shift = rng.randint(-2_000_000, 2_000_000) << 64  # up to 0.2 s
    return {id_ if rng.random() < 0.5 else id_ + shift for id_ in named if not ids.is_packed(id_)}
