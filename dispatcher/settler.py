"""Tells the queues what was decided: acks together, nacks of equal delay together, dead letters one by one.

Each kind has a batcher of its own, so that a burial that hangs keeps no ack waiting. An ack is sent until
it is known to be stored, because it is right whoever sends it and however late. Everything else is
somebody else's to say once the lease is lost, and is dropped then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from cqueue.batcher import Batcher, Bounds
from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.delivery import SUCCEEDED, Delivery, Settlement, Stage, Verb
from cqueue.dispatcher.events import Event, Events, Trouble
from cqueue.dispatcher.middleware import Middleware
from cqueue.dispatcher.options import Options
from cqueue.dispatcher.running import NEVER_DIES
from cqueue.dispatcher.tally import Tallies
from cqueue.errors import BadInput, Closed, CqueueError, NotDone
from cqueue.protocol.dead import HEADER_TRACEBACK

T = TypeVar("T")
Settled = TypeVar("Settled", bound="Delivery | Item")

GRAVEDIGGERS: Final = 2
"""Dead letters written at a time, of which each costs several round trips."""
ROUND_S: Final = 0.1
"""Delays are rounded up to this, as in the protocol, so that many are equal."""
_SETTLING: Final = Stage.SETTLING  # as in the hand-over: to look members up is slow
_DONE: Final = Stage.DONE


@dataclass(slots=True, eq=False)
class Item:
    """A settlement to be stored. due_s: for nacks, when the message is to come again."""

    delivery: Delivery
    settlement: Settlement
    due_s: float


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
        self._tallies = tallies
        bounds = Bounds(options.ack_batch, linger_s=options.ack_interval.total_seconds())
        self._acks: Batcher[Delivery, None] = _batcher("acks", self.send_acks, bounds)
        self._nacks: Batcher[Item, None] = _batcher("nacks", self.send_nacks, bounds)
        self._dead: Batcher[Item, None] = _batcher("dead", self.send_dead, Bounds(at_a_time=GRAVEDIGGERS))
        self._batchers = (self._acks, self._nacks, self._dead)

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """Store it soon. Called on any thread; returns at once."""
        try:
            if settlement is SUCCEEDED or settlement.verb is Verb.ACK:
                delivery.stage = _SETTLING
                self._acks.put(delivery)
                return
            delivery.stage = Stage.LEFT if settlement.outcome == "left" else _SETTLING
            item = Item(delivery, settlement, self._clock() + settlement.delay.total_seconds())
            (self._dead if settlement.verb is Verb.DEAD else self._nacks).put(item)
        except Closed:
            self._leave([delivery])

    @property
    def pending(self) -> int:
        """Settlements not yet known to be stored."""
        return sum(batcher.pending for batcher in self._batchers)

    def flush(self, seconds: float) -> bool:
        """Send everything without delay, for so long; False if something is left."""
        deadline_s = time.monotonic() + seconds
        for batcher in self._batchers:
            batcher.hurry()
        return all(batcher.flush(max(0.0, deadline_s - time.monotonic())) for batcher in self._batchers)

    def close(self) -> None:
        """Send nothing any more."""
        for batcher in self._batchers:
            batcher.close(drop=True, wait_s=1.0)

    def _together(
        self, things: list[T], key: Callable[[T], Hashable], send: Callable[[list[T]], dict[T, CqueueError]]
    ) -> list[Exception | None]:
        """Send what is alike together; for each thing why it has to be sent again, or None."""
        failed: dict[T, Exception] = {}
        for alike in _grouped(things, key):
            try:
                failed |= send(alike)
            except Exception as exc:  # noqa: BLE001 - nobody else would hear of it
                self._events.say(Event.BROKEN, error=exc)
                failed |= dict.fromkeys(alike, exc)
        return [failed.get(thing) for thing in things] if failed else [None] * len(things)

    # ── acks ──

    def send_acks(self, deliveries: list[Delivery]) -> list[Exception | None]:
        """Ack; for each one why it has to be sent again, or None."""
        return self._together(deliveries, lambda delivery: delivery.lane.sender, self._ack)

    def _ack(self, deliveries: list[Delivery]) -> dict[Delivery, CqueueError]:
        messages = [delivery.message for delivery in deliveries]
        self._hooks("before_ack", messages)
        try:
            deliveries[0].lane.consumer.ack(messages)
        except CqueueError as exc:
            return self._ack_failed(deliveries, exc)
        self._acked(deliveries, messages)
        return {}

    def _acked(self, deliveries: Sequence[Delivery], messages: Sequence[ReceivedMessage]) -> None:
        self._trouble.succeeded("ack", verb="ack")
        for delivery in deliveries:
            delivery.stage = _DONE
        for hold in {delivery.hold for delivery in deliveries}:
            if hold is not None and hold.is_over:
                hold.end()  # their bodies are not to wait for the keeper's next look
        for together in _grouped(deliveries, lambda delivery: delivery.lane.name):
            self._count(together[0], "acked", len(together))
        self._hooks("after_ack", messages)

    def _ack_failed(self, deliveries: list[Delivery], error: CqueueError) -> dict[Delivery, CqueueError]:
        for together in _grouped(deliveries, lambda delivery: delivery.lane.name):
            self._count(together[0], "ack_failures")
        if isinstance(error, Closed):
            self._leave(deliveries)
            return {}
        self._trouble.failed("ack", error, verb="ack", messages=len(deliveries))
        return dict.fromkeys(deliveries, error)

    def _count(self, delivery: Delivery, name: str, count: int = 1) -> None:
        """Add to a counter of the delivery's queue."""
        self._tallies.add(delivery.lane.name, name, count)

    def _hooks(self, name: str, messages: Sequence[ReceivedMessage]) -> None:
        for one in self._middleware if name == "before_ack" else reversed(self._middleware):
            if getattr(type(one), name, None) is getattr(Middleware, name):
                continue
            try:
                getattr(one, name)(messages)
            except BaseException as exc:  # noqa: BLE001 - others' code, which must delay no ack
                self._events.say(Event.HOOK_FAILED, error=exc, hook=name)

    # ── nacks and snoozes ──

    def send_nacks(self, items: list[Item]) -> list[Exception | None]:
        """Nack and snooze, what is due again at the same time together; as `send_acks`."""
        now_s = self._clock()

        def rounds(item: Item) -> int:
            return max(0, math.ceil((item.due_s - now_s) / ROUND_S))

        def send(together: list[Item]) -> dict[Item, CqueueError]:
            delay = rounds(together[0]) * timedelta(seconds=ROUND_S)
            return self._send(together, partial(_give_back, together, delay))

        return self._together(
            items, lambda item: (id(item.delivery.lane), item.settlement.verb, rounds(item)), send
        )

    # ── dead letters ──

    def send_dead(self, items: list[Item]) -> list[Exception | None]:
        """Bury each; as `send_acks`."""
        return self._together(items, id, lambda each: self._send(each, partial(_bury, each[0])))

    def _send(self, items: list[Item], call: Callable[[], None]) -> dict[Item, CqueueError]:
        """Tell the queue; afterwards each message shows by itself what became of it."""
        verb = items[0].settlement.verb.value
        try:
            call()
        except Closed:
            self._leave([item.delivery for item in items])
        except CqueueError as exc:
            if not _is_never_accepted(exc):
                return self._unfinished(items, exc)
            self._events.say(Event.BROKEN, error=exc, queue=items[0].delivery.lane.name)
            self._refused(items)
        else:
            self._trouble.succeeded(verb, verb=verb)
            for item in items:
                item.delivery.stage = Stage.DONE
        return {}

    def _unfinished(self, items: list[Item], error: CqueueError) -> dict[Item, CqueueError]:
        """What is still held is sent again; what is lost is somebody else's; the rest is done."""
        held = [item for item in items if item.delivery.message.is_held]
        for item in items:
            if item.delivery.message.lease.lost:
                item.delivery.lose()
                self._count(item.delivery, "lost")
                self._events.of(Event.LOST, item.delivery, verb=item.settlement.verb.value)
            if item not in held:
                item.delivery.stage = Stage.DONE
        if held:
            verb = items[0].settlement.verb.value
            self._trouble.failed(verb, error, verb=verb, messages=len(held))
        return dict.fromkeys(held, error)

    def _refused(self, items: list[Item]) -> None:
        """What the queue will never accept comes again much later, rather than be lost or try for ever."""
        later = Settlement(Verb.NACK, "retried", NEVER_DIES)
        for item in items:
            if item.settlement.verb is Verb.DEAD:
                self.settle(item.delivery, later)
            else:
                item.delivery.stage = Stage.LEFT

    def _leave(self, deliveries: Sequence[Delivery]) -> None:
        """The client has been closed: timeouts do the rest."""
        for delivery in deliveries:
            delivery.stage = Stage.LEFT


def _batcher(
    name: str, send: Callable[[list[Settled]], Sequence[Exception | None]], bounds: Bounds
) -> Batcher[Settled, None]:
    return Batcher(send, bounds, name=f"cqueue-{name}", daemon=True, repeat=_wide_row)


def _wide_row(thing: Delivery | Item) -> Hashable:
    delivery = thing.delivery if isinstance(thing, Item) else thing
    return delivery.message.lease.wide_row


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
