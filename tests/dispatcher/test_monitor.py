"""The schedule monitor: a schedule whose firing is gone goes on; one whose firing waits is left alone."""

import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

from cqueue.dispatcher.schedules.monitor import ScheduleMonitor
from cqueue.dispatcher.schedules.triggers import Repeating, RunOnce
from cqueue.errors import Unavailable
from tests.fix_schedules import NOON

SECOND = timedelta(seconds=1)
EVERY_TEN = Repeating(10 * SECOND)


def test_after_a_purge_the_schedule_goes_on(process, world):
    """The time whose firing was purged is left out: somebody wanted it gone."""
    process.schedules.add("k", EVERY_TEN)
    process.run(15)
    process.queue.purge()
    process.run(10)
    assert process.watch() == []  # not late enough yet
    process.run(10)
    assert process.watch() == ["k"]
    process.run(30)
    assert world.seconds == [10, 30, 40, 50, 60]
    assert process.live() == 1
    assert process.watch() == []


def test_after_a_burial_the_schedule_goes_on(process, world):
    """A firing that kills its workers is dead-lettered; the next ones are not its fault."""
    process.schedules.add("k", EVERY_TEN)
    world.advance(10)
    (message,) = process.consumer.receive(10)
    message.dead("it killed too many")
    world.advance(11)
    assert process.watch() == ["k"]
    process.run(30)
    assert world.seconds == [20, 30, 40, 50]
    assert process.client.queue("q.dead").stats(exact=True).live == 1


def test_a_firing_that_was_never_sent_is_sent(world):
    """The schedule was made, and its maker died before it could send the first firing."""

    def fault(operation, do):
        if type(operation).__name__ == "InsertMessages":
            raise Unavailable("no replica")
        return do()

    world.process(fault).schedules.add("k", RunOnce(5 * SECOND))
    process = world.process()
    assert process.live() == 0
    process.run(16)
    assert process.watch() == ["k"]
    process.run(60)
    assert world.seconds == [5]
    assert process.schedules.get("k").state == "done"


def test_a_firing_that_was_sent_where_no_consumer_looks_is_found(world):
    """Its wide row was not registered when the schedule's maker died."""

    def fault(operation, do):
        if fault.is_on and type(operation).__name__ == "RegisterShard":
            raise Unavailable("no replica")
        return do()

    fault.is_on = False
    maker = world.process(fault)
    fault.is_on = True
    maker.schedules.add("k", RunOnce(5 * SECOND))
    process = world.process()
    process.run(16)
    assert world.fired == []
    process.watch()
    process.run(60)
    assert world.seconds == [5]
    assert process.schedules.get("k").state == "done"


@pytest.mark.parametrize("why", ["paused queue", "backlog", "held", "paused schedule"])
def test_a_firing_that_waits_is_left_alone(process, world, why):
    """A stored firing is left alone, however late it is."""
    process.schedules.add("k", EVERY_TEN)
    if why == "paused queue":
        process.queue.pause()
    if why == "paused schedule":
        process.schedules.pause("k")
    world.advance(10)
    held = process.consumer.receive(10) if why == "held" else []
    world.advance(20)
    before = process.schedules.store.read("k")
    assert process.watch() == []
    assert process.schedules.store.read("k") == before
    assert process.live() == 1
    assert len(held) == (why == "held")


def test_all_dispatchers_may_look_at_once(process, world):
    """The second finds that the first has helped."""
    other = world.process()
    process.schedules.add("k", EVERY_TEN)
    process.queue.purge()
    world.advance(21)
    assert (process.watch(), other.watch()) == (["k"], [])
    process.run(20)
    assert world.seconds == [20, 30, 40]


def test_a_schedule_that_ends_with_the_lost_firing_is_done(process, world):
    process.schedules.add("k", RunOnce(at=NOON + 5 * SECOND))
    process.queue.purge()
    world.advance(16)
    assert process.watch() == ["k"]
    assert process.schedules.get("k").state == "done"
    assert process.live() == 0


def test_after_an_outage_longer_than_gc_grace_the_firing_is_sent_under_another_id(world):
    """The store may have forgotten the firing's own id."""

    def fault(operation, do):
        if type(operation).__name__ == "InsertMessages":
            raise Unavailable("no replica")
        return do()

    world.process(fault).schedules.add("k", EVERY_TEN)
    world.advance(3 * 86_400)
    process = world.process()
    process.watch()
    process.run(5)
    assert world.seconds == [3 * 86_400]
    assert process.live() == 1


def test_one_queue_that_cannot_be_read_stops_no_monitor(process, world, caplog):
    """The monitor logs the queue, and checks the others."""

    class Broken:
        queue = "broken"
        spec = SimpleNamespace(derived_sends=True)

        def rows(self):
            raise Unavailable("no replica")

    class Wrong(Broken):
        queue = "wrong"

        def rows(self):
            raise RuntimeError("a bug")

    process.schedules.add("k", EVERY_TEN)
    process.queue.purge()
    world.advance(21)
    monitor = ScheduleMonitor([Broken(), Wrong(), process.schedules.store])
    monitor.check_all()
    assert process.live() == 1
    said = caplog.text
    assert "no replica" in said
    assert "a bug" in said
    assert "schedule_restarted" in said


def test_a_queue_that_never_had_a_schedule_is_not_read(world):
    """A dispatcher may have 20,000 of them; one that gets a schedule is checked from then on."""
    asked = []

    def note(operation, do):
        asked.append(type(operation).__name__)
        return do()

    process = world.process(note)
    assert process.watch() == []
    assert "ListSchedules" not in asked
    world.process().schedules.add("k", EVERY_TEN)
    process.queue.purge()
    world.advance(21)
    process.client._catalog._polled_s = float("-inf")  # 2 s later
    assert process.watch() == ["k"]


def test_the_thread_looks_again_and_again(process):
    looks = threading.Semaphore(0)
    monitor = ScheduleMonitor([process.schedules.store], interval_s=0.001)
    monitor.check_all = looks.release
    monitor.start()
    assert all(looks.acquire(timeout=10) for _ in range(3))
    monitor.close()
