"""Reads that viewers share: how often they are made, and what is known when they fail or take long."""

from threading import Event

import pytest

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")

from cqueue.errors import QueueNotFound, Unavailable
from cqueue.web.shared import DUTY, FRESH_S, Known, Shared


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


def test_what_was_changed_is_read_anew(shared):
    shared.get("k", lambda: "old")
    shared.forget("k", "never known")
    assert shared.get("k", lambda: "new").value == "new"


def test_a_bug_in_a_read_is_an_answer_too(shared):
    with pytest.raises(Unavailable.__base__, match="ZeroDivisionError"):
        shared.get("k", lambda: 1 // 0)
