"""The poll schedule: which queue is polled next, and how seldom an idle one is."""

from __future__ import annotations

import threading
from itertools import pairwise
from types import SimpleNamespace

import pytest

from cqueue.dispatcher.execution import pollers
from cqueue.dispatcher.execution.options import Options
from cqueue.dispatcher.execution.pollers import (
    HANGS_S,
    LONGEST_FAILED_S,
    LONGEST_RECHECK_S,
    QUIET_S,
    RECHECK_S,
    Poller,
    PollSchedule,
)
from cqueue.receiving.interface import Found
from cqueue.store.operations import WideRow


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class FakeSource:
    """A queue whose consumers are never asked."""

    def __init__(self, name):
        self.name = name

    def consumer(self, *, wake, **_options):
        return SimpleNamespace(wake=wake, settles_with=self, driver=None)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def rooms():
    """Room by queue; 100 where nothing is said."""
    return {}


@pytest.fixture
def poll_schedule(clock, rooms):
    return PollSchedule(lambda poller, _coming: rooms.get(poller.name, 100), 0.005, 1.0, clock)


def enter(poll_schedule, name, **which):
    poller = Poller(FakeSource(name), poll_schedule, Options(), **which)
    poll_schedule.add(poller)
    return poller


def due(poll_schedule):
    """The pollers that are due now, each polled in vain."""
    names = []
    while (poller := next_of(poll_schedule)) is not None:
        names.append(poller.name)
        poll_schedule.found(poller, 0)
    return names


def next_of(poll_schedule):
    with poll_schedule._changed:
        return poll_schedule._next_due()


def test_polls_in_vain_become_seldom(poll_schedule, clock):
    """Each pause is twice as long, up to the longest."""
    enter(poll_schedule, "q")
    polls = []
    while clock.now < 10:
        if due(poll_schedule):
            polls.append(clock.now)
        clock.now += 0.001
    pauses = [later - earlier for earlier, later in pairwise(polls)]
    assert pauses[0] == pytest.approx(0.005, abs=0.002)
    assert pauses[-1] == pytest.approx(1.0, abs=0.002)
    assert len(polls) < 20


def test_the_longest_due_comes_first(poll_schedule, clock):
    """A queue that always has something comes behind those that wait."""
    pollers = [enter(poll_schedule, name) for name in "abc"]
    busy = next_of(poll_schedule)
    clock.now += 0.001
    poll_schedule.found(busy, 100)
    assert busy is pollers[0]
    assert [next_of(poll_schedule).name for _ in range(3)] == ["b", "c", "a"]


def test_a_full_batch_is_followed_by_another_at_once(poll_schedule):
    poller = enter(poll_schedule, "q")
    assert next_of(poll_schedule) is poller
    assert next_of(poll_schedule) is None
    poll_schedule.found(poller, 100)
    assert next_of(poll_schedule) is poller


def test_a_poller_that_knows_of_more_to_do_is_polled_at_once(poll_schedule, clock):
    poller = enter(poll_schedule, "q")
    assert next_of(poll_schedule) is poller
    poll_schedule.found(poller, 1)
    assert next_of(poll_schedule) is None
    clock.now += 1.0
    assert next_of(poll_schedule) is poller
    poll_schedule.found(poller, 1, Found(more=True))
    assert next_of(poll_schedule) is poller


def looked_at(poller):
    """Return which of four shards the poller's consumer polls first."""
    share = poller.share
    return {shard for shard in range(4) if share is None or share(WideRow("q", 0, shard))}


def test_pollers_of_one_queue_look_at_wide_rows_of_their_own(poll_schedule):
    """Together at all of them, or at all that other processes leave to this one."""
    assert looked_at(enter(poll_schedule, "q")) == {0, 1, 2, 3}
    pollers = [enter(poll_schedule, "q", number=number, of=3) for number in range(3)]
    assert [looked_at(poller) for poller in pollers] == [{0, 3}, {1}, {2}]
    for poller in pollers:
        poller.divide(lambda wide_row: wide_row.shard != 1)  # other processes look there
    assert [looked_at(poller) for poller in pollers] == [{0, 3}, set(), {2}]
    for poller in pollers:
        poller.divide(None)
    assert [looked_at(poller) for poller in pollers] == [{0, 3}, {1}, {2}]


def test_a_wake_makes_a_queue_due(poll_schedule, clock):
    """A waiting queue is polled at once, or right after the poll under way."""
    poller = enter(poll_schedule, "q")
    for _ in range(12):
        due(poll_schedule)
        clock.now += 1.1
    due(poll_schedule)
    assert due(poll_schedule) == []
    poller.consumer.wake()
    polled = next_of(poll_schedule)
    assert polled is poller
    poller.consumer.wake()
    poll_schedule.found(polled, 0)
    assert next_of(poll_schedule) is poller


@pytest.fixture
def three(poll_schedule, clock):
    """Pollers of one queue that has had nothing for a while."""
    pollers = [enter(poll_schedule, "q", number=number, of=3) for number in range(3)]
    for _ in range(20):
        due(poll_schedule)
        clock.now += 1.1
    due(poll_schedule)
    return pollers


def test_of_the_pollers_of_an_idle_queue_one_polls_for_all(poll_schedule, clock, three):
    """One poller polls all rows, so nothing waits longer, and an idle queue costs a third."""
    assert [looked_at(poller) for poller in three] == [{0, 1, 2, 3}, {1}, {2}]
    polls = 0
    for _ in range(20):
        clock.now += 1.1
        polls += len(due(poll_schedule))
    assert 20 <= polls <= 22  # those that rest look for themselves twice a minute


def test_a_poller_that_messages_come_to_does_not_rest(poll_schedule, clock):
    """Each change of the poller that claims from a wide row makes a second of slower claims there."""
    first, second = (enter(poll_schedule, "q", number=number, of=2) for number in range(2))
    for _ in range(20):  # one poll in vain a second, and messages in between
        clock.now += 1.0
        for poller in iter(lambda: next_of(poll_schedule), None):
            poll_schedule.found(poller, 0)
        assert [looked_at(poller) for poller in (first, second)] == [{0, 2}, {1, 3}]
        clock.now += 0.1
        second.consumer.wake()
        for poller in iter(lambda: next_of(poll_schedule), None):
            poll_schedule.found(poller, 1, Found(told=True))


def test_a_poller_that_a_ring_has_woken_does_not_rest(poll_schedule, clock):
    """It is polled again at once; others would be told of its messages meanwhile."""
    first, second = (enter(poll_schedule, "q", number=number, of=2) for number in range(2))
    while clock.now < 1.0:
        due(poll_schedule)
        clock.now += 0.25
    clock.now += 1.0
    assert {next_of(poll_schedule), next_of(poll_schedule)} == {first, second}
    second.consumer.wake()
    poll_schedule.found(second, 0)
    assert looked_at(first) == {0, 2}
    assert next_of(poll_schedule) is second
    poll_schedule.found(second, 0)
    assert looked_at(first) == {0, 1, 2, 3}


def test_a_search_that_finds_what_a_hint_is_about_to_name_makes_polls_no_more_frequent(poll_schedule, clock):
    """Else each such poll is followed by searches that find the next message in the same way."""
    poller = enter(poll_schedule, "q")
    for _ in range(10):
        due(poll_schedule)
        clock.now += 1.1
    assert next_of(poll_schedule) is poller
    poller.consumer.wake()
    poll_schedule.found(poller, 1)
    poll_schedule.found(next_of(poll_schedule), 1, Found(told=True))
    clock.now += 0.99
    assert next_of(poll_schedule) is None
    clock.now += 0.01
    poll_schedule.found(next_of(poll_schedule), 1)  # nobody has told of this one
    clock.now += 0.005
    assert next_of(poll_schedule) is poller


@pytest.mark.parametrize("how", ["a full batch", "more", "a ring while it hangs"])
def test_pollers_that_rest_poll_again_once_there_is_more_than_one_can_do(poll_schedule, clock, three, how):
    clock.now += 1.1
    poller = next_of(poll_schedule)
    assert (poller, next_of(poll_schedule)) == (three[0], None)
    if how == "a ring while it hangs":
        poller.consumer.wake()
        assert next_of(poll_schedule) is None
        clock.now += HANGS_S
    else:
        count, last = (100, Found()) if how == "a full batch" else (1, Found(more=True, left=True))
        for _ in range(1 if how == "a full batch" else 2):
            poll_schedule.found(poller, count, last)
            clock.now += 0.01
            assert next_of(poll_schedule) is poller
    assert {next_of(poll_schedule).number, next_of(poll_schedule).number} == {1, 2}
    assert [looked_at(poller) for poller in three] == [{0, 3}, {1}, {2}]


def test_what_one_poller_can_do_wakes_no_other(poll_schedule, clock, three):
    """A trickle costs the polls of one consumer, be it that there may always be more."""
    for _ in range(5):
        three[0].consumer.wake()
        poll_schedule.found(next_of(poll_schedule), 1, Found(told=True, more=True, left=True))
        assert next_of(poll_schedule) is None  # the message goes to its handler first
        clock.now += 0.01
        poll_schedule.found(next_of(poll_schedule), 0)
        assert next_of(poll_schedule) is None
        clock.now += 0.2


def test_a_poll_that_hangs_wakes_the_others_once(poll_schedule, clock, three):
    """Where they find nothing either, they rest again, though it hangs on."""
    clock.now += 1.1
    assert next_of(poll_schedule) is three[0]
    three[0].consumer.wake()
    clock.now += HANGS_S
    assert len(due(poll_schedule)) == 2
    for _ in range(20):
        clock.now += 1.0
        assert due(poll_schedule) == []


@pytest.mark.parametrize("how", ["a ring while it is polled", "a search that is due"])
def test_what_the_others_would_only_search_for_wakes_none_of_them(poll_schedule, clock, three, how):
    """The one that polls finds it by itself; a search beside its claims slows both."""
    polled = []
    for _ in range(10):
        clock.now += 0.01
        three[0].consumer.wake()
        polled += iter(lambda: next_of(poll_schedule), None)
        if how == "a ring while it is polled":
            three[0].consumer.wake()
        poll_schedule.found(three[0], 1, Found(told=True, more=how == "a search that is due"))
    assert polled == [three[0]] * 10


def test_a_queue_that_has_no_room_has_others_told(poll_schedule, clock, rooms):
    """Hints are passed on once for each wake, and not if room comes a moment later, as it does under load."""
    poller = enter(poll_schedule, "q")
    passed = []
    poller.queue._pass_hints_on = lambda: passed.append(clock.now)
    clock.now = 1.0
    due(poll_schedule)
    rooms["q"] = 0
    poller.consumer.wake()
    for _ in range(10):
        assert next_of(poll_schedule) is None
        clock.now += 0.05
    assert passed == [pytest.approx(1.1)]
    poller.consumer.wake()
    assert next_of(poll_schedule) is None
    assert len(passed) == 2


def test_a_poller_without_room_waits_until_room_is_freed(poll_schedule, rooms):
    """Other queues are polled meanwhile."""
    enter(poll_schedule, "full")
    enter(poll_schedule, "other")
    rooms["full"] = 0
    assert next_of(poll_schedule).name == "other"
    assert next_of(poll_schedule) is None
    rooms["full"] = 7
    poll_schedule.room_freed()
    poller = next_of(poll_schedule)
    assert (poller.name, poller.state.want) == ("full", 7)


def test_pollers_without_room_are_asked_once_until_something_changes(clock):
    """With busy handlers and 20,000 queues that are due, each send and each tenth of a second asked all."""
    asked, room = [], 0

    def room_of(poller, _coming):
        asked.append(poller.name)
        return room

    def asked_now():
        asked.clear()
        found = next_of(poll_schedule)
        return (len(asked), found and found.name)

    poll_schedule = PollSchedule(room_of, 0.005, 1.0, clock)
    for number in range(100):
        enter(poll_schedule, str(number))
    assert asked_now() == (100, None)
    assert asked_now() == (0, None)
    enter(poll_schedule, "new")
    assert asked_now() == (1, None)
    assert poll_schedule._wait_s() == pytest.approx(RECHECK_S)
    clock.now += RECHECK_S
    assert asked_now() == (101, None)
    poll_schedule.room_freed()
    room = 1
    assert asked_now() == (1, "0")
    room = 0
    assert asked_now() == (100, None)
    poll_schedule.found(poll_schedule.pollers[0], 0)  # what it was expected to bring has not come
    assert asked_now() == (100, None)


@pytest.mark.parametrize(("each_s", "pause_s"), [(0.0005, RECHECK_S), (0.005, 0.5), (1.0, LONGEST_RECHECK_S)])
def test_a_check_of_very_many_pollers_comes_the_more_rarely(clock, monkeypatch, each_s, pause_s):
    """It takes a part of a thread; at the latest after a second, however long a check took."""

    def room_of(_poller, _coming):
        clock.now += took_s
        return 0

    took_s = 0.0
    monkeypatch.setattr(pollers, "RECHECK_EACH_S", each_s)
    poll_schedule = PollSchedule(room_of, 0.005, 1.0, clock)
    for number in range(100):
        enter(poll_schedule, str(number))
    assert next_of(poll_schedule) is None
    assert poll_schedule._wait_s() == pytest.approx(pause_s)
    took_s = 0.6  # as across a stop of the machine
    clock.now += pause_s
    assert next_of(poll_schedule) is None
    assert poll_schedule._wait_s() <= RECHECK_S


def test_failures_are_followed_by_longer_pauses_that_no_wake_ends(poll_schedule, clock):
    """A cluster that is down is not asked more because somebody sends."""
    poller = enter(poll_schedule, "q")
    pauses = []
    polled = next_of(poll_schedule)
    for _ in range(8):
        begin = clock.now
        poll_schedule.failed(polled)
        poller.consumer.wake()
        while (polled := next_of(poll_schedule)) is None:
            clock.now += 0.05
        pauses.append(clock.now - begin)
    assert pauses[0] == pytest.approx(0.2, abs=0.06)
    assert pauses[-1] == pytest.approx(LONGEST_FAILED_S, abs=0.06)


def test_what_others_are_about_to_bring_is_counted(clock):
    """Two fetchers do not fill the same room; a poll that hangs does not count."""
    asked = []

    def room(_poller, coming):
        asked.append(coming)
        return 10

    poll_schedule = PollSchedule(room, 0.005, 1.0, clock)
    for name in "abc":
        enter(poll_schedule, name)
    next_of(poll_schedule)
    next_of(poll_schedule)
    clock.now += 5
    next_of(poll_schedule)
    assert asked == [0, 10, 0]


def test_quiet_is_a_while_of_polls_that_find_nothing(poll_schedule, clock):
    """Since the moment that is asked about."""
    poller = enter(poll_schedule, "q")
    while clock.now < 1:
        due(poll_schedule)
        clock.now += 0.01
    assert poller.state.is_quiet(0.0, QUIET_S)
    assert not poller.state.is_quiet(0.9, QUIET_S)
    assert poller.state.empty_until_s - poller.state.empty_since_s >= QUIET_S
    clock.now += 1
    poll_schedule.found(next_of(poll_schedule), 1)
    assert not poller.state.is_quiet(0.0, QUIET_S)


def test_a_queue_whose_wide_rows_workers_divide_is_quiet_after_a_look_at_all_of_them(poll_schedule, clock):
    """A worker may have died with messages in its wide rows; the others look there every 2 s only."""
    poller = enter(poll_schedule, "q")

    def seconds_until_quiet():
        began_s = clock.now
        while not poll_schedule.is_quiet():
            due(poll_schedule)
            clock.now += 0.01
        return clock.now - began_s

    assert seconds_until_quiet() < 1
    poller.divide(lambda _: False)
    assert 2 < seconds_until_quiet() < 3
    assert seconds_until_quiet() == 0
    poller.divide(None)
    assert 0 < seconds_until_quiet() < 1


def test_next_waits_and_close_ends_it(poll_schedule):
    """`close` ends the wait of all fetchers."""
    results = []
    threads = [threading.Thread(target=lambda: results.append(poll_schedule.next())) for _ in range(2)]
    for thread in threads:
        thread.start()
    poll_schedule.close()
    for thread in threads:
        thread.join(10)
    assert results == [None, None]


def test_how_long_the_slowest_poll_has_been_under_way_is_known(poll_schedule, clock):
    """A poll that hangs shows, and a quick poll beside it hides nothing."""
    enter(poll_schedule, "a")
    enter(poll_schedule, "b")
    assert poll_schedule.stalled_s() == 0
    slow = next_of(poll_schedule)
    clock.now += 5
    quick = next_of(poll_schedule)
    clock.now += 1
    assert poll_schedule.stalled_s() == 6
    poll_schedule.found(quick, 0)
    assert poll_schedule.stalled_s() == 6
    poll_schedule.failed(slow)
    assert poll_schedule.stalled_s() == 0


def test_of_many_idle_queues_only_the_due_ones_are_looked_at(poll_schedule, clock, monkeypatch):
    """A look at each for every poll left a dispatcher of 20,000 queues with four messages a second."""
    pollers = [enter(poll_schedule, f"q{number}") for number in range(1000)]
    due(poll_schedule)
    clock.now += 0.001
    looked_at = set()
    monkeypatch.setattr(
        Poller,
        "__getattribute__",
        lambda self, name: looked_at.add(self) or object.__getattribute__(self, name),
    )
    for poller in pollers[5:8]:
        poll_schedule.wake(poller)
    with poll_schedule._changed:
        assert [poll_schedule._next_due() for _ in range(4)] == [*pollers[5:8], None]
        assert poll_schedule._wait_s() == pytest.approx(0.004)
    assert looked_at == set(pollers[5:8])


def test_a_poller_that_was_woken_before_its_time_is_polled_by_one_thread(poll_schedule, clock):
    """Though it is due next at the very time at which it had been due."""
    poller = enter(poll_schedule, "q")
    assert due(poll_schedule) == ["q"]
    poller.consumer.wake()
    assert next_of(poll_schedule) is poller
    poll_schedule.found(poller, 1)
    assert poller.state.due_s == clock.now + 0.005
    clock.now += 0.005
    assert [next_of(poll_schedule) for _ in range(2)] == [poller, None]
