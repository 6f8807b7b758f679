"""The settlement writer: together what can go together, again what failed, and nothing twice."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

import cqueue
from cqueue.dispatcher.execution.delivery import RELEASED, SUCCEEDED, Delivery, LeasedBatch, Settlement, Verb
from cqueue.dispatcher.execution.events import Event
from cqueue.dispatcher.execution.history_writer import HistoryWriter
from cqueue.dispatcher.execution.options import Options
from cqueue.dispatcher.execution.pollers import Poller, PollSchedule
from cqueue.dispatcher.execution.settlement_writer import SettlementWriter
from cqueue.dispatcher.execution.telemetry import Telemetry
from cqueue.errors import Closed, OutcomeUnknown, Unavailable
from cqueue.protocol.lease import Holding
from cqueue.store.control import KeepResult, ResultRow
from cqueue.store.operations import DeleteMessages, Mutate, ReadHead
from tests.fix_dispatcher import SOON, SOON_S, until

OPTIONS = Options()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Calls:
    """A store's mutations and deletes, counted."""

    def __init__(self, store):
        self.deletes, self.mutates = [], []
        self.error = None
        store.trouble = self

    def __call__(self, operation):
        if isinstance(operation, DeleteMessages):
            self.deletes.append(operation)
        elif isinstance(operation, Mutate):
            self.mutates.append(operation)
        else:
            return None
        return self.error


def writer_of(options=OPTIONS, hooks=(), on_event=None, **more):
    telemetry = Telemetry(on_event)
    return SettlementWriter(options, hooks, telemetry, HistoryWriter(telemetry), **more)


@pytest.fixture
def writer():
    # Nothing is sent but by hand, and delays do not shrink while a slow machine puts ten.
    made = writer_of(Options(ack_interval=timedelta(seconds=5)), clock=lambda: 0.0)
    yield made
    made.close()


@pytest.fixture
def poller(work):
    poller = Poller(work, PollSchedule(lambda *_: 1, 0.005, 1.0), Options())
    poller.learn()
    yield poller
    poller.consumer.close()


def deliveries(poller, work, count=10):
    work.send_many([cqueue.Message(b"x") for _ in range(count)])
    return [Delivery(message, poller) for message in poller.consumer.receive(100, wait=SOON)]


def test_acks_are_one_delete_for_each_wide_row(troubled, writer, poller, work):
    """However many messages."""
    held = deliveries(poller, work, 50)
    calls = Calls(troubled)
    for delivery in held:
        writer.settle(delivery, SUCCEEDED)
    assert writer.flush(SOON_S)
    assert len(calls.deletes) == len({delivery.message.lease.wide_row for delivery in held})
    assert not any(delivery.message.is_held for delivery in held)


def test_what_no_thread_could_store_is_stored_at_the_next_look(poller, work, monkeypatch):
    """Nobody else may settle a message soon, and a drain waits for this one."""
    writer = writer_of()
    (delivery,) = deliveries(poller, work, 1)

    def refuse(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        writer.settle(delivery, SUCCEEDED)
        writer.watch()
    assert writer.pending == 1
    writer.watch()
    until(lambda: not writer.pending)
    assert not delivery.message.is_held
    writer.close()


def test_a_result_that_cannot_be_stored_holds_up_no_other_ack(troubled, writer, poller, work):
    """Only its own message waits for it."""
    held = deliveries(poller, work)
    for delivery in held:
        row = ResultRow(str(delivery.message.id), "succeeded", "json", b"1", None, None, 0)
        delivery.result, delivery.settlement = KeepResult(row, 3600), SUCCEEDED
    refused = held[3]
    error = Unavailable("this partition has lost its quorum")
    troubled.trouble = lambda operation: error if operation is refused.result else None
    assert writer.send(held) == [error if delivery is refused else None for delivery in held]
    assert [delivery for delivery in held if delivery.message.is_held] == [refused]
    troubled.trouble = lambda _operation: None
    assert writer.send([refused]) == [None]
    assert not refused.message.is_held


def test_an_ack_leaves_others_of_a_lost_lease_to_be_told(writer, poller, work):
    """Their handlers run, and are to stop; the next check of leases tells them."""
    held = deliveries(poller, work, 2)
    lease = held[0].message.lease
    batch, lease.state = LeasedBatch(poller, lease, held), Holding.LOST
    writer.settle_now(held[0], SUCCEEDED)
    assert batch.undecided == held[1:]


def test_nacks_of_equal_delay_go_together(troubled, writer, poller, work):
    """There is one mutation for each delay, verb and lease."""
    held = deliveries(poller, work, 20)
    leases = {delivery.message.lease for delivery in held}
    calls = Calls(troubled)
    for delivery in held[:10]:
        writer.settle(delivery, Settlement(Verb.NACK, "retried", timedelta(seconds=30)))
    for delivery in held[10:]:
        writer.settle(delivery, RELEASED)
    assert writer.flush(SOON_S)
    assert len(calls.mutates) <= 2 * len(leases)
    assert {stored.state for stored in work.peek(100)} == {"waiting"}


def test_nacks_of_unequal_delay_keep_their_own(writer, poller, work, clock):
    """Though they are sent together."""
    held = deliveries(poller, work, 2)
    for delivery, seconds in zip(held, (20, 60), strict=True):
        writer._note(delivery, Settlement(Verb.NACK, "retried", timedelta(seconds=seconds)))
    assert writer.send(held) == [None, None]
    (queued,) = {delivery.message.lease.wide_row for delivery in held}
    head = work._driver.store.execute(ReadHead(queued))
    due_s = sorted((slot.due_ms * 1000 - clock.us) / 1e6 for slot in head.slots if slot.ids)
    assert due_s == pytest.approx([20, 60], abs=0.5)


def test_a_handler_that_succeeds_after_all_acks_no_message_but_its_own(troubled, writer, poller, work):
    """It was given up; its nack waits with another message's while a third's is being stored."""
    first, late, other = deliveries(poller, work, 3)
    for delivery, seconds in ((first, 20), (late, 60), (other, 60)):
        writer._note(delivery, Settlement(Verb.NACK, "left", timedelta(seconds=seconds)))

    def succeed(operation):
        if isinstance(operation, Mutate):
            writer._note(late, SUCCEEDED)

    troubled.trouble = succeed
    assert writer.send([first, late, other]) == [None] * 3
    troubled.trouble = lambda _: None
    assert sorted(stored.id for stored in work.peek(10)) == sorted(
        delivery.message.id for delivery in (first, late, other)
    )


def test_a_nack_is_due_when_the_handler_said_however_late_it_is_sent(troubled, writer, poller, work, clock):
    """The time that passed is taken off the delay."""
    (delivery,) = deliveries(poller, work, 1)
    ticks = Clock()
    writer._clock = ticks
    writer.settle(delivery, Settlement(Verb.NACK, "retried", timedelta(seconds=30)))
    ticks.now += 20
    calls = Calls(troubled)
    writer.flush(0.0)
    until(lambda: calls.mutates)
    due_ms = calls.mutates[0].slots[-1].row.due_ms
    assert due_ms * 1000 - clock.us == pytest.approx(10_000_000, abs=300_000)


def test_hooks_after_an_ack_run_in_the_opposite_order(poller, work):
    """They run like all `after_` hooks."""
    called = []

    class Hooks(cqueue.Middleware):
        def __init__(self, name):
            self.name = name

        def before_ack(self, messages):
            called.append(f"{self.name} before")

        def after_ack(self, messages):
            called.append(f"{self.name} after")

    hooks = [Hooks("outer"), Hooks("inner")]
    writer = writer_of(hooks=hooks)
    writer.settle_now(*deliveries(poller, work, 1), SUCCEEDED)
    assert called == ["outer before", "inner before", "inner after", "outer after"]


def test_an_ack_whose_outcome_is_unknown_is_sent_again(troubled, writer, poller, work):
    """Until it is known to be stored."""
    held = deliveries(poller, work, 5)
    calls = Calls(troubled)
    calls.error = OutcomeUnknown("timed out")
    for delivery in held:
        writer.settle(delivery, SUCCEEDED)
    assert not writer.flush(0.3)
    assert writer.pending == 5
    calls.error = None
    assert writer.flush(SOON_S)
    assert work.peek() == []


def test_a_failure_that_goes_on_is_told_once_though_others_are_stored(shop, troubled, poller, work):
    """As where one partition has lost its quorum: an end that is told is one."""
    told = []
    writer = writer_of(Options(ack_interval=timedelta(0)), on_event=lambda event, _: told.append(event))
    other = Poller(shop.create_queue("other"), PollSchedule(lambda *_: 1, 0.005, 1.0), OPTIONS)
    (lost,), found = deliveries(poller, work, 1), deliveries(other, other.queue, 3)
    error = Unavailable("this partition has lost its quorum")
    place = lost.message.lease.wide_row
    troubled.trouble = lambda operation: error if getattr(operation, "wide_row", None) == place else None
    later = Settlement(Verb.NACK, "retried", timedelta(seconds=30))
    writer.settle(lost, later)
    for delivery in found:
        until(lambda: Event.SETTLE_FAILED in told)
        writer.settle(delivery, later)
        until(lambda delivery=delivery: not delivery.message.is_held)
    until(lambda: writer.pending == 1)
    assert told == [Event.SETTLE_FAILED]
    troubled.trouble = lambda _: None
    assert writer.flush(SOON_S)
    assert told == [Event.SETTLE_FAILED, Event.SETTLE_RESUMED]
    writer.close()
    other.consumer.close()


def test_a_nack_whose_lease_is_lost_is_dropped(writer, poller, work, clock):
    """The message belongs to somebody else."""
    (delivery,) = deliveries(poller, work, 1)
    clock.advance(10)
    with work.consumer() as other:
        assert other.receive(wait=SOON)
        writer.settle(delivery, Settlement(Verb.NACK, "retried"))
        assert writer.flush(SOON_S)
        assert delivery.message.lease.lost
        assert [stored.state for stored in work.peek()] == ["claimed"]


def test_an_ack_whose_lease_is_lost_is_sent(writer, poller, work, clock):
    """The work is done, so the ack is right even after the lease was lost."""
    (delivery,) = deliveries(poller, work, 1)
    clock.advance(10)
    with work.consumer() as other:
        assert other.receive(wait=SOON)
        writer.settle(delivery, SUCCEEDED)
        assert writer.flush(SOON_S)
        assert work.peek() == []


@pytest.mark.parametrize("error", [Unavailable("no node"), OutcomeUnknown("timed out")])
def test_a_burial_is_repeated_until_the_letter_is_there(shop, troubled, writer, poller, work, error):  # noqa: PLR0917
    """In the end there is one letter, and the message is gone."""
    (delivery,) = deliveries(poller, work, 1)
    calls = Calls(troubled)
    calls.error = error
    writer.settle(delivery, Settlement(Verb.DEAD, "dead", reason="bad", traceback="Traceback"))
    until(lambda: calls.mutates)
    calls.error = None
    assert writer.flush(SOON_S)
    until(lambda: work.peek() == [] or delivery.message.lease.lost)
    letters = shop.queue("work.dead").peek()
    assert len(letters) <= 1
    assert len(letters) + len(work.peek()) == 1


def test_each_dead_letter_has_its_own_reason(shop, writer, poller, work):
    """Also of those that are sent together."""
    held = deliveries(poller, work, 2)
    for delivery, reason in zip(held, ("bad", "worse"), strict=True):
        writer._note(delivery, Settlement(Verb.DEAD, "dead", reason=reason))
    assert writer.send(held) == [None, None]
    assert sorted(letter.reason for letter in shop.queue("work").dead_letters) == ["bad", "worse"]


def test_an_ack_that_breaks_is_told_of_and_sent_again(poller, work, monkeypatch):
    """A bug loses no ack, and does not stay hidden."""
    held, told = deliveries(poller, work, 1), []
    held[0].settlement = SUCCEEDED
    writer = writer_of(on_event=lambda event, _: told.append(event))
    with monkeypatch.context() as patch:
        patch.setattr(poller.consumer, "ack", lambda _: 1 / 0)
        (error,) = writer.send(held)
    assert isinstance(error, ZeroDivisionError)
    assert told == [Event.BROKEN]
    assert writer.send(held) == [None]
    assert work.peek() == []


def test_an_ack_that_fails_is_not_sent_again_after_the_end(troubled, writer, poller, work):
    """Its message comes again when its timeout passes."""
    (delivery,), before = deliveries(poller, work, 1), set(threading.enumerate())
    calls = Calls(troubled)
    calls.error = OutcomeUnknown("timed out")
    writer.settle(delivery, SUCCEEDED)
    writer.flush(0.0)
    until(lambda: calls.deletes)
    writer.close()
    assert "cqueue-ack" not in {thread.name for thread in set(threading.enumerate()) - before}
    assert writer.pending == 1


def test_what_is_decided_after_the_end_is_left_to_its_timeout(writer, poller, work):
    """A handler may end after the dispatcher has."""
    held = deliveries(poller, work, 2)
    writer.close()
    writer.settle(held[0], SUCCEEDED)
    writer.settle(held[1], Settlement(Verb.NACK, "retried"))
    assert all(delivery.is_left for delivery in held)
    assert writer.pending == 0
    assert len(work.peek()) == 2


def test_what_is_decided_after_the_client_was_closed_is_left_to_its_timeout(
    writer, poller, work, monkeypatch
):
    """It is not sent again, and its lease is extended no more."""
    (delivery,) = deliveries(poller, work, 1)

    def is_closed(_messages):
        raise Closed("the client is closed")

    monkeypatch.setattr(poller.consumer, "ack", is_closed)
    writer._note(delivery, SUCCEEDED)
    assert writer.send([delivery]) == [None]
    assert delivery.is_left


def test_a_client_that_was_closed_keeps_no_other_ones_acks(writer, poller, work, monkeypatch):
    """A dispatcher may have queues of several."""
    (left,) = deliveries(poller, work, 1)

    def is_closed(_messages):
        raise Closed("the client is closed")

    monkeypatch.setattr(poller.consumer, "ack", is_closed)
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("other")
        other = Poller(queue, PollSchedule(lambda *_: 1, 0.005, 1.0), Options())
        other.learn()
        (acked,) = deliveries(other, queue, 1)
        for delivery in (left, acked):
            writer._note(delivery, SUCCEEDED)
        assert writer.send([left, acked]) == [None, None]
        assert (left.is_left, acked.is_left) == (True, False)
        assert queue.peek() == []
        other.consumer.close()


def test_what_is_stored_as_it_should_be_is_not_told_of(poller, work):
    """Least of all as a result that was refused, where none is kept."""
    told = []
    writer = writer_of(on_event=lambda event, _: told.append(event))
    (delivery,) = deliveries(poller, work, 1)
    writer.settle_now(delivery, SUCCEEDED)
    writer.close()
    assert (told, work.peek()) == ([], [])
