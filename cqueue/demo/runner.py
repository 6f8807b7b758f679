"""The demo at work: producer threads, as an application has them; a dispatcher with a handler, and a cron."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Event

from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.demo.accounting import Ledger, Report, Snapshot
from cqueue.demo.input import Input
from cqueue.dispatcher.execution.actions import Retry
from cqueue.dispatcher.execution.context import Binding, Context
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.dispatcher.execution.middleware import Middleware
from cqueue.dispatcher.schedules.triggers import Cron
from cqueue.errors import CqueueError, NotDone, OutcomeUnknown, OwnershipLost
from cqueue.message import Message
from cqueue.queue import Queue
from cqueue.received import ReceivedMessage

CONFIG = QueueConfig(visibility=timedelta(seconds=5), max_attempts=4)
RETRY = Retry(timedelta(milliseconds=200))
EVERY_SECOND = Cron("* * * * * *", misfire="all")
TICK = "tick"
FETCHERS = 2
GRACE = timedelta(seconds=10)
SEND_BATCH = 50
RECEIVE_BATCH = 50
WAIT = timedelta(milliseconds=500)
LONGEST_POLL = timedelta(milliseconds=200)
REPEAT_AFTER_S = 0.2
LOOK_EVERY_S = 0.25
STUCK_AFTER_S = 60.0
"""Seconds without progress after which the demo gives up and says what is missing."""

Watch = Callable[[Snapshot], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The size of a run, and its threads.

    consumers: threads that handle messages. rate: messages sent per second by all producers together; 0:
    no limit.
    """

    messages: int = 10_000
    consumers: int = 4
    producers: int = 2
    rate: float = 500.0


class Refused(Exception):
    """The handler's error for a message that it is to fail at."""


class Demo(Middleware):
    """One run on fresh queues, which the caller has made with `CONFIG` and deletes.

    ticks: where a cron fires every second.
    """

    def __init__(self, client: Client, queue: Queue, ticks: Queue, options: Options) -> None:
        self._queue = queue
        self._ticks = ticks
        self._dead = client.queue(queue.dead_letter_name)
        self._options = options
        self._input = Input.of_size(options.messages)
        self._ledger = Ledger(options.messages)
        self._stop = Event()
        # The longest time between two batches of a producer, in which nothing has to happen.
        self._pause_s = SEND_BATCH * options.producers / options.rate if options.rate else 0.0
        self._stuck_since = time.monotonic()

    def run(self, watch: Watch) -> None:
        """Send, consume, and drain the dead letters, or as far as it goes before a standstill.

        Ends early by an exception in any of its threads, or by KeyboardInterrupt; all threads have
        ended then, each after what it had under way.
        """
        count = self._options.producers
        with self._dispatching(), ThreadPoolExecutor(count) as pool:
            try:
                producers = [pool.submit(self._produce, index) for index in range(count)]
                finished = self._await(producers, watch)
            finally:
                self._stop.set()
        if finished:
            self._drain_dead(watch)

    def report(self, *, interrupted: bool) -> Report:
        """Return the account, with an exact count of what is left."""
        return self._ledger.report(self._left(), interrupted=interrupted)

    @contextmanager
    def _dispatching(self) -> Iterator[None]:
        """Let the dispatcher handle the messages, and the cron tick."""
        dispatcher = Dispatcher(
            [self._queue, self._ticks],
            self,
            middleware=[self],
            threads=self._options.consumers,
            consumers=min(FETCHERS, self._options.consumers),
            max_poll_interval=LONGEST_POLL,
        )
        dispatcher.start()
        try:
            self._ledger.ticks_from(self._ticks.schedules.add(TICK, EVERY_SECOND).next_at)
            yield
        finally:
            with suppress(CqueueError):  # its queue is deleted anyway
                self._ticks.schedules.remove(TICK)
            dispatcher.stop(GRACE)
            total = dispatcher.stats().total
            self._ledger.error(total.ack_failures + total.receive_failures)

    def _await(self, producers: list[Future[None]], watch: Watch) -> bool:
        """Wait until the queue is empty, which only a count of the queue itself can tell."""
        while True:
            snapshot = self._look(watch)
            done, sending = wait(producers, timeout=0)
            for producer in done:
                producer.result()  # raises what ended it
            # Counting costs reads: not before little is missing, or nothing moves any more.
            may_be_empty = snapshot.depth <= len(self._input.poison) or not snapshot.per_second
            if not sending and may_be_empty and self._is_empty(self._queue):
                return True
            if self._is_stuck(snapshot):
                return False
            self._stop.wait(LOOK_EVERY_S)

    def _look(self, watch: Watch) -> Snapshot:
        snapshot = self._ledger.snapshot()
        watch(snapshot)
        return snapshot

    def _is_stuck(self, snapshot: Snapshot) -> bool:
        if snapshot.per_second:
            self._stuck_since = time.monotonic()
        return time.monotonic() - self._stuck_since > STUCK_AFTER_S + self._pause_s

    # ── producers ──

    def _produce(self, index: int) -> None:
        """Send every n-th message in batches, at this producer's part of the rate."""
        options = self._options
        numbers = range(1 + index, options.messages + 1, options.producers)
        began_s = time.monotonic()
        for start in range(0, len(numbers), SEND_BATCH):
            if options.rate:
                due_s = began_s + start * options.producers / options.rate
                self._stop.wait(max(0.0, due_s - time.monotonic()))
            if self._stop.is_set():
                return
            self._send(list(numbers[start : start + SEND_BATCH]))

    def _send(self, numbers: list[int]) -> None:
        """Send until each is stored, or of unknown outcome: that is not repeated, so no copy arises."""
        while numbers:
            self._ledger.sending(numbers)
            try:
                failed = dict(self._queue.send_many(Message(self._input.body(n)) for n in numbers).failed)
            except NotDone as exc:
                failed = dict.fromkeys(range(len(numbers)), exc)
            self._ledger.stored(number for at, number in enumerate(numbers) if at not in failed)
            again = []
            for at, error in failed.items():
                self._ledger.error()
                if isinstance(error, OutcomeUnknown):
                    self._ledger.send_unknown(numbers[at])
                elif isinstance(error, NotDone):
                    again.append(numbers[at])
                else:
                    raise error
            numbers = again
            if numbers and self._stop.wait(REPEAT_AFTER_S):
                return

    # ── the handler ──

    def resolve(self, message: ReceivedMessage) -> Binding:
        """Return the handler that the dispatcher calls for a message."""
        if message.trigger is not None:
            return Binding("tick", self._tick, RETRY)
        return Binding("line", self._handle, RETRY)

    def _handle(self, message: ReceivedMessage, context: Context) -> None:
        """Handle a line; one that fails at every attempt ends as a dead letter."""
        for number in self._numbers([message]):
            self._ledger.delivered([number])
            if self._input.fails(number, context.attempt):
                raise Refused(f"message {number} at attempt {context.attempt}")
            self._ledger.handled([number])

    def _tick(self, _message: ReceivedMessage, context: Context) -> None:
        if context.firing is not None:
            self._ledger.tick(context.firing.fired_at)

    def after_ack(self, messages: Sequence[ReceivedMessage]) -> None:
        """Note acked messages, which are deleted."""
        lines = [message for message in messages if message.trigger is None]
        self._ledger.acked(
            n for n in map(self._input.number_of, (one.body for one in lines)) if n is not None
        )

    def _numbers(self, messages: list[ReceivedMessage]) -> list[int]:
        """Return the messages' numbers, and note bodies that have none."""
        numbers = []
        for message in messages:
            number = self._input.number_of(message.body)
            if number is None:
                self._ledger.altered()
            else:
                numbers.append(number)
        return numbers

    # ── the end ──

    def _drain_dead(self, watch: Watch) -> None:
        """Take everything out of the dead-letter queue, unless that comes to a standstill."""
        with self._dead.consumer(max_poll_interval=LONGEST_POLL) as consumer:
            while not self._is_empty(self._dead):
                try:
                    messages = consumer.receive(RECEIVE_BATCH, wait=WAIT)
                    self._ledger.dead(self._numbers(messages))
                    consumer.ack(messages)
                except (NotDone, OutcomeUnknown, OwnershipLost):  # no answer, or the timeout was quicker
                    self._ledger.error()
                    time.sleep(REPEAT_AFTER_S)
                if self._is_stuck(self._look(watch)):
                    return

    def _is_empty(self, queue: Queue) -> bool:
        try:
            return queue.stats(exact=True).live == 0
        except NotDone:
            return False

    def _left(self) -> int | None:
        try:
            counts = [queue.stats(exact=True).live for queue in (self._queue, self._dead)]
        except NotDone:
            return None
        return sum(count or 0 for count in counts)
