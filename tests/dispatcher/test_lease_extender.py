"""The lease extender: what is done about a batch, as a function of the batch and the time."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from cqueue.dispatcher.execution.backlog import Backlog, RunQueue
from cqueue.dispatcher.execution.delivery import SUCCEEDED, Delivery, LeasedBatch, Settlement, Verb
from cqueue.dispatcher.execution.events import Event, Trouble
from cqueue.dispatcher.execution.lease_extender import RETRY_MS, TICKS_TO_FORGET, LeaseExtender, is_halfway
from cqueue.dispatcher.execution.telemetry import Telemetry
from cqueue.errors import LeaseLost, NotDone, Unavailable
from cqueue.protocol.lease import Holding, Lease
from cqueue.runtime.batcher import calls
from cqueue.store.operations import SlotRow, SlotState, WideRow

VISIBILITY_MS = 10_000


class FakePoller:
    """A poller whose time and consumer are the test's."""

    name = "q"
    visibility_s = VISIBILITY_MS / 1000

    def __init__(self):
        self.now = 0
        self.error = None
        self.extended = 0
        self.consumer = SimpleNamespace(extend=self.extend)
        slot = SlotRow(0, 0, SlotState.CLAIMED, (1, 2, 3), VISIBILITY_MS, 1, b"us", 1)
        self.lease = Lease(WideRow("q", 0, 0), slot, 1)

    def now_ms(self):
        return self.now

    def extend(self, _message, _duration):
        self.extended += 1
        if self.error is not None:
            raise self.error
        self.lease.slot = self.lease.slot._replace(due_ms=self.now + VISIBILITY_MS)


class Inline:
    """Makes calls at once."""

    def submit(self, call):
        call()
        return Future()


@pytest.fixture
def poller():
    return FakePoller()


@pytest.fixture
def batch(poller):
    fields = {"id": "id", "task": None, "attempt": 1, "is_held": True, "is_cancelled": False}
    messages = [SimpleNamespace(**fields, suspect=False) for _ in range(3)]
    return LeasedBatch(poller, poller.lease, [Delivery(message, poller) for message in messages])


@pytest.fixture
def backlog(batch):
    """All of it waits to be started."""
    made = Backlog(RunQueue(3, 10), RunQueue(1, 10), wake_loop=lambda: None, room_freed=lambda: None)
    made.put(batch.deliveries)
    return made


@pytest.fixture
def released():
    return []


@pytest.fixture
def lease_extender(backlog, batch, released):
    runner = SimpleNamespace(telemetry=Telemetry(), give_back=released.extend)
    made = LeaseExtender(backlog, runner, lambda: None)
    made._extensions = Inline()
    made.keep(batch)
    return made


def settled(*deliveries):
    for one in deliveries:
        one.settlement, one.message.is_held = SUCCEEDED, False


def tick_at(lease_extender, poller, *times):
    for time in times:
        poller.now = time
        lease_extender.tick()


def test_a_lease_is_extended_once_a_thread_can_be_started(lease_extender, poller, batch, backlog):
    """Where the process may start none for a moment, other leases and later looks go on."""
    other = LeasedBatch(poller, poller.lease, [batch.deliveries.pop()])
    lease_extender.keep(other)
    for _ in range(3):
        backlog.take(backlog.threads)

    def refuse(*_):
        raise NotDone("no thread can be started")

    lease_extender._extensions = SimpleNamespace(submit=refuse)
    tick_at(lease_extender, poller, 5_000)
    lease_extender._extensions = Inline()
    tick_at(lease_extender, poller, 5_000 + RETRY_MS - 1)
    assert poller.extended == 0
    tick_at(lease_extender, poller, 5_000 + RETRY_MS)
    assert poller.extended == 1


def test_an_extension_that_no_thread_could_do_is_not_left_in_line(
    lease_extender, poller, backlog, monkeypatch
):
    """All of them would be made once threads can be started, before those of leases that are due."""
    for _ in range(3):
        backlog.take(backlog.threads)

    def refuse(_):
        raise RuntimeError("can't start new thread")

    lease_extender._extensions = calls("cqueue-extend", at_a_time=1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        tick_at(lease_extender, poller, 5_000, 5_000 + RETRY_MS)
    tick_at(lease_extender, poller, 5_000 + 2 * RETRY_MS)
    lease_extender._extensions.close()
    assert poller.extended == 1


@pytest.mark.parametrize(
    ("now", "expected"),
    [(0, False), (4_999, False), (5_000, True), (99_999, True)],  # too late, perhaps: nobody need have it
)
def test_half_of_the_timeout_decides(batch, now, expected):
    """Before, nothing is done about what is held."""
    assert is_halfway(batch, VISIBILITY_MS, now) is expected


def test_one_extension_at_a_time(batch):
    """While it is under way, nothing is decided."""
    batch.busy = True
    assert not is_halfway(batch, VISIBILITY_MS, 9_000)


@pytest.mark.parametrize(
    ("change", "lost"),
    [({"state": Holding.LOST}, True), ({"state": Holding.GIVEN}, False), ({"outstanding": set()}, False)],
)
def test_what_is_over_is_looked_at_once_more(lease_extender, backlog, poller, batch, change, lost):  # noqa: PLR0917
    """A batch that is over is dropped at the next check; its handlers are told only if the lease was lost."""
    backlog.take(backlog.threads)
    deliveries = batch.deliveries
    for name, value in change.items():
        setattr(batch.lease, name, value)
    tick_at(lease_extender, poller, 0)
    assert not lease_extender.batches
    assert {one.is_lost for one in deliveries} == {lost}
    assert backlog.waiting == (0 if lost else 2)


@pytest.mark.parametrize("settlement", [None, SUCCEEDED, Settlement(Verb.NACK, "retried")])
def test_what_runs_or_is_not_yet_settled_is_extended(lease_extender, backlog, poller, batch, settlement):
    """Again and again, at each half of its timeout."""
    first = backlog.take(backlog.threads)
    first.settlement = settlement or first.settlement
    backlog.close()
    settled(*batch.deliveries[1:])
    tick_at(lease_extender, poller, *range(0, 60_000, 100))
    assert 10 <= poller.extended <= 12
    assert poller.lease.due_ms > 60_000


def test_what_waits_is_released_and_not_extended(lease_extender, poller, released):
    """A waiting message is released, once."""
    tick_at(lease_extender, poller, 4_900)
    assert released == []
    poller.lease.outstanding = {1}
    tick_at(lease_extender, poller, 5_000, 5_100)
    assert len(released) == 3


@pytest.mark.parametrize("is_settled", [False, True])
def test_what_is_left_to_its_timeout_is_not_extended(lease_extender, backlog, poller, batch, is_settled):
    """A message that is left to its timeout is not extended, nor is a settled one."""
    backlog.close()
    for one in batch.deliveries:
        one.is_left = not is_settled
    if is_settled:
        settled(*batch.deliveries)
    tick_at(lease_extender, poller, *range(0, 30_000, 100))
    assert poller.extended == 0


def test_an_extension_that_fails_is_tried_again_each_second(lease_extender, backlog, poller):
    """Not at each tick; and even after the timeout, because nobody need have taken the message."""
    backlog.take(backlog.threads)
    poller.error = Unavailable("no node")
    tick_at(lease_extender, poller, *range(0, 25_000, 100))
    assert 18 <= poller.extended <= 25_000 // RETRY_MS
    poller.error = None
    tick_at(lease_extender, poller, 26_100)
    assert poller.lease.due_ms == 26_100 + VISIBILITY_MS


def test_a_lost_lease_is_told_to_handlers_and_forgotten(lease_extender, backlog, poller, batch):
    """`context.lost` of each that runs."""
    lost = []
    for one in batch.deliveries:
        assert backlog.take(backlog.threads) is one
        one.context = SimpleNamespace(lost=SimpleNamespace(set=lambda: lost.append(1)))
    poller.error = LeaseLost("gone")

    def extend(_message, _duration):
        poller.lease.state = Holding.LOST
        raise LeaseLost("gone")

    poller.consumer.extend = extend
    tick_at(lease_extender, poller, 5_000, 5_100)
    assert len(lost) == 3
    assert not lease_extender.batches
    assert batch.deliveries == []


@pytest.mark.parametrize("most", [1, 3])
def test_a_lost_lease_is_told_to_handlers_at_any_check(lease_extender, poller, batch, most):
    """Also at one that drops settled messages: those of a lost lease are held no more, but handlers run."""
    batch.deliveries = batch.deliveries[:most]
    deliveries = batch.deliveries
    tick_at(lease_extender, poller, *range(TICKS_TO_FORGET - 1))
    batch.lease.state = Holding.LOST
    for one in deliveries:
        one.message.is_held = False
    tick_at(lease_extender, poller, TICKS_TO_FORGET)
    assert all(one.is_lost for one in deliveries)
    assert not lease_extender.batches


def test_an_extension_that_comes_after_the_last_ack_does_nothing(lease_extender, poller, batch):
    """Ack and extension may pass each other: a batch that is over has no message to extend."""
    said = []
    lease_extender._trouble = Trouble(
        Telemetry(on_event=lambda name, _: said.append(name)), Event.EXTEND_FAILED, Event.EXTEND_RESUMED
    )
    lease_extender._trouble.failed(poller.name, Unavailable("no node"))
    batch.busy = True
    batch.end()
    lease_extender.extend(batch)
    assert (poller.extended, batch.busy, said) == (0, False, [Event.EXTEND_FAILED.value])


def test_what_is_over_or_lost_is_let_go_of(lease_extender, poller, batch):
    """A batch and its deliveries know each other: only the garbage collector would find them."""
    poller.lease.outstanding = set()
    tick_at(lease_extender, poller, 100)
    assert not lease_extender.batches
    assert batch.deliveries == []


def test_bodies_of_settled_messages_are_let_go(lease_extender, backlog, poller, batch):
    """Though a neighbour runs for hours."""
    backlog.take(backlog.threads)
    settled(*batch.deliveries[1:])
    tick_at(lease_extender, poller, 5_000)
    assert len(batch.deliveries) == 1
