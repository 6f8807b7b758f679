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
from cqueue.dispatcher.definition import Definition, Standing, Ticket, standing, waiting_for
from cqueue.dispatcher.delivery import Settlement, Verb
from cqueue.dispatcher.events import describe, logger
from cqueue.dispatcher.ledger import TRIES, Ledger, jitter_of
from cqueue.dispatcher.triggers import choose
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
class Begun(Firing):
    """A firing that is to run; `moved` is its schedule's row as it is to be afterwards, None: as it is."""

    moved: ScheduleRow | None = None


def begin(ledger: Ledger, message: ReceivedMessage) -> Begun | Cancel | Snooze | None:
    """What to do with a message: run it as this firing, drop it, wait; None: it is no firing."""
    ticket = Ticket.parse(message.trigger)
    if ticket is None:
        return None
    if ledger.queue.endswith(DEAD_SUFFIX):
        return _begun(ticket, ticket.time_ms, None)  # a dead letter is looked at on its own
    try:
        row = ledger.read(ticket.key)
        if ticket.is_manual:
            return _begun(ticket, ticket.time_ms, None if row is None else row.next_at)
        return _judge(ledger, ticket, row)
    except (NotDone, OutcomeUnknown, BadInput) as exc:
        is_lasting = isinstance(exc, LASTING)
        say = logger().error if is_lasting else logger().warning
        say("schedule_unavailable", queue=ledger.queue, schedule=ticket.key, error=describe(exc))
        return Snooze(MUCH_LATER if is_lasting else AGAIN)


def _judge(ledger: Ledger, ticket: Ticket, row: ScheduleRow | None) -> Begun | Cancel:
    found = standing(ticket, row)
    if row is None or found is Standing.OVER:
        return _over(ledger, row)
    if found is Standing.CURRENT:
        return _current(ledger, ticket, row)
    if ticket.number < row.fired:
        return _begun(ticket, ticket.time_ms, row.next_at)
    ledger.send_next(row)  # whoever moved the row may have died before he sent the next one
    return _begun(ticket, row.previous, row.next_at)  # after a misfire that is later than the ticket's time


def _over(ledger: Ledger, row: ScheduleRow | None) -> Cancel:
    """Drop a firing; whoever moved the row past it may have died before he sent the next one."""
    if row is None:
        return Cancel("its schedule is gone")
    ledger.send_next(row)
    return Cancel("its schedule has moved on without this firing")


def _current(ledger: Ledger, ticket: Ticket, row: ScheduleRow) -> Begun | Cancel:
    definition = Definition.from_json(row.definition)
    trigger, now_ms = definition.trigger, ledger.now_us() // 1000 - jitter_of(row, definition)
    choice = choose(definition.timetable, row.next_at, now_ms)
    if choice.fire_ms is None:
        return _pass_over(ledger, row, choice.next_ms)
    next_ms = None if trigger.count is not None and ticket.number >= trigger.count else choice.next_ms
    moved = waiting_for(next_ms, row)._replace(fired=ticket.number, previous=choice.fire_ms)
    if trigger.auto_commit:
        _move(ledger, moved)
    return _begun(ticket, choice.fire_ms, next_ms, moved=None if trigger.auto_commit else moved)


def _pass_over(ledger: Ledger, row: ScheduleRow, next_ms: int | None) -> Cancel:
    """Leave a time out that is too late to be fired."""
    if ledger.go_on(waiting_for(next_ms, row)) is None and (moved := ledger.read(row.key)) is not None:
        ledger.send_next(moved)
    left_out = to_datetime(row.next_at)
    return Cancel(f"the firing of {left_out.isoformat()} is later than its schedule allows")


def commit(ledger: Ledger, firing: Begun) -> None:
    """Move the schedule on and send its next firing; before the present one is settled.

    Raises:
        NotDone, OutcomeUnknown: it may not have moved, or nothing may follow; the firing must come again.
    """
    if firing.moved is not None:
        _move(ledger, firing.moved)


def _move(ledger: Ledger, wanted: ScheduleRow) -> None:
    row = wanted
    for _ in range(TRIES):
        if ledger.go_on(row) is not None:
            return
        stored = ledger.read(wanted.key)
        if stored is None or stored.generation != wanted.generation:
            return  # replaced or resumed while this ran: another chain goes on
        if stored.fired >= wanted.fired:  # by another holder of the same firing, who may have died since
            ledger.send_next(stored)
            return
        row = wanted._replace(version=stored.version, definition=stored.definition)
        if wanted.next_at:
            row = row._replace(state=stored.state)  # one that was paused meanwhile stays so
    raise NotDone(f"schedule {wanted.key!r} is being changed by too many at once")


def _unfired(ledger: Ledger, message: ReceivedMessage) -> Cancel | None:
    """Why a firing whose task is not known here need not wait for it; None: it waits, or is no firing."""
    ticket = Ticket.parse(message.trigger)
    if ticket is None or ticket.is_manual or ledger.queue.endswith(DEAD_SUFFIX):
        return None
    try:
        row = ledger.read(ticket.key)
        return _over(ledger, row) if standing(ticket, row) is Standing.OVER else None
    except (NotDone, OutcomeUnknown, BadInput):
        return None


def _begun(ticket: Ticket, time_ms: int, next_ms: int | None, moved: ScheduleRow | None = None) -> Begun:
    return Begun(
        key=ticket.key,
        fired_at=to_datetime(time_ms),
        execution_count=ticket.number,
        previous=_moment(ticket.previous_ms),
        next_trigger=_moment(next_ms),
        manual=ticket.is_manual,
        moved=moved,
    )


def _moment(ms: int | None) -> datetime | None:
    return to_datetime(ms) if ms else None


class ScheduleStep:
    """What is done about firings before and after the handlers of several queues. Thread-safe.

    Called on a worker thread, or for coroutine handlers on a thread of a pool. What it raises is as if the
    handler had raised it.
    """

    def __init__(self, ledgers: Iterable[Ledger]) -> None:
        self._ledgers: Mapping[str, Ledger] = {ledger.queue: ledger for ledger in ledgers}

    def before(self, message: ReceivedMessage, context: Context) -> Cancel | Snooze | None:
        """Tell the handler which firing it is; or why neither it nor `after` is called."""
        begun = begin(self._ledgers[context.queue], message)
        if not isinstance(begun, Begun):
            return begun
        context.firing = begun
        return None

    def after(self, message: ReceivedMessage, context: Context, settlement: Settlement) -> Settlement:
        """Move the schedule on. Where that fails the firing comes again, whatever its handler said."""
        ledger = self._ledgers[context.queue]
        if not isinstance(context.firing, Begun):  # it has not begun: its task is not known here
            over = _unfired(ledger, message) if settlement.verb is Verb.SNOOZE else None
            return settlement if over is None else Settlement(Verb.ACK, "cancelled", reason=over.reason)
        try:
            commit(ledger, context.firing)
        except (NotDone, OutcomeUnknown) as exc:
            reason = f"its schedule could not be moved on: {describe(exc)}"
            later = MUCH_LATER if isinstance(exc, LASTING) else AGAIN
            return Settlement(Verb.SNOOZE, "snoozed", later, reason=reason)
        return settlement
