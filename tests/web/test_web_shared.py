"""Reads that viewers share: how often they are made, and what is known when they fail or take long."""

from functools import partial
from itertools import pairwise
from threading import Event, Thread

import pytest

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")

from cqueue.errors import QueueNotFound, Unavailable
from cqueue.web.rate import RateLimit
from cqueue.web.shared import A_SECOND, AT_ONCE, DUTY, FRESH_S, OLD_S, PAGES, Known, Shared
from tests.fix_dispatcher import until


class Clock:
    """Seconds that the test moves."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def shared(clock):
    made = Shared(threads=2, time_s=clock)
    yield made
    made.close()


def test_an_answer_is_kept_for_two_seconds(shared, clock):
    answers = iter("ab")

    def read():
        return next(answers)

    assert shared.get("k", read) == Known("a", 0.0)
    clock.now_s += FRESH_S - 0.1
    assert shared.get("k", read).value == "a"
    clock.now_s += 0.1
    assert shared.get("k", read) == Known("b", 0.0)


def test_an_answer_that_took_long_is_kept_longer(shared, clock):
    """So a queue of millions of messages costs at most a twentieth of one thread's reads."""
    answers = iter("ab")

    def read():
        clock.now_s += 1.0
        return next(answers)

    assert shared.get("k", read).value == "a"
    clock.now_s += DUTY - 0.1
    assert shared.get("k", read).value == "a"
    clock.now_s += 0.1
    assert shared.get("k", read).value == "b"


def test_an_answer_that_is_kept_for_minutes_says_so(shared, clock):
    """Otherwise a queue that was emptied minutes ago looks full on its page."""

    def read():
        clock.now_s += 8.0
        return "a"

    assert shared.get("k", read).trouble is None
    clock.now_s += OLD_S + 1
    known = shared.get("k", read)
    assert (known.trouble, known.is_kept) == ("the read took 8.0 s, so it is made seldom", True)


def test_a_failure_shows_what_was_known_and_is_not_repeated_at_once(shared, clock):
    tries = []

    def fail():
        tries.append(1)
        raise Unavailable("away")

    shared.get("k", lambda: "old")
    clock.now_s += 5
    assert shared.get("k", fail) == Known("old", 5.0, "away")
    assert shared.get("k", fail).trouble == "away"
    assert len(tries) == 1
    with pytest.raises(Unavailable):
        shared.get("other", fail)


def test_what_is_gone_is_not_shown_as_old(shared, clock):
    def gone():
        raise QueueNotFound("gone")

    shared.get("k", lambda: "old")
    clock.now_s += 5
    with pytest.raises(QueueNotFound):
        shared.get("k", gone)
    assert isinstance(shared.get_many({"k": gone})["k"], QueueNotFound)


def test_a_slow_read_holds_no_page_up(shared, clock):
    shared.get("k", lambda: "old")
    clock.now_s += 5
    release = Event()
    assert shared.get("k", release.wait, wait_s=0.05).trouble == "the newest answer is still on its way"
    with pytest.raises(Unavailable, match="has not answered"):
        shared.get("new", release.wait, wait_s=0.05)
    assert shared.get_many({"newer": release.wait}, wait_s=0.05) == {"newer": None}
    release.set()
    assert shared.get("new", release.wait).value is True


def test_no_more_pages_wait_than_leave_threads_for_others(shared, clock, monkeypatch):
    """Forty that wait for a node that hangs would keep all other pages from being made."""
    monkeypatch.setattr("cqueue.web.shared.TURN_S", 0.01)
    shared.get("known", lambda: "old")
    clock.now_s += 5
    release, waiting = Event(), []
    for number in range(PAGES):
        looker = Thread(target=shared.get, args=(number, release.wait), kwargs={"wait_s": 60})
        looker.start()
        waiting.append(looker)
    until(lambda: not shared._pages._value)
    assert shared.get("known", release.wait, wait_s=3600).value == "old"
    with pytest.raises(Unavailable, match="has not answered"):
        shared.get("new", release.wait, wait_s=3600)
    release.set()
    for looker in waiting:
        looker.join()
    assert shared.get("newest", lambda: "new").value == "new"


def test_a_read_under_way_is_not_begun_again_however_many_others_are_looked_at(shared, monkeypatch):
    monkeypatch.setattr(shared, "_room", 3)
    release, began = Event(), []

    def slow():
        began.append(1)
        return release.wait()

    assert shared.get_many({"slow": slow}, wait_s=0.05) == {"slow": None}
    for number in range(20):
        assert shared.get(number, lambda: "quick").value == "quick"
    assert shared.get_many({"slow": slow}, wait_s=0.05) == {"slow": None}
    assert len(began) == 1
    release.set()
    assert shared.get("slow", slow).value is True
    shared.get("last", lambda: "quick")
    assert len(shared._entries) == 3  # what was not used for the longest time is forgotten


def test_reads_that_wait_have_a_bound(shared, monkeypatch):
    """So a dashboard whose Cassandra hangs does not grow with every look."""
    monkeypatch.setattr("cqueue.web.shared.MOST_WAITING", 5)
    release = Event()
    found = shared.get_many(dict.fromkeys(range(9), release.wait), wait_s=0.05)
    assert shared._under_way == 5
    assert set(found.values()) == {None}
    release.set()
    shared.get_many(dict.fromkeys(range(9), release.wait))
    found = shared.get_many(dict.fromkeys(range(9), release.wait))
    assert [known.value for known in found.values()] == [True] * 9


def test_an_old_answer_whose_read_is_not_begun_is_not_shown_as_current(shared, clock, monkeypatch):
    """Whether one page asks for it or a list; a list then keeps its reads for later."""
    monkeypatch.setattr("cqueue.web.shared.MOST_WAITING", 2)
    shared._pace = RateLimit(0, 2, time_s=clock)
    shared.get_list({"a": lambda: "old", "b": lambda: "old"})
    release, clock.now_s = Event(), clock.now_s + 300
    shared._pace = RateLimit(0, 1, time_s=clock)
    shared.get_many({"x": release.wait, "y": release.wait}, wait_s=0.05)
    trouble = "too many reads wait for Cassandra's answers"
    assert shared.get("a", lambda: "new") == Known("old", 300, trouble)
    assert shared.get_list({"b": lambda: "new"}) == {"b": Known("old", 300, trouble)}
    release.set()
    shared.get_many({"x": release.wait, "y": release.wait})
    assert shared.get_list({"b": lambda: "new"}) == {"b": Known("new", 0)}
    assert shared.get("a", lambda: "new") == Known("new", 0)


def test_of_3500_queues_50_are_counted_a_second_and_each_in_its_turn(shared, clock):
    """A look every three seconds, for three minutes. Without a list, fewer are remembered."""
    counted, begin_s = {}, clock.now_s

    def count(name):
        counted.setdefault(name, []).append(clock.now_s - begin_s)

    reads = {name: partial(count, name) for name in range(3500)}
    for _ in range(60):
        known = shared.get_list(reads)
        assert sum(map(len, counted.values())) <= AT_ONCE + A_SECOND * (clock.now_s - begin_s)
        clock.now_s += 3
    assert None not in known.values()
    gaps = [later - before for times in counted.values() for before, later in pairwise(times)]
    assert min(gaps) >= 3500 / A_SECOND
    assert max(gaps) <= 3500 / A_SECOND + 6


def test_the_queues_that_were_not_counted_for_the_longest_time_come_first(shared, clock):
    order = []
    shared.get_list({"a": lambda: order.append("a")})
    clock.now_s += 10
    shared._pace = RateLimit(0, 2, time_s=clock)  # only two more
    shared.get_list({name: partial(order.append, name) for name in ("a", "b", "c")})
    assert sorted(order[1:]) == ["b", "c"]


def test_what_was_changed_is_read_anew(shared):
    shared.get("k", lambda: "old")
    shared.forget("k", "never known")
    assert shared.get("k", lambda: "new").value == "new"


def test_a_bug_in_a_read_is_an_answer_too(shared):
    with pytest.raises(Unavailable.__base__, match="ZeroDivisionError"):
        shared.get("k", lambda: 1 // 0)
