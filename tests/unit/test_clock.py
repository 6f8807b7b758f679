"""The cluster clock: the cluster's time, whatever this machine's clocks do."""

import time

import pytest

from cqueue.client import Client
from cqueue.errors import Closed, NotDone
from cqueue.runtime import waiting
from cqueue.runtime.clock import (
    FIRST_S,
    GIVE_UP_S,
    JUMP_US,
    MAX_ROUND_TRIP_US,
    RETRY_US,
    STALE_US,
    ClusterClock,
)
from cqueue.store.memory import MemoryStore
from tests.unit.ctrl_c import on_a_thread

BOOT_US, WALL_US, SERVER_US = 5_000_000, 1_700_000_000_000_000, 1_800_000_000_000_000


class Machine:
    """A machine's clocks, and the cluster that it asks."""

    def __init__(self) -> None:
        self.passed_us = 0
        self.wall_step_us = 0
        self.server_step_us = 0
        self.spread = [0]
        self.asked = 0
        self.trip_us = 1000
        self.cut_off = False
        self.clock = ClusterClock(
            self.sample,
            local_us=lambda: BOOT_US + self.passed_us,
            wall_us=lambda: WALL_US + self.passed_us + self.wall_step_us,
        )

    def sample(self) -> list[tuple[int, int]]:
        self.asked += 1
        if self.cut_off:
            raise NotDone("nobody answers")
        self.passed_us += self.trip_us
        return [(self.true_us + offset, self.trip_us) for offset in self.spread]

    @property
    def true_us(self) -> int:
        return SERVER_US + self.passed_us + self.server_step_us


def test_time_is_the_clusters_and_runs_on():
    """The first question asks the cluster; later ones carry its time on without asking."""
    machine = Machine()
    assert machine.clock.now_us() == machine.true_us
    machine.passed_us += 1_000_000
    assert machine.clock.now_us() == machine.true_us
    assert machine.asked == 1


def test_the_median_of_several_coordinators_counts():
    """One node with a wrong clock changes nothing."""
    machine = Machine()
    machine.spread = [0, 90_000_000, 10]
    assert machine.clock.now_us() == machine.true_us + 10


def test_of_two_answers_the_one_that_agrees_with_us_counts():
    """A wrong clock is not averaged in while a third node is down or slow."""
    machine = Machine()
    machine.clock.sync()
    machine.spread = [30_000_000, 10]
    machine.passed_us += 1
    assert machine.clock.sync() == machine.true_us + 10


def test_two_answers_that_disagree_tell_a_stranger_nothing():
    """A client without a time of its own cannot know which answer is wrong."""
    machine = Machine()
    machine.spread = [0, 30_000_000]
    with pytest.raises(NotDone, match="disagree"):
        machine.clock.sync()


def test_an_answer_that_took_too_long_is_told_apart_from_clocks_that_disagree():
    """The one passes with the load; the other takes somebody who sets a clock."""
    machine = Machine()
    machine.trip_us = MAX_ROUND_TRIP_US + 1
    with pytest.raises(NotDone, match=r"within 200 ms.*overloaded; try again"):
        machine.clock.sync()


def test_one_answer_that_contradicts_us_is_asked_for_again():
    """It may be the one wrong clock; it counts only if nobody else answers."""
    machine = Machine()
    machine.clock.sync()
    machine.passed_us += 1
    machine.spread = [30_000_000]
    answers = iter([[30_000_000], [30_000_000], [0, 30_000_000, 10]])
    sample = machine.sample

    def later_all() -> list[tuple[int, int]]:
        machine.spread = next(answers)
        return sample()

    machine.clock._sample = later_all
    assert machine.clock.sync() == machine.true_us + 10


def test_a_machine_that_was_paused_has_no_voice():
    """Its own time of before the pause would make a wrong answer the right one."""
    machine = Machine()
    machine.clock.sync()
    machine.wall_step_us = JUMP_US + 1
    machine.passed_us += 1
    machine.spread = [0, 30_000_000]
    with pytest.raises(NotDone, match="disagree"):
        machine.clock.sync()


def test_a_machine_that_stands_still_at_each_question_gives_up_soon():
    """However short the trips were: a caller waits, and knows a time already."""
    machine = Machine()
    machine.clock.sync()
    sample = machine.sample

    def slow() -> list[tuple[int, int]]:
        machine.passed_us += round(GIVE_UP_S * 5e5)
        return sample()

    machine.clock._sample = slow
    with pytest.raises(NotDone, match="within 200 ms"):
        machine.clock.sync()
    assert machine.asked == 1 + 2


def test_the_first_synchronisation_insists_as_long_as_a_call_may_take():
    """Where dozens of processes start at once, answers are too slow for seconds; none of them is used."""
    machine = Machine()
    machine.trip_us = 3 * MAX_ROUND_TRIP_US
    sample = machine.sample

    def quick_at_last() -> list[tuple[int, int]]:
        machine.trip_us = 1000 if machine.passed_us > (FIRST_S - 1) * 1e6 else 3 * MAX_ROUND_TRIP_US
        return sample()

    machine.clock._sample = quick_at_last
    assert machine.clock.now_us() == machine.true_us


def test_the_first_synchronisation_ends_with_the_time_of_its_call():
    machine = Machine()
    machine.trip_us = MAX_ROUND_TRIP_US + 1
    with waiting.within(1), pytest.raises(NotDone, match="within 200 ms"):
        machine.clock.now_us()
    assert machine.passed_us < 2_000_000


def test_a_synchronisation_holds_for_half_a_minute():
    machine = Machine()
    machine.passed_us += 2 * STALE_US
    machine.clock.now_us()
    machine.passed_us += STALE_US
    for checked in (False, True):
        machine.clock.now_us(checked=checked)
    assert machine.asked == 1


def test_a_step_of_the_wall_clock_changes_nothing():
    """Setting this machine's clock does not move the cluster's time."""
    machine = Machine()
    machine.clock.now_us()
    machine.wall_step_us = -3_600_000_000
    assert machine.clock.now_us() == machine.true_us


def test_checked_time_is_never_from_an_old_synchronisation():
    """Before a send is acknowledged the clock is synchronised again if that was over 30 s ago."""
    machine = Machine()
    machine.clock.now_us()
    machine.passed_us += STALE_US + 1
    machine.server_step_us = 700_000
    assert machine.clock.now_us(checked=True) == machine.true_us
    assert machine.asked > 1


def test_checked_time_notices_a_pause():
    """Wall and boot clock that no longer agree betray a pause: the clock is synchronised again."""
    machine = Machine()
    machine.clock.now_us()
    machine.wall_step_us = machine.server_step_us = JUMP_US + 1
    assert machine.clock.now_us(checked=True) == machine.true_us
    machine.clock.now_us(checked=True)
    assert machine.asked == 2


def test_checked_time_is_refused_without_a_cluster():
    """No send is acknowledged on a clock that may be wrong; unchecked time goes on meanwhile."""
    machine = Machine()
    machine.clock.now_us()
    machine.passed_us += STALE_US + 1
    machine.cut_off = True
    with pytest.raises(NotDone):
        machine.clock.now_us(checked=True)
    assert machine.clock.now_us() == machine.true_us


def test_without_any_synchronisation_there_is_no_time():
    """A client that never reached the cluster does not invent a time."""
    machine = Machine()
    machine.cut_off = True
    with pytest.raises(NotDone):
        machine.clock.now_us()


def test_an_unreachable_cluster_is_not_asked_at_every_question():
    """After a synchronisation that failed, unchecked questions wait some seconds before the next."""
    machine = Machine()
    machine.clock.now_us()
    machine.passed_us += STALE_US + 1
    machine.cut_off = True
    for _ in range(10):
        machine.clock.now_us()
    assert machine.asked == 2
    machine.passed_us += RETRY_US + 1
    machine.clock.now_us()
    assert machine.asked == 3


def test_a_thread_that_stood_still_is_not_behind_in_memory(monkeypatch):
    """What one client of a store in memory sends is there for another, whose thread stood still for 150 ms
    while it asked for the time: they read one clock, and keep no offset.
    """
    store = MemoryStore()

    def stand_still():
        answer = MemoryStore.sample_time_us(store)
        time.sleep(0.15)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(store, "sample_time_us", stand_still)
        receiving = Client(store)
        queue = receiving.create_queue("q")
        assert queue.now
    with receiving, Client(store) as sending, queue.consumer() as consumer:
        sending.queue("q").send(b"x")
        assert len(consumer.receive()) == 1


def test_the_clock_of_a_fork_asks_nobody():
    """The thread of its parent that was asking holds the lock for good."""
    machine = Machine()
    machine.clock._pid += 1

    def refusal():
        with pytest.raises(Closed, match="fork"):
            machine.clock.now_us()

    with machine.clock._mutex:
        on_a_thread(refusal)
