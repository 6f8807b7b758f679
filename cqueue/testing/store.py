"""A store in memory that follows a test's clock, and lists the messages in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any, Final, NamedTuple

from cqueue import ids
from cqueue.message import MessageId
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import InsertMessages, MessageRow, Operation, SlotRow, SlotState, WideRow
from cqueue.testing.clock import ManualClock

NEAR_US: Final = 1000
"""µs by which the ids of 10,000 messages sent at one moment reach into the future."""
_SIGNS: Final = 0x8080808080808080
"""Turns a number into bytes whose signed order is the number's order, as ids are ordered."""


class Place(NamedTuple):
    """A wide row with messages, and their priorities."""

    wide_row: WideRow
    priorities: frozenset[int]


class QueuedMessage(NamedTuple):
    """A message in a queue.

    Attributes:
        place: wide row of the message.
        row: the stored row.
        body: the body.
        next_us: when the message is due, or due again, in µs since 1970.
        attempt: number of that attempt.
        held: a consumer holds the message.
    """

    place: Place
    row: MessageRow
    body: bytes
    next_us: int
    attempt: int
    held: bool

    @property
    def id(self) -> MessageId:
        """Id of the message."""
        return MessageId.of(self.place.wide_row, self.row.priority, self.row.id)


class ManualStore(MemoryStore):
    """A store in memory that follows the test's clock.

    Each send moves the clock by 1 µs, so that messages are due in the order of their sends. There is only one
    clock, so visibility timeouts are exact to the millisecond.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock.now_us)
        self._deployment = self._deployment._replace(skew_ms=0)
        self._clock = clock

    def execute(self, operation: Operation[Any]) -> Any:
        """Perform one operation; never fails."""
        result = super().execute(operation)
        if isinstance(operation, InsertMessages):
            now_us = self._clock.now_us()
            sent_us = [ids.time_us(row.id) for row in operation.rows]
            self._clock.move_to(max([now_us, *(us for us in sent_us if us - now_us <= NEAR_US)]) + 1)
        return result

    def queued(self, queue: str) -> list[QueuedMessage]:
        """Return all messages of a queue (named by its partition), in the order in which they are due."""
        with self._mutex:
            found = list(self._queued(queue))
        return sorted(found, key=lambda one: (one.next_us, one.row.priority, one.row.id))

    def _queued(self, queue: str) -> Iterator[QueuedMessage]:
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


def _one(place: Place, row: MessageRow, body: bytes, slot: SlotRow | None) -> QueuedMessage:
    if slot is None:
        return QueuedMessage(place, row, body, ids.time_us(row.id), 1, held=False)
    held = slot.state is SlotState.CLAIMED
    return QueuedMessage(place, row, body, slot.due_ms * 1000, slot.attempt + 1, held=held)


def growing_bits() -> Callable[[int], int]:
    """Return a source of bits for ids of one time, which keep messages in the order of their sends."""
    numbers = count()

    def bits(wanted: int) -> int:
        value = 0
        for number in islice(numbers, -(-wanted // 64)):
            value = value << 64 | (number ^ _SIGNS)  # ids are ordered by signed bytes
        return value & ((1 << wanted) - 1)

    return bits
