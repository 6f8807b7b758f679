"""Invariant 6, counted in claims: no wide row waits for long while a consumer serves others.

A consumer that makes claims without end has to come to every wide row in which there is work that it could
take. How long it may take to *learn* of that work is a matter of time: it probes wide rows twice a second.
From then on only claims count, however many there are in a second: one wide row may be claimed from a few
times in a row, and then each of the others has its turn. A claim from a wide row serves it, no matter which
consumer makes the claim.

What counts as work: an acknowledged message that is due, stands above the boundary, and is listed by no
slot; or a waiting slot that is due. Not what stands below the boundary, for which a sweep waits, nor what
expired with its holder, which is taken one at a time, nor what somebody else's lock keeps from all others.
Open wide rows have no boundary, and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cqueue import ids
from cqueue.store.operations import LockState, SlotState, WideRow

if TYPE_CHECKING:
    from tests.simulation.oracle import Key
    from tests.simulation.replica import Part

IN_A_ROW = 4
"""Claims of one wide row, at most, while others wait: what the work list allows the one that is held."""
PROBED_US = 1_250_000
"""Time after which a consumer has learned what others sent: it probes twice a second, but leaves out once a
wide row that it has just claimed from, and begins a search only between two claims."""
RESTED_US = 3_000_000
"""The same of what others gave back in a wide row that is over, which may be let alone for two seconds."""

Item = tuple[int, int, int]
"""A message (priority, id, -1), or a slot (priority, number, revision)."""


@dataclass(slots=True)
class Waiting:
    """Work in one wide row: claims of others are counted from a time on, up to the number that is enough."""

    item: Item
    from_us: int
    enough: int
    claims: int = 0


class Fairness:
    """What one consumer leaves waiting, in a run in which nothing fails at present."""

    def __init__(self) -> None:
        self.waiting: dict[WideRow, Waiting] = {}
        self.enough = 0

    def count_rows(self, others: int) -> None:
        """Note how many wide rows may come before one that begins to wait now; one more is being served."""
        self.enough = IN_A_ROW * (others + 1)

    def served(self, wide_row: WideRow) -> None:
        """Somebody has claimed from a wide row."""
        self.waiting.pop(wide_row, None)

    def left(self, wide_row: WideRow, works: list[Item], now_us: int) -> None:
        """The consumer's own claim has left something: it need not learn of that."""
        if works:
            self.waiting[wide_row] = Waiting(works[0], now_us, self.enough)

    def found(self, wide_row: WideRow, works: list[Item], now_us: int) -> None:
        """There is work in a wide row; it may be the same as before."""
        known = self.waiting.get(wide_row)
        if known is not None and known.item in works:
            return
        self.served(wide_row)
        if works:
            learns_us = PROBED_US if works[0][2] < 0 else RESTED_US
            self.waiting[wide_row] = Waiting(works[0], now_us + learns_us, self.enough)

    def passed_over(self, served: WideRow, now_us: int) -> WideRow | None:
        """Count one claim, of the others; one that has waited for too long, if there is one."""
        for wide_row, waiting in self.waiting.items():
            if wide_row != served and now_us >= waiting.from_us:
                if not waiting.claims:  # other wide rows may have been found since, and stand before it
                    waiting.enough = max(waiting.enough, self.enough)
                waiting.claims += 1
                if waiting.claims > waiting.enough:
                    return wide_row
        return None


def is_kept(part: Part) -> bool:
    """Whether this is a wide row that consumers may have in their work lists."""
    return part.state.lock is None or part.state.lock.state is not LockState.RETIRED


def works_of(
    wide_row: WideRow, part: Part, promised: dict[Key, bytes], deleted: set[Key], before_us: int
) -> list[Item]:
    """Work in a wide row that was due before a time, and that anybody could take."""
    state, highest = part.state, ids.lowest_at(before_us)
    lock = state.lock
    if wide_row.shard < 0 or (lock is not None and lock.state is not LockState.FREE):
        return []
    listed = {
        (slot.priority, id_)
        for slot in state.slots.values()
        if slot.state is not SlotState.FREE
        for id_ in slot.ids
    }
    boundaries = {priority: at.boundary for priority, at in state.cursors.items()}
    fresh = [
        (priority, id_, -1)
        for key in promised
        if key not in deleted
        for _, priority, id_ in [key]
        if boundaries.get(priority, 0) < id_ < highest and (priority, id_) not in listed
    ]
    ripe = [
        (slot.priority, slot.number, slot.rev)
        for slot in state.slots.values()
        if slot.state is SlotState.WAITING and slot.due_ms * 1000 < before_us
    ]
    return fresh + ripe
