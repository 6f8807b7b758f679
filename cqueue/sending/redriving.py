"""Redrive dead letters to their queue: read, send, and only then delete.

A letter is sent under an id derived from its own id. So a repeated redrive, also by another tool, sends the
same message and makes no copy. A letter is deleted only when its message is known to be stored, so the
message is always in one of the two queues.

The message carries how often it was redriven, so that a limit holds across runs, processes and tools.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from cqueue import ids
from cqueue.errors import (
    BadInput,
    CqueueError,
    HeadersTooLarge,
    NotDone,
    OutcomeUnknown,
    RedriveLimit,
    caused,
)
from cqueue.message import Message, MessageId, check_headers, check_limit, datetime_at
from cqueue.producer import Producer
from cqueue.protocol import bodies, inspection
from cqueue.protocol.bodies import HEADER_LOST
from cqueue.protocol.dead import (
    HEADER_ABANDONED,
    HEADER_ATTEMPTS,
    HEADER_FENCE,
    HEADER_HOLDER,
    HEADER_ID,
    HEADER_QUEUE,
    HEADER_REASON,
    HEADER_REDRIVES,
    HEADER_TRACEBACK,
)
from cqueue.protocol.inspection import Found
from cqueue.protocol.spec import QueueSpec
from cqueue.runtime import waiting
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.firing_id import FiringId
from cqueue.runtime.listing import still_at
from cqueue.runtime.sequences import grouped, parts
from cqueue.store.operations import MessageRow, SlotState

AT_ONCE = 250
"""Letters held in memory at a time: 250 MiB at most, as a body has up to 1 MiB."""
PACE_S: Final = 0.1
"""Seconds' worth of letters that a redrive with a rate sends at once: a consumer sees no bursts."""
MIN_RATE, MAX_RATE = 0.001, 100_000.0
"""Range of a redrive's rate in messages a second: one in 17 minutes, and more than a cluster takes."""
MAX_REDRIVES: Final = 1_000_000
"""Upper bound of a limit of redrives."""
DEAD_HEADERS = frozenset(
    {
        HEADER_ABANDONED,
        HEADER_ATTEMPTS,
        HEADER_FENCE,
        HEADER_HOLDER,
        HEADER_ID,
        HEADER_LOST,
        HEADER_QUEUE,
        HEADER_REASON,
        HEADER_REDRIVES,
        HEADER_TRACEBACK,
    }
)
"""Headers that the burial or a redrive added: they are not the message's own."""
T = TypeVar("T")


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
        return id_of(self.found)

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


def id_of(found: Found) -> MessageId:
    """Return a letter's own id."""
    return MessageId.of(found.wide_row, found.row.priority, found.row.id)


def look(driver: BlockingDriver, wanted: Iterable[str]) -> list[Found]:
    """Return those of these letters that still exist, without separately stored bodies."""
    return still_at(driver, [MessageId(text).locate() for text in wanted])


def with_bodies(driver: BlockingDriver, found: Sequence[Found]) -> list[Letter]:
    """Read the separately stored bodies of letters."""
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


def count_in(headers: Mapping[str, str] | None, name: str, digits: int = 9) -> int | None:
    """Return the number in a header; None if there is none, or something else, or one that is too long."""
    text = (headers or {}).get(name, "")
    return int(text) if text.isdecimal() and len(text) <= digits else None


def check_limits(rate: float | None, max_redrives: int | None) -> None:
    """Check the limits of a redrive.

    Raises:
        BadInput: one is out of its range.
    """
    if rate is not None and (
        not isinstance(rate, int | float) or isinstance(rate, bool) or not MIN_RATE <= rate <= MAX_RATE
    ):
        raise BadInput(f"rate is {rate!r}; it goes from {MIN_RATE} to {MAX_RATE:,.0f} messages a second")
    if max_redrives is not None:
        check_limit(max_redrives, MAX_REDRIVES, "max_redrives")


def chunks(wanted: Sequence[T], rate: float | None) -> Iterator[Sequence[T]]:
    """Yield these letters in chunks; with a rate, wait before each so that no more than it pass a second.

    After a delay nothing is caught up: a redrive that Cassandra holds up must not end in a burst.
    """
    size = AT_ONCE if rate is None else max(1, min(AT_ONCE, math.floor(rate * PACE_S)))
    at_s = time.monotonic()
    for chunk in parts(wanted, size):
        waiting.sleep(max(0.0, at_s - time.monotonic()), cancellable=True)
        if rate is not None:
            at_s = time.monotonic() + len(chunk) / rate
        yield chunk


def as_message(letter: Letter, due_us: int) -> Message:
    """Rebuild the message that the letter was, without the burial's headers, and with one redrive more.

    A message whose own headers leave no room for the count goes without it. So a firing says in its `trigger`
    that it was sent back: its schedule may wait for another.
    """
    row = letter.row
    firing_id = FiringId.parse(row.trigger)
    return Message(
        letter.body or b"",
        due=datetime_at(due_us),
        priority=row.priority,
        headers=_counted(row) or own_headers(row),
        task=row.task,
        key=row.key,
        codec=row.codec,
        trigger=row.trigger if firing_id is None else replace(firing_id, is_redriven=True).to_json(),
        source=f"redrive {letter.id}",
    )


def own_headers(row: MessageRow) -> dict[str, str]:
    """Return the headers that the message was sent with."""
    return {name: text for name, text in (row.headers or {}).items() if name not in DEAD_HEADERS}


def _counted(row: MessageRow) -> dict[str, str] | None:
    """Return the headers of the redriven message, with its count; None if that goes over their limits."""
    headers = {**own_headers(row), HEADER_REDRIVES: str((count_in(row.headers, HEADER_REDRIVES) or 0) + 1)}
    try:
        check_headers(headers)
    except HeadersTooLarge:
        return None
    return headers


def _over(row: MessageRow, max_redrives: int | None) -> RedriveLimit | None:
    """Return the error of a letter that may not be redriven once more."""
    if max_redrives is None:
        return None
    if (times := count_in(row.headers, HEADER_REDRIVES) or 0) >= max_redrives:
        return RedriveLimit(
            f"it was redriven {times:,} times, and max_redrives is {max_redrives:,}; it stays"
        )
    if _counted(row) is None:
        return RedriveLimit("its headers leave no room to count redrives; it stays unless there is no limit")
    return None


def sendable(
    driver: BlockingDriver, found: Sequence[Found], max_redrives: int | None
) -> tuple[list[Letter], list[LetterOutcome]]:
    """Return those of these letters that may be redriven, and the outcomes of the others, which stay."""
    errors = [_over(one.row, max_redrives) for one in found]
    both = list(zip(found, errors, strict=True))
    letters = with_bodies(driver, [one for one, error in both if error is None])
    stay = [LetterOutcome(id_of(one), None, error) for one, error in both if error is not None]
    stay += [LetterOutcome(one.id, None, NotDone(one.defect)) for one in letters if one.defect]
    return [letter for letter in letters if not letter.defect], stay


def send_back(
    driver: BlockingDriver,
    producer: Producer,
    found: Sequence[Found],
    *,
    dead: QueueSpec,
    now_us: int,
    period_us: int,
    max_redrives: int | None = None,
) -> list[LetterOutcome]:
    """Send letters back, and delete those whose messages are stored. Return an outcome for each.

    A letter without its body stays, and so does one that was redriven `max_redrives` times (`RedriveLimit`).
    The error of either, like any other `NotDone`, says that the letter is unchanged.
    `OutcomeUnknown` says that the message may be in both queues; another redrive of the letter mends that.
    """
    whole, done = sendable(driver, found, max_redrives)
    sent = _sent(producer, whole, now_us, period_us)
    stored = {one.letter_id for one in sent if one.error is None}
    left = delete(driver, dead, [letter.found for letter in whole if letter.id in stored])
    undeleted = {
        id_: caused(OutcomeUnknown(f"it is sent, but not yet deleted: {error}"), error)
        for id_, error in left.items()
    }
    return done + [one._replace(error=undeleted.get(one.letter_id, one.error)) for one in sent]


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


def delete(driver: BlockingDriver, dead: QueueSpec, found: Iterable[Found]) -> dict[MessageId, CqueueError]:
    """Delete letters of a dead-letter queue. Return the error of each letter that may still exist."""
    places = grouped(((one.wide_row, one.row.priority), one.row) for one in found)
    failed: dict[MessageId, CqueueError] = {}
    for (wide_row, priority), rows in places.items():
        try:
            driver.run(inspection.discard(dead, wide_row, priority, rows))
        except CqueueError as exc:
            failed |= {MessageId.of(wide_row, priority, row.id): exc for row in rows}
    return failed
