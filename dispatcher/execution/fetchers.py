"""Threads that receive: each polls the queue that is longest due, as far as the backlog has room."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.execution.backlog import Backlog
from cqueue.dispatcher.execution.delivery import Delivery, LeasedBatch
from cqueue.dispatcher.execution.events import Event, Trouble
from cqueue.dispatcher.execution.handlers import Resolver
from cqueue.dispatcher.execution.pollers import Poller, PollSchedule
from cqueue.dispatcher.execution.runner import Runner
from cqueue.errors import CqueueError, NotDone

_lease = attrgetter("lease")


class Fetchers:
    """The receiving threads of a dispatcher.

    Args:
        poll_schedule: says which poller is due.
        backlog: takes received messages.
        runner: gives back messages that come too late to be started.
        resolver: finds the handler of a message.
        hold: called with every leased batch.
    """

    def __init__(
        self,
        poll_schedule: PollSchedule,
        backlog: Backlog,
        runner: Runner,
        resolver: Resolver,
        *,
        hold: Callable[[LeasedBatch], None],
    ) -> None:
        self._poll_schedule = poll_schedule
        self._backlog = backlog
        self._runner = runner
        self._telemetry = runner.telemetry
        self._resolver = resolver
        self._hold = hold
        self.trouble = Trouble(runner.telemetry, Event.RECEIVE_FAILED, Event.RECEIVE_RESUMED)
        self.threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        """Start `count` threads."""
        for number in range(count):
            thread = threading.Thread(target=self._run, name=f"cqueue-fetcher-{number}", daemon=True)
            self.threads.append(thread)  # first: a Ctrl-C may come while it starts
            thread.start()

    def join(self, seconds: float) -> None:
        """Wait up to `seconds` for receives under way, once the poll schedule is closed."""
        share_s = seconds / max(1, len(self.threads))
        for thread in self.threads:
            if thread.is_alive():
                thread.join(share_s)

    def _run(self) -> None:
        while (poller := self._poll_schedule.next()) is not None:
            self._poll(poller)

    def _poll(self, poller: Poller) -> None:
        """Receive once. The poller is scheduled again, whatever happens."""
        try:
            found = poller.consumer.fetch(poller.state.want, poller.share)
            poller.left_until_ms = found.left_until_ms
            if messages := found.messages:
                self._telemetry.count(poller.name, "received", len(messages))
                if found.told:
                    self._telemetry.count(poller.name, "found_by_hint", len(messages))
                self._admit(poller, messages)
                with suppress(NotDone):  # what it has learned before will do until the next receive
                    poller.learn()
        except Exception as exc:  # noqa: BLE001 - nobody would notice that the thread has ended
            self._failed(poller, exc)
        else:
            self.trouble.succeeded(poller.name, queue=poller.name)
            self._poll_schedule.found(poller, len(messages), found)

    def _failed(self, poller: Poller, error: Exception) -> None:
        self._telemetry.count(poller.name, "receive_failures")
        broken = None if isinstance(error, CqueueError) else Event.BROKEN
        self.trouble.failed(poller.name, error, event=broken, queue=poller.name)
        self._poll_schedule.failed(poller)

    def _admit(self, poller: Poller, messages: Sequence[ReceivedMessage]) -> None:
        deliveries: list[Delivery] = []
        for lease, together in groupby(messages, _lease):
            held = [delivery_of(self._resolver, poller, message) for message in together]
            self._hold(LeasedBatch(poller, lease, held))
            deliveries += held
        if late := self._backlog.put(deliveries):
            self._runner.give_back(late)

    def close_pollers(self) -> None:
        """Close the consumers. Messages that this process holds stay held until their timeouts."""
        for poller in self._poll_schedule.pollers:
            with suppress(CqueueError):
                poller.consumer.close(give_back=False)


def delivery_of(resolver: Resolver, poller: Poller, message: ReceivedMessage) -> Delivery:
    """Return the delivery of a message with its handler, or with the reason why no handler takes it."""
    delivery = Delivery(message, poller, is_firing=message.row.trigger is not None)
    try:
        binding = resolver.resolve(message)
        delivery.is_async = binding.is_async
        poller.kinds.add(binding.is_async)
        delivery.binding = binding
    except BaseException as exc:  # noqa: BLE001 - also SystemExit: the resolver is the application's code
        delivery.error = exc
    return delivery
