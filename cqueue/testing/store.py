"""A store in memory that goes by a test's clock, and tells how its messages stand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Final, NamedTuple

from cqueue import ids
from cqueue.dispatcher.inline import Place
from cqueue.message import MessageId
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import InsertMessages, MessageRow, Operation, SlotRow, SlotState
from cqueue.testing.clock import ManualClock

NEAR_US: Final = 1000
"""Ids of 10,000 messages that are sent at one moment reach so far into the future."""
_SIGNS: Final = 0x8080808080808080


class Standing(NamedTuple):
    """A message in a queue.

    next_us: when it is due, or comes again. attempt: which one that will be. held: a consumer has it.
    """

    place: Place
    row: MessageRow
    body: bytes
    next_us: int
    attempt: int
    held: bool

    @property
    def id(self) -> MessageId:
        """The message's id."""
        return MessageId.of(self.place.wide_row, self.row.priority, self.row.id)


class ManualStore(MemoryStore):
    """A store by such a clock. Each send moves the clock on by 1 µs, so that messages are due in their order.

    Clocks do not disagree here, so a visibility timeout passes to the millisecond.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock.now_us)
        self._deployment = self._deployment._replace(skew_ms=0)
        self._clock = clock

    def execute(self, operation: Operation[Any]) -> Any:
        """Run one operation; never fails."""
        result = super().execute(operation)
        if isinstance(operation, InsertMessages):
            now_us = self._clock.now_us()
            sent_us = [ids.time_us(row.id) for row in operation.rows]
            self._clock.move_to(max([now_us, *(us for us in sent_us if us - now_us <= NEAR_US)]) + 1)
        return result

    def standing(self, queue: str) -> list[Standing]:
        """All messages of a queue (its partition's name), in the order in which they are due."""
        with self._mutex:
            found = list(self._standing(queue))
        return sorted(found, key=lambda one: (one.next_us, one.row.priority, one.row.id))

    def _standing(self, queue: str) -> Iterator[Standing]:
        for wide_row, partition in self._partitions.items():
            if wide_row.queue != queue or not any(rows.live for rows in partition.messages.values()):
                continue
            place = Place(wide_row, frozenset(partition.messages))
            in_use = [slot for slot in partition.slots.values() if slot.state is not SlotState.FREE]
            slots = {(slot.priority, id_): slot for slot in in_use for id_ in slot.ids}
            for priority, rows in partition.messages.items():
                for id_, row in rows.live.items():
                    body = partition.bodies.live.get(id_, b"") if row.body is None else row.body
                    yield _one(place, row, body, slots.get((priority, id_)))


def _one(place: Place, row: MessageRow, body: bytes, slot: SlotRow | None) -> Standing:
    if slot is None:
        return Standing(place, row, body, ids.time_us(row.id), 1, held=False)
    held = slot.state is SlotState.CLAIMED
    return Standing(place, row, body, slot.due_ms * 1000, slot.attempt + 1, held=held)


def growing_bits() -> Iterator[int]:
    """Numbers of 64 bits for ids of one time, which order messages as they were sent."""
    return (number ^ _SIGNS for number in count())  # as ids are ordered: by signed bytes
