"""The keeper: what is done about a hold, as a function of the hold and the time."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from cqueue.dispatcher.delivery import SUCCEEDED, Delivery, Hold, Settlement, Verb
from cqueue.dispatcher.events import Event, Trouble
from cqueue.dispatcher.handover import Handover, Line
from cqueue.dispatcher.keeper import RETRY_MS, Keeper, is_halfway
from cqueue.dispatcher.tally import Account
from cqueue.errors import LeaseLost, Unavailable
from cqueue.protocol.lease import Holding, Lease
from cqueue.store.operations import SlotRow, SlotState, WideRow

VISIBILITY_MS = 10_000


class FakeLane:
    """A lane whose time and consumer are the test's."""

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
    """An executor that runs at once."""

    def submit(self, function, *args):
        function(*args)
        return Future()


@pytest.fixture
def lane():
    return FakeLane()


@pytest.fixture
def hold(lane):
    messages = [SimpleNamespace(id="id", task=None, attempt=1, is_held=True) for _ in range(3)]
    return Hold(lane, lane.lease, [Delivery(message, lane) for message in messages])


@pytest.fixture
def handover(hold):
    """All of it waits to be started."""
    made = Handover(Line(3, 10), Line(1, 10), call_loop=lambda: None, feed=lambda: None)
    made.put(hold.deliveries)
    return made


@pytest.fixture
def released():
    return []


@pytest.fixture
def keeper(handover, hold, released):
    runner = SimpleNamespace(account=Account(), give_back=released.extend)
    made = Keeper(handover, runner, lambda: None)
    made._executor = Inline()
    made.keep(hold)
    return made


def settled(*deliveries):
    for one in deliveries:
        one.settlement, one.message.is_held = SUCCEEDED, False


def tick_at(keeper, lane, *times):
    for time in times:
        lane.now = time
        keeper.tick()


@pytest.mark.parametrize(
    ("now", "expected"),
    [(0, False), (4_999, False), (5_000, True), (99_999, True)],  # too late, perhaps: nobody need have it
)
def test_half_of_the_timeout_decides(hold, now, expected):
    """Before, nothing is done about what is held."""
    assert is_halfway(hold, VISIBILITY_MS, now) is expected


def test_one_extension_at_a_time(hold):
    """While it is under way, nothing is decided."""
    hold.busy = True
    assert not is_halfway(hold, VISIBILITY_MS, 9_000)


@pytest.mark.parametrize(
    ("change", "lost"),
    [({"state": Holding.LOST}, True), ({"state": Holding.GIVEN}, False), ({"outstanding": set()}, False)],
)
def test_what_is_over_is_looked_at_once_more(keeper, handover, lane, hold, change, lost):  # noqa: PLR0917
    """At once, whatever the time; its handler is told only where somebody else has it."""
    handover.take()
    deliveries = hold.deliveries
    for name, value in change.items():
        setattr(hold.lease, name, value)
    tick_at(keeper, lane, 0)
    assert keeper.holds == []
    assert {one.is_lost for one in deliveries} == {lost}
    assert handover.waiting == (0 if lost else 2)


@pytest.mark.parametrize("settlement", [None, SUCCEEDED, Settlement(Verb.NACK, "retried")])
def test_what_runs_or_is_not_yet_settled_is_extended(keeper, handover, lane, hold, settlement):
    """Again and again, at each half of its timeout."""
    first = handover.take()
    first.settlement = settlement or first.settlement
    handover.close()
    settled(*hold.deliveries[1:])
    tick_at(keeper, lane, *range(0, 60_000, 100))
    assert 10 <= lane.extended <= 12
    assert lane.lease.due_ms > 60_000


def test_what_waits_is_released_and_not_extended(keeper, lane, released):
    """Once."""
    tick_at(keeper, lane, 4_900)
    assert released == []
    lane.lease.outstanding = {1}
    tick_at(keeper, lane, 5_000, 5_100)
    assert len(released) == 3


@pytest.mark.parametrize("is_settled", [False, True])
def test_what_is_left_to_its_timeout_is_not_extended(keeper, handover, lane, hold, is_settled):
    """That is what it was left for; nor is what is settled."""
    handover.close()
    for one in hold.deliveries:
        one.is_left = not is_settled
    if is_settled:
        settled(*hold.deliveries)
    tick_at(keeper, lane, *range(0, 30_000, 100))
    assert lane.extended == 0


def test_an_extension_that_fails_is_tried_again_each_second(keeper, handover, lane):
    """Not at each tick; and even after the timeout, because nobody need have taken the message."""
    handover.take()
    lane.error = Unavailable("no node")
    tick_at(keeper, lane, *range(0, 25_000, 100))
    assert 18 <= lane.extended <= 25_000 // RETRY_MS
    lane.error = None
    tick_at(keeper, lane, 26_100)
    assert lane.lease.due_ms == 26_100 + VISIBILITY_MS


def test_a_lost_lease_is_told_to_handlers_and_forgotten(keeper, handover, lane, hold):
    """`context.lost` of each that runs."""
    lost = []
    for one in hold.deliveries:
        assert handover.take() is one
        one.context = SimpleNamespace(lost=SimpleNamespace(set=lambda: lost.append(1)))
    lane.error = LeaseLost("gone")

    def extend(_message, _duration):
        lane.lease.state = Holding.LOST
        raise LeaseLost("gone")

    lane.consumer.extend = extend
    tick_at(keeper, lane, 5_000, 5_100)
    assert len(lost) == 3
    assert keeper.holds == hold.deliveries == []


def test_an_extension_that_comes_after_the_last_ack_does_nothing(keeper, lane, hold):
    """They may pass each other: what is over has no message by which it could be extended."""
    said = []
    keeper._trouble = Trouble(
        Account(on_event=lambda name, _: said.append(name)), Event.EXTEND_FAILED, Event.EXTEND_RESUMED
    )
    keeper._trouble.failed(lane.name, Unavailable("no node"))
    hold.busy = True
    hold.end()
    keeper.extend(hold)
    assert (lane.extended, hold.busy, said) == (0, False, [Event.EXTEND_FAILED.value])


def test_what_is_over_or_lost_is_let_go_of(keeper, lane, hold):
    """A hold and its deliveries know each other: only the garbage collector would find them."""
    lane.lease.outstanding = set()
    tick_at(keeper, lane, 100)
    assert keeper.holds == hold.deliveries == []


def test_bodies_of_settled_messages_are_let_go(keeper, handover, lane, hold):
    """Though a neighbour runs for hours."""
    handover.take()
    settled(*hold.deliveries[1:])
    tick_at(keeper, lane, 5_000)
    assert len(hold.deliveries) == 1
