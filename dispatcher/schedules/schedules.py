"""The schedules of a queue, for people and applications: added, read and changed while everything runs.

A schedule is its row, and every change is conditional on the row's version, so that two processes that change
one schedule at the same time do so one after the other. A change that breaks the chain of firings begins a
new generation; messages of earlier generations are obsolete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Final

from cqueue.client import Client, inside
from cqueue.dispatcher.schedules.definition import (
    ACTIVE,
    DONE,
    OVERDUE_MS,
    PAUSED,
    ScheduleDefinition,
    check_key,
    waiting_for,
)
from cqueue.dispatcher.schedules.store import TRIES, ScheduleStore
from cqueue.dispatcher.schedules.triggers import RunOnce, Trigger, ms_of
from cqueue.errors import (
    BadInput,
    ConfigError,
    DamagedRow,
    NotDone,
    OutcomeUnknown,
    QueueNotFound,
    ScheduleExists,
    ScheduleNotFound,
)
from cqueue.message import Message, MessageId, check_limit, check_options, to_datetime
from cqueue.producer import Producer
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.runtime.catalog import Catalog
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.logs import DISPATCHER, describe, logger
from cqueue.runtime.sequences import parts
from cqueue.runtime.suggestions import suggest
from cqueue.runtime.texts import quoted
from cqueue.store.control import ListSchedules, ScheduleRow
from cqueue.store.decode import is_damaged
from cqueue.store.operations import together

QUEUES_AT_ONCE: Final = 64
"""Queues whose schedules are read side by side: 2,000, one after the other, take seconds."""
MAX_UPCOMING: Final = 1000
"""Most times that `Schedule.upcoming` computes: each may take a search through a calendar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(ScheduleDefinition):
    """A schedule as it is stored.

    Attributes:
        queue: name of its queue.
        key: key of the schedule.
        trigger: when it fires.
        state: active, paused, or done.
        next_at: time of the next firing, in UTC; None if there is none.
        previous: time of the last firing, in UTC, or None.
        fired: how many firings there have been.
        body, task, codec, message_key, headers, priority: of the messages that it sends.
    """

    queue: str
    key: str
    state: str
    next_at: datetime | None
    previous: datetime | None
    fired: int
    read_ms: int = field(compare=False, repr=False)

    @property
    def overdue(self) -> bool:
        """Whether the next time had passed by more than 15 s when the schedule was read; of an active one."""
        if self.state != ACTIVE or self.next_at is None:
            return False
        return self.read_ms - ms_of(self.next_at) > OVERDUE_MS

    def upcoming(self, count: int = 5) -> list[datetime]:
        """Return the next times after the moment when the schedule was read.

        The times of a paused schedule assume that it is resumed in time. If no dispatcher serves the queue, a
        time that has passed without a firing is `next_at`, and is not among these.

        Args:
            count: how many times, 1 to 1,000.

        Raises:
            BadInput: `count` is out of range.
        """
        check_limit(count, MAX_UPCOMING, "count")
        if self.next_at is None:
            return []
        most = self.trigger.count
        left = count if most is None else min(count, most - self.fired)
        after_ms = max(self.read_ms, ms_of(self.next_at) - 1)
        return [to_datetime(ms) for ms in self.timetable.upcoming(after_ms, left)]


class Schedules:
    """The schedules of one queue; `queue.schedules`. Thread-safe."""

    def __init__(self, queue: str, catalog: Catalog, driver: BlockingDriver, producer: Producer) -> None:
        self.queue = queue
        self.store = ScheduleStore(queue, catalog, driver, producer)

    def __repr__(self) -> str:
        return f"<schedules of {self.queue}>"

    # ── add ──

    def add(
        self,
        key: str,
        trigger: Trigger,
        body: bytes = b"",
        *,
        task: str | None = None,
        codec: str | None = None,
        message_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        exist_ok: bool = False,
        replace: bool = False,
    ) -> Schedule:
        """Add a schedule that sends such messages at the times of `trigger`, and send its first firing.

        Nothing needs a restart. The queue gets `derived_sends` if it lacks it.

        Args:
            key: name in the queue: 1 to 200 printable characters.
            trigger: `RunOnce`, `Repeating` or `Cron`.
            body: of each message, at most 64 KiB.
            task: as in `Message`, like `codec`, `headers` and `priority`.
            codec: how the body is encoded.
            message_key: `key` of the messages.
            headers: of each message.
            priority: 0 to 9.
            exist_ok: accept an existing schedule with the same definition.
            replace: replace an existing schedule of another definition; the new one starts anew. A paused
                schedule stays paused.

        Raises:
            BadInput: a value is wrong, the trigger never fires, or the queue is a dead-letter queue.
            ScheduleExists: the key exists.
            NotDone, OutcomeUnknown: the schedule is not stored, or may not be; with `replace` call again.
        """
        if self.queue.endswith(DEAD_SUFFIX):
            raise BadInput(f"{self.queue!r} is a dead-letter queue; it takes no schedules")
        check_key(key)
        check_options(
            Message(body, headers=headers, task=task, codec=codec, key=message_key, priority=priority)
        )
        definition = ScheduleDefinition(
            trigger=trigger, start_ms=self.store.now_us() // 1000, body=body, task=task, codec=codec,
            message_key=message_key, headers=dict(headers or {}), priority=priority,
        )  # fmt: skip
        new = self._new_row(key, definition)
        self.store.check(new)
        self.store.enable()
        row = self._put(new, definition, exist_ok=exist_ok, replace=replace)
        self._send(row)
        return self._shown(row)

    def _new_row(self, key: str, definition: ScheduleDefinition) -> ScheduleRow:
        first_ms = definition.timetable.first()
        if first_ms is None:
            raise ConfigError("this trigger never fires within ten years; look at its times and its end")
        now_us = self.store.now_us()
        row = ScheduleRow(  # of a version that no row of the key has had that was removed
            queue=self.store.spec.partition, key=key, version=now_us, state=ACTIVE, generation=now_us,
            definition=definition.to_json(), next_at=first_ms, previous=0, fired=0,
        )  # fmt: skip
        return self.store.dated(row)

    def _put(
        self, new: ScheduleRow, definition: ScheduleDefinition, *, exist_ok: bool, replace: bool
    ) -> ScheduleRow:
        for _ in range(TRIES):
            stored = self.store.read(new.key, as_stored=replace)
            if stored is None:
                if self.store.create(new):
                    return new
                continue
            if (exist_ok or replace) and self._says_the_same(stored, definition):
                return stored
            if not replace:
                also = ", with another definition" if exist_ok else ""
                raise ScheduleExists(
                    f"queue {self.queue!r} has a schedule {new.key!r} already{also}; "
                    "replace=True (--replace) puts the new one in its place"
                )
            changed = self.store.change(_in_place_of(stored, new))
            if changed is not None:
                return changed
        raise _contended(new.key)

    def _send(self, row: ScheduleRow) -> None:
        """Send the firing; if that fails, a dispatcher's monitor sends it when it is due."""
        try:
            self.store.send_next(row)
        except (NotDone, OutcomeUnknown) as exc:
            logger(DISPATCHER).warning(
                "schedule_not_sent", queue=self.queue, schedule=row.key, error=describe(exc)
            )

    # ── read ──

    def list(self) -> list[Schedule]:
        """Return all schedules that can be read, by key."""
        return [*self._readable(self.store.rows())]

    def _readable(self, rows: Iterable[ScheduleRow]) -> Iterator[Schedule]:
        for row in rows:
            with suppress(DamagedRow):
                yield self._shown(row)

    def get(self, key: str) -> Schedule:
        """Return one schedule.

        Raises:
            ScheduleNotFound: there is no such key.
            DamagedRow: the row cannot be read; `add` with `replace` mends it, `remove` removes it.
        """
        return self._shown(self._row(key))

    def _shown(self, row: ScheduleRow) -> Schedule:
        definition = self.store.definition(row)
        return Schedule(
            **{each.name: getattr(definition, each.name) for each in fields(definition)},
            queue=self.queue,
            key=row.key,
            state=row.state,
            next_at=to_datetime(row.next_at) if row.next_at else None,
            previous=to_datetime(row.previous) if row.previous else None,
            fired=row.fired,
            read_ms=self.store.now_us() // 1000,
        )

    def _says_the_same(self, row: ScheduleRow, definition: ScheduleDefinition) -> bool:
        try:
            return self.store.definition(row).is_same_as(definition) and not is_damaged(row)
        except DamagedRow:  # also raised for a newer version's definition
            return False

    def _row(self, key: str, *, as_stored: bool = False) -> ScheduleRow:
        row = self.store.read(key, as_stored=as_stored)
        if row is None:
            otherwise = f"`cqueue schedule list {self.queue}` shows what there is."
            hint = suggest(key, [row.key for row in self.store.rows()], otherwise)
            raise ScheduleNotFound(f"queue {self.queue!r} has no schedule {quoted(key)}.{hint}")
        return row

    # ── change ──

    def pause(self, key: str) -> Schedule:
        """Stop firing until `resume`. A firing that has begun goes on, with its retries.

        Raises:
            ScheduleNotFound: there is no such key.
            BadInput: the schedule is done.
        """

        def paused(row: ScheduleRow) -> ScheduleRow:
            if row.state == DONE:
                raise BadInput(f"schedule {key!r} is done; there is nothing to pause")
            return row._replace(state=PAUSED)

        return self._change(key, paused)

    def resume(self, key: str) -> Schedule:
        """Undo `pause`: go on with the next time from now.

        Times in between are left out, and so is a firing from before the pause that no handler has begun. A
        `RunOnce` whose time has passed meanwhile fires at once, and once more if its handler still runs.
        Firings from before the pause are no longer retried, and `count` leaves out one that still runs.

        Raises:
            ScheduleNotFound: there is no such key.
        """
        self.store.enable()  # what this client knows of the queue may be older than the schedule
        return self._change(key, lambda row: self._resumed(row) if row.state == PAUSED else row)

    def _resumed(self, row: ScheduleRow) -> ScheduleRow:
        definition, now_us = ScheduleDefinition.from_json(row.definition), self.store.now_us()
        next_ms = definition.timetable.next_after(max(now_us // 1000, row.previous))
        if isinstance(definition.trigger, RunOnce):
            next_ms = row.next_at
        resumed = waiting_for(next_ms, row)
        return self.store.dated(resumed._replace(generation=max(now_us, row.generation + 1)))

    def run_now(self, key: str) -> MessageId:
        """Fire now, beside the schedule's own times, which stay as they are, in any state of the schedule.

        Raises:
            ScheduleNotFound: there is no such key.
            NotDone: nothing was sent.
            SendUnknown: the message may have been sent; a repeated call may send a second one.
        """
        return self.store.send_now(self._row(key))

    def remove(self, key: str) -> None:
        """Remove the schedule, also a damaged one. A firing that has begun runs to its end, without a retry.

        Raises:
            ScheduleNotFound: there is no such key.
        """
        for _ in range(TRIES):
            if self.store.remove(self._row(key, as_stored=True)):
                return
        raise _contended(key)

    def _change(self, key: str, change: Callable[[ScheduleRow], ScheduleRow]) -> Schedule:
        for _ in range(TRIES):
            row = self._row(key)
            self._shown(row)  # raises for a newer version's schedule, before anything is changed
            wanted = change(row)
            changed = row if wanted == row else self.store.change(wanted)
            if changed is not None:
                if changed.generation != row.generation:
                    self._send(changed)
                return self._shown(changed)
        raise _contended(key)


def of_all_queues(client: Client) -> Iterator[tuple[Schedules, list[ScheduleRow]]]:
    """Yield the schedules of each queue that has some, and their rows, which may be damaged.

    A queue that is deleted meanwhile is left out, and so are dead-letter queues.
    """
    own = inside(client)
    specs = {one.row.name: one.spec for one in own.catalog.all() if not one.row.name.endswith(DEAD_SUFFIX)}
    for names in parts(list(specs), QUEUES_AT_ONCE):
        found = own.driver.run(together(*(ListSchedules(specs[name].partition) for name in names)))
        for name, rows in zip(names, found, strict=True):
            if rows:
                with suppress(QueueNotFound):
                    yield client.queue(name).schedules, rows


def list_all(client: Client) -> list[Schedule]:
    """Return the schedules of all queues that can be read, by queue and key."""
    return [one for schedules, rows in of_all_queues(client) for one in schedules._readable(rows)]  # noqa: SLF001 - of this module


def _in_place_of(stored: ScheduleRow, new: ScheduleRow) -> ScheduleRow:
    """Return the new row such that no message sent for the stored row belongs to it."""
    return new._replace(
        version=stored.version,
        generation=max(new.generation, 0 if is_damaged(stored) else stored.generation + 1),
        state=PAUSED if stored.state == PAUSED else ACTIVE,
    )


def _contended(key: str) -> NotDone:
    return NotDone(f"schedule {key!r} is being changed by too many at once; try again")
