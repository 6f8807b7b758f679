"""The schedules of one queue as they are stored: conditional changes of rows, and the next firing's message.

If the outcome of a conditional change is unknown, a read of the row at serial consistency decides it: that
read finishes every change under way, so a change that it does not show will not happen any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cqueue import ids
from cqueue.dispatcher.schedules.definition import ACTIVE, FiringId, ScheduleDefinition, next_firing
from cqueue.dispatcher.schedules.triggers import jitter_ms
from cqueue.errors import BadInput, OutcomeUnknown, looking_again
from cqueue.message import Message, MessageId, outgoing, to_datetime
from cqueue.producer import Producer
from cqueue.protocol.registry import open_row
from cqueue.protocol.spec import QueueSpec
from cqueue.runtime.catalog import Catalog
from cqueue.runtime.driver import BlockingDriver
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
"""Conditional changes of one row by one caller before it gives up: enough for any realistic contention."""
LATE_MS: Final = 500
"""Ms of lateness beyond which a firing is due now: well below W, the span for which consumers look back."""


class ScheduleStore:
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
            QueueNotFound: the queue has been deleted.
        """
        return self._catalog.entry(self.queue).spec

    def now_us(self) -> int:
        """Return the cluster's time, in µs since 1970."""
        return self._driver.clock.now_us()

    def enable(self) -> None:
        """Let the queue take messages under derived ids, if it does not yet."""
        if not self._catalog.entry(self.queue).config.derived_sends:
            self._catalog.alter(self.queue, {"derived_sends": True})

    # ── rows ──

    def rows(self) -> list[ScheduleRow]:
        """Return all schedules, by key."""
        return self._driver.ask(ListSchedules(self.spec.partition))

    def read(self, key: str, *, as_stored: bool = False) -> ScheduleRow | None:
        """Read one schedule, at serial consistency.

        Args:
            key: key of the schedule.
            as_stored: return a damaged row as well, as it is.

        Raises:
            DamagedRow: the row cannot be read.
            BadInput: the key is no text.
        """
        if not isinstance(key, str):
            raise BadInput(f"the key of a schedule is {key!r}; it takes text")
        return self._driver.ask(ReadSchedule(self.spec.partition, key, as_stored))

    def definition(self, row: ScheduleRow) -> ScheduleDefinition:
        """Return the definition in a row.

        Raises:
            DamagedRow: the definition cannot be read.
        """
        place = Damage("schedules", row.queue, (row.queue, row.key), "definition")
        return decode.parsed(place, lambda: ScheduleDefinition.from_json(row.definition), self._driver.report)

    def create(self, row: ScheduleRow) -> bool:
        """Store a new row; return False if the key exists."""
        return self._apply(CreateSchedule(row), row.key, lambda stored: _is_of(stored, row.generation))

    def change(self, row: ScheduleRow) -> ScheduleRow | None:
        """Replace the row of the same version; return the row as stored, or None if it had changed."""
        wanted = row._replace(version=decode.next_version(row.version))
        applied = self._apply(ChangeSchedule(row, row.version), row.key, lambda stored: stored == wanted)
        return wanted if applied else None

    def remove(self, row: ScheduleRow) -> bool:
        """Delete the row; return False if it has changed meanwhile."""
        remove = RemoveSchedule(row.queue, row.key, row.version)
        return self._apply(remove, row.key, lambda stored: _made_ms(stored) != _made_ms(row))

    def _apply(self, change: Operation[bool], key: str, shows: Callable[[ScheduleRow | None], bool]) -> bool:
        """Change a row on a condition; return whether it was changed.

        Args:
            change: the conditional operation.
            key: key of the row.
            shows: return whether the row as stored shows that the change was applied.

        Raises:
            OutcomeUnknown: the change got no answer, and the row cannot be read now.
        """
        try:
            return self._driver.ask(change)
        except OutcomeUnknown as unknown:
            with looking_again(unknown):
                stored = self.read(key, as_stored=True)
            return shows(stored)

    def dated(self, row: ScheduleRow) -> ScheduleRow:
        """Return a row that is about to wait for another firing, with the due time of that firing.

        At each poll consumers look back over the last seconds only, and further back only now and then. So a
        firing whose time has passed is due now. The row stores the due time, so that every process that sends
        the firing uses the same.
        """
        definition, now_ms = ScheduleDefinition.from_json(row.definition), self.now_us() // 1000
        is_late = bool(row.next_at) and now_ms - row.next_at - jitter_of(row, definition) > LATE_MS
        return row._replace(definition=replace(definition, due_ms=now_ms if is_late else 0).to_json())

    # ── firings ──

    def send_next(self, row: ScheduleRow) -> None:
        """Send the firing that the row waits for. A repeated send is the same message, acked or not.

        Raises:
            NotDone, SendUnknown: the firing is not stored, or may not be.
        """
        message = _next_message(row)
        if message is None:
            return
        if self.is_old(row):
            # The store may have forgotten that the firing's id was used. If another process changes the row
            # first, that process sends the firing.
            self.go_on(row)
        else:
            self._producer.send(message)

    def is_old(self, row: ScheduleRow) -> bool:
        """Return whether the firing was due over half of gc_grace ago; its id may be used and forgotten."""
        return self.now_us() - due_ms(row) * 1000 > self.spec.gc_grace_us // 2

    def go_on(self, row: ScheduleRow) -> ScheduleRow | None:
        """Store a row that waits for another firing, and send that firing; None if the row had changed."""
        moved = self.change(self.dated(row))
        if moved is not None:
            self.send_next(moved)
        return moved

    def send_now(self, row: ScheduleRow) -> MessageId:
        """Send a firing beside the schedule's own times."""
        firing_id = FiringId(row.key, 0, row.fired, self.now_us() // 1000, row.previous)
        return self._producer.send(_message(row, firing_id, None))

    def check(self, row: ScheduleRow) -> None:
        """Check that the row's firing could be sent.

        Raises:
            BadInput: its body, headers or another value is refused.
        """
        message = _next_message(row)
        if message is not None:
            outgoing(message, self.now_us())

    def is_live(self, row: ScheduleRow) -> bool:
        """Return whether the message of the firing that the row waits for is stored."""
        message_id = self.message_id(row)
        if message_id is None:
            return False
        place, priority, id_ = message_id.locate()
        return bool(self._driver.ask(ReadMessages(place, priority, (id_,))))

    def message_id(self, row: ScheduleRow) -> MessageId | None:
        """Return the id of the message of the firing that the row waits for; None if it waits for none."""
        message = _next_message(row)
        if message is None:
            return None
        sent = outgoing(message, self.now_us())
        source, due_us = sent.source or b"", sent.due_us or 0
        place = open_row(self.spec, due_us, source)
        return MessageId.of(place, sent.priority, ids.derived(due_us, source))

    def last_message_id(self, row: ScheduleRow) -> MessageId | None:
        """Return the id of the message of the last firing; None if there was none.

        The row does not tell the ids of firings that were sent after their time, or for an earlier generation
        of the row. Those had another id than the one returned.
        """
        if not row.previous:
            return None
        definition = replace(ScheduleDefinition.from_json(row.definition), due_ms=0).to_json()
        waited = row._replace(state=ACTIVE, definition=definition, next_at=row.previous, fired=row.fired - 1)
        return self.message_id(waited)


def _is_of(row: ScheduleRow | None, generation: int) -> bool:
    return row is not None and row.generation == generation


def _made_ms(row: ScheduleRow | None) -> int | None:
    """Return when the schedule was made, or replaced, in ms since 1970; -1 if its definition is damaged."""
    try:
        return None if row is None else ScheduleDefinition.from_json(row.definition).start_ms
    except BadInput:
        return -1


def due_ms(row: ScheduleRow) -> int:
    """Return when the firing that the row waits for is due, in ms since 1970."""
    definition = ScheduleDefinition.from_json(row.definition)
    return definition.due_ms or row.next_at + jitter_of(row, definition)


def jitter_of(row: ScheduleRow, definition: ScheduleDefinition) -> int:
    """Return how much later than its time the row's firing is due, in ms."""
    return jitter_ms(definition.trigger, f"{row.key}|{row.generation}|{row.next_at}")


def _next_message(row: ScheduleRow) -> Message | None:
    """Return the message of the firing that the row waits for; None if it waits for none."""
    firing_id = next_firing(row)
    return None if firing_id is None else _message(row, firing_id, due_ms(row))


def _message(row: ScheduleRow, firing_id: FiringId, due: int | None) -> Message:
    """Return the message of a firing. Without a due time (ms) it is sent now, under an id of its own."""
    definition = ScheduleDefinition.from_json(row.definition)
    source = f"{firing_id.generation}|{firing_id.time_ms}|cqueue-schedule|{firing_id.key}"
    return Message(
        definition.body,
        due=None if due is None else to_datetime(due),
        priority=definition.priority,
        headers=definition.headers,
        task=definition.task,
        key=definition.message_key,
        codec=definition.codec,
        trigger=firing_id.to_json(),
        source=None if due is None else source,
    )
