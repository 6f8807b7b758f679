"""What a dispatcher does around the handler of a firing, so that its schedule goes on, once.

The row moves to the next time first, and the next firing is sent after it, before the present one is acked.
So whoever dies in between leaves a message that is a repeat by the row's number; its next holder sends the
same next firing under the same id. The other order would need the firing sent to be held back until the row
follows, and would leave a second one behind where a repeat chooses another time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.context import Context, Firing
from cqueue.dispatcher.definition import ACTIVE, DONE, Definition, Standing, Ticket, standing
from cqueue.dispatcher.delivery import Settlement, Verb
from cqueue.dispatcher.events import describe, logger
from cqueue.dispatcher.ledger import TRIES, Ledger, jitter_of
from cqueue.dispatcher.triggers import RunOnce, choose
from cqueue.dispatcher.verdicts import Cancel, Snooze
from cqueue.errors import LASTING, BadInput, NotDone, OutcomeUnknown
from cqueue.message import to_datetime
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.store.control import ScheduleRow

AGAIN: Final = timedelta(seconds=2)
"""A firing comes again after this, no attempt used, where Cassandra does not say how its schedule stands."""
MUCH_LATER: Final = timedelta(seconds=30)
"""The same where somebody has to mend something first, a missing grant say."""


@dataclass(frozen=True, slots=True)
class Move:
    """How a firing moves its schedule on."""

    row: ScheduleRow  # as it was read
    number: int
    fire_ms: int
    next_ms: int | None

    def onto(self, row: ScheduleRow) -> ScheduleRow:
        """The row after it; one that was paused meanwhile stays so."""
        state = DONE if self.next_ms is None else row.state
        return row._replace(state=state, fired=self.number, previous=self.fire_ms, next_at=self.next_ms or 0)


@dataclass(frozen=True, slots=True)
class Begun(Firing):
    """A firing that is to run; `move` is what to do after its handler, if anything."""

    move: Move | None = None


class FiringStage:
    """Decides about the firings of one queue's schedules, and moves the schedules on. Thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._log = logger()

    def begin(self, message: ReceivedMessage) -> Begun | Cancel | Snooze | None:
        """What to do with a message: run it as this firing, drop it, wait; None: it is no firing."""
        ticket = Ticket.parse(message.trigger)
        if ticket is None:
            return None
        if self._ledger.queue.endswith(DEAD_SUFFIX):
            return _beside(ticket, None)  # a dead letter is looked at on its own
        try:
            row = self._ledger.read(ticket.key)
            if ticket.is_manual:
                return _beside(ticket, row)
            return self._over(row) if row is None else self._judge(ticket, row)
        except (NotDone, OutcomeUnknown, BadInput) as exc:
            is_lasting = isinstance(exc, LASTING)
            say = self._log.error if is_lasting else self._log.warning
            say("schedule_unavailable", queue=self._ledger.queue, schedule=ticket.key, error=describe(exc))
            return Snooze(MUCH_LATER if is_lasting else AGAIN)

    def unfired(self, message: ReceivedMessage) -> Cancel | None:
        """Why a firing whose task is not known here need not wait for it; None: it waits, or is no firing."""
        ticket = Ticket.parse(message.trigger)
        if ticket is None or ticket.is_manual or self._ledger.queue.endswith(DEAD_SUFFIX):
            return None
        try:
            row = self._ledger.read(ticket.key)
            is_over = row is None or standing(ticket, row) is Standing.OVER
            return self._over(row) if is_over else None
        except (NotDone, OutcomeUnknown, BadInput):
            return None

    def commit(self, firing: Begun) -> None:
        """Move the schedule on and send its next firing; before the present one is settled.

        Raises:
            NotDone, OutcomeUnknown: it may not have moved, or nothing may follow; the firing must come again.
        """
        if firing.move is not None:
            self._move(firing.move)

    def _judge(self, ticket: Ticket, row: ScheduleRow) -> Begun | Cancel:
        found = standing(ticket, row)
        if found is Standing.CURRENT:
            return self._current(ticket, row)
        if found is Standing.OVER:
            return self._over(row)
        if ticket.number == row.fired:  # whoever moved the row may have died before he sent the next one
            self._ledger.send_next(row)
        return _repeat(ticket, row)

    def _over(self, row: ScheduleRow | None) -> Cancel:
        """Drop a firing; whoever moved the row past it may have died before he sent the next one."""
        if row is None:
            return Cancel("its schedule is gone")
        self._ledger.send_next(row)
        return Cancel("its schedule has moved on without this firing")

    def _current(self, ticket: Ticket, row: ScheduleRow) -> Begun | Cancel:
        definition = Definition.from_json(row.definition)
        now_ms = self._ledger.now_us() // 1000 - jitter_of(row, definition)
        choice = choose(definition.timetable, row.next_at, now_ms)
        if choice.fire_ms is None:
            return self._pass_over(row, choice.next_ms)
        count = None if isinstance(definition.trigger, RunOnce) else definition.trigger.count
        next_ms = None if count is not None and ticket.number >= count else choice.next_ms
        move = Move(row, ticket.number, choice.fire_ms, next_ms)
        if definition.trigger.auto_commit:
            self._move(move)
        later = None if definition.trigger.auto_commit else move
        return _begun(ticket, choice.fire_ms, previous_ms=row.previous, next_ms=next_ms, move=later)

    def _pass_over(self, row: ScheduleRow, next_ms: int | None) -> Cancel:
        """Leave a time out that is too late to be fired."""
        left_out = to_datetime(row.next_at)
        wanted = row._replace(state=ACTIVE if next_ms else DONE, next_at=next_ms or 0)
        moved = self._ledger.change(self._ledger.dated(wanted)) or self._ledger.read(row.key)
        if moved is not None:
            self._ledger.send_next(moved)
        return Cancel(f"the firing of {left_out.isoformat()} is later than its schedule allows")

    def _move(self, move: Move) -> None:
        row = move.row
        for _ in range(TRIES):
            moved = self._ledger.change(self._ledger.dated(move.onto(row)))
            if moved is not None:
                self._ledger.send_next(moved)
                return
            stored = self._ledger.read(row.key)
            if stored is None or stored.generation != row.generation:
                return  # replaced or resumed while this ran: another chain goes on
            if stored.fired >= move.number:  # by another holder of the same firing, who may have died since
                self._ledger.send_next(stored)
                return
            row = stored
        raise NotDone(f"schedule {row.key!r} is being changed by too many at once")


def _beside(ticket: Ticket, row: ScheduleRow | None) -> Begun:
    """A firing that moves no schedule."""
    next_ms = None if row is None else row.next_at
    return _begun(ticket, ticket.time_ms, previous_ms=ticket.previous_ms, next_ms=next_ms)


def _repeat(ticket: Ticket, row: ScheduleRow) -> Begun:
    """A firing that has moved its schedule before: its handler runs again."""
    # The time that it was fired for, while the row knows it: a later one than its own after a misfire.
    time_ms = row.previous if ticket.number == row.fired else ticket.time_ms
    return _begun(ticket, time_ms, previous_ms=ticket.previous_ms, next_ms=row.next_at)


def _begun(
    ticket: Ticket, time_ms: int, *, previous_ms: int, next_ms: int | None, move: Move | None = None
) -> Begun:
    return Begun(
        key=ticket.key,
        fired_at=to_datetime(time_ms),
        execution_count=ticket.number,
        previous=_moment(previous_ms),
        next_trigger=_moment(next_ms),
        manual=ticket.is_manual,
        move=move,
    )


def _moment(ms: int | None) -> datetime | None:
    return to_datetime(ms) if ms else None


class ScheduleStep:
    """The stages of several queues, around the handlers of messages that may be firings.

    Called on a worker thread, or for coroutine handlers on a thread of a pool. What it raises is as if the
    handler had raised it.
    """

    def __init__(self, ledgers: Iterable[Ledger]) -> None:
        self._stages: Mapping[str, FiringStage] = {ledger.queue: FiringStage(ledger) for ledger in ledgers}

    def before(self, message: ReceivedMessage, context: Context) -> Cancel | Snooze | None:
        """Tell the handler which firing it is; or why neither it nor `after` is called."""
        begun = self._stages[context.queue].begin(message)
        if not isinstance(begun, Begun):
            return begun
        context.firing = begun
        return None

    def after(self, message: ReceivedMessage, context: Context, settlement: Settlement) -> Settlement:
        """Move the schedule on. Where that fails the firing comes again, whatever its handler said."""
        stage = self._stages[context.queue]
        if not isinstance(context.firing, Begun):  # it has not begun: its task is not known here
            over = stage.unfired(message) if settlement.verb is Verb.SNOOZE else None
            return settlement if over is None else Settlement(Verb.ACK, "cancelled", reason=over.reason)
        try:
            stage.commit(context.firing)
        except (NotDone, OutcomeUnknown) as exc:
            reason = f"its schedule could not be moved on: {describe(exc)}"
            later = MUCH_LATER if isinstance(exc, LASTING) else AGAIN
            return Settlement(Verb.SNOOZE, "snoozed", later, reason=reason)
        return settlement
