"""Threads that receive: from whichever lane is due, as much as there is room for, into the hand-over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.delivery import Delivery, Hold
from cqueue.dispatcher.events import Event, Trouble
from cqueue.dispatcher.handlers import Resolver
from cqueue.dispatcher.handover import Handover
from cqueue.dispatcher.lanes import Lane, Roster
from cqueue.dispatcher.running import Runner
from cqueue.errors import CqueueError

_lease = attrgetter("lease")


class Feeders:
    """The receiving threads of a dispatcher.

    Args:
        runner: gives back what comes too late to be started.
        hold: told of every lease that is held from now on.
    """

    def __init__(
        self,
        roster: Roster,
        handover: Handover,
        runner: Runner,
        resolver: Resolver,
        *,
        hold: Callable[[Hold], None],
    ) -> None:
        self._roster = roster
        self._handover = handover
        self._runner = runner
        self._account = runner.account
        self._resolver = resolver
        self._hold = hold
        self.trouble = Trouble(runner.account, Event.RECEIVE_FAILED, Event.RECEIVE_RESUMED)
        self.threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        """Start so many threads."""
        self.threads = [
            threading.Thread(target=self._run, name=f"cqueue-feeder-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self.threads:
            thread.start()

    def join(self, seconds: float) -> None:
        """Wait for a receive that is under way, after the roster was closed."""
        share_s = seconds / max(1, len(self.threads))
        for thread in self.threads:
            thread.join(share_s)

    def _run(self) -> None:
        while (lane := self._roster.next()) is not None:
            self._poll(lane)

    def _poll(self, lane: Lane) -> None:
        """One receive. Whatever happens, the lane is due again some time."""
        told = more = False
        try:
            if messages := lane.consumer.receive(lane.turn.want):
                told, more = lane.consumer.last
                lane.learn()
                self._account.count(lane.name, "received", len(messages))
                if told:
                    self._account.count(lane.name, "found_by_hint", len(messages))
                self._admit(lane, messages)
        except Exception as exc:  # noqa: BLE001 - a feeder that ends would be missed by nobody
            self._failed(lane, exc)
        else:
            self.trouble.succeeded(lane.name, queue=lane.name)
            self._roster.found(lane, len(messages), more=more, told=told)

    def _failed(self, lane: Lane, error: Exception) -> None:
        self._account.count(lane.name, "receive_failures")
        broken = None if isinstance(error, CqueueError) else Event.BROKEN
        self.trouble.failed(lane.name, error, event=broken, queue=lane.name)
        self._roster.failed(lane)

    def _admit(self, lane: Lane, messages: Sequence[ReceivedMessage]) -> None:
        deliveries: list[Delivery] = []
        for lease, together in groupby(messages, _lease):
            held = [delivery_of(self._resolver, lane, message) for message in together]
            if lease.suspect:
                for delivery in held:
                    delivery.suspect = True
            self._hold(Hold(lane, lease, held))
            deliveries += held
        if late := self._handover.put(deliveries):
            self._runner.give_back(late)

    def close_lanes(self) -> None:
        """Let go of the wide rows; what is held stays held."""
        for lane in self._roster.lanes:
            with suppress(CqueueError):
                lane.consumer.close(give_back=False)


def delivery_of(resolver: Resolver, lane: Lane, message: ReceivedMessage) -> Delivery:
    """The message with what handles it, or with why nothing does."""
    delivery = Delivery(message, lane)
    try:
        binding = resolver.resolve(message)
        if binding.is_async:
            delivery.is_async = True
        if binding.is_async not in lane.kinds:
            lane.kinds.add(binding.is_async)
        delivery.binding = binding
    except Exception as exc:  # noqa: BLE001 - a resolver may be anybody's; its error is the message's
        delivery.error = exc
    return delivery
