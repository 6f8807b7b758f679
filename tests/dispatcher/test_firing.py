"""Firings: each time is fired, and the schedule goes on once, wherever a process dies."""

import random
import threading
from datetime import timedelta

import pytest

from cqueue import Message
from cqueue.dispatcher.execution.actions import Cancel
from cqueue.dispatcher.execution.delivery import SUCCEEDED, Settlement, Verb
from cqueue.dispatcher.execution.firing import begin, finish
from cqueue.dispatcher.schedules.definition import MOST_LATE, moved_on
from cqueue.dispatcher.schedules.triggers import Cron, Repeating, RunOnce
from cqueue.errors import LeaseLost, OutcomeUnknown, Unavailable
from cqueue.message import MAX_HEADERS
from tests.fix_schedules import NOON, Died, World

SECOND = timedelta(seconds=1)
EVERY_TEN = Repeating(10 * SECOND)


def test_a_schedule_fires_at_its_times(process, world):
    process.schedules.add("k", EVERY_TEN, b"body")
    process.run(35)
    assert world.seconds == [10, 20, 30]
    assert process.live() == 1
    first, second, _ = world.fired
    assert (first.key, first.execution_count, first.previous) == ("k", 1, None)
    assert first.next_trigger == second.fired_at == NOON + 20 * SECOND
    assert (second.execution_count, second.previous) == (2, first.fired_at)
    assert not first.manual


# ── Deaths ──

WRITES = {"InsertMessages", "RegisterShard", "ChangeSchedule", "Mutate", "DeleteMessages"}


class DiesAt:
    """Kills its process at the n-th write after `armed`: before it is made, or just after."""

    def __init__(self, number, *, after):
        self.left, self.after, self.armed, self.dead = number, after, False, False

    def __call__(self, operation, do):
        assert not self.dead, "nothing runs after a death"
        if not self.armed or type(operation).__name__ not in WRITES:
            return do()
        self.left -= 1
        if self.left:
            return do()
        self.dead = True
        if self.after:
            do()
        raise Died


def run_with_a_death(trigger, number, *, after):
    """Let one worker die at its n-th write while another goes on; return the world, and whether it died."""
    world = World()
    fault = DiesAt(number, after=after)
    first = world.process(fault)
    first.schedules.add("k", trigger)
    fault.armed = True
    try:
        first.run(45, step=2.5)
    except Died:
        world.advance(31)  # its messages come again
    second = world.process()
    second.run(60, step=2.5)
    second.watch()
    second.run(5, step=2.5)
    return world, second, fault.dead


POLICIES = [
    Repeating(10 * SECOND, misfire="all"),
    Repeating(10 * SECOND, misfire="all", auto_commit=True),
    Repeating(10 * SECOND),
    Repeating(10 * SECOND, auto_commit=True),
    Repeating(10 * SECOND, misfire="skip", grace=3 * SECOND),
    Cron("*/10 * * * * *", jitter=2 * SECOND, misfire="all"),
]


@pytest.mark.slow
@pytest.mark.parametrize("trigger", POLICIES, ids=repr)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_at_any_write_repeats_a_firing_at_most(trigger, after):
    """A death loses no time, repeats at most the current firing, and leaves one chain of firings."""
    number, met = 0, True
    while met:
        number += 1
        world, survivor, met = run_with_a_death(trigger, number, after=after)
        judge(world, survivor, trigger)
    assert number > 15


def judge(world, survivor, trigger, duplicates=1):
    fired = world.seconds
    expected = list(range(10, int((world.now - NOON).total_seconds()) - 5, 10))
    numbers = {firing.execution_count for firing in world.fired}
    assert len(fired) - len(numbers) <= duplicates, fired
    assert numbers == set(range(1, len(numbers) + 1)), "each counted firing has been run"
    assert set(fired) <= {*expected, expected[-1] + 10}, fired
    if trigger.misfire == "all":
        assert set(expected) <= set(fired)
    assert fired[-1] >= expected[-1], "it stopped"
    assert survivor.live() == 1, "one chain"
    (row,) = survivor.schedules.store.rows()
    assert row.fired == len(numbers)
    assert survivor.schedules.store.is_live(row)


# ── Answers that do not come ──


class Silent:
    """From the n-th write after `armed`, some writes have an unknown outcome: made, or not."""

    def __init__(self, number, *, made, times):
        self.number, self.made, self.times, self.armed, self.met = number, made, times, False, False

    def __call__(self, operation, do):
        name = type(operation).__name__
        if not self.armed or name not in {"ChangeSchedule", "InsertMessages"}:
            return do()
        self.number -= 1
        if self.number >= 0 or self.number < -self.times:
            return do()
        self.met = True
        if self.made:
            do()
        raise OutcomeUnknown("the coordinator says nothing")


@pytest.mark.parametrize("trigger", POLICIES[:4], ids=repr)
@pytest.mark.parametrize("made", [False, True], ids=["not made", "made"])
@pytest.mark.parametrize("times", [1, 30])
def test_unknown_outcomes_lose_and_double_nothing(trigger, made, times):
    """An outcome may be unknown once, or until the firing is given up and delivered again."""
    for number in range(6):
        world = World()
        fault = Silent(number, made=made, times=times)
        process = world.process(fault)
        process.schedules.add("k", trigger)
        fault.armed = True
        process.run(120, step=2.5)
        assert fault.met
        judge(world, process, trigger, duplicates=0 if times == 1 else 20)


def test_a_skip_of_which_nothing_was_stored_is_tried_again(world):
    """Else the schedule would wait for a monitor, and leave out more than was late."""

    def fault(operation, do):
        if fault.is_on and type(operation).__name__ == "ChangeSchedule":
            fault.is_on = False
            raise OutcomeUnknown("the coordinator says nothing")
        return do()

    fault.is_on = False
    process = world.process(fault)
    process.schedules.add("k", Repeating(10 * SECOND, misfire="skip", grace=3 * SECOND))
    world.advance(15)
    fault.is_on = True
    process.run(20)
    assert world.seconds == [20, 30]


def died_moving_on(store):
    """What a worker leaves behind that passes over a time, and dies before it sends the next firing."""
    row = store.read("k")
    assert store.change(moved_on(row, None, row.next_at + 10_000)) is not None


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_who_finds_a_schedule_moved_on_sends_what_it_waits_for(world, when):
    """The worker that moved it may have died before it could; only the monitor would be left."""

    def fault(operation, do):
        if fault.is_on and type(operation).__name__ == "ChangeSchedule":
            fault.is_on = False
            died_moving_on(other.schedules.store)
        return do()

    fault.is_on = False
    process, other = world.process(fault), world.process()
    process.schedules.add("k", Repeating(10 * SECOND, misfire="skip", grace=SECOND))
    world.advance(15)
    (message,) = process.consumer.receive(10)
    if when == "before":
        died_moving_on(other.schedules.store)
    else:
        fault.is_on = True
    process.handle(message)
    assert (len(process.dropped), fault.is_on) == (1, False)
    process.run(5)
    assert world.seconds == [20]


# ── Two at once ──


class Turns:
    """Threads that run one at a time, and hand over at operations: the order is the seed's."""

    def __init__(self, seed):
        self.random, self.changed = random.Random(seed), threading.Condition()
        self.alive, self.turn = set(), None

    def __call__(self, operation, do):
        self.hand_over()
        return do()

    def hand_over(self):
        me = threading.current_thread().name
        if me not in self.alive:
            return
        with self.changed:
            self.turn = self.random.choice(sorted(self.alive))
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.turn == me, timeout=20)

    def run(self, *functions):
        threads = [
            threading.Thread(target=self._run, args=(function,), name=f"worker-{n}")
            for n, function in enumerate(functions)
        ]
        self.errors = []
        self.alive = {thread.name for thread in threads}
        self.turn = "worker-0"
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert self.errors == []

    def _run(self, function):
        me = threading.current_thread().name
        with self.changed:
            self.changed.wait_for(lambda: self.turn == me, timeout=20)
        try:
            function()
        except BaseException as exc:
            self.errors.append(exc)
            raise
        finally:
            with self.changed:
                self.alive.discard(me)
                self.turn = min(self.alive, default=None)
                self.changed.notify_all()


@pytest.mark.parametrize("seed", range(6))
def test_two_holders_of_one_firing_move_the_schedule_once(seed):
    """A handler outlives its timeout, so another worker has the same firing: one chain goes on."""
    world, turns = World(), Turns(seed)
    trigger = Repeating(10 * SECOND, misfire="all", auto_commit=seed % 2 == 1)
    workers = [world.process(turns), world.process(turns)]
    workers[0].schedules.add("k", trigger)
    slow = iter([True] * 2)

    def handler(_):
        if next(slow, False):
            world.advance(31)
            turns.hand_over()

    def work(worker):
        for _ in range(20):
            try:
                worker.work()
            except LeaseLost:
                continue
            world.advance(1)

    for worker in workers:
        worker.handler = handler
    turns.run(*(lambda worker=worker: work(worker) for worker in workers))
    survivor = world.process()
    survivor.run(80, step=2.5)
    judge(world, survivor, trigger, duplicates=6)


# ── What a firing says, and when the schedule ends ──


@pytest.mark.parametrize("redriven", [False, True])
def test_a_firing_that_is_tried_again_names_the_same_next_time(process, world, redriven):
    """What reports up to the next time, or acts at the last one, does the same at each attempt."""
    store = process.schedules.store
    process.schedules.add("k", Repeating(10 * SECOND, count=3))
    world.advance(10)
    (message,) = process.consumer.receive(10)
    finish(store, message, begin(store, message), SUCCEEDED)
    process.run(15)
    message.dead("failed") if redriven else message.nack()
    process.queue.dead_letters.redrive(everything=True)
    process.run(5)
    assert world.seconds == [20, 10, 30]
    assert [firing.next_trigger for firing in world.fired] == [NOON + 30 * SECOND, NOON + 20 * SECOND, None]
    assert [firing.execution_count for firing in world.fired] == [2, 1, 3]


def test_a_count_ends_the_schedule(process, world):
    process.schedules.add("k", Repeating(10 * SECOND, count=2))
    process.run(60)
    assert world.seconds == [10, 20]
    assert [firing.next_trigger for firing in world.fired] == [NOON + 20 * SECOND, None]
    done = process.schedules.get("k")
    assert (done.state, done.next_at, done.fired, done.previous) == ("done", None, 2, NOON + 20 * SECOND)
    assert process.live() == 0


def test_until_ends_the_schedule_and_once_is_once(process, world):
    process.schedules.add("a", Repeating(10 * SECOND, until=NOON + 25 * SECOND))
    process.schedules.add("b", RunOnce(at=NOON + 5 * SECOND))
    process.run(60)
    assert world.seconds == [5, 10, 20]
    assert {schedule.state for schedule in process.schedules.list()} == {"done"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"misfire": "latest"}, [10, 50, 60]),
        ({"misfire": "all"}, [10, 20, 30, 40, 50, 60]),
        ({"misfire": "all", "grace": 20 * SECOND}, [10, 40, 50, 60]),
        ({"misfire": "skip"}, [10, 50, 60]),  # that one is not ten seconds late
        ({"misfire": "skip", "grace": SECOND}, [10, 60]),
        ({"misfire": "latest", "grace": SECOND}, [10, 60]),
    ],
)
def test_misfires_after_an_outage(process, world, options, expected):
    """No dispatcher runs from second 12 to second 55; the policy decides what fires then."""
    process.schedules.add("k", Repeating(10 * SECOND, **options))
    process.run(12)
    world.advance(43)
    process.run(10)
    assert world.seconds == expected
    assert world.fired[-1].execution_count == len(expected)
    assert process.live() == 1


def test_catching_up_is_not_slow(process, world):
    """Firings of times long past are found at once, not when somebody looks for late arrivals."""
    process.schedules.add("k", Repeating(SECOND, misfire="all"))
    world.advance(600)
    for _ in range(700):
        process.work()
        world.advance(0.1)
    assert world.seconds[:600] == list(range(1, 601))
    assert len(world.fired) > 660


def test_a_slow_handler_delays_the_next_firing_unless_it_is_sent_before(process):
    """With `auto_commit` the next firing stands, and another worker has it, while the handler still runs."""
    for key, auto_commit in (("after", False), ("before", True)):
        process.schedules.add(key, Repeating(10 * SECOND, auto_commit=auto_commit))
    live = {}
    process.handler = lambda firing: live.setdefault(
        firing.key, process.schedules.store.read(firing.key).fired
    )
    process.run(12)
    assert live == {"after": 0, "before": 1}


def test_a_firing_that_is_retried_runs_again_though_others_have_fired_since(process, world):
    """A firing that has begun is a message like any other: only its schedule has gone on."""
    process.schedules.add("k", Repeating(SECOND))
    world.advance(1)
    (message,) = process.consumer.receive(10)
    store = process.schedules.store
    assert finish(store, message, begin(store, message), SUCCEEDED) is SUCCEEDED
    message.nack(5 * SECOND)
    process.run(4)
    assert world.seconds == [2, 3, 4, 5]
    process.run(2)
    assert world.seconds == [2, 3, 4, 5, 1, 6, 7]
    assert world.fired[4].execution_count == 1
    assert process.dropped == []


def test_a_late_firing_that_is_retried_runs_as_the_time_that_was_chosen_for_it(process, world):
    """The handler saw 13 at its first attempt. It sees 13 again, whatever has fired since."""
    process.schedules.add("k", Repeating(SECOND))
    world.advance(13.2)
    (message,) = process.consumer.receive(10)
    store = process.schedules.store
    assert finish(store, message, first := begin(store, message), SUCCEEDED) is SUCCEEDED
    message.nack(2 * SECOND)
    process.run(3)
    again = [firing for firing in world.fired if firing.execution_count == 1]
    assert [firing.fired_at for firing in (first, *again)] == [NOON + 13 * SECOND] * 2


def test_a_time_that_was_left_out_stays_so_when_its_message_comes_again(process, world):
    """Its ack was lost. The time behind it has fired meanwhile, and does not fire once more."""
    process.schedules.add("k", Repeating(10 * SECOND, misfire="skip", grace=SECOND))
    world.advance(13)
    (message,) = process.consumer.receive(10)
    store = process.schedules.store
    assert isinstance(begin(store, message), Cancel)
    world.advance(7)
    process.run(2)
    assert world.seconds == [20]
    assert isinstance(begin(store, message), Cancel)


def test_who_outlives_the_lease_does_not_set_the_schedule_back(process, world):
    """Another worker left the time out while its handler ran: the next time fires once, in time."""
    process.schedules.add("k", Repeating(10 * SECOND, misfire="skip", grace=15 * SECOND))
    other, store = world.process(), process.schedules.store
    world.advance(10)
    (message,) = process.consumer.receive(10)
    started = begin(store, message)
    world.advance(31)
    other.work()
    assert len(other.dropped) == 1
    went_on = store.rows()
    assert finish(store, message, started, SUCCEEDED) is SUCCEEDED
    assert store.rows() == went_on
    other.run(20)
    assert world.seconds == [30, 40, 50, 60]


def test_a_row_remembers_its_last_late_times(process, world):
    process.schedules.add("k", Repeating(SECOND, misfire="skip", grace=timedelta(milliseconds=1)))
    for _ in range(MOST_LATE + 5):
        world.advance(1.5)
        process.work()
    late = process.schedules.get("k").late
    assert (len(late), {fired for _, fired in late}) == (MOST_LATE, {0})
    assert sorted(late) == list(late)


def test_a_manual_firing_leaves_the_schedule_alone(process, world):
    process.schedules.add("k", EVERY_TEN)
    world.advance(3)
    process.schedules.run_now("k")
    process.run(10)
    assert world.seconds == [3, 10]
    manual, first = world.fired
    assert manual.manual
    assert not first.manual
    assert (first.execution_count, first.previous) == (1, None)
    assert process.schedules.get("k").fired == 1


def test_what_only_looks_like_a_firing_is_an_ordinary_message(process):
    """Applications may write into `trigger` what they like."""
    for trigger in ("mine", '{"schedule": 7}', '{"schedule": "k", "firing": [1, "x", 2, 3]}'):
        process.queue.send_many([Message(b"x", trigger=trigger)])
    found = process.consumer.receive(10)
    assert [begin(process.schedules.store, message) for message in found] == [None] * 3


def test_a_firing_waits_while_its_schedule_cannot_be_read(world):
    """The firing is neither run nor dropped, and uses no attempt, be its task known here or not."""

    def fault(operation, do):
        if type(operation).__name__ == "ReadSchedule" and fault.broken:
            raise Unavailable("no replica")
        return do()

    fault.broken = False
    process = world.process(fault)
    process.schedules.add("k", EVERY_TEN)
    fault.broken = True
    process.run(11)
    assert world.fired == []
    world.advance(2)
    (message,) = process.consumer.receive(10)
    unknown_task = Settlement(Verb.SNOOZE, "snoozed", SECOND)
    assert finish(process.schedules.store, message, None, unknown_task) is unknown_task
    process.handle(message)
    fault.broken = False
    process.run(3)  # the reads that failed took up to 1 s of retries, and at 20 s the next firing comes
    assert world.seconds == [10]
    assert process.dropped == []


def test_a_dead_letter_is_handled_on_its_own(process, world):
    """A dispatcher of dead letters runs what died of a schedule, whatever became of that."""
    process.schedules.add("k", EVERY_TEN)
    world.advance(10)
    (message,) = process.consumer.receive(10)
    message.dead("bad")
    process.schedules.remove("k")
    dead = process.client.queue("q.dead")
    (letter,) = dead.consumer().receive(10)
    begun = begin(dead.schedules.store, letter)
    assert (begun.key, begun.fired_at, begun.moved) == ("k", NOON + 10 * SECOND, None)


CHANGES = {
    "resumed": lambda schedules: (schedules.pause("k"), schedules.resume("k")),
    "replaced": lambda schedules: schedules.add("k", Repeating(20 * SECOND, count=1), replace=True),
    "removed": lambda schedules: schedules.remove("k"),
}


@pytest.mark.parametrize("headers", [{}, {f"h{n}": "" for n in range(MAX_HEADERS)}], ids=["few", "full"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_dead_letter_that_is_sent_back_runs_whatever_became_of_its_schedule(
    process, world, change, headers
):
    """It runs with all its attempts, and leaves the schedule alone; no header need say that it came back."""
    process.schedules.add("k", EVERY_TEN, headers=headers)
    world.advance(10)
    (message,) = process.consumer.receive(10)
    store = process.schedules.store
    finish(store, message, begin(store, message), SUCCEEDED)
    message.dead("bad")
    change(process.schedules)
    process.queue.dead_letters.redrive(everything=True)
    before = store.rows()
    (again,) = process.consumer.receive(10)
    assert finish(store, again, None, Settlement(Verb.SNOOZE, "snoozed")).verb is Verb.SNOOZE
    again.nack()
    process.run(2)
    assert world.seconds == [10]
    assert store.rows() == before
    next_at = [schedule.next_at for schedule in process.schedules.list()] or [None]
    assert [firing.next_trigger for firing in world.fired] == next_at  # its own number says nothing of that


@pytest.mark.parametrize(
    ("trigger", "after"),
    [
        (Repeating(10 * SECOND, misfire="skip", grace=SECOND), 20),
        (RunOnce(10 * SECOND, grace=SECOND), None),
    ],
)
def test_a_dead_letter_whose_schedule_still_waits_for_it_runs_whatever_its_lateness(
    process, world, trigger, after
):
    """It killed its workers, so nobody has moved the schedule on. A monitor does, as without it."""
    store = process.schedules.store
    process.schedules.add("k", trigger)
    world.advance(10)
    (message,) = process.consumer.receive(10)
    assert begin(store, message).moved is not None
    message.dead("killed its workers")
    world.advance(3)
    process.queue.dead_letters.redrive(everything=True)
    before = store.rows()
    assert process.work() == 1
    assert (world.seconds, process.dropped, store.rows()) == ([10], [], before)
    assert world.fired[0].next_trigger == (None if after is None else NOON + after * SECOND)
    world.advance(7.5)
    process.watch()
    process.run(20)
    assert world.seconds == ([10] if after is None else [10, 20, 30, 40])
    assert process.schedules.get("k").state == ("done" if after is None else "active")


def test_a_dead_letter_that_the_monitor_has_passed_runs_as_its_own_time(process, world):
    """Not as the time that has fired since."""
    process.schedules.add("k", EVERY_TEN)
    world.advance(10)
    (message,) = process.consumer.receive(10)
    message.dead("killed its workers")
    world.advance(12)
    process.watch()
    process.run(2)
    assert world.seconds == [20]
    process.queue.dead_letters.redrive(everything=True)
    process.run(5)
    assert (world.seconds, process.dropped) == ([20, 10], [])


# ── As a step of a dispatcher ──


def test_a_firing_says_which_it_is_and_moves_its_schedule_on(process, world):
    store = process.schedules.store
    process.schedules.add("k", EVERY_TEN)
    world.advance(10)
    (message,) = process.consumer.receive(10)
    started = begin(store, message)
    assert (started.key, started.fired_at) == ("k", NOON + 10 * SECOND)
    assert finish(store, message, started, SUCCEEDED) is SUCCEEDED
    assert process.schedules.get("k").fired == 1


def test_a_firing_whose_schedule_could_not_be_moved_comes_again(world):
    """Acked, it would be the last one."""

    def fault(operation, do):
        if type(operation).__name__ == "ChangeSchedule":
            raise Unavailable("no replica")
        return do()

    process = world.process(fault)
    store = process.schedules.store
    process.schedules.add("k", EVERY_TEN)
    world.advance(10)
    (message,) = process.consumer.receive(10)
    settlement = finish(store, message, begin(store, message), SUCCEEDED)
    assert (settlement.verb, settlement.delay) == (Verb.SNOOZE, 2 * SECOND)


def test_a_firing_that_its_schedule_has_left_behind_is_dropped(process, world):
    process.schedules.add("k", EVERY_TEN)
    process.schedules.remove("k")
    world.advance(10)
    (message,) = process.consumer.receive(10)
    assert isinstance(begin(process.schedules.store, message), Cancel)
