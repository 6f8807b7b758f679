"""What surrounds the handler of a firing, so that the schedule goes on, exactly once.

First the row moves to the next time, then the next firing is sent, and only then the present firing is acked.
If a process dies in between, the redelivered message is a repeat by the row's time, and its next consumer
sends the same next firing under the same id. In the opposite order, the firing sent would have to be held
back until the row follows, and a repeat that chooses another time would leave a second firing behind.

All of this runs on a worker thread; for coroutine handlers, on a thread of a pool. An exception from here
counts as the handler's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.execution.actions import Cancel, Snooze
from cqueue.dispatcher.execution.context import Firing
from cqueue.dispatcher.execution.delivery import Settlement, Verb
from cqueue.dispatcher.schedules.definition import (
    FiringId,
    FiringState,
    ScheduleDefinition,
    fired_for,
    firing_state,
    moved_on,
)
from cqueue.dispatcher.schedules.store import TRIES, ScheduleStore, jitter_of
from cqueue.dispatcher.schedules.triggers import choose
from cqueue.errors import LASTING, BadInput, NotDone, OutcomeUnknown
from cqueue.message import to_datetime
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.runtime.logs import DISPATCHER, describe, logger
from cqueue.store.control import ScheduleRow

AGAIN: Final = timedelta(seconds=2)
"""Pause before a firing is tried again, without using an attempt, if its schedule cannot be read."""
MUCH_LATER: Final = timedelta(seconds=30)
"""The same pause if an operator has to mend something first, such as a missing grant."""


@dataclass(frozen=True, slots=True)
class StartedFiring(Firing):
    """A firing whose handler is to run.

    Attributes:
        moved: the schedule's row as `finish` stores it; None if the row stays, or has been moved already.
    """

    moved: ScheduleRow | None = None


def begin(store: ScheduleStore, message: ReceivedMessage) -> StartedFiring | Cancel | Snooze | None:
    """Decide about a message before its handler runs.

    Returns:
        The firing to run; `Cancel` to drop it; `Snooze` to try again later; None if the message is no firing.
    """
    firing_id = FiringId.parse(message.trigger)
    if firing_id is None:
        return None
    if store.queue.endswith(DEAD_SUFFIX):
        return _started(firing_id, firing_id.time_ms, None)  # a dead letter runs apart from its schedule
    try:
        row = store.read(firing_id.key)
        return _on_its_own(firing_id, row) if firing_id.runs_on_its_own else _decide(store, firing_id, row)
    except (NotDone, OutcomeUnknown, BadInput) as exc:
        is_lasting = isinstance(exc, LASTING)
        log = logger(DISPATCHER)
        say = log.error if is_lasting else log.warning
        say("schedule_unavailable", queue=store.queue, schedule=firing_id.key, error=describe(exc))
        return Snooze(MUCH_LATER if is_lasting else AGAIN)


def _on_its_own(firing_id: FiringId, row: ScheduleRow | None) -> StartedFiring:
    """Return the run of a firing that somebody asked for, whatever its schedule waits for."""
    if row is None:
        return _started(firing_id, firing_id.time_ms, None)
    if firing_id.generation != row.generation:
        return _started(firing_id, firing_id.time_ms, row.next_at)
    return _repeated(firing_id, row)


def _decide(store: ScheduleStore, firing_id: FiringId, row: ScheduleRow | None) -> StartedFiring | Cancel:
    found = firing_state(firing_id, row)
    if row is None or found is FiringState.OVER:
        return _drop(store, row)
    if found is FiringState.CURRENT:
        return _fire(store, firing_id, row)
    store.send_next(row)  # the process that moved the row may have died before it sent the next firing
    return _repeated(firing_id, row)


def _repeated(firing_id: FiringId, row: ScheduleRow) -> StartedFiring:
    """Return the run of a firing by what the row of its generation remembers of its time."""
    fired_ms = fired_for(firing_id.time_ms, row) or firing_id.time_ms
    return _started(firing_id, fired_ms, _next_ms(row, firing_id.number, fired_ms))


def _next_ms(row: ScheduleRow, number: int, fired_ms: int) -> int | None:
    """Return the time after that of the firing of this number; None if the firing is the last.

    The same for each attempt, while the row may have gone on to a later time, or to its end.
    """
    timetable = ScheduleDefinition.from_json(row.definition).timetable
    count = timetable.trigger.count
    return None if count is not None and number >= count else timetable.next_after(fired_ms)


def _drop(store: ScheduleStore, row: ScheduleRow | None) -> Cancel:
    """Drop an obsolete firing; send the next one, in case the process that moved the row has died."""
    if row is None:
        return Cancel("its schedule is gone")
    store.send_next(row)
    return Cancel("its schedule has moved on without this firing")


def _fire(store: ScheduleStore, firing_id: FiringId, row: ScheduleRow) -> StartedFiring | Cancel:
    definition = ScheduleDefinition.from_json(row.definition)
    trigger, now_ms = definition.trigger, store.now_us() // 1000 - jitter_of(row, definition)
    choice = choose(definition.timetable, row.next_at, now_ms)
    if choice.fire_ms is None:
        return _pass_over(store, row, choice.next_ms)
    moved = moved_on(row, choice.fire_ms, _next_ms(row, row.fired + 1, choice.fire_ms))
    if trigger.auto_commit:
        _move(store, firing_id, moved)
    return _started(firing_id, choice.fire_ms, moved.next_at, moved=None if trigger.auto_commit else moved)


def _pass_over(store: ScheduleStore, row: ScheduleRow, next_ms: int | None) -> Cancel:
    """Skip a time that is too late to be fired."""
    if store.go_on(moved_on(row, None, next_ms)) is None and (moved := store.read(row.key)) is not None:
        if moved == row:  # an unknown outcome was none
            raise NotDone(f"schedule {row.key!r} could not be moved on")
        store.send_next(moved)
    left_out = to_datetime(row.next_at)
    return Cancel(f"the firing of {left_out.isoformat()} is later than its schedule allows")


def finish(
    store: ScheduleStore, message: ReceivedMessage, firing: Firing | None, settlement: Settlement
) -> Settlement:
    """Move the schedule on after the handler, send its next firing, and return the firing's settlement.

    If the move fails, the firing is delivered again, whatever its handler returned.

    Args:
        store: the schedules of the message's queue.
        message: a message that may be a firing.
        firing: what `begin` returned; None if the handler was not called, because its task is unknown.
        settlement: the decision about the message, apart from its schedule.
    """
    if not isinstance(firing, StartedFiring):
        over = _reason_to_drop(store, message) if settlement.verb is Verb.SNOOZE else None
        return settlement if over is None else Settlement(Verb.ACK, "cancelled", reason=over.reason)
    try:
        firing_id = FiringId.parse(message.trigger)
        if firing.moved is not None and firing_id is not None:
            _move(store, firing_id, firing.moved)
    except (NotDone, OutcomeUnknown) as exc:
        reason = f"its schedule could not be moved on: {describe(exc)}"
        later = MUCH_LATER if isinstance(exc, LASTING) else AGAIN
        return Settlement(Verb.SNOOZE, "snoozed", later, reason=reason)
    return settlement


def _move(store: ScheduleStore, firing_id: FiringId, wanted: ScheduleRow) -> None:
    """Move the row on from a firing, unless somebody else has; then send the next firing for them."""
    row = wanted
    for _ in range(TRIES):
        if store.go_on(row) is not None:
            return
        stored = store.read(wanted.key)
        if stored is None or stored.generation != wanted.generation:
            return  # replaced or resumed while this ran: the new generation goes on
        if stored.next_at != firing_id.time_ms:  # another consumer moved it, and may have died since
            store.send_next(stored)
            return
        row = moved_on(stored, wanted.previous, wanted.next_at or None)
        if wanted.next_at:
            row = row._replace(state=stored.state)  # a schedule that was paused meanwhile stays paused
    raise NotDone(f"schedule {wanted.key!r} is being changed by too many at once")


def _reason_to_drop(store: ScheduleStore, message: ReceivedMessage) -> Cancel | None:
    """Return why a firing of an unknown task is obsolete; None: it waits for its task, or is no firing."""
    firing_id = FiringId.parse(message.trigger)
    if firing_id is None or store.queue.endswith(DEAD_SUFFIX) or firing_id.runs_on_its_own:
        return None
    try:
        row = store.read(firing_id.key)
        return _drop(store, row) if firing_state(firing_id, row) is FiringState.OVER else None
    except (NotDone, OutcomeUnknown, BadInput):
        return None


def _started(
    firing_id: FiringId, time_ms: int, next_ms: int | None, moved: ScheduleRow | None = None
) -> StartedFiring:
    return StartedFiring(
        key=firing_id.key,
        fired_at=to_datetime(time_ms),
        execution_count=firing_id.number,
        previous=_moment(firing_id.previous_ms),
        next_trigger=_moment(next_ms),
        manual=firing_id.is_manual,
        moved=moved,
    )


def _moment(ms: int | None) -> datetime | None:
    return to_datetime(ms) if ms else None
