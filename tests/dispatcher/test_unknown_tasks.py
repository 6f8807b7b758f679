"""Messages that this version of an application cannot run wait for one that can, and are not buried."""

from __future__ import annotations

from datetime import timedelta

import pytest

import cqueue
from cqueue.dispatcher.application.tasks import Task
from cqueue.dispatcher.execution import unknown_tasks
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.dispatcher.execution.unknown_tasks import pause_for
from cqueue.dispatcher.schedules.monitor import restart_stalled
from cqueue.errors import PayloadMismatch, UnknownTask
from tests.fix_dispatcher import SOON, until

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


class Lines:
    """The events of a dispatcher."""

    def __init__(self):
        self.said = []

    def __call__(self, event, fields):
        self.said.append((event, dict(fields)))

    def of(self, event):
        return [fields for name, fields in self.said if name == event]


@pytest.fixture
def lines():
    return Lines()


@pytest.fixture
def old(work, dispatch, lines):
    """A dispatcher of the old version, which does not know the task "resize"."""
    return dispatch(work, {"mail": lambda *_: None}, on_event=lines)


def settled(dispatcher, **counts):
    """Wait until these counts are reached and stored; the clock stands still, so nothing more happens."""

    def there():
        stats = dispatcher.stats()
        idle = not (stats.unstarted or stats.running or stats.unsettled)
        return idle and all(getattr(stats.total, name) >= count for name, count in counts.items())

    until(there)


def until_dead(dispatcher, clock, messages=1):
    def tick():
        stats = dispatcher.stats()
        idle = not (stats.unstarted or stats.running or stats.unsettled)
        if idle:
            clock.advance(1.0)  # only its back-off passes, and no lease
        return idle and stats.total.dead == messages

    until(tick)


@pytest.fixture
def letters(shop):
    """Looks at the dead letters."""
    return lambda: shop.queue("work.dead").peek()


# ── Messages ──


def test_a_message_of_an_unknown_task_waits_an_hour_without_an_attempt_then_it_dies(
    letters, work, clock, old, lines
):
    """The letter says which task nobody knew."""
    work.send_many([cqueue.Message(b"x", task="resize"), cqueue.Message(b"x", task="mail")])
    settled(old, snoozed=1, succeeded=1)
    for number, seconds in enumerate((1.1, 2, 60, 3500), start=2):
        clock.advance(seconds)
        settled(old, snoozed=number)
        assert [stored.state for stored in work.peek()] == ["waiting"]
    assert {fields["attempt"] for fields in lines.of("message_snoozed")} == {1}
    assert old.stats().total.retried == old.stats().total.dead == 0
    clock.advance(60)
    until_dead(old, clock)
    assert old.stats().total.retried == 2  # three attempts, as its queue allows
    (letter,) = letters()
    assert "'resize'" in letter.headers["cqueue-dead-reason"]


def test_a_later_version_that_knows_the_task_runs_it_as_a_first_attempt(letters, work, clock, old):
    """A deployment in the wrong order costs nothing."""
    work.send_many([cqueue.Message(b"x", task="resize")])
    settled(old, snoozed=1)
    old.stop()
    clock.advance(55 * 60)
    attempts = []
    with Dispatcher(work, {"resize": lambda _, context: attempts.append(context.attempt)}) as new:
        assert new.drain(SOON)
    assert attempts == [1]
    assert letters() == []


def test_the_hour_of_a_backlog_begins_when_a_dispatcher_meets_it(work, clock, dispatch):
    """A message may have waited all night; a restarted dispatcher gives it the whole wait again."""
    work.send_many([cqueue.Message(b"x", task="resize")])
    clock.advance(8 * 3600)
    for _ in range(2):
        dispatcher = dispatch(work, {"mail": lambda *_: None})
        settled(dispatcher, snoozed=1)
        clock.advance(3500)
        settled(dispatcher, snoozed=2)
        dispatcher.stop()
        assert dispatcher.stats().total.retried == 0
        clock.advance(3600)


def test_a_message_that_names_no_task_waits_for_no_deployment(work, dispatch):
    """No version of an application could run the message, so it fails like any other."""
    work.send(b"x")
    dispatcher = dispatch(work, {"mail": lambda *_: None})
    settled(dispatcher, retried=1)
    assert dispatcher.stats().total.snoozed == 0


def test_a_wait_of_0_retries_at_once(letters, work, clock, dispatch, lines):
    """With 0 a dead letter comes within seconds."""
    work.send_many([cqueue.Message(b"x", task="resize")])
    dispatcher = dispatch(work, {"mail": lambda *_: None}, unknown_task_wait=timedelta(), on_event=lines)
    until_dead(dispatcher, clock)
    assert (dispatcher.stats().total.snoozed, dispatcher.stats().total.retried) == (0, 2)
    assert len(letters()) == 1
    assert lines.of("task_unknown") == []


def test_an_unknown_task_is_told_once(work, clock, old, lines):
    """With what names it, and never again however often it comes."""
    work.send_many([cqueue.Message(b"secret", task="resize") for _ in range(3)])
    settled(old, snoozed=3)
    clock.advance(1.1)
    settled(old, snoozed=6)
    (fields,) = lines.of("task_unknown")
    assert (fields["queue"], fields["task"], fields["attempt"], fields["wait_s"]) == (
        "work",
        "resize",
        1,
        3600,
    )
    assert "UnknownTask: no handler for task 'resize'" in fields["error"]
    assert "secret" not in str(lines.said)


def _resize(_width):
    raise AssertionError("never called")


def test_arguments_that_this_version_does_not_take_wait_as_well(work, clock, dispatch, lines):
    """The new version of those who enqueue may have come first."""
    task = Task(_resize, None, name="resize", queue="work", retry=cqueue.Retry(max_attempts=1))
    dispatcher = dispatch(work, {"resize": task.binding}, on_event=lines)
    work.send_many([cqueue.Message(b'{"args": [1, 2]}', task="resize", codec="json")])
    settled(dispatcher, snoozed=1)
    clock.advance(1800)
    settled(dispatcher, snoozed=2)
    assert [fields["attempt"] for fields in lines.of("message_snoozed")] == [1, 1]
    (fields,) = lines.of("arguments_unknown")
    assert fields["task"] == "resize"
    assert fields["error"].startswith("PayloadMismatch: task 'resize': was it enqueued")


def test_a_task_whose_arguments_are_wrong_in_many_ways_is_told_once(work, dispatch, lines):
    """The error's text comes from the message, so there may be any number of texts."""
    task = Task(_resize, None, name="resize", queue="work", retry=cqueue.Retry(max_attempts=1))
    dispatcher = dispatch(work, {"resize": task.binding}, on_event=lines)
    bodies = [b'{"args": [1, 2]}', b'{"kwargs": {"depth": 1}}', b'{"args": []}']
    work.send_many([cqueue.Message(body, task="resize", codec="json") for body in bodies])
    settled(dispatcher, snoozed=3)
    assert len(lines.of("arguments_unknown")) == 1


@pytest.mark.parametrize("error", [UnknownTask("mine"), PayloadMismatch("mine")])
def test_an_error_of_the_handler_itself_is_no_reason_to_wait(work, dispatch, error):
    """The handler ran, so its policy decides."""

    def handle(_message, _context):
        raise error

    work.send(b"x")
    dispatcher = dispatch(work, {None: cqueue.Binding("task", handle, cqueue.Retry(HOUR))})
    settled(dispatcher, retried=1)
    assert dispatcher.stats().total.snoozed == 0


@pytest.mark.parametrize(
    ("waited_s", "pause_s"),
    [(0, 1), (0.5, 1), (3, 3), (45, 45), (600, 60), (3590, 10), (3600, None), (9e6, None)],
)
def test_pauses_grow_to_a_minute_and_end_with_the_wait(waited_s, pause_s):
    snooze = pause_for(HOUR, timedelta(seconds=waited_s))
    assert (snooze and snooze.delay.total_seconds()) == pause_s


def test_more_unknown_tasks_than_are_remembered_wait_no_longer_than_others(
    letters, work, clock, *, old, lines, monkeypatch
):
    """Names come from messages: they fill neither the memory nor the log, and each message has its hour."""
    monkeypatch.setattr(unknown_tasks, "REMEMBERED", 2)
    work.send_many([cqueue.Message(b"x", task=f"task-{number}") for number in range(4)])
    for looks, seconds in enumerate((1.1, 2, 60, 3500), start=1):
        settled(old, snoozed=4 * looks)
        clock.advance(seconds)
    until_dead(old, clock, messages=4)
    assert {letter.task for letter in letters()} == {f"task-{number}" for number in range(4)}
    assert len(lines.of("task_unknown")) == 2
    (fields,) = lines.of("unknown_untold")
    assert (fields["queue"], fields["remembered"]) == ("work", 2)
    assert fields["error"].startswith("UnknownTask: ")


# ── Schedules ──


@pytest.fixture
def orphan(work):
    """A schedule whose task the old version does not know."""
    work.schedules.add("nightly", cqueue.Repeating(10 * SECOND), b"secret", task="resize")
    return work.schedules


def test_a_schedule_of_an_unknown_task_fires_nothing_and_stays_as_it_is(letters, clock, orphan, old, lines):
    """For hours the one firing waits, nothing is buried, and no worker changes the schedule."""
    before = orphan.store.read("nightly")
    clock.advance(10.1)
    settled(old, snoozed=1)
    for number in range(2, 6):
        clock.advance(3600)
        settled(old, snoozed=number)
        assert restart_stalled(orphan.store) == []  # the schedule monitor lets it wait
    assert orphan.store.read("nightly") == before
    assert letters() == []
    (fields,) = lines.of("schedule_unfired")
    assert (fields["queue"], fields["task"], fields["schedule"]) == ("work", "resize", "nightly")
    assert "secret" not in str(lines.said)


def test_a_worker_that_knows_the_task_fires_it_though_an_old_one_did_not(work, clock, orphan, old):
    """In a rolling deployment old and new workers serve the queue, and the old ones do no harm."""
    clock.advance(10.1)
    settled(old, snoozed=1)
    fired = []

    def resize(_message, context):
        fired.append((context.firing.execution_count, context.attempt))

    clock.advance(1.1)
    settled(old, snoozed=2)
    old.stop()
    clock.advance(60)
    with Dispatcher(work, {"resize": resize}) as new:
        assert new.drain(SOON)
    assert fired == [(1, 1)]
    assert orphan.get("nightly").fired == 1


@pytest.mark.parametrize("change", ["remove", "pause"])
def test_a_firing_that_waits_goes_with_its_schedule(work, clock, orphan, old, change):
    """Nobody need know the task to see that the schedule waits for it no more."""
    clock.advance(10.1)
    settled(old, snoozed=1)
    getattr(orphan, change)("nightly")
    clock.advance(60)
    settled(old, cancelled=1, acked=1)
    assert work.peek() == []


def test_a_firing_by_hand_of_an_unknown_task_waits_as_a_message_does(letters, clock, orphan, old):
    """No schedule waits for this firing, so it dies after the hour; the schedule's own firing waits on."""
    orphan.pause("nightly")
    orphan.run_now("nightly")
    settled(old, snoozed=1)
    clock.advance(3601)
    until_dead(old, clock)
    assert len(letters()) == 1


def test_a_redriven_firing_of_an_unknown_task_waits_as_a_message_does(letters, work, clock, orphan, dispatch):
    """No schedule waits for it any more, so nothing else would end its wait."""
    clock.advance(10.1)
    with Dispatcher(work, {"resize": lambda *_: cqueue.Dead("bad")}) as new:
        assert new.drain(SOON)
    orphan.pause("nightly")
    work.dead_letters.redrive(everything=True)
    old = dispatch(work, {"mail": lambda *_: None})
    settled(old, snoozed=1)
    clock.advance(3601)
    until_dead(old, clock)
    assert len(letters()) == 1
