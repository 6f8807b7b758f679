"""Requests: how long an answer is waited for, how many are under way, what becomes of several outcomes."""

import gc
import weakref
from threading import Timer
from types import SimpleNamespace

import pytest

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown, Unavailable
from cqueue.runtime.waiting import within
from cqueue.store.cassandra import _portions
from cqueue.store.operations import ReadIds, WideRow
from cqueue.store.packs import Density, joined_items, ranged
from cqueue.store.requests import ManyRequests, Request, Window, collected, results_of, sent_or_error
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
    assert ManyRequests(collected(window([], limit=8), Kind.READ, list)).result() == []


def total(kind, *outcomes):
    some = window([], *([1] * len(outcomes)), limit=2, outcomes=outcomes)
    return ManyRequests(collected(some, kind, sum))


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
    assert isinstance(sent_or_error(refuse), Unavailable)


def test_a_part_that_cannot_be_read_fails_the_whole():
    """It must not pass for a part without messages."""
    log = []
    jobs = [
        (1, Part(log, name, outcome).send) for name, outcome in enumerate([[1], Unavailable("away"), [3]])
    ]
    with pytest.raises(Unavailable, match="away"):
        ManyRequests(joined_items(jobs, 2, 0)).result()


def test_a_range_that_cannot_be_read_to_its_end_in_time_is_not_done():
    """It must not pass for a shorter one, though each request succeeds."""
    asked, log = ReadIds(WideRow("q", 0, 0), 0, ids.START, 1 << 123, 10), []

    def send(after, rows):
        part = Part(log, after, ([after + at + 1 for at in range(rows)], [], []))
        part.warnings = None
        return part.send()

    with within(0.0), pytest.raises(NotDone, match="in time"):
        ManyRequests(ranged(asked, send, Density())).result()


def test_portions_have_so_many_bytes_or_one_body():
    """None is left out, none comes twice; a body above the bound goes alone."""
    sizes = [5, 5, 1, 11, 3, 0, 7, 1]
    assert list(_portions(sizes, 10)) == [(0, 2, 10), (2, 3, 1), (3, 4, 11), (4, 7, 10), (7, 8, 1)]
    assert list(_portions([], 10)) == []
    assert [end - start for start, end, _ in _portions([0] * 1001, 10)] == [500, 500, 1]


class Future:
    """A future like the driver's: `answer` gives it one page after another. An error is an answer as well."""

    attempted_hosts = ("host",)
    warnings = None

    def __init__(self, *pages):
        self.pages = list(pages)
        self.calls = []
        self.asked = 1

    def add_callbacks(self, callback, errback, *, callback_args, errback_args):
        self.calls = [(callback, callback_args), (errback, errback_args)]

    @property
    def has_more_pages(self):
        return len(self.pages) > 1

    def start_fetching_next_page(self):
        self.asked += 1
        del self.pages[0]
        self.answer()

    def answer(self):
        call, args = self.calls[isinstance(self.pages[0], Exception)]
        call(self.pages[0], *args)

    def result(self):
        if isinstance(self.pages[0], Exception):
            raise self.pages[0]
        return SimpleNamespace(current_rows=self.pages[0])


def request(future, kind=Kind.READ, timeout_s=60.0):
    requests = SimpleNamespace(refused_login=None, driver=SimpleNamespace(rows=lambda rows: rows))
    return Request(requests, future, kind, lambda rows: rows, timeout_s=timeout_s)


def test_all_pages_of_an_answer_are_read():
    """One after the other, whether the first came before or after somebody began to wait for it."""
    for waiting in (False, True):
        future = Future([1, 2], [3], [], [4])
        asked = request(future)
        if waiting:
            Timer(0.05, future.answer).start()
        else:
            future.answer()
        assert asked.result() == [1, 2, 3, 4]
        assert future.asked == 4


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Kind.READ, Unavailable), (Kind.WRITE, OutcomeUnknown), (Kind.CONDITIONAL, OutcomeUnknown)],
)
def test_an_answer_that_does_not_come_in_time(kind, expected):
    """A read had no effect; what became of a write nobody knows. An answer that has come counts after all."""
    future = Future([1])
    late = request(future, kind, 0.0)
    with pytest.raises(expected, match=r"no answer within 0\.0 s"):
        late.result()
    future.answer()
    assert late.result() == [1]


def test_a_page_that_does_not_come_in_time_fails_the_answer():
    """The answer to the page before it is not that page."""
    future = Future([1], [2])
    asked = request(future, timeout_s=0.05)
    future.answer()
    future.answer = lambda: None
    with pytest.raises(Unavailable, match="no answer within"):
        asked.result()


def test_an_error_of_a_later_page_is_the_answers_error():
    """Half of an answer is none."""
    future = Future([1], OSError("the peer has gone"))
    asked = request(future)
    future.answer()
    with pytest.raises(Unavailable, match="the peer has gone"):
        asked.result()


def test_each_answer_tells_for_how_long_it_has_waited():
    """For the others: who judges whether it came in time must not count that."""
    early, late = Future([1]), Future([2])
    asked = [request(early), Unavailable("not sent"), request(late), request(Future([3]), timeout_s=0.0)]
    early.answer()
    Timer(0.05, late.answer).start()
    answers = results_of(asked)
    assert answers[:3] == [[1], asked[1], [2]]
    assert isinstance(answers[3], Unavailable)
    assert answers.ages_us[0] >= 50_000
    assert answers.ages_us[0] - answers.ages_us[2] >= 40_000
    assert answers.ages_us[1] == answers.ages_us[3] == 0


def test_an_answered_request_is_let_go_of_at_once():
    """No timer and no circle of references keeps it: there are thousands a second."""
    gc.disable()
    try:
        future = Future([1])
        asked, known = request(future), weakref.ref(future)
        future.answer()
        assert asked.result() == [1]
        del asked, future
        assert known() is None
    finally:
        gc.enable()
