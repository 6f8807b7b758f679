"""The schedules of one queue as they are stored: conditional changes of rows, and the next firing's message.

A conditional change whose outcome is unknown is settled by reading the row at serial consistency: that read
ends whatever was under way, so what it does not show will not happen any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cqueue import ids
from cqueue.catalog import Catalog
from cqueue.dispatcher.definition import Definition, Ticket, next_ticket
from cqueue.dispatcher.triggers import jitter_ms
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import OutcomeUnknown
from cqueue.message import Message, MessageId, outgoing, to_datetime
from cqueue.producer import Producer
from cqueue.protocol.shards import open_row
from cqueue.protocol.spec import QueueSpec
from cqueue.store import decode
from cqueue.store.control import (
    ChangeSchedule,
    CreateSchedule,
    ListSchedules,
    ReadSchedule,
    RemoveSchedule,
    ScheduleRow,
)
from cqueue.store.operations import Operation, ReadMessages
from cqueue.store.quarantine import Damage

TRIES: Final = 20
"""Conditional changes of one row by one caller, before it gives up for the others."""
LATE_MS: Final = 500
"""A firing sent so long after it was due is due now: well below W, for which consumers look back."""


class Ledger:
    """The stored schedules of one queue. Cheap to make; thread-safe."""

    def __init__(self, queue: str, catalog: Catalog, driver: BlockingDriver, producer: Producer) -> None:
        self.queue = queue
        self._catalog = catalog
        self._driver = driver
        self._producer = producer

    @property
    def spec(self) -> QueueSpec:
        """The queue as it is now.

        Raises:
            QueueNotFound: it has been deleted.
        """
        return self._catalog.entry(self.queue).spec

    def now_us(self) -> int:
        """The cluster's time, in µs since 1970."""
        return self._driver.clock.now_us()

    def enable(self) -> None:
        """Let the queue take messages under derived ids, if it does not yet."""
        if not self._catalog.entry(self.queue).config.derived_sends:
            self._catalog.alter(self.queue, {"derived_sends": True})

    # ── rows ──

    def rows(self) -> list[ScheduleRow]:
        """All schedules, by key."""
        rows: list[ScheduleRow] = self._driver.ask(ListSchedules(self.spec.partition))
        return rows

    def read(self, key: str, *, as_stored: bool = False) -> ScheduleRow | None:
        """One schedule, at serial consistency. as_stored: also a damaged one, as it is.

        Raises:
            DamagedRow: its row cannot be read.
        """
        row: ScheduleRow | None = self._driver.ask(ReadSchedule(self.spec.partition, key, as_stored))
        return row

    def definition(self, row: ScheduleRow) -> Definition:
        """What a row's schedule is to do.

        Raises:
            DamagedRow: it cannot be read.
        """
        place = Damage("schedules", row.queue, (row.queue, row.key), "definition")
        return decode.parsed(place, lambda: Definition.from_json(row.definition), self._driver.report)

    def create(self, row: ScheduleRow) -> bool:
        """Store a new row; False if there is one of that key."""
        return self._apply(CreateSchedule(row), row.key, lambda stored: _is_of(stored, row.generation))

    def change(self, row: ScheduleRow) -> ScheduleRow | None:
        """Store a row in place of the one of its version; as stored now, or None if that had changed."""
        wanted = row._replace(version=decode.next_version(row.version))
        applied = self._apply(ChangeSchedule(row, row.version), row.key, lambda stored: stored == wanted)
        return wanted if applied else None

    def remove(self, row: ScheduleRow) -> bool:
        """Delete the row; False if it has changed meanwhile."""
        remove = RemoveSchedule(row.queue, row.key, row.version)
        return self._apply(remove, row.key, lambda stored: not _is_of(stored, row.generation))

    def _apply(self, change: Operation[bool], key: str, shows: Callable[[ScheduleRow | None], bool]) -> bool:
        """Change a row on its condition; whether it was. shows: whether a row as stored shows that it was."""
        try:
            applied: bool = self._driver.ask(change)
        except OutcomeUnknown:
            return shows(self.read(key, as_stored=True))
        return applied

    def dated(self, row: ScheduleRow) -> ScheduleRow:
        """A row that is about to wait for another firing, with the time when that is due.

        Consumers look for late arrivals of the last seconds at each poll, and for older ones only now and
        then. So a firing whose time has passed is due now; the row says so, that each who sends it agrees.
        """
        definition, now_ms = Definition.from_json(row.definition), self.now_us() // 1000
        is_late = bool(row.next_at) and now_ms - _own_due_ms(row, definition) > LATE_MS
        return row._replace(definition=replace(definition, due_ms=now_ms if is_late else 0).to_json())

    # ── firings ──

    def send_next(self, row: ScheduleRow) -> None:
        """Send the firing that the row waits for. Sent again, it is the same message, acked or not.

        Raises:
            NotDone, SendUnknown: it is not stored, or may not be.
        """
        ticket = next_ticket(row)
        if ticket is not None and self._is_forgotten(row):
            self.go_on(row)  # whoever else changes it sends it
            return
        if ticket is not None:
            self._producer.send(_message(row, ticket, due_ms(row)))

    def go_on(self, row: ScheduleRow) -> ScheduleRow | None:
        """Store a row that waits for another firing, and send that one; None if the row had changed."""
        moved = self.change(self.dated(row))
        if moved is not None:
            self.send_next(moved)
        return moved

    def _is_forgotten(self, row: ScheduleRow) -> bool:
        """Whether the firing is so long past that an id derived from its due time may be forgotten."""
        return self.now_us() - due_ms(row) * 1000 > self.spec.gc_grace_us // 2

    def send_now(self, row: ScheduleRow) -> MessageId:
        """Send a firing beside the schedule's own."""
        ticket = Ticket(row.key, 0, row.fired, self.now_us() // 1000, row.previous)
        return self._producer.send(_message(row, ticket, None))

    def check(self, row: ScheduleRow) -> None:
        """See whether the row's firing could be sent.

        Raises:
            BadInput: what is wrong with its body, headers, or the like.
        """
        ticket = next_ticket(row)
        if ticket is not None:
            outgoing(_message(row, ticket, due_ms(row)), self.now_us())

    def is_live(self, row: ScheduleRow) -> bool:
        """Whether the message of the firing that the row waits for stands where it was, or would be, sent."""
        ticket = next_ticket(row)
        if ticket is None:
            return False
        message = outgoing(_message(row, ticket, due_ms(row)), self.now_us())
        source, due_us = message.source or b"", message.due_us or 0
        place = open_row(self.spec, due_us, source)
        return bool(self._driver.ask(ReadMessages(place, message.priority, (ids.derived(due_us, source),))))


def _is_of(row: ScheduleRow | None, generation: int) -> bool:
    return row is not None and row.generation == generation


def due_ms(row: ScheduleRow) -> int:
    """When the firing that the row waits for is due."""
    definition = Definition.from_json(row.definition)
    return definition.due_ms or _own_due_ms(row, definition)


def _own_due_ms(row: ScheduleRow, definition: Definition) -> int:
    return row.next_at + jitter_of(row, definition)


def jitter_of(row: ScheduleRow, definition: Definition) -> int:
    """How much later than its time the row's firing is due, in ms."""
    return jitter_ms(definition.trigger, f"{row.key}|{row.generation}|{row.next_at}")


def _message(row: ScheduleRow, ticket: Ticket, due: int | None) -> Message:
    """The message of a firing; without a due time (ms) one to be sent now, under an id of its own."""
    definition = Definition.from_json(row.definition)
    source = f"{ticket.generation}|{ticket.time_ms}|cqueue-schedule|{ticket.key}"
    return Message(
        definition.body,
        due=None if due is None else to_datetime(due),
        priority=definition.priority,
        headers=definition.headers,
        task=definition.task,
        key=definition.message_key,
        codec=definition.codec,
        trigger=ticket.to_json(),
        source=None if due is None else source,
    )
