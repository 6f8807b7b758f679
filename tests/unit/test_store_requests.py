"""Requests side by side: how many are under way, and what becomes of several outcomes."""

import pytest

from cqueue.errors import NotDone, OutcomeUnknown, Unavailable
from cqueue.store.cassandra import _portions
from cqueue.store.requests import Later, Window, collected, start
from cqueue.store.statements import Kind


class Part:
    """A request that knows when it was sent and asked."""

    def __init__(self, log, name, outcome):
        self.log, self.name, self.outcome = log, name, outcome

    def send(self):
        self.log.append(f"send {self.name}")
        return self

    def result(self):
        self.log.append(f"result {self.name}")
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def window(log, *weights, limit, outcomes=None):
    outcomes = outcomes or range(len(weights))
    parts = [Part(log, name, outcome) for name, outcome in enumerate(outcomes)]
    return Window([(weight, part.send) for weight, part in zip(weights, parts, strict=True)], limit)


def test_as_many_as_fit_are_under_way():
    """The next one is sent when the oldest has answered and there is room."""
    log = []
    some = window(log, 4, 4, 4, 1, limit=8)
    assert log == ["send 0", "send 1"]
    assert list(some.results()) == [0, 1, 2, 3]
    assert log[2:] == ["result 0", "send 2", "result 1", "send 3", "result 2", "result 3"]


def test_one_above_the_limit_goes_alone():
    """It is not refused, and nothing is sent beside it."""
    log = []
    some = window(log, 99, 1, limit=8)
    assert log == ["send 0"]
    assert list(some.results()) == [0, 1]


def test_nothing_to_do():
    """An empty window has no results."""
    assert Later(collected(window([], limit=8), Kind.READ, list)).result() == []


def total(kind, *outcomes):
    some = window([], *([1] * len(outcomes)), limit=2, outcomes=outcomes)
    return Later(collected(some, kind, sum))


def test_results_become_one():
    """In order, by the function given."""
    assert total(Kind.WRITE, 1, 2, 3).result() == 6


def test_a_write_half_done_is_unknown():
    """To say "not done" would be to say that nothing was stored."""
    with pytest.raises(OutcomeUnknown) as caught:
        total(Kind.WRITE, 1, Unavailable("few"), 3).result()
    assert isinstance(caught.value.__cause__, Unavailable)


def test_a_write_not_done_at_all_is_not_done():
    """Every part says so."""
    with pytest.raises(NotDone):
        total(Kind.WRITE, Unavailable("a"), Unavailable("b")).result()


def test_unknown_outweighs_not_done():
    """Whatever its place."""
    for kind in (Kind.READ, Kind.WRITE):
        with pytest.raises(OutcomeUnknown, match="who knows"):
            total(kind, Unavailable("a"), OutcomeUnknown("who knows")).result()


def test_a_read_that_failed_in_part_is_not_done():
    """A read has no effect that could be half there."""
    with pytest.raises(Unavailable):
        total(Kind.READ, 1, Unavailable("few")).result()


def test_what_cannot_be_sent_is_an_error_in_its_place():
    """The others are waited for."""

    def refuse():
        raise Unavailable("no table yet")

    log = []
    some = Window([(1, Part(log, 0, 0).send), (1, refuse), (1, Part(log, 2, 2).send)], 9)
    first, second, third = some.results()
    assert (first, str(second), third) == (0, "no table yet", 2)
    assert isinstance(start(refuse), Unavailable)


def test_portions_have_so_many_bytes_or_one_body():
    """None is left out, none comes twice; a body above the bound goes alone."""
    sizes = [5, 5, 1, 11, 3, 0, 7, 1]
    assert list(_portions(sizes, 10)) == [(0, 2, 10), (2, 3, 1), (3, 4, 11), (4, 7, 10), (7, 8, 1)]
    assert list(_portions([], 10)) == []
    assert [end - start for start, end, _ in _portions([0] * 1001, 10)] == [500, 500, 1]
