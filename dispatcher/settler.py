"""Tells the queues what was decided: acks together, nacks of equal delay together, dead letters one by one.

Each kind has couriers of its own, so that a burial that hangs keeps no ack waiting. An ack is sent until
it is known to be stored, because it is right whoever sends it and however late. Everything else is
somebody else's to say once the lease is lost, and is dropped then.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.courier import Courier
from cqueue.dispatcher.delivery import SUCCEEDED, Delivery, Settlement, Stage, Verb
from cqueue.dispatcher.events import Event, Events, Trouble
from cqueue.dispatcher.middleware import Middleware
from cqueue.dispatcher.options import Options
from cqueue.dispatcher.running import NEVER_DIES
from cqueue.dispatcher.tally import Tallies, Tally
from cqueue.errors import BadInput, Closed, CqueueError, NotDone
from cqueue.protocol.dead import HEADER_TRACEBACK

T = TypeVar("T")

GRAVEDIGGERS: Final = 2
"""Couriers for dead letters, of which each costs several round trips."""
ROUND_S: Final = 0.1
"""Delays are rounded up to this, as in the protocol, so that many are equal."""
_SETTLING: Final = Stage.SETTLING  # as in the hand-over: to look members up is slow
_DONE: Final = Stage.DONE


class Item:
    """A settlement to be stored. due_s: for nacks, when the message is to come again."""

    __slots__ = ("delivery", "due_s", "settlement")

    def __init__(self, delivery: Delivery, settlement: Settlement, due_s: float) -> None:
        self.delivery = delivery
        self.settlement = settlement
        self.due_s = due_s


class Settler:
    """Stores settlements in the background."""

    def __init__(
        self,
        options: Options,
        middleware: Sequence[Middleware],
        *,
        events: Events,
        tallies: Tallies,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._events = events
        self._clock = clock
        self._trouble = Trouble(events, Event.SETTLE_FAILED, Event.SETTLE_RESUMED)
        self._middleware = middleware
        self._ack_tally = tallies.new()
        interval_s = options.ack_interval.total_seconds()

        def courier(name: str, send: Callable[[Sequence[Any]], Any], interval_s: float) -> Courier[Any]:
            return Courier(
                f"cqueue-{name}", send, interval_s=interval_s, batch=options.ack_batch, broken=self._broken
            )

        self._acks: Courier[Delivery] = courier("acks", self.send_acks, interval_s)
        nacks = partial(self.send_nacks, tallies.new())
        self._nacks: Courier[Item] = courier("nacks", nacks, interval_s)
        self._dead: list[Courier[Item]] = [
            courier(f"dead-{number}", partial(self.send_dead, tallies.new()), 0.0)
            for number in range(GRAVEDIGGERS)
        ]
        self._turns = itertools.cycle(self._dead)
        self.couriers: list[Courier[Any]] = [self._acks, self._nacks, *self._dead]

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """Store it soon. Called on any thread; returns at once."""
        if settlement is SUCCEEDED or settlement.verb is Verb.ACK:
            delivery.stage = _SETTLING
            self._acks.put(delivery)
            return
        delivery.stage = Stage.LEFT if settlement.outcome == "left" else _SETTLING
        item = Item(delivery, settlement, self._clock() + settlement.delay.total_seconds())
        courier = next(self._turns) if settlement.verb is Verb.DEAD else self._nacks
        courier.put(item)

    @property
    def pending(self) -> int:
        """Settlements not yet known to be stored."""
        return sum(courier.pending for courier in self.couriers)

    def flush(self, seconds: float, wait: Callable[[float], object] = time.sleep) -> bool:
        """Send everything without delay, for so long; False if something is left."""
        deadline_s = self._clock() + seconds
        for courier in self.couriers:
            courier.hurry()
        while self.pending and self._clock() < deadline_s:
            wait(0.005)
        return not self.pending

    def close(self) -> None:
        """Send nothing any more."""
        for courier in self.couriers:
            courier.close()
        for courier in self.couriers:
            courier.join(1.0)

    def _broken(self, error: BaseException) -> None:
        self._events.say(Event.BROKEN, error=error)

    # ── acks ──

    def send_acks(self, deliveries: Sequence[Delivery]) -> list[list[Delivery]]:
        """Ack; what has to be sent again, by wide row, so that one that cannot be reached delays no other."""
        again: list[list[Delivery]] = []
        for together in _grouped(deliveries, lambda delivery: delivery.lane.sender):
            messages = [delivery.message for delivery in together]
            self._hooks("before_ack", messages)
            try:
                together[0].lane.consumer.ack(messages)
            except CqueueError as exc:
                again += self._ack_failed(together, exc)
            else:
                self._acked(together, messages)
        return again

    def _acked(self, deliveries: Sequence[Delivery], messages: Sequence[ReceivedMessage]) -> None:
        self._trouble.succeeded("ack", verb="ack")
        for delivery in deliveries:
            delivery.stage = _DONE
        for hold in {delivery.hold for delivery in deliveries}:
            if hold is not None and hold.is_over:
                hold.end()  # their bodies are not to wait for the keeper's next look
        for together in _grouped(deliveries, lambda delivery: delivery.lane.name):
            self._ack_tally.add(together[0].lane.name, "acked", len(together))
        self._hooks("after_ack", messages)

    def _ack_failed(self, deliveries: Sequence[Delivery], error: CqueueError) -> list[list[Delivery]]:
        for name in {delivery.lane.name for delivery in deliveries}:
            self._ack_tally.add(name, "ack_failures")
        if isinstance(error, Closed):
            self._leave(deliveries)
            return []
        self._trouble.failed("ack", error, verb="ack", messages=len(deliveries))
        return _grouped(deliveries, lambda delivery: delivery.message.lease.wide_row)

    def _hooks(self, name: str, messages: Sequence[ReceivedMessage]) -> None:
        for one in self._middleware if name == "before_ack" else reversed(self._middleware):
            if getattr(type(one), name, None) is getattr(Middleware, name):
                continue
            try:
                getattr(one, name)(messages)
            except BaseException as exc:  # noqa: BLE001 - others' code, which must delay no ack
                self._events.say(Event.HOOK_FAILED, error=exc, hook=name)

    # ── nacks and snoozes ──

    def send_nacks(self, tally: Tally, items: Sequence[Item]) -> list[list[Item]]:
        """Nack and snooze, what is due again at the same time together; what has to be sent again."""
        now_s = self._clock()

        def key(item: Item) -> Hashable:
            return (
                id(item.delivery.lane),
                item.settlement.verb,
                max(0, math.ceil((item.due_s - now_s) / ROUND_S)),
            )

        again: list[list[Item]] = []
        for together in _grouped(items, key):
            delay = max(0, math.ceil((together[0].due_s - now_s) / ROUND_S)) * timedelta(seconds=ROUND_S)
            again += self._send(tally, together, partial(_give_back, together, delay))
        return again

    # ── dead letters ──

    def send_dead(self, tally: Tally, items: Sequence[Item]) -> list[list[Item]]:
        """Bury each; what has to be sent again."""
        again: list[list[Item]] = []
        for item in items:
            again += self._send(tally, [item], partial(_bury, item))
        return again

    def _send(self, tally: Tally, items: list[Item], call: Callable[[], None]) -> list[list[Item]]:
        """Tell the queue; afterwards each message shows by itself what became of it."""
        verb = items[0].settlement.verb.value
        try:
            call()
        except Closed:
            self._leave([item.delivery for item in items])
            return []
        except CqueueError as exc:
            if _is_never_accepted(exc):
                self._events.say(Event.BROKEN, error=exc, queue=items[0].delivery.lane.name)
                return self._refused(items)
            return self._unfinished(tally, items, exc)
        self._trouble.succeeded(verb, verb=verb)
        for item in items:
            item.delivery.stage = Stage.DONE
        return []

    def _unfinished(self, tally: Tally, items: list[Item], error: CqueueError) -> list[list[Item]]:
        """What is still held is sent again; what is lost is somebody else's; the rest is done."""
        held = [item for item in items if item.delivery.message.is_held]
        for item in items:
            if item.delivery.message.lease.lost:
                item.delivery.lose()
                tally.add(item.delivery.lane.name, "lost")
                self._events.of(Event.LOST, item.delivery, verb=item.settlement.verb.value)
            if item not in held:
                item.delivery.stage = Stage.DONE
        if held:
            verb = items[0].settlement.verb.value
            self._trouble.failed(verb, error, verb=verb, messages=len(held))
        return [held] if held else []

    def _refused(self, items: list[Item]) -> list[list[Item]]:
        """What the queue will never accept comes again much later, rather than be lost or try for ever."""
        later = Settlement(Verb.NACK, "retried", NEVER_DIES)
        for item in items:
            if item.settlement.verb is Verb.DEAD:
                self.settle(item.delivery, later)
            else:
                item.delivery.stage = Stage.LEFT
        return []

    def _leave(self, deliveries: Sequence[Delivery]) -> None:
        """The client has been closed: timeouts do the rest."""
        for delivery in deliveries:
            delivery.stage = Stage.LEFT


def _is_never_accepted(error: CqueueError) -> bool:
    """Whether the queue will never take this settlement: it has no dead-letter queue, for example.

    SchemaMismatch is bad input as well as not done, and an operator can mend it.
    """
    return isinstance(error, BadInput) and not isinstance(error, NotDone)


def _give_back(items: Sequence[Item], delay: timedelta) -> None:
    consumer = items[0].delivery.lane.consumer
    call = consumer.snooze if items[0].settlement.verb is Verb.SNOOZE else consumer.nack
    call([item.delivery.message for item in items], delay)


def _bury(item: Item) -> None:
    settlement = item.settlement
    headers = {HEADER_TRACEBACK: settlement.traceback} if settlement.traceback else None
    item.delivery.lane.consumer.dead(item.delivery.message, settlement.reason or "dead", headers)


def _grouped(things: Sequence[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    groups: dict[Hashable, list[T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return list(groups.values())
