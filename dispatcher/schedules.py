"""The schedules of a queue, as people and applications see them: made, looked at and changed while all runs.

A schedule is its row; every change is conditional on the row's version, so that two who change one at the
same time change it one after the other. Each change that breaks the chain of firings begins a new
generation, to which what was sent before does not belong.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Final

from cqueue.catalog import Catalog
from cqueue.dispatcher.definition import ACTIVE, DONE, PAUSED, Definition, check_key, waiting_for
from cqueue.dispatcher.events import describe, logger
from cqueue.dispatcher.ledger import TRIES, Ledger
from cqueue.dispatcher.triggers import RunOnce, Trigger, ms_of
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import (
    BadInput,
    ConfigError,
    DamagedRow,
    NotDone,
    OutcomeUnknown,
    ScheduleExists,
    ScheduleNotFound,
)
from cqueue.message import MessageId, to_datetime
from cqueue.producer import Producer
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.store.control import ScheduleRow
from cqueue.store.decode import is_damaged

MAX_UPCOMING: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Definition):
    """A schedule as it stands.

    Attributes:
        queue: its queue's name.
        key: its own.
        trigger: when it fires.
        state: active, paused, or done.
        next_at: the next firing's time, in UTC; None if there is none.
        previous: the last firing's, or None.
        fired: how many firings there have been.
        body: of the messages that it fires; `task`, `codec`, `message_key`, `headers` and `priority` as well.
    """

    queue: str
    key: str
    state: str
    next_at: datetime | None
    previous: datetime | None
    fired: int
    read_ms: int = field(compare=False, repr=False)

    def upcoming(self, count: int = 5) -> list[datetime]:
        """The next times after now, as it was when the schedule was read; at most 1,000.

        Those of a paused schedule are as if it were resumed in time. A time that has passed without a
        firing, because no dispatcher serves the queue, is `next_at`, and none of these.
        """
        if type(count) is not int or not 1 <= count <= MAX_UPCOMING:
            raise BadInput(f"count is {count!r}; it goes from 1 to {MAX_UPCOMING:,}")
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
        self.ledger = Ledger(queue, catalog, driver, producer)

    def __repr__(self) -> str:
        return f"<schedules of {self.queue}>"

    # ── make ──

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
        """Make a schedule that sends such messages when `trigger` says, and have the first one sent.

        Nothing needs to be restarted. The queue is altered to have `derived_sends`, if it does not yet.

        Args:
            key: names it in its queue: 1 to 200 printable characters.
            trigger: `RunOnce`, `Repeating` or `Cron`.
            body: of each message, at most 64 KiB.
            task: as in `Message`, like `codec`, `headers` and `priority`.
            codec: how the body is encoded.
            message_key: the messages' own `key`.
            headers: of each message.
            priority: 0 to 9.
            exist_ok: it may exist already, with the same definition.
            replace: it may exist already; one of another definition is replaced, and begins anew. A paused
                one stays paused.

        Raises:
            BadInput: a value is wrong, the trigger never fires, or this is a dead-letter queue.
            ScheduleExists: there is one of that key.
            NotDone, OutcomeUnknown: it is not stored, or may not be; with `replace` call again.
        """
        if self.queue.endswith(DEAD_SUFFIX):
            raise BadInput(f"{self.queue!r} is a dead-letter queue; it takes no schedules")
        check_key(key)
        definition = Definition(
            trigger=trigger, start_ms=self.ledger.now_us() // 1000, body=body, task=task, codec=codec,
            message_key=message_key, headers=dict(headers or {}), priority=priority,
        )  # fmt: skip
        fresh = self._fresh_row(key, definition)
        self.ledger.check(fresh)
        self.ledger.enable()
        row = self._store(fresh, definition, exist_ok=exist_ok, replace=replace)
        self._send(row)
        return self._shown(row)

    def _fresh_row(self, key: str, definition: Definition) -> ScheduleRow:
        first_ms = definition.timetable.first()
        if first_ms is None:
            raise ConfigError(f"this trigger never fires within ten years: {definition.trigger}")
        row = ScheduleRow(
            queue=self.ledger.spec.partition, key=key, version=1, state=ACTIVE,
            generation=self.ledger.now_us(), definition=definition.to_json(), next_at=first_ms,
            previous=0, fired=0,
        )  # fmt: skip
        return self.ledger.dated(row)

    def _store(
        self, fresh: ScheduleRow, definition: Definition, *, exist_ok: bool, replace: bool
    ) -> ScheduleRow:
        for _ in range(TRIES):
            stored = self.ledger.read(fresh.key, as_stored=replace)
            if stored is None:
                if self.ledger.create(fresh):
                    return fresh
                continue
            if (exist_ok or replace) and self._says_the_same(stored, definition):
                return stored
            if not replace:
                also = ", with another definition" if exist_ok else ""
                raise ScheduleExists(f"queue {self.queue!r} has a schedule {fresh.key!r} already{also}")
            changed = self.ledger.change(_in_place_of(stored, fresh))
            if changed is not None:
                return changed
        raise NotDone(f"schedule {fresh.key!r} is being changed by too many at once; try again")

    def _send(self, row: ScheduleRow) -> None:
        """The schedule stands: should its firing not be sent here, a watcher sends it when it is due."""
        try:
            self.ledger.send_next(row)
        except (NotDone, OutcomeUnknown) as exc:
            logger().warning("schedule_not_sent", queue=self.queue, schedule=row.key, error=describe(exc))

    # ── look ──

    def list(self) -> list[Schedule]:
        """All of them, by key; such as cannot be read are left out."""
        return list(self._readable(self.ledger.rows()))

    def _readable(self, rows: Iterable[ScheduleRow]) -> Iterator[Schedule]:
        for row in rows:
            with suppress(DamagedRow):
                yield self._shown(row)

    def get(self, key: str) -> Schedule:
        """One of them.

        Raises:
            ScheduleNotFound: there is none of that key.
            DamagedRow: its row cannot be read; `add` with `replace` mends it, `remove` removes it.
        """
        return self._shown(self._row(key))

    def _shown(self, row: ScheduleRow) -> Schedule:
        definition = self.ledger.definition(row)
        return Schedule(
            **{each.name: getattr(definition, each.name) for each in fields(definition)},
            queue=self.queue,
            key=row.key,
            state=row.state,
            next_at=to_datetime(row.next_at) if row.next_at else None,
            previous=to_datetime(row.previous) if row.previous else None,
            fired=row.fired,
            read_ms=self.ledger.now_us() // 1000,
        )

    def _says_the_same(self, row: ScheduleRow, definition: Definition) -> bool:
        try:
            return self.ledger.definition(row).is_same_as(definition) and not is_damaged(row)
        except DamagedRow:  # or of a newer version
            return False

    def _row(self, key: str, *, as_stored: bool = False) -> ScheduleRow:
        row = self.ledger.read(key, as_stored=as_stored)
        if row is None:
            near = difflib.get_close_matches(key, [row.key for row in self.ledger.rows()], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ScheduleNotFound(f"queue {self.queue!r} has no schedule {key!r}{hint}")
        return row

    # ── change ──

    def pause(self, key: str) -> Schedule:
        """Let it fire no more until `resume`. A firing that has begun goes on, with its retries.

        Raises:
            ScheduleNotFound: there is none of that key.
            BadInput: it is done.
        """

        def paused(row: ScheduleRow) -> ScheduleRow:
            if row.state == DONE:
                raise BadInput(f"schedule {key!r} is done; there is nothing to pause")
            return row._replace(state=PAUSED)

        return self._change(key, paused)

    def resume(self, key: str) -> Schedule:
        """Undo `pause`: it goes on with the next time from now, those in between are left out.

        A `RunOnce` whose time has passed meanwhile fires at once. Firings from before the pause are not
        retried any more.
        """
        return self._change(key, lambda row: self._resumed(row) if row.state == PAUSED else row)

    def _resumed(self, row: ScheduleRow) -> ScheduleRow:
        definition, now_us = Definition.from_json(row.definition), self.ledger.now_us()
        next_ms = definition.timetable.next_after(max(now_us // 1000, row.previous))
        if isinstance(definition.trigger, RunOnce):
            next_ms = row.next_at
        resumed = waiting_for(next_ms, row)
        return self.ledger.dated(resumed._replace(generation=max(now_us, row.generation + 1)))

    def run_now(self, key: str) -> MessageId:
        """Fire it now, beside its own times, which stay as they are, whatever its state.

        Raises:
            ScheduleNotFound: there is none of that key.
            NotDone: nothing was sent.
            SendUnknown: it may have been; again may be a second firing.
        """
        return self.ledger.send_now(self._row(key))

    def remove(self, key: str) -> None:
        """Remove it, also if its row is damaged. A firing that has begun runs to its end, without a retry.

        Raises:
            ScheduleNotFound: there is none of that key.
        """
        for _ in range(TRIES):
            if self.ledger.remove(self._row(key, as_stored=True)):
                return
        raise NotDone(f"schedule {key!r} is being changed by too many at once; try again")

    def _change(self, key: str, change: Callable[[ScheduleRow], ScheduleRow]) -> Schedule:
        for _ in range(TRIES):
            row = self._row(key)
            self._shown(row)  # what a newer version made is left to it, before anything is changed
            wanted = change(row)
            changed = row if wanted == row else self.ledger.change(wanted)
            if changed is not None:
                if changed.generation != row.generation:
                    self._send(changed)
                return self._shown(changed)
        raise NotDone(f"schedule {key!r} is being changed by too many at once; try again")


def _in_place_of(stored: ScheduleRow, fresh: ScheduleRow) -> ScheduleRow:
    """The fresh row, such that nothing sent for the stored one belongs to it."""
    return fresh._replace(
        version=stored.version,
        generation=max(fresh.generation, 0 if is_damaged(stored) else stored.generation + 1),
        state=PAUSED if stored.state == PAUSED else ACTIVE,
    )
