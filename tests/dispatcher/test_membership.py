"""Workers of a queue divide its wide rows, and say that they are there."""

import threading

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from cqueue.client import connect
from cqueue.dispatcher.application.app import App
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.dispatcher.service import membership
from cqueue.dispatcher.service.membership import Membership, Worker, parse, share_of, told
from cqueue.errors import Unavailable
from cqueue.store.control import Heartbeat, ReadWorkers, WorkerRow
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import WideRow
from tests.fix_dispatcher import SOON_S

names = st.text(min_size=1, max_size=20)
fleets = st.sets(names, min_size=1, max_size=8)
wide_rows = st.builds(WideRow, names, st.integers(0, 2**45), st.integers(-8, 64))


def first_owner(fleet, wide_row):
    """The worker whose share a wide row is in."""
    shares = {me: share_of(me, fleet) for me in fleet}
    (owner,) = (me for me, share in shares.items() if share is None or share(wide_row))
    return owner


@given(fleets, wide_rows)
def test_every_wide_row_has_exactly_one_first_owner(fleet, wide_row):
    assert first_owner(fleet, wide_row) in fleet


@given(fleets, wide_rows, st.data())
def test_a_leave_moves_only_the_leavers_share(fleet, wide_row, data):
    leaver = data.draw(st.sampled_from(sorted(fleet)))
    before = first_owner(fleet, wide_row)
    if before != leaver:
        assert first_owner(fleet - {leaver}, wide_row) == before


@given(fleets, wide_rows, names)
def test_a_joiner_takes_from_others_and_moves_nothing_between_them(fleet, wide_row, joiner):
    assert first_owner(fleet | {joiner}, wide_row) in {first_owner(fleet, wide_row), joiner}


def test_shares_are_about_equal():
    """Of 10,000 wide rows each of five workers has a fifth, within a tenth of it."""
    fleet = [f"host-{n}" for n in range(5)]
    shares = [share_of(me, fleet) for me in fleet]
    rows = [WideRow("q", n * 60_000, n % 4) for n in range(10_000)]
    assert all(1800 <= sum(map(share, rows)) <= 2200 for share in shares)


def test_who_is_alone_looks_at_everything():
    assert share_of("me", []) is None


# ── The registry ──


def worker(name="me", **values):
    base = Worker(name, "host", 7, "shop:app", ("mail",), 8, "1.0", 100.0, state="running")
    return membership.replace(base, **values)


class ParentProcess:
    """A store in memory, and what each member was told."""

    def __init__(self):
        self.driver = connect("memory://")._driver
        self.told = {}
        self.now_s = 1000.0

    def member(self, described):
        def changed(queues, share):
            self.told.setdefault(described.name, []).extend((queue, share) for queue in queues)

        return Membership(self.driver.ask, lambda: described, changed, now_s=lambda: self.now_s)

    def rows(self):
        return [membership.parse(row) for row in self.driver.ask(ReadWorkers())]


@pytest.fixture
def fleet():
    return ParentProcess()


def test_a_row_says_who_runs_what(fleet):
    described = worker(counters={"succeeded": 5}, running=2, unstarted=1)
    fleet.member(described).beat()
    assert fleet.rows() == [membership.replace(described, seen=1000.0)]


def test_members_are_told_when_somebody_comes_or_goes_and_only_then(fleet):
    one, two = fleet.member(worker("one")), fleet.member(worker("two"))
    one.beat()
    assert fleet.told["one"] == [("mail", None)]
    two.beat()
    one.beat()
    one.beat()
    assert len(fleet.told["one"]) == 2
    assert fleet.told["one"][-1][1] is not None
    two.leave()
    one.beat()
    assert fleet.told["one"][-1] == ("mail", None)


def test_workers_of_other_queues_and_those_that_stop_have_no_share(fleet):
    fleet.member(worker("other", queues=("letters",))).beat()
    fleet.member(worker("leaving", state=membership.STOPPING)).beat()
    fleet.member(worker("one")).beat()
    assert fleet.told["one"] == [("mail", None)]


def test_queues_with_the_same_workers_are_told_of_together(fleet):
    """A worker may have 20,000: one line of the log, and one look at its pollers."""
    mine = [f"mail-{number}" for number in range(5)]
    fleet.member(worker("two", queues=(*mine[:3], "letters"))).beat()
    calls = []
    me = worker("one", queues=tuple(mine))
    member = Membership(fleet.driver.ask, lambda: me, lambda *told: calls.append(told), now_s=lambda: 0.0)
    with structlog.testing.capture_logs() as lines:
        member.beat()
        member.beat()
    assert [(queues, share is None) for queues, share in calls] == [(mine[:3], False), (mine[3:], True)]
    assert [(line["queue"], line["queues"], line["workers"]) for line in lines] == [
        ("mail-0", 3, 2),
        ("mail-3", 2, 1),
    ]


def test_the_heartbeat_of_very_many_queues_comes_less_often(fleet):
    """Each has all their names: of 20,000 queues and ten workers, megabytes every five seconds."""
    many, asked = worker(queues=tuple(f"q{number}" for number in range(20_000))), []
    member = fleet.member(many)
    member._ask = lambda operation: asked.append(operation) or []
    member.beat()
    assert (member._every_s, asked[0].ttl_s) == (20.0, 60)
    assert [many.is_late(now_s) for now_s in (29.0, 31.0)] == [False, True]
    assert [worker().is_late(now_s) for now_s in (7.0, 8.0)] == [False, True]


def test_a_clean_stop_removes_the_row(fleet):
    member = fleet.member(worker())
    member.start()
    member.stop()
    assert fleet.rows() == []


def test_a_killed_workers_row_goes_after_15_s():
    now_us = 0
    store = MemoryStore(clock_us=lambda: now_us)
    store.execute(Heartbeat(WorkerRow("w", "{}", 0), membership.TTL_S))
    now_us = 15_000_001
    assert store.execute(ReadWorkers()) == []


def test_an_outage_leaves_the_shares_as_they_are():
    def fails(_operation):
        raise Unavailable("away")

    told = []
    member = Membership(fails, worker, lambda *told_: told.append(told_), now_s=lambda: 0.0)
    member.beat()
    member.beat()
    assert not told


def test_an_error_of_the_library_ends_no_heartbeat(monkeypatch):
    """The worker would be missing in every list, and its share would be nobody's to look at first."""
    monkeypatch.setattr(membership, "BEAT_EVERY_S", 0.001)
    asked, beaten = [], threading.Event()

    def breaks_once(_operation):
        asked.append(1)
        if len(asked) == 1:
            raise RuntimeError("dictionary changed size during iteration")
        beaten.set()
        return []

    member = Membership(breaks_once, worker, lambda *_: None, now_s=lambda: 0.0)
    member.start()
    assert beaten.wait(SOON_S)
    member.stop()


@pytest.mark.parametrize(
    "info",
    [
        "",
        "[]",
        "nonsense",
        '{"queues": 3, "counters": [], "pid": "x"}',
        pytest.param("[" * 100_000, id="too deep"),
    ],
)
def test_a_row_of_another_version_is_shown_as_far_as_it_goes(info):
    assert membership.parse(WorkerRow("w", info, 5000)) == Worker(
        "w", "", 0, "", (), 0, "", 0.0, "", seen=5.0
    )


def test_a_worker_says_which_tasks_it_knows_unless_they_are_too_many():
    """A heartbeat stays small, and a worker of another version says nothing of them."""
    assert told(["a", None]) == ("a", None)
    assert told(None) is None
    assert told(str(number) for number in range(20_000)) is None
    worker = Worker("n", "h", 1, "app", ("q",), 8, "1", 0.0, tasks=("a", None))
    assert parse(worker.row()).tasks == ("a", None)
    assert parse(worker.row()._replace(info="{}")).tasks is None


def test_a_dispatcher_knows_its_tasks(connected):
    """A mapping and an application have names; a single handler takes any task."""
    queue = connected.create_queue("q", exist_ok=True)
    app = App(connected)
    app.task(name="send")(lambda to: to)
    assert Dispatcher(queue, app).tasks == ("send",)
    assert Dispatcher(queue, {"a": print, None: print}).tasks == ("a", None)
    assert Dispatcher(queue, print).tasks is None
