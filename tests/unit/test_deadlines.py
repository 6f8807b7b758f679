"""A call's time is passed down: what it repeats, and what it asks later, gets what is left."""

from types import SimpleNamespace

import pytest

from cqueue.client import Client
from cqueue.errors import NotDone, OutcomeUnknown, TooManyTombstones, Unavailable
from cqueue.log import catalog as log_catalog
from cqueue.message import Message
from cqueue.runtime import waiting
from cqueue.runtime.clock import ClusterClock, LocalClock, steady_us
from cqueue.runtime.driver import WAITS_S, BlockingDriver
from cqueue.store.log_operations import ReadLog
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import Answers, InsertBodies, InsertMessages, ReadHead, Together, WideRow
from tests.faulty_store import FaultyStore
from tests.unit.ctrl_c import at_each_moment
from tests.unit.passing import PassingClock

ROW = WideRow("q@1", 0, 0)


class Slow:
    """A store cut off from its nodes: each request takes all the time that it may, and fails."""

    longest_s = 0.5

    def __init__(self, clock):
        self.took = []
        self.clock = clock

    def execute(self, operation):
        self.took.append(waiting.left_s(self.longest_s))
        self.clock.now_s += self.took[-1]
        raise Unavailable("nobody answers")

    def together(self, operations):
        try:
            return [self.execute(operation) for operation in operations]
        except Unavailable as exc:
            return [exc for _ in operations]


@pytest.fixture
def clock(monkeypatch):
    clock = PassingClock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


def driver(store, deadline_s):
    clock = ClusterClock(lambda: [(1, 1)])
    return BlockingDriver(store, clock, pause=store.clock.pass_time, deadline_s=deadline_s)


def test_repeating_does_not_go_on_beyond_the_time_of_the_call(clock):
    """Five tries of half a second each are allowed one second together, and what the last one takes."""
    store = Slow(clock)
    with pytest.raises(Unavailable):
        driver(store, 1.0).ask(ReadHead(ROW))
    assert sum(store.took) <= 1.5
    assert len(store.took) <= 3


def test_a_call_whose_time_is_over_asks_for_nothing_more(clock):
    """A search through many wide rows ends there: what was not asked is not done."""
    store = Slow(clock)
    with waiting.within(-2), pytest.raises(Unavailable, match="over"):
        driver(store, 1.0).ask(ReadHead(ROW))
    with waiting.within(-2):
        late = driver(store, 1.0).ask(Together((ReadHead(ROW),) * 2))
    assert [type(one) for one in late] == [Unavailable] * 2
    assert not store.took


@pytest.mark.parametrize("size", [100, 20_000])
def test_a_large_send_ends_with_the_time_of_its_call(clock, size):
    """What is not asked any more is not done, and not repeated for two seconds in each stretch."""
    store = FaultyStore(MemoryStore(steady_us))
    own = BlockingDriver(store, LocalClock(steady_us), pause=clock.pass_time)
    with Client(store, driver=own) as client:
        queue = client.create_queue("q")
        inserts = []

        def trouble(operation):
            if not isinstance(operation, InsertMessages | InsertBodies):
                return None
            inserts.append(operation)
            return clock.hang(operation)

        store.trouble = trouble
        began_s = clock.now_s
        result = queue.send_many([Message(b"x" * size)] * 10_000)
        assert clock.now_s - began_s < 13
        assert len(result.failed) == 10_000
        store.trouble = lambda _: None
    assert all(isinstance(error, NotDone) for _, error in result.failed)
    assert len(inserts) < 100


def test_of_a_large_send_nothing_is_begun_after_the_time_of_its_call(clock, monkeypatch):
    """Its outcome would be unknown; what is not written is not done, so that it can be sent again."""

    def now_us():
        return 1_800_000_000_000_000 + round(clock.now_s * 1e6)

    store = MemoryStore(now_us)
    late = []

    def hang(operations):
        late.append(waiting.is_over())
        clock.now_s += waiting.left_s(2.0)
        return [OutcomeUnknown("no answer")] * len(operations)

    own = BlockingDriver(store, LocalClock(now_us), pause=clock.pass_time)
    with Client(store, driver=own) as client:
        queue = client.create_queue("q")
        with monkeypatch.context() as patched:
            patched.setattr(store, "together", hang)
            failed = queue.send_many([Message(b"x" * 16_000)] * 10_000).failed
    assert True not in late
    assert len(failed) == 10_000
    assert {isinstance(error, NotDone) for _, error in failed} == {False, True}


def test_an_append_ends_with_the_time_of_its_call(clock, monkeypatch):
    """A log's configuration is read again every 5 s; where that takes long, the one that is known will do."""
    store = FaultyStore(MemoryStore(steady_us))
    own = BlockingDriver(store, LocalClock(steady_us), pause=clock.pass_time)
    monkeypatch.setattr(log_catalog, "time", clock)
    with Client(store, driver=own) as client:
        log = client.create_log("events")
        log.append("t", b"known")
        took_s = []
        for _ in range(3):
            clock.now_s += 10
            store.trouble, began_s = clock.hang, clock.now_s
            with pytest.raises(NotDone):
                log.append("t", b"x")
            took_s.append(clock.now_s - began_s)
        store.trouble = lambda operation: clock.hang(operation) if isinstance(operation, ReadLog) else None
        clock.now_s += 10
        log.append("t", b"x")
        store.trouble = lambda _: None
    assert max(took_s) < 13


def test_before_each_repeat_it_pauses(clock):
    """Clients that repeat at once would keep a node busy that has just come back."""
    store = Slow(clock)
    store.longest_s = 0.0
    with pytest.raises(Unavailable):
        driver(store, 1.0).ask(ReadHead(ROW))
    assert len(store.took) == 1 + len(WAITS_S)
    assert clock.now_s - 1000.0 >= sum(least_s for least_s, _ in WAITS_S)


@pytest.mark.usefixtures("clock")
def test_an_inner_limit_never_lengthens_an_outer_one():
    """The innermost limit counts only where it is the shorter one, and ends with its block."""
    assert waiting.left_s(30) == 30
    with waiting.within(10):
        with waiting.within(20):
            assert 9 < waiting.left_s(30) <= 10
        with waiting.within(5):
            assert 4 < waiting.left_s(30) <= 5
            waiting.renew(8)
            assert 7 < waiting.left_s(30) <= 8
        assert 9 < waiting.left_s(30) <= 10
    assert waiting.left_s(30) == 30


@pytest.mark.parametrize(
    ("answer", "asked"), [(None, 9), (TooManyTombstones("100,001"), 9), (Unavailable("no"), 3)]
)
def test_a_call_has_its_time_anew_with_each_answer(clock, answer, asked):
    """A large send may take long, as long as Cassandra answers; that it refuses to read on is an answer."""
    store = SimpleNamespace(together=lambda _: clock.pass_time(0.9) or [answer], clock=clock)

    def ask():
        for number in range(10):
            (one,) = yield from Together((ReadHead(ROW),), retried=False)
            if one is not answer or number == asked:
                return number
        return None

    assert driver(store, 1.0).run(ask()) == asked


def test_a_late_request_still_gets_a_moment():
    """It may only have to be repeated once, and Cassandra be there again."""
    with waiting.within(0):
        assert waiting.left_s(30) == waiting.SHORTEST_S
        assert waiting.is_over()


def test_what_is_repeated_counts_from_its_repeat():
    """An age of the first try would make a late answer one in time."""
    tries = [Answers([Unavailable("no"), None], [2_000_000, 0]), [None]]
    store = SimpleNamespace(together=lambda _: tries.pop(0), clock=PassingClock())
    answers = driver(store, 1.0).ask(Together((ReadHead(ROW), ReadHead(ROW))))
    assert answers == [None, None]
    assert not hasattr(answers, "ages_us")


def test_no_ctrl_c_leaves_a_deadline_behind():
    """At any moment of a call: the thread's later calls get all of their time, however late they come."""

    def call():
        with waiting.within(0):
            waiting.left_s(30)

    def check():
        with waiting.within(10):
            assert waiting.left_s(30) > 9

    assert at_each_moment(call, check) > 5


def test_a_deadline_counts_for_all_that_its_block_calls():
    with waiting.within(3), waiting.within(10):
        assert waiting.left_s(30) <= 3
