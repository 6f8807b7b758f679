"""Schedules as people and applications use them: made, looked at and changed while everything runs."""

from dataclasses import replace
from datetime import timedelta

import pytest

from cqueue.dispatcher.schedules.definition import FiringId, FiringState, ScheduleDefinition, firing_state
from cqueue.dispatcher.schedules.triggers import Repeating, RunOnce
from cqueue.errors import (
    BadInput,
    BodyTooLarge,
    ConfigError,
    DamagedRow,
    HeadersTooLarge,
    NotDone,
    OutcomeUnknown,
    PriorityOutOfRange,
    ScheduleExists,
    ScheduleNotFound,
    Unavailable,
)
from cqueue.store.control import ScheduleRow
from tests.fix_schedules import NOON

SECOND = timedelta(seconds=1)
EVERY_TEN = Repeating(10 * SECOND)


def test_what_is_added_is_sent_as_it_was_said(process, world):
    """Body, headers, priority, task, codec and key are those of each message; nothing had to be prepared."""
    assert not process.queue.config.derived_sends
    process.schedules.add(
        "report", EVERY_TEN, b"{}", task="report", codec="json", message_key="user-7",
        headers={"lang": "de"}, priority=3,
    )  # fmt: skip
    assert process.queue.config.derived_sends
    world.advance(10)
    (message,) = process.consumer.receive(10)
    assert (message.body, message.task, message.codec, message.key) == (b"{}", "report", "json", "user-7")
    assert (message.headers, message.priority, message.due) == ({"lang": "de"}, 3, NOON + 10 * SECOND)


def test_a_schedule_shows_how_it_stands(process):
    made = process.schedules.add("k", Repeating(10 * SECOND, count=4), b"x")
    assert process.schedules.get("k") == made
    assert (made.queue, made.key, made.state, made.fired) == ("q", "k", "active", 0)
    assert (made.next_at, made.previous, made.body) == (NOON + 10 * SECOND, None, b"x")
    assert made.upcoming() == [NOON + n * SECOND for n in (10, 20, 30, 40)]
    process.run(15)
    shown = process.schedules.get("k")
    assert (shown.fired, shown.previous) == (1, NOON + 10 * SECOND)
    assert shown.upcoming(2) == [NOON + n * SECOND for n in (20, 30)]
    assert process.schedules.add("once", RunOnce(SECOND)).upcoming() == [NOON + 16 * SECOND]
    assert [schedule.key for schedule in process.schedules.list()] == ["k", "once"]
    with pytest.raises(BadInput, match="count"):
        shown.upcoming(0)


def test_times_that_have_passed_are_not_upcoming(world, process):
    """Nobody serves the queue: the firing is late, and what is to come begins after now."""
    process.schedules.add("k", EVERY_TEN)
    process.schedules.add("once", RunOnce(SECOND))
    world.advance(25)
    late = process.schedules.get("k")
    assert late.next_at == NOON + 10 * SECOND
    assert late.upcoming(2) == [NOON + n * SECOND for n in (30, 40)]
    assert process.schedules.get("once").upcoming() == []


def test_a_key_is_taken_once(process):
    process.schedules.add("k", EVERY_TEN)
    with pytest.raises(ScheduleExists, match="already; replace=True"):
        process.schedules.add("k", EVERY_TEN)
    with pytest.raises(ScheduleExists, match="another definition"):
        process.schedules.add("k", EVERY_TEN, b"other", exist_ok=True)


def test_the_same_again_changes_nothing(process, world):
    """A deployment that says the same again does not begin anew, not even with times that count from now."""
    process.schedules.add("k", EVERY_TEN)
    world.advance(5)
    process.schedules.add("k", EVERY_TEN, exist_ok=True)
    process.schedules.add("k", EVERY_TEN, replace=True)
    process.run(10)
    assert world.seconds == [10]
    assert process.live() == 1


def test_a_replaced_schedule_begins_anew(process, world):
    """Messages of the old definition are dropped when they come."""
    process.schedules.add("k", EVERY_TEN, b"old")
    process.run(15)
    process.schedules.add("k", Repeating(7 * SECOND), b"new", replace=True)
    process.run(16)
    assert world.seconds == [10, 22, 29]  # made at 15
    assert len(process.dropped) == 1
    assert process.schedules.get("k").fired == 2
    assert process.live() == 1


def test_a_removed_schedule_fires_no_more_and_its_key_is_free(process, world):
    """Made again at once with the same times, it is another schedule."""
    process.schedules.add("k", EVERY_TEN)
    process.schedules.remove("k")
    process.schedules.add("k", EVERY_TEN)
    process.schedules.remove("k")
    assert process.schedules.list() == []
    process.schedules.add("k", EVERY_TEN)
    process.run(25)
    assert world.seconds == [10, 20]


def test_pause_and_resume(process, world):
    """Times within the pause are left out. Either call may be repeated."""
    process.schedules.add("k", EVERY_TEN)
    process.run(12)
    assert process.schedules.pause("k").state == "paused"
    process.schedules.pause("k")
    process.run(33)
    resumed = process.schedules.resume("k")
    assert (resumed.state, resumed.next_at) == ("active", NOON + 50 * SECOND)
    process.schedules.resume("k")
    process.run(20)
    assert world.seconds == [10, 50, 60]


def test_a_short_pause_fires_each_time_once(process, world):
    """The firing that was sent before the pause does not count beside the one sent after it."""
    process.schedules.add("k", EVERY_TEN)
    process.schedules.pause("k")
    process.schedules.resume("k")
    process.run(25)
    assert world.seconds == [10, 20]
    assert process.live() == 1


def test_a_once_whose_time_passes_in_a_pause_fires_at_the_end_of_it(process, world):
    process.schedules.add("k", RunOnce(5 * SECOND))
    process.schedules.pause("k")
    process.run(60)
    assert world.seconds == []
    process.schedules.resume("k")
    process.run(3)
    assert world.seconds == [5]


def test_a_pause_during_a_firing_stays(process, world):
    """The handler that runs moves the schedule on, and does not wake it."""
    process.schedules.add("k", EVERY_TEN)
    process.handler = lambda _: process.schedules.pause("k")
    process.run(40)
    assert world.seconds == [10]
    schedule = process.schedules.get("k")
    assert (schedule.state, schedule.fired) == ("paused", 1)
    process.schedules.resume("k")
    process.handler = lambda _: None
    process.run(15)
    assert world.seconds == [10, 50]


def test_a_replacement_during_a_firing_stays(process, world):
    process.schedules.add("k", EVERY_TEN)
    process.handler = lambda _: process.schedules.add("k", Repeating(7 * SECOND), replace=True)
    process.run(20)
    assert world.seconds == [10, 17]
    assert process.live() == 1


def test_a_paused_schedule_that_is_replaced_stays_paused(process, world):
    """A deployment does not undo what an operator did."""
    process.schedules.add("k", EVERY_TEN)
    process.schedules.pause("k")
    assert process.schedules.add("k", Repeating(SECOND), replace=True).state == "paused"
    process.run(15)
    assert world.seconds == []


@pytest.mark.parametrize("trigger", [EVERY_TEN, RunOnce(10 * SECOND)], ids=repr)
def test_a_firing_is_not_copied_to_another_id(process, world, trigger):
    """Its schedule finds it by its id; under another one it would count as lost, and be passed over."""
    process.schedules.add("k", trigger, priority=3)
    queue, (id_,) = process.queue, process.queue.ids()
    with pytest.raises(BadInput, match="schedule 'k'"):
        queue.set_priority(id_, 0)
    assert queue.set_priority(id_, 3) == id_
    world.advance(60)  # nobody receives
    assert list(queue.set_priority_many([id_], 0).failed) == [id_]
    assert process.watch() == []
    process.work()
    assert (len(world.seconds), process.dropped) == (1, [])


def test_a_firing_is_not_rescheduled_to_before_its_time_shard(process):
    process.schedules.add("k", RunOnce(timedelta(days=9)))
    (id_,) = process.queue.ids()
    with pytest.raises(BadInput, match="run it now"):
        process.queue.reschedule(id_, timedelta())
    assert process.queue.reschedule(id_, timedelta(days=10)) == id_


def test_a_manual_firing_may_be_copied(process, world):
    """Its schedule does not wait for it."""
    process.schedules.add("k", EVERY_TEN)
    assert process.queue.set_priority(process.schedules.run_now("k"), 7) is not None
    process.work()
    assert world.seconds == [0]


def test_a_schedule_goes_with_its_queue(process):
    process.schedules.add("k", EVERY_TEN)
    process.client.delete_queue("q")
    again = process.client.create_queue("q")
    assert again.schedules.list() == []


@pytest.mark.parametrize("call", ["get", "pause", "resume", "run_now", "remove"])
def test_a_mistyped_key_is_answered_with_the_nearest(process, call):
    process.schedules.add("report", EVERY_TEN)
    with pytest.raises(ScheduleNotFound, match="Did you mean 'report'"):
        getattr(process.schedules, call)("repotr")
    with pytest.raises(ScheduleNotFound, match="`cqueue schedule list q` shows"):
        getattr(process.schedules, call)("x")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "complaint"),
    [
        (("", EVERY_TEN), {}, BadInput, "printable"),
        (("a\nb", EVERY_TEN), {}, BadInput, "printable"),
        (("k" * 201, EVERY_TEN), {}, BadInput, "printable"),
        (("k", "*/5 * * * *"), {}, BadInput, "not str"),
        (("k", EVERY_TEN, b"x" * 65_537), {}, BodyTooLarge, "65,536"),
        (("k", EVERY_TEN), {"priority": 10}, PriorityOutOfRange, "priority"),
        (("k", EVERY_TEN), {"headers": {"a": "x" * 20_000}}, HeadersTooLarge, "headers"),
        (("k", EVERY_TEN), {"task": ""}, BadInput, "task"),
        (("k", EVERY_TEN, "text"), {}, BadInput, "body"),
        (("k", Repeating(SECOND, until=NOON)), {}, ConfigError, "never fires"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_stored(process, arguments, options, error, complaint):
    with pytest.raises(error, match=complaint):
        process.schedules.add(*arguments, **options)
    assert process.schedules.list() == []


def test_a_dead_letter_queue_takes_no_schedule(process):
    with pytest.raises(BadInput, match="dead-letter"):
        process.client.queue("q.dead").schedules.add("k", EVERY_TEN)


def test_what_is_done_cannot_be_paused(process):
    process.schedules.add("k", RunOnce(SECOND))
    process.run(3)
    with pytest.raises(BadInput, match="done"):
        process.schedules.pause("k")


def test_a_definition_of_a_newer_version_is_a_clear_error():
    with pytest.raises(ConfigError, match="cannot read the schedule's definition"):
        ScheduleDefinition.from_json(
            '{"start": 1, "trigger": {"kind": "cron", "expression": "* * * * *"}, "moon": 1}'
        )


def test_a_schedule_of_a_newer_version_is_left_as_it_is(process):
    """An older client reads the others, and changes nothing of what it does not understand."""
    process.schedules.add("k", EVERY_TEN)
    process.schedules.add("other", EVERY_TEN)
    store = process.schedules.store
    row = store.read("k")
    newer = store.change(row._replace(definition='{"moon": 1, ' + row.definition[1:]))
    for call in (process.schedules.pause, process.schedules.resume, process.schedules.get):
        with pytest.raises(DamagedRow, match="cannot read the schedule"):
            call("k")
    with pytest.raises(ScheduleExists):
        process.schedules.add("k", EVERY_TEN, exist_ok=True)
    process.run(12)
    assert store.read("k") == newer
    assert process.schedules.get("other").fired == 1
    process.schedules.remove("k")


# ── Unknown outcomes ──


@pytest.mark.parametrize("made", [False, True])
def test_a_change_of_unknown_outcome_is_read_back(world, made):
    """Each call does what it says, once, or raises: whatever happened to the first try."""

    def fault(operation, do):
        name = type(operation).__name__
        if name in {"CreateSchedule", "ChangeSchedule", "RemoveSchedule"} and name not in fault.seen:
            fault.seen.add(name)
            if made:
                do()
            raise OutcomeUnknown("the coordinator says nothing")
        return do()

    fault.seen = set()
    process = world.process(fault)
    process.schedules.add("k", EVERY_TEN)
    first = process.schedules.store.read("k").version
    process.schedules.pause("k")
    assert process.schedules.get("k").state == "paused"
    fault.seen.discard("ChangeSchedule")
    process.schedules.resume("k")
    assert process.schedules.store.read("k").version == first + 2
    process.run(12)
    assert world.seconds == [10], "whose outcome was unknown has sent the firing"
    process.schedules.remove("k")
    assert process.schedules.list() == []
    assert fault.seen == {"CreateSchedule", "ChangeSchedule", "RemoveSchedule"}


def test_a_row_that_never_holds_still_is_given_up(world):
    def fault(operation, do):
        return False if type(operation).__name__ in {"ChangeSchedule", "RemoveSchedule"} else do()

    process = world.process(fault)
    process.schedules.add("k", EVERY_TEN)
    for call in (process.schedules.pause, process.schedules.remove):
        with pytest.raises(NotDone, match="too many at once"):
            call("k")
    with pytest.raises(NotDone, match="too many at once"):
        process.schedules.add("k", RunOnce(SECOND), replace=True)


# ── What a message is worth beside its row ──

LATE = ScheduleDefinition(trigger=Repeating(SECOND), start_ms=0, late=((2_000, 3_000), (3_500, 0)))
ROW = ScheduleRow("q@1", "k", 9, "active", 5, LATE.to_json(), 4_000, 3_000, 3)


@pytest.mark.parametrize(
    ("firing_id", "row", "expected"),
    [
        (FiringId("k", 5, 4, 4_000), ROW, FiringState.CURRENT),
        (FiringId("k", 5, 3, 3_000), ROW, FiringState.REPEAT),
        (FiringId("k", 5, 3, 2_000), ROW, FiringState.REPEAT),  # fired for a later time, after a misfire
        (FiringId("k", 5, 1, 1_000), ROW, FiringState.REPEAT),
        (FiringId("k", 5, 3, 3_500), ROW, FiringState.OVER),  # left out
        (FiringId("k", 5, 4, 3_500), ROW, FiringState.OVER),
        (FiringId("k", 5, 5, 5_000), ROW, FiringState.OVER),
        (FiringId("k", 4, 4, 4_000), ROW, FiringState.OVER),
        (FiringId("k", 4, 1, 1_000), ROW, FiringState.OVER),
        (FiringId("k", 5, 4, 4_000), ROW._replace(state="paused"), FiringState.OVER),
        (FiringId("k", 5, 3, 3_000), ROW._replace(state="paused"), FiringState.REPEAT),
        (FiringId("k", 5, 3, 3_000), ROW._replace(state="done", next_at=0), FiringState.REPEAT),
        (FiringId("k", 5, 4, 4_000), None, FiringState.OVER),
    ],
)
def test_standing(firing_id, row, expected):
    """The row is the authority: by generation and time a message is current, a repeat, or over."""
    assert firing_state(firing_id, row) is expected
    assert FiringId.parse(firing_id.to_json()) == firing_id
    redriven = replace(firing_id, is_redriven=True)
    assert FiringId.parse(redriven.to_json()) == redriven


@pytest.mark.parametrize("call", ["add", "pause", "resume", "remove"])
def test_a_change_without_an_answer_whose_row_cannot_be_read_is_unknown(world, call):
    """It was done, so `NotDone` would be wrong."""

    def fault(operation, do):
        if not fault.is_on:
            return do()
        if type(operation).__name__ == "ReadSchedule" and fault.is_lost:
            raise Unavailable("no replica")
        if type(operation).__name__ in {"CreateSchedule", "ChangeSchedule", "RemoveSchedule"}:
            do()
            fault.is_lost = True
            raise OutcomeUnknown("the coordinator says nothing")
        return do()

    fault.is_on = fault.is_lost = False
    schedules = world.process(fault).schedules
    if call != "add":
        schedules.add("k", EVERY_TEN)
    if call == "resume":
        schedules.pause("k")
    fault.is_on = True
    with pytest.raises(OutcomeUnknown):
        schedules.add("k", EVERY_TEN) if call == "add" else getattr(schedules, call)("k")


def test_a_schedule_that_is_resumed_while_it_is_removed_is_removed(world):
    """The removal got no answer. What another process has made of the row meanwhile goes, too."""
    world.process().queue.alter(derived_sends=True)
    other = world.process()

    def fault(operation, do):
        if fault.is_on and type(operation).__name__ == "RemoveSchedule":
            fault.is_on = False
            other.schedules.resume("k")
            do()
            raise OutcomeUnknown("the coordinator says nothing")
        return do()

    fault.is_on = True
    process = world.process(fault)
    process.schedules.add("k", EVERY_TEN)
    process.schedules.pause("k")
    world.advance(1)
    process.schedules.remove("k")
    with pytest.raises(ScheduleNotFound):
        other.schedules.get("k")


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_schedule_that_is_made_anew_while_it_is_removed_stays(world, is_changed):
    """The removal got no answer, and was done: the next row of the key is another one."""
    other = world.process()

    def fault(operation, do):
        if fault.is_on and type(operation).__name__ == "RemoveSchedule":
            fault.is_on = False
            do()
            world.advance(1)
            other.schedules.add("k", EVERY_TEN)
            if is_changed:
                other.schedules.pause("k")
                other.schedules.resume("k")
            raise OutcomeUnknown("the coordinator says nothing")
        return do()

    fault.is_on = True
    process = world.process(fault)
    process.schedules.add("k", EVERY_TEN)
    process.schedules.remove("k")
    assert other.schedules.get("k").state == "active"


def test_a_change_of_a_schedule_that_was_made_anew_meanwhile_is_refused(world):
    """It would put the definition of the removed one in the place of the new one's."""
    process = world.process()
    process.schedules.add("k", EVERY_TEN)
    store = process.schedules.store
    row = store.read("k")
    process.schedules.remove("k")
    world.advance(1)
    process.schedules.add("k", Repeating(SECOND))
    assert store.change(row._replace(state="paused")) is None
    assert not store.remove(row)
    assert process.schedules.get("k").trigger == Repeating(SECOND)


def test_a_client_that_does_not_know_of_derived_sends_yet_resumes(world):
    other, process = world.process(), world.process()
    process.schedules.add("k", EVERY_TEN)
    process.schedules.pause("k")
    world.advance(1)
    assert other.schedules.resume("k").state == "active"
    process.run(25)
    assert world.seconds == [10, 20]
