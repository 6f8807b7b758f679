"""Redrive dead letters to their queue: read, send, and only then delete.

A letter is sent under an id derived from its own id. So a repeated redrive, also by another tool, sends the
same message and makes no copy. A letter is deleted only when its message is known to be stored, so the
message is always in one of the two queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple

from cqueue import ids
from cqueue.errors import CqueueError, NotDone, OutcomeUnknown
from cqueue.message import Message, MessageId, to_datetime
from cqueue.producer import Producer
from cqueue.protocol import bodies, inspection
from cqueue.protocol.bodies import HEADER_LOST
from cqueue.protocol.dead import (
    HEADER_ATTEMPTS,
    HEADER_ID,
    HEADER_QUEUE,
    HEADER_REASON,
    HEADER_TRACEBACK,
)
from cqueue.protocol.inspection import Found
from cqueue.protocol.spec import QueueSpec
from cqueue.runtime.driver import BlockingDriver
from cqueue.store.operations import MessageRow, SlotState, WideRow

AT_ONCE = 250
"""Letters held in memory at a time: 250 MiB at most, as a body has up to 1 MiB."""
DEAD_HEADERS = frozenset(
    {HEADER_ATTEMPTS, HEADER_ID, HEADER_LOST, HEADER_QUEUE, HEADER_REASON, HEADER_TRACEBACK}
)
"""Headers that the burial added, and that a redrive takes off again."""


class Letter(NamedTuple):
    """A dead letter as it is stored. body: None if the body cannot be read."""

    found: Found
    body: bytes | None

    @property
    def row(self) -> MessageRow:
        """The letter's row, as it is stored."""
        return self.found.row

    @property
    def id(self) -> MessageId:
        """The dead letter's own id, not that of its message."""
        return MessageId.of(self.found.wide_row, self.row.priority, self.row.id)

    @property
    def defect(self) -> str | None:
        """Why the letter has no body, so that it cannot be redriven; None if it has one."""
        if self.body is None:
            return "its body cannot be read"
        return "its body is lost" if HEADER_LOST in (self.row.headers or {}) else None


class LetterOutcome(NamedTuple):
    """The outcome for one letter. message_id: its redriven message; error: the failure; both None after a
    drop.
    """

    letter_id: MessageId
    message_id: MessageId | None
    error: CqueueError | None


def look(driver: BlockingDriver, wanted: Iterable[str]) -> list[Found]:
    """Return those of these letters that still exist, without separately stored bodies."""
    places: dict[tuple[WideRow, int], list[int]] = {}
    for text in wanted:
        wide_row, priority, id_ = MessageId(text).locate()
        places.setdefault((wide_row, priority), []).append(id_)
    return [
        found
        for (wide_row, priority), some in places.items()
        for found in driver.run(inspection.look(wide_row, priority, tuple(sorted(some))))
    ]


def with_bodies(driver: BlockingDriver, found: Iterable[Found]) -> list[Letter]:
    """Read the separately stored bodies of letters."""
    found = list(found)
    read = {
        (read.wide_row, id_): body
        for read in bodies.reads((one.wide_row, one.row) for one in found)
        for id_, body in driver.ask(read).items()
    }
    return [
        Letter(one, one.row.body if one.row.size is None else read.get((one.wide_row, one.row.id)))
        for one in found
    ]


def is_held(found: Found, now_us: int, skew_us: int) -> bool:
    """Return whether a consumer of the dead-letter queue holds the letter, according to its slot."""
    slot = found.slot
    return slot is not None and slot.state is SlotState.CLAIMED and slot.due_ms * 1000 + skew_us > now_us


def due_us(died_us: int, now_us: int, period_us: int) -> int:
    """Return the due time of a redriven message in µs since 1970.

    The due time is the time of death plus as many whole periods as have passed since. All redrives within one
    period get the same due time, and so derive the same id.

    period_us: half of gc_grace in µs: the tombstone of an id older than gc_grace may be forgotten.
    """
    return died_us + max(0, now_us - died_us) // period_us * period_us


def as_message(letter: Letter, due_us: int) -> Message:
    """Rebuild the message that the letter was, without the headers that the burial added."""
    row = letter.row
    return Message(
        letter.body or b"",
        due=to_datetime(0) + timedelta(microseconds=due_us),
        priority=row.priority,
        headers=own_headers(row) or None,
        task=row.task,
        key=row.key,
        codec=row.codec,
        trigger=row.trigger,
        source=f"redrive {letter.id}",
    )


def own_headers(row: MessageRow) -> dict[str, str]:
    """Return the headers that the message was sent with."""
    return {name: text for name, text in (row.headers or {}).items() if name not in DEAD_HEADERS}


def send_back(
    driver: BlockingDriver,
    producer: Producer,
    found: Sequence[Found],
    *,
    dead: QueueSpec,
    now_us: int,
    period_us: int,
) -> list[LetterOutcome]:
    """Send letters back, and delete those whose messages are stored. Return an outcome for each.

    A letter without its body stays. Its error, like any other `NotDone`, says that the letter is unchanged.
    `OutcomeUnknown` says that the message may be in both queues; another redrive of the letter mends that.
    """
    letters = with_bodies(driver, found)
    whole = [letter for letter in letters if not letter.defect]
    done = [LetterOutcome(one.id, None, NotDone(one.defect)) for one in letters if one.defect]
    sent = _sent(producer, whole, now_us, period_us) if whole else []
    stored = {one.letter_id for one in sent if one.error is None}
    left = delete(driver, dead, [letter.found for letter in whole if letter.id in stored])
    return done + [
        one._replace(error=_undeleted(left[one.letter_id])) if one.letter_id in left else one for one in sent
    ]


def _sent(producer: Producer, letters: Sequence[Letter], now_us: int, period_us: int) -> list[LetterOutcome]:
    """Send the messages of letters. An outcome without an error says that the message is stored."""
    messages = [
        as_message(letter, due_us(ids.time_us(letter.row.id), now_us, period_us)) for letter in letters
    ]
    try:
        result = producer.send_many(messages)
    except CqueueError as exc:
        return [LetterOutcome(letter.id, None, exc) for letter in letters]
    failed = dict(result.failed)
    return [
        LetterOutcome(letter.id, result.ids[place], failed.get(place)) for place, letter in enumerate(letters)
    ]


def _undeleted(error: CqueueError) -> OutcomeUnknown:
    told = OutcomeUnknown(f"it is sent, but not yet deleted: {error}")
    told.__cause__ = error
    return told


def delete(driver: BlockingDriver, dead: QueueSpec, found: Iterable[Found]) -> dict[MessageId, CqueueError]:
    """Delete letters of a dead-letter queue. Return the error of each letter that may still exist."""
    places: dict[tuple[WideRow, int], list[MessageRow]] = {}
    for one in found:
        places.setdefault((one.wide_row, one.row.priority), []).append(one.row)
    failed: dict[MessageId, CqueueError] = {}
    for (wide_row, priority), rows in places.items():
        try:
            driver.run(inspection.discard(dead, wide_row, priority, rows))
        except CqueueError as exc:
            failed |= {MessageId.of(wide_row, priority, row.id): exc for row in rows}
    return failed
