"""Retry policies: tables of what follows which failure, and what no policy can bring about."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from cqueue.dispatcher.execution.actions import LONGEST_DELAY, Cancel, Dead, Retry, Snooze
from cqueue.dispatcher.execution.retry import (
    DEFAULT_POLICY,
    Failure,
    RetryAsked,
    answered,
    attempt_limit,
    attempts_wanted,
    decide,
    resolved_delay,
)
from cqueue.errors import ConfigError
from cqueue.protocol.dead import MAX_REASON


def seconds(number):
    return timedelta(seconds=number)


def decided(policy=DEFAULT_POLICY, *, attempt=1, max_attempts=0, first_seen_s=0.0, error=None):
    failure = Failure(attempt, max_attempts, first_seen_s)
    return decide(policy, failure, error or ValueError("x"))


# ── How long ──


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        (tenacity.wait_fixed(7), [7, 7, 7]),
        (tenacity.wait_none(), [0, 0, 0]),
        (tenacity.wait_incrementing(start=10, increment=5), [10, 15, 20]),
        (tenacity.wait_exponential(multiplier=3, max=10), [3, 6, 10]),
        (tenacity.wait_exponential_jitter(1, 600, jitter=0), [1, 2, 4]),
        (tenacity.wait_chain(tenacity.wait_fixed(1), tenacity.wait_fixed(9)), [1, 9, 9]),
        (tenacity.wait_fixed(1) + tenacity.wait_fixed(2), [3, 3, 3]),
        (tenacity.wait_exception(lambda error: len(error.args)), [1, 1, 1]),
    ],
)
def test_tenacity_waits_say_how_long(wait, expected):
    """Every kind of wait gets what it asks the call state for: the attempt's number and the exception."""
    delays = [decided(Retry(wait=wait), attempt=attempt) for attempt in (1, 2, 3)]
    assert delays == [Retry(seconds(number)) for number in expected]


def test_a_fixed_delay_is_taken_as_it_is():
    assert decided(Retry(seconds(3)), attempt=9) == Retry(seconds(3))


def test_tenacitys_own_jitter_is_at_most_a_second():
    """`wait_exponential_jitter` adds one second at most by default, for readers of its documentation."""
    policy = Retry(wait=tenacity.wait_exponential_jitter(1, 600))
    assert all(seconds(4) <= resolved_delay(policy, Failure(3)) <= seconds(5) for _ in range(100))


@given(attempt=st.integers(1, 2000))
def test_the_default_waits_from_a_second_to_ten_minutes(attempt):
    """The wait is random below a limit that doubles."""
    most = min(600, 2 ** min(attempt - 1, 20))
    assert seconds(1) <= resolved_delay(DEFAULT_POLICY, Failure(attempt)) <= seconds(most)


@given(wait=st.one_of(st.floats(), st.integers(), st.timedeltas(), st.text(), st.none()))
def test_no_wait_leads_out_of_range(wait):
    """The delay is 0 to 10 years, whatever a policy's wait returns."""
    delay = resolved_delay(Retry(wait=lambda _state: wait), Failure(1))
    assert timedelta() <= delay <= LONGEST_DELAY


def _limits(attempts):
    wait = tenacity.wait_exponential(multiplier=0.5, max=3600)
    return [resolved_delay(Retry(wait=wait), Failure(attempt)) for attempt in attempts]


@given(attempts=st.lists(st.integers(1, 100_000), min_size=2, max_size=10))
def test_exponential_waits_never_shrink(attempts):
    """A later attempt never waits less, to whatever height attempts are counted."""
    delays = _limits(sorted(attempts))
    assert delays == sorted(delays)


@pytest.mark.parametrize("wait", [math.nan, "soon", None, 10**400])
def test_a_wait_that_makes_no_sense_is_the_default(wait):
    """An error in a policy must not decide whether a message is seen again."""
    assert resolved_delay(Retry(wait=lambda _state: wait), Failure(1)) == seconds(1)


def test_a_wait_that_raises_is_the_default_and_is_logged(caplog):
    def broken(_state):
        raise RuntimeError("broken")

    assert decided(Retry(wait=broken)) == Retry(seconds(1))
    assert "retry_wait_failed" in caplog.text


# ── How often ──


@pytest.mark.parametrize(
    ("policys", "queues", "dead_at"),
    [(3, 5, 3), (5, 3, 3), (None, 3, 3), (3, 0, 3), (1, 5, 1)],
)
def test_the_smaller_limit_counts(policys, queues, dead_at):
    """The policy's and the queue's max_attempts; 0 and None are none."""
    policy = Retry(seconds(1), max_attempts=policys)
    for attempt in range(1, 10):
        action = decided(policy, attempt=attempt, max_attempts=queues)
        assert isinstance(action, Dead) == (attempt >= dead_at)


def test_without_a_limit_it_goes_on():
    assert isinstance(decided(attempt=1_000_000), Retry)


@pytest.mark.parametrize(
    ("stop", "first_seen_s", "attempt", "is_dead"),
    [
        (tenacity.stop_after_attempt(3), 0, 2, False),
        (tenacity.stop_after_attempt(3), 0, 3, True),
        (tenacity.stop_after_delay(60), 59.9, 9, False),
        (tenacity.stop_after_delay(60), 60, 1, True),
        (tenacity.stop_before_delay(60), 49, 1, False),
        (tenacity.stop_before_delay(60), 50, 1, True),
        (tenacity.stop_never, 1e9, 99, False),
        (tenacity.stop_after_attempt(3) | tenacity.stop_after_delay(60), 61, 1, True),
        (tenacity.stop_after_attempt(3) & tenacity.stop_after_delay(60), 61, 1, False),
    ],
)
def test_tenacity_stops_say_when_to_end(stop, first_seen_s, attempt, is_dead):
    """A stop may count attempts, the message's age, or its age at the next attempt (here 10 s later)."""
    action = decided(Retry(seconds(10), stop=stop), attempt=attempt, first_seen_s=first_seen_s)
    assert isinstance(action, Dead) == is_dead


def test_a_stop_that_raises_stops_nothing(caplog):
    def broken(_state):
        raise RuntimeError("broken")

    assert decided(Retry(seconds(1), stop=broken)) == Retry(seconds(1))
    assert "retry_stop_failed" in caplog.text


@given(first=st.integers(0, 50), second=st.integers(0, 50))
def test_the_limit_of_two_is_neither_above_either(first, second):
    limit = attempt_limit(first, second)
    assert limit in {first, second}
    assert all(limit <= other for other in (first, second) if other)
    assert limit or not (first or second)


# ── What for which exception ──

RULES = {
    LookupError: Cancel("gone"),
    KeyError: Dead("no such user"),
    TimeoutError: Snooze(seconds(5)),
    OSError: Retry(seconds(60), max_attempts=2),
    ArithmeticError: Dead(),
    ZeroDivisionError: Cancel(),
}


class Missing(KeyError):
    """More derived than any class of the rules."""


@pytest.mark.parametrize(
    ("error", "attempt", "action"),
    [
        (LookupError(), 1, Cancel("gone")),
        (IndexError(), 1, Cancel("gone")),
        (KeyError("k"), 1, Dead("no such user")),
        (Missing("k"), 1, Dead("no such user")),
        (TimeoutError(), 99, Snooze(seconds(5))),
        (ConnectionResetError(), 1, Retry(seconds(60))),
        (ValueError(), 1, Retry(seconds(1))),
        (ValueError(), 4, Retry(seconds(1))),
    ],
)
def test_the_most_derived_class_counts(error, attempt, action):
    """The order of the rules does not; an exception without a rule goes by the policy."""
    policy = Retry(seconds(1), max_attempts=5, rules=RULES)
    assert decided(policy, attempt=attempt, error=error) == action


def test_a_retry_among_the_rules_replaces_the_policy():
    """The rule replaces limit and delay."""
    policy = Retry(seconds(1), max_attempts=20, rules=RULES)
    assert isinstance(decided(policy, attempt=2, error=OSError("down")), Dead)


def test_a_rule_without_a_reason_gets_one():
    policy = Retry(rules=RULES)
    assert "OverflowError: too much" in decided(policy, error=OverflowError("too much")).reason
    assert "ZeroDivisionError" in decided(policy, error=ZeroDivisionError()).reason


# ── What a handler asks for itself ──


def asked(policy, answer, *, attempt=1, max_attempts=0, first_seen_s=0.0):
    return answered(policy, answer, Failure(attempt, max_attempts, first_seen_s))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Retry(), Retry(seconds(5))),
        (Retry(seconds(9)), Retry(seconds(9))),
        (Retry(timedelta()), Retry(timedelta())),
        (Retry(wait=tenacity.wait_fixed(2)), Retry(seconds(2))),
    ],
)
def test_an_answer_waits_as_it_says_or_as_the_policy_does(answer, expected):
    assert asked(Retry(seconds(5)), answer) == expected


def test_an_answer_has_no_more_attempts_than_policy_and_queue():
    """Else `Retry(delay)` would be a way around both."""
    for policy, queue, answer in [
        (Retry(max_attempts=3), 0, Retry(seconds(1))),
        (Retry(), 3, Retry(seconds(1))),
        (Retry(), 0, Retry(max_attempts=3)),
    ]:
        assert isinstance(asked(policy, answer, attempt=2, max_attempts=queue), Retry)
        assert isinstance(asked(policy, answer, attempt=3, max_attempts=queue), Dead)


@pytest.mark.parametrize("answer", [Retry(seconds(1)), Retry(wait=tenacity.wait_fixed(1)), Retry()])
def test_an_answer_is_no_way_around_a_stop(answer):
    """Neither around the policy's, whatever wait it brings, nor around its own."""
    policy = Retry(seconds(5), stop=tenacity.stop_after_delay(60))
    assert isinstance(asked(policy, answer, first_seen_s=59), Retry)
    assert isinstance(asked(policy, answer, first_seen_s=60), Dead)
    own = replace(answer, stop=tenacity.stop_after_attempt(2))
    assert isinstance(asked(Retry(seconds(5)), own, attempt=1), Retry)
    assert isinstance(asked(Retry(seconds(5)), own, attempt=2), Dead)


def test_a_wait_by_exception_sees_that_the_handler_asked():
    policy = Retry(wait=tenacity.wait_exception(lambda error: 4 if isinstance(error, RetryAsked) else 9))
    assert asked(policy, Retry()) == Retry(seconds(4))


# ── Reasons and queues ──


def test_a_dead_letter_says_what_failed_when():
    """The attempt and the error's words; a traceback stands in a header of its own."""
    assert decided(attempt=5, max_attempts=5, error=ValueError("no such user")) == Dead(
        "attempt 5 of 5: ValueError: no such user"
    )
    assert asked(Retry(max_attempts=2), Retry(), attempt=2) == Dead(
        "attempt 2 of 2: the handler asked for another attempt"
    )
    assert asked(Retry(), Retry(stop=tenacity.stop_after_attempt(2)), attempt=2) == Dead(
        "attempt 2, the last by `stop`: the handler asked for another attempt"
    )


class Unspeakable(Exception):
    """An error whose text cannot be read."""

    def __str__(self):
        raise RuntimeError


def test_an_error_without_words_is_a_reason_too():
    """An application's exceptions may fail in `__str__`."""
    assert "Unspeakable" in decided(attempt=5, max_attempts=5, error=Unspeakable()).reason


def test_an_error_with_bytes_of_a_file_name_is_a_reason_too():
    """Lone surrogates could not be stored, and the message could never be buried."""
    reason = decided(attempt=5, max_attempts=5, error=FileNotFoundError("caf\udce9")).reason
    assert reason.endswith(r"FileNotFoundError: caf\udce9")


@given(text=st.text(max_size=5000))
def test_a_reason_fits_where_it_is_stored(text):
    """A long error text is cut, so that it fits into a header."""
    reason = decided(attempt=5, max_attempts=5, error=ValueError(text)).reason
    assert len(reason) < 600 < MAX_REASON


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (Retry(), 0),
        (Retry(max_attempts=20), 20),
        (Retry(stop=tenacity.stop_after_attempt(7)), 7),
        (Retry(max_attempts=3, stop=tenacity.stop_after_attempt(7)), 3),
        (Retry(max_attempts=3, rules={OSError: Retry(max_attempts=50), KeyError: Dead()}), 50),
    ],
)
def test_a_policy_says_how_many_attempts_its_queue_must_allow(policy, wanted):
    assert attempts_wanted(policy) == wanted


@pytest.mark.parametrize("rules", [{KeyError: Dead}, {KeyError: None}, {"KeyError": Dead()}, {int: Dead()}])
def test_rules_are_checked_when_they_are_made(rules):
    """Not when a handler has failed, and its message depends on them."""
    with pytest.raises(ConfigError):
        Retry(rules=rules)
