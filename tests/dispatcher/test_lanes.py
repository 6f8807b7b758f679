"""The roster: which queue is polled next, and how seldom an idle one is."""

from __future__ import annotations

import threading
from itertools import pairwise
from types import SimpleNamespace

import pytest

from cqueue.dispatcher.lanes import LONGEST_FAILED_S, QUIET_S, Lane, Roster
from cqueue.dispatcher.options import Options
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
        return SimpleNamespace(wake=wake, settles_with=self)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def rooms():
    """Room by queue; 100 where nothing is said."""
    return {}


@pytest.fixture
def roster(clock, rooms):
    return Roster(lambda lane, _coming: rooms.get(lane.name, 100), 0.005, 1.0, clock)


def enter(roster, name, **which):
    lane = Lane(FakeSource(name), roster, Options(), **which)
    roster.enter(lane)
    return lane


def due(roster):
    """The lanes that are due now, each polled in vain."""
    names = []
    while (lane := next_of(roster)) is not None:
        names.append(lane.name)
        roster.found(lane, 0)
    return names


def next_of(roster):
    with roster._changed:
        return roster._next_due()


def test_polls_in_vain_become_seldom(roster, clock):
    """Each pause is twice as long, up to the longest."""
    enter(roster, "q")
    polls = []
    while clock.now < 10:
        if due(roster):
            polls.append(clock.now)
        clock.now += 0.001
    pauses = [later - earlier for earlier, later in pairwise(polls)]
    assert pauses[0] == pytest.approx(0.005, abs=0.002)
    assert pauses[-1] == pytest.approx(1.0, abs=0.002)
    assert len(polls) < 20


def test_the_longest_due_comes_first(roster, clock):
    """A queue that always has something comes behind those that wait."""
    lanes = [enter(roster, name) for name in "abc"]
    busy = next_of(roster)
    clock.now += 0.001
    roster.found(busy, 100)
    assert busy is lanes[0]
    assert [next_of(roster).name for _ in range(3)] == ["b", "c", "a"]


def test_a_full_batch_is_followed_by_another_at_once(roster):
    lane = enter(roster, "q")
    assert next_of(roster) is lane
    assert next_of(roster) is None
    roster.found(lane, 100)
    assert next_of(roster) is lane


def test_a_lane_that_knows_of_more_to_do_is_polled_at_once(roster, clock):
    lane = enter(roster, "q")
    assert next_of(roster) is lane
    roster.found(lane, 1)
    assert next_of(roster) is None
    clock.now += 1.0
    assert next_of(roster) is lane
    roster.found(lane, 1, more=True)
    assert next_of(roster) is lane


def looked_at(lane):
    """Of four shards, those that its consumer looks at first."""
    share = lane.consumer.share
    return {shard for shard in range(4) if share is None or share(WideRow("q", 0, shard))}


def test_lanes_of_one_queue_look_at_wide_rows_of_their_own(roster):
    """Together at all of them, or at all that other processes leave to this one."""
    assert looked_at(enter(roster, "q")) == {0, 1, 2, 3}
    lanes = [enter(roster, "q", number=number, of=3) for number in range(3)]
    assert [looked_at(lane) for lane in lanes] == [{0, 3}, {1}, {2}]
    for lane in lanes:
        lane.divide(lambda wide_row: wide_row.shard != 1)  # other processes look there
    assert [looked_at(lane) for lane in lanes] == [{0, 3}, set(), {2}]
    for lane in lanes:
        lane.divide(None)
    assert [looked_at(lane) for lane in lanes] == [{0, 3}, {1}, {2}]


def test_a_ring_makes_a_queue_due(roster, clock):
    """At once if it waits, and right after the poll that is under way."""
    lane = enter(roster, "q")
    for _ in range(12):
        due(roster)
        clock.now += 1.1
    due(roster)
    assert due(roster) == []
    lane.consumer.wake()
    polled = next_of(roster)
    assert polled is lane
    lane.consumer.wake()
    roster.found(polled, 0)
    assert next_of(roster) is lane


@pytest.fixture
def three(roster, clock):
    """Lanes of one queue that has had nothing for a while."""
    lanes = [enter(roster, "q", number=number, of=3) for number in range(3)]
    for _ in range(20):
        due(roster)
        clock.now += 1.1
    due(roster)
    return lanes


def test_of_the_lanes_of_an_idle_queue_one_polls_for_all(roster, clock, three):
    """At everything, so nothing waits longer than with all of them, and an idle queue costs a third."""
    assert [looked_at(lane) for lane in three] == [{0, 1, 2, 3}, {1}, {2}]
    polls = 0
    for _ in range(20):
        clock.now += 1.1
        polls += len(due(roster))
    assert 20 <= polls <= 22  # those that rest look for themselves twice a minute


@pytest.mark.parametrize("how", ["a full batch", "more", "a ring while it is polled"])
def test_lanes_that_rest_poll_again_once_there_is_more_than_one_can_do(roster, clock, three, how):
    clock.now += 1.1
    lane = next_of(roster)
    assert (lane, next_of(roster)) == (three[0], None)
    if how == "a ring while it is polled":
        lane.consumer.wake()
    else:
        for _ in range(1 if how == "a full batch" else 2):
            roster.found(lane, 100 if how == "a full batch" else 1, more=how == "more")
            clock.now += 0.01
            assert next_of(roster) is lane
    assert {next_of(roster).number, next_of(roster).number} == {1, 2}
    assert [looked_at(lane) for lane in three] == [{0, 3}, {1}, {2}]


def test_what_one_lane_can_do_rouses_no_other(roster, clock, three):
    """A trickle costs the polls of one consumer, be it that there may always be more."""
    for _ in range(5):
        three[0].consumer.wake()
        roster.found(next_of(roster), 1, told=True, more=True)
        assert next_of(roster) is None  # the message goes to its handler first
        clock.now += 0.01
        roster.found(next_of(roster), 0)
        assert next_of(roster) is None
        clock.now += 0.2


def test_a_queue_that_has_no_room_has_others_told(roster, clock, rooms):
    """Once for each ring, and not where room comes a moment later, as it does under load."""
    lane = enter(roster, "q")
    passed = []
    lane.queue._pass_hints_on = lambda: passed.append(clock.now)
    clock.now = 1.0
    due(roster)
    rooms["q"] = 0
    lane.consumer.wake()
    for _ in range(10):
        assert next_of(roster) is None
        clock.now += 0.05
    assert passed == [pytest.approx(1.1)]
    lane.consumer.wake()
    assert next_of(roster) is None
    assert len(passed) == 2


def test_a_lane_without_room_waits_until_it_is_fed(roster, rooms):
    """Others are polled meanwhile."""
    enter(roster, "full")
    enter(roster, "other")
    rooms["full"] = 0
    assert next_of(roster).name == "other"
    assert next_of(roster) is None
    rooms["full"] = 7
    roster.feed()
    lane = next_of(roster)
    assert (lane.name, lane.turn.want) == ("full", 7)


def test_failures_are_followed_by_longer_pauses_that_no_ring_ends(roster, clock):
    """A cluster that is down is not asked more because somebody sends."""
    lane = enter(roster, "q")
    pauses = []
    polled = next_of(roster)
    for _ in range(8):
        begin = clock.now
        roster.failed(polled)
        lane.consumer.wake()
        while (polled := next_of(roster)) is None:
            clock.now += 0.05
        pauses.append(clock.now - begin)
    assert pauses[0] == pytest.approx(0.2, abs=0.06)
    assert pauses[-1] == pytest.approx(LONGEST_FAILED_S, abs=0.06)


def test_what_others_are_about_to_bring_is_counted(clock):
    """So two feeders do not fill the same room; but not what a poll that hangs will bring."""
    asked = []

    def room(_lane, coming):
        asked.append(coming)
        return 10

    roster = Roster(room, 0.005, 1.0, clock)
    for name in "abc":
        enter(roster, name)
    next_of(roster)
    next_of(roster)
    clock.now += 5
    next_of(roster)
    assert asked == [0, 10, 0]


def test_quiet_is_a_while_of_polls_that_find_nothing(roster, clock):
    """Since the moment that is asked about."""
    lane = enter(roster, "q")
    while clock.now < 1:
        due(roster)
        clock.now += 0.01
    assert lane.turn.is_quiet(0.0)
    assert not lane.turn.is_quiet(0.9)
    assert lane.turn.empty_until_s - lane.turn.empty_since_s >= QUIET_S
    clock.now += 1
    roster.found(next_of(roster), 1)
    assert not lane.turn.is_quiet(0.0)


def test_next_waits_and_close_ends_it(roster):
    """For all feeders."""
    results = []
    threads = [threading.Thread(target=lambda: results.append(roster.next())) for _ in range(2)]
    for thread in threads:
        thread.start()
    roster.close()
    for thread in threads:
        thread.join(10)
    assert results == [None, None]


def test_how_long_the_slowest_poll_has_been_under_way_is_known(roster, clock):
    """By it a poll that hangs shows, and a quick one beside it hides nothing."""
    enter(roster, "a")
    enter(roster, "b")
    assert roster.stalled_s() == 0
    slow = next_of(roster)
    clock.now += 5
    quick = next_of(roster)
    clock.now += 1
    assert roster.stalled_s() == 6
    roster.found(quick, 0)
    assert roster.stalled_s() == 6
    roster.failed(slow)
    assert roster.stalled_s() == 0
