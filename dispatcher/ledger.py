"""The schedules of one queue as they are stored: conditional changes of rows, and the next firing's message.

A conditional change whose outcome is unknown is settled by reading the row at serial consistency: that read
ends whatever was under way, so what it does not show will not happen any more.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from cqueue import ids
from cqueue.catalog import Catalog
from cqueue.dispatcher.definition import Definition
from cqueue.dispatcher.ticket import Ticket, next_ticket
from cqueue.dispatcher.triggers import jitter_ms
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import OutcomeUnknown
from cqueue.message import Message, MessageId, outgoing, to_datetime
from cqueue.producer import Producer
from cqueue.protocol.shards import open_row
from cqueue.protocol.spec import QueueSpec
from cqueue.store.control import (
    ChangeSchedule,
    CreateSchedule,
    ListSchedules,
    ReadSchedule,
    RemoveSchedule,
    ScheduleRow,
)
from cqueue.store.operations import ReadMessages

TRIES: Final = 20
"""Conditional changes of one row by one caller, before it gives up for the others."""


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

    def read(self, key: str) -> ScheduleRow | None:
        """One schedule, at serial consistency."""
        row: ScheduleRow | None = self._driver.ask(ReadSchedule(self.spec.partition, key))
        return row

    def create(self, row: ScheduleRow) -> bool:
        """Store a new row; False if there is one of that key."""
        try:
            created: bool = self._driver.ask(CreateSchedule(row))
        except OutcomeUnknown:
            stored = self.read(row.key)
            return stored is not None and stored.generation == row.generation
        return created

    def change(self, row: ScheduleRow) -> ScheduleRow | None:
        """Store a row in place of the one of its version; as stored now, or None if that had changed."""
        wanted = row._replace(version=row.version + 1)
        try:
            applied: bool = self._driver.ask(ChangeSchedule(row, row.version))
        except OutcomeUnknown:
            applied = self.read(row.key) == wanted
        return wanted if applied else None

    def remove(self, row: ScheduleRow) -> bool:
        """Delete the row; False if it has changed meanwhile."""
        try:
            removed: bool = self._driver.ask(RemoveSchedule(row.queue, row.key, row.version))
        except OutcomeUnknown:
            stored = self.read(row.key)
            return stored is None or stored.generation != row.generation
        return removed

    # ── firings ──

    def send_next(self, row: ScheduleRow) -> None:
        """Send the firing that the row waits for. Sent again, it is the same message, acked or not.

        Raises:
            NotDone, SendUnknown: it is not stored, or may not be.
        """
        ticket = next_ticket(row)
        if ticket is not None:
            definition = Definition.from_json(row.definition)
            self._producer.send(_message(definition, ticket, self._due_us(row, definition)[0]))

    def send_now(self, row: ScheduleRow) -> MessageId:
        """Send a firing beside the schedule's own."""
        definition = Definition.from_json(row.definition)
        ticket = Ticket(row.key, 0, row.fired, self.now_us() // 1000, row.previous)
        return self._producer.send(_message(definition, ticket, None))

    def check(self, row: ScheduleRow) -> None:
        """See whether the row's firing could be sent.

        Raises:
            BadInput: what is wrong with its body, headers, or the like.
        """
        ticket, definition = next_ticket(row), Definition.from_json(row.definition)
        if ticket is not None:
            outgoing(_message(definition, ticket, self._due_us(row, definition)[0]), self.now_us())

    def is_live(self, row: ScheduleRow) -> bool:
        """Whether the message of the firing that the row waits for stands where it was, or would be, sent."""
        ticket, definition = next_ticket(row), Definition.from_json(row.definition)
        if ticket is None:
            return False
        for due_us in self._due_us(row, definition):
            message = outgoing(_message(definition, ticket, due_us), self.now_us())
            source, at_us = message.source or b"", message.due_us or 0
            place = open_row(self.spec, at_us, source)
            if self._driver.ask(ReadMessages(place, message.priority, (ids.derived(at_us, source),))):
                return True
        return False

    def due_ms(self, row: ScheduleRow) -> int:
        """When the row's next firing is due: its time, and its jitter."""
        return self._due_us(row, Definition.from_json(row.definition))[-1] // 1000

    def _due_us(self, row: ScheduleRow, definition: Definition) -> list[int]:
        """Due times that the firing's id may be derived from: first the one to send now, last its own.

        A time that is long past cannot be one: the id might be forgotten already. Then it is the beginning of
        a stretch of the present, so that repeats agree mostly; where they do not, a firing comes twice.
        """
        jitter = jitter_ms(definition.trigger, f"{row.key}|{row.generation}|{row.next_at}")
        own_us, now_us = (row.next_at + jitter) * 1000, self.now_us()
        stretch_us = self.spec.gc_grace_us // 4
        if now_us - own_us <= 2 * stretch_us:
            return [own_us]
        start_us = now_us // stretch_us * stretch_us
        return [start_us, start_us - stretch_us, start_us - 2 * stretch_us, own_us]


def _message(definition: Definition, ticket: Ticket, due_us: int | None) -> Message:
    """The message of a firing; without a due time one to be sent now, under an id of its own."""
    source = None if due_us is None else f"{ticket.generation}|{ticket.time_ms}|cqueue-schedule|{ticket.key}"
    return Message(
        definition.body,
        due=None if due_us is None else to_datetime(0) + timedelta(microseconds=due_us),
        priority=definition.priority,
        headers=definition.headers,
        task=definition.task,
        key=definition.message_key,
        codec=definition.codec,
        trigger=ticket.to_json(),
        source=source,
    )
