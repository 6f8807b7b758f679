"""Stores decisions in the queues: acks together, nacks of equal delay together, dead letters one by one.

Each verb has a batcher of its own, so that a slow dead letter delays no ack. An ack is sent until it is known
to be stored, because it is right from any process, however late. Any other decision belongs to the next
consumer once the lease is lost, and is dropped then.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from typing import Final

from cqueue.dispatcher.execution.delivery import SUCCEEDED, Delivery, Settlement, Verb
from cqueue.dispatcher.execution.events import Event, Trouble
from cqueue.dispatcher.execution.history_writer import HistoryWriter
from cqueue.dispatcher.execution.middleware import Hook, Middleware, hooks
from cqueue.dispatcher.execution.options import Options
from cqueue.dispatcher.execution.results import keep, result_of
from cqueue.dispatcher.execution.runner import NEVER_DIES
from cqueue.dispatcher.execution.telemetry import Telemetry
from cqueue.errors import BadInput, Closed, CqueueError, NotDone
from cqueue.protocol.dead import HEADER_TRACEBACK
from cqueue.received import ReceivedMessage
from cqueue.runtime.batcher import Batcher, Bounds

ALONE: Final = Bounds(at_a_time=2)
"""Bounds of dead letters, each of which costs several round trips, and of suspects."""
SUSPECT: Final = "suspect"
"""Name of the batcher of suspects that are no dead letters: each is settled at once, as the next one waits
for it."""
MOST_ACKS: Final = 10_000
"""Acks of one call. All that wait go together: batches of exactly `ack_batch` would cut claims of that size
in two, and each part costs a request. Nacks cost a request for each claim anyhow.
"""
CLOSE_S: Final = 4.0
"""Seconds that a close waits for calls under way, of all batchers."""
ROUND_S: Final = 0.1
"""Seconds that delays are rounded up to, as in the protocol, so that many are equal and share a call."""

Failures = dict[Delivery, Exception]


class SettlementWriter:
    """Stores settlements in the background.

    Args:
        options: ack_batch and ack_interval say how long settlements are collected.
        middleware: hooks around acks.
        telemetry: counters and log events.
        history: told of each decision about a message of a queue that keeps a history.
        clock: monotonic seconds, for delays.
    """

    def __init__(
        self,
        options: Options,
        middleware: Sequence[Middleware],
        telemetry: Telemetry,
        history: HistoryWriter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._history = history
        self.stored_s = 0.0  # monotonic time of the last settlement
        self._trouble = Trouble(telemetry, Event.SETTLE_FAILED, Event.SETTLE_RESUMED)
        self._before, self._after = hooks(middleware, "before_ack"), hooks(middleware, "after_ack")
        linger_s, enough = options.ack_interval.total_seconds(), options.ack_batch
        bounds: dict[str, Bounds] = dict.fromkeys(Verb, Bounds(enough, linger_s=linger_s))
        acks = Bounds(MOST_ACKS, linger_s=linger_s, enough=enough)
        bounds |= {Verb.ACK: acks, Verb.DEAD: ALONE, SUSPECT: ALONE}
        self._batchers: Final[dict[str, Batcher[Delivery, None]]] = {
            name: Batcher(
                self.send,
                bound,
                name=f"cqueue-{name}",
                daemon=True,
                repeat=lambda delivery: delivery.message.lease.wide_row,
            )
            for name, bound in bounds.items()
        }

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """Store the settlement soon. Called on any thread; returns at once."""
        self._note(delivery, settlement)
        try:
            is_alone = delivery.is_suspect and settlement.verb is not Verb.DEAD
            self._batchers[SUSPECT if is_alone else settlement.verb].put(delivery)
        except Closed:  # the message comes again when its timeout passes
            delivery.is_left = True

    def settle_now(self, delivery: Delivery, settlement: Settlement) -> None:
        """Store the settlement on this thread, without a repeat."""
        self._note(delivery, settlement)
        self.send([delivery])

    def _note(self, delivery: Delivery, settlement: Settlement) -> None:
        keeping = delivery.binding.keeping if delivery.binding is not None else None
        if keeping is not None:
            delivery.result, refusal = result_of(keeping, delivery, settlement)
            if refusal is not None:  # the handler did its work: the message counts as done
                self._telemetry.of(Event.RESULT_UNKEPT, delivery, error=refusal)
        if delivery.poller.keeps_history:
            self._history.decided(delivery, settlement)
        delivery.settlement = settlement
        if settlement is not SUCCEEDED:
            delivery.due_s = self._clock() + settlement.delay.total_seconds()
            delivery.is_left = settlement.outcome == "left"

    @property
    def pending(self) -> int:
        """Settlements not yet known to be stored."""
        return sum(batcher.pending for batcher in self._batchers.values())

    @property
    def stuck(self) -> dict[str, str]:
        """Verbs of which nothing could be stored for some seconds, with the last error."""
        return self._trouble.stuck

    def watch(self) -> None:
        """Store what could not be stored, as the process had too many threads."""
        for batcher in self._batchers.values():
            batcher.start_late()

    def flush(self, seconds: float) -> bool:
        """Send everything without delay, for `seconds` at most; return False if something is left."""
        deadline_s = time.monotonic() + seconds
        batchers = self._batchers.values()
        for batcher in batchers:
            batcher.hurry()
        return all(batcher.wait_stored(max(0.0, deadline_s - time.monotonic())) for batcher in batchers)

    def close(self) -> None:
        """Send nothing any more."""
        until_s = time.monotonic() + CLOSE_S
        for batcher in self._batchers.values():
            batcher.close(drop_after_s=0.0, wait_s=max(0.0, until_s - time.monotonic()))

    # ── on the threads of the batchers ──

    def send(self, deliveries: Sequence[Delivery]) -> list[Exception | None]:
        """Settle deliveries, like ones together; return for each the error to repeat it for, or None."""
        # Each settlement is read once: a handler that was given up and succeeds after all changes its
        # message's while others, which only look alike, are being sent.
        groups: dict[Hashable, tuple[Settlement, list[Delivery]]] = {}
        for delivery in deliveries:
            settlement = delivery.settlement
            if settlement.verb is Verb.ACK:  # acks without results do not wait for the results of others
                likeness: Hashable = (delivery.poller.sender, delivery.result is not None)
            else:
                likeness = self._likeness(delivery, settlement.verb)
            if (group := groups.get(likeness)) is None:
                groups[likeness] = group = settlement, []
            group[1].append(delivery)
        failed: Failures = {}
        told = set[Verb]()
        for settlement, alike in groups.values():
            try:
                failed |= self._tell(alike, settlement)
                told.add(settlement.verb)
            except Closed:  # this client is closed: its messages come again when their timeouts pass
                for delivery in alike:
                    delivery.is_left = True
        if not failed and not self._batchers[SUSPECT].is_repeating:
            for verb in told.union(self._trouble.subjects):  # others are stored beside a lost wide row
                if not self._batchers[verb].is_repeating:
                    self._trouble.succeeded(verb, verb=verb)
        self.stored_s = time.monotonic()
        return [failed.get(delivery) for delivery in deliveries]

    def _likeness(self, delivery: Delivery, verb: Verb) -> Hashable:
        """Return a key that is equal for deliveries, other than acks, that one call can settle."""
        return delivery if verb is Verb.DEAD else (delivery.poller, verb, self._rounds(delivery))

    def _rounds(self, delivery: Delivery) -> int:
        """Return the remaining delay in steps of ROUND_S: the time since the decision is taken off."""
        return max(0, math.ceil((delivery.due_s - self._clock()) / ROUND_S))

    def _tell(self, alike: list[Delivery], settlement: Settlement) -> Failures:
        """Settle like deliveries with one call; afterwards each message knows whether it is still held."""
        try:
            unkept = self._call(alike, settlement)
        except Closed:
            raise
        except CqueueError as exc:
            return self._failed(alike, settlement.verb, exc)
        except Exception as exc:  # noqa: BLE001 - nobody else would report it
            self._telemetry.say(Event.BROKEN, error=exc)
            return dict.fromkeys(alike, exc)
        else:
            if unkept:
                alike = [delivery for delivery in alike if delivery not in unkept]
            if alike:
                self._done(alike, settlement.verb)
            if unkept:
                return self._failed(list(unkept), settlement.verb, next(iter(unkept.values())))
        return {}

    def _call(self, alike: list[Delivery], settlement: Settlement) -> Failures:
        """Settle like deliveries. Return those that are not acked, because their results are not stored."""
        unkept: Failures = {}
        first, messages = alike[0], [delivery.message for delivery in alike]
        consumer = first.poller.consumer
        match settlement.verb:
            case Verb.ACK:
                self._call_hooks(self._before, messages)
                # All have a result, or none has.
                if first.result is not None and (unkept := self._unkept(alike)):
                    messages = [delivery.message for delivery in alike if delivery not in unkept]
                consumer.ack(messages)
            case Verb.DEAD:
                headers = {HEADER_TRACEBACK: settlement.traceback} if settlement.traceback else None
                consumer.dead(messages, settlement.reason or "dead", headers)
                self._keep_failure(first)
            case verb:
                settle = consumer.snooze if verb is Verb.SNOOZE else consumer.nack
                settle(messages, self._rounds(first) * timedelta(seconds=ROUND_S))
        return unkept

    def _unkept(self, alike: list[Delivery]) -> Failures:
        """Store results. Return the deliveries whose results may not be stored, with the errors."""
        kept = [(one, one.result) for one in alike if one.result is not None]
        errors = alike[0].poller.driver.run(keep([result for _, result in kept]))
        return {one: error for (one, _), error in zip(kept, errors, strict=True) if error is not None}

    def _keep_failure(self, delivery: Delivery) -> None:
        """Store why a buried message died; if that fails, handles find its dead letter."""
        if delivery.result is not None:
            try:
                errors = delivery.poller.driver.run(keep([delivery.result]))
            except CqueueError as exc:
                errors = [exc]
            for error in filter(None, errors):
                self._telemetry.of(Event.RESULT_UNKEPT, delivery, error=error)

    def _done(self, alike: list[Delivery], verb: Verb) -> None:
        for batch in {delivery.batch for delivery in alike}:
            if batch is not None and not batch.lease.is_held:
                batch.forget()  # frees the bodies now, not at the next check
                if batch.lease.suspect:
                    batch.poller.wake()  # the next suspect may be claimed
        if verb is Verb.ACK:
            for queue, count in _by_queue(alike).items():
                self._telemetry.count(queue, "acked", count)
            self._call_hooks(self._after, [delivery.message for delivery in alike])

    def _call_hooks(self, called: Sequence[Hook], messages: Sequence[ReceivedMessage]) -> None:
        for hook in called:
            try:
                hook(messages)
            except BaseException as exc:  # noqa: BLE001 - the application's code must not delay an ack
                self._telemetry.say(Event.HOOK_FAILED, error=exc, hook=hook.__name__)

    # ── failures ──

    def _failed(self, alike: list[Delivery], verb: Verb, error: Exception) -> Failures:
        """Return what is to be sent again: every ack, and of everything else what is still held."""
        again = alike
        if verb is Verb.ACK:
            for queue in _by_queue(alike):
                self._telemetry.count(queue, "ack_failures")
        elif _is_never_accepted(error):
            self._telemetry.say(Event.BROKEN, error=error, queue=alike[0].poller.name)
            self._refused(alike, verb)
            return {}
        else:
            again = [delivery for delivery in alike if self._is_still_held(delivery, verb)]
        if again:
            self._trouble.failed(verb, error, verb=verb, messages=len(again))
        return dict.fromkeys(again, error)

    def _is_still_held(self, delivery: Delivery, verb: Verb) -> bool:
        """Return whether the message is still held; a lost one was cancelled, or is another consumer's."""
        if delivery.message.is_held:
            return True
        if delivery.message.lease.lost or delivery.message.is_cancelled:
            self._telemetry.lost(delivery, verb=verb)
        return False

    def _refused(self, alike: list[Delivery], verb: Verb) -> None:
        """Deliver messages whose settlement is never accepted again much later, so that none is lost."""
        later = Settlement(Verb.NACK, "retried", NEVER_DIES)
        for delivery in alike:
            if verb is Verb.DEAD:
                self.settle(delivery, later)
            else:
                delivery.is_left = True


def _by_queue(deliveries: Sequence[Delivery]) -> Counter[str]:
    return Counter([delivery.poller.name for delivery in deliveries])


def _is_never_accepted(error: Exception) -> bool:
    """Return whether the queue will never take this settlement: it has no dead-letter queue, for example.

    SchemaMismatch is bad input as well as not done, and an operator can mend it.
    """
    return isinstance(error, BadInput) and not isinstance(error, NotDone)
