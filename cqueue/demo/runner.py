"""Producers and consumers of the demo: threads, each a loop of the plain API, as an application has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from threading import Event

from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.consumer import Consumer, ReceivedMessage
from cqueue.demo.accounting import Ledger, Report, Snapshot
from cqueue.demo.input import Input
from cqueue.errors import NotDone, OutcomeUnknown, OwnershipLost
from cqueue.message import Message
from cqueue.queue import Queue

CONFIG = QueueConfig(visibility=timedelta(seconds=5), max_attempts=4)
NACK_DELAY = timedelta(milliseconds=200)
SEND_BATCH = 50
RECEIVE_BATCH = 50
WAIT = timedelta(milliseconds=500)
LONGEST_POLL = timedelta(milliseconds=200)
REPEAT_AFTER_S = 0.2
LOOK_EVERY_S = 0.25
STUCK_AFTER_S = 60.0
"""Without any progress for so long the demo gives up and says what is missing."""

Watch = Callable[[Snapshot], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much, and by how many. rate: messages sent per second by all producers together; 0: no limit."""

    messages: int = 10_000
    consumers: int = 4
    producers: int = 2
    rate: float = 500.0


class Demo:
    """One run on a fresh queue, which the caller has made with `CONFIG` and deletes."""

    def __init__(self, client: Client, queue: Queue, options: Options) -> None:
        self._queue = queue
        self._dead = client.queue(queue.dead_letter_name)
        self._options = options
        self._input = Input.of_size(options.messages)
        self._ledger = Ledger(options.messages)
        self._stop = Event()
        self._stuck_since = time.monotonic()

    def run(self, watch: Watch) -> bool:
        """Send, consume, and drain the dead letters; False if it came to a standstill.

        Ends early by an exception in any of its threads, or by KeyboardInterrupt; all threads have
        ended then, each after what it had under way.
        """
        with self._threads() as threads:
            finished = self._await(threads, watch)
        return finished and self._drain_dead(watch)

    def report(self, *, interrupted: bool) -> Report:
        """The account, with an exact count of what is left."""
        return self._ledger.report(self._left(), interrupted=interrupted)

    @contextmanager
    def _threads(self) -> Iterator[tuple[list[Future[None]], list[Future[None]]]]:
        options = self._options
        with ThreadPoolExecutor(options.producers + options.consumers) as pool:
            try:
                yield (
                    [pool.submit(self._produce, index) for index in range(options.producers)],
                    [pool.submit(self._consume) for _ in range(options.consumers)],
                )
            finally:
                self._stop.set()

    def _await(self, threads: tuple[list[Future[None]], list[Future[None]]], watch: Watch) -> bool:
        """Until the queue is empty, which only a count of the queue itself can tell."""
        producers, consumers = threads
        while True:
            snapshot = self._look(watch)
            for thread in (*producers, *consumers):
                if thread.done():
                    thread.result()  # raises what ended it
            all_sent = all(producer.done() for producer in producers)
            if all_sent and self._may_be_empty(snapshot) and self._is_empty(self._queue):
                return True
            if self._is_stuck(snapshot):
                return False
            self._stop.wait(LOOK_EVERY_S)

    def _may_be_empty(self, snapshot: Snapshot) -> bool:
        """Whether counting is worth while: little is missing, or nothing moves any more."""
        return snapshot.depth <= len(self._input.poison) or not snapshot.per_second

    def _look(self, watch: Watch) -> Snapshot:
        snapshot = self._ledger.snapshot()
        watch(snapshot)
        return snapshot

    def _is_stuck(self, snapshot: Snapshot) -> bool:
        if snapshot.per_second:
            self._stuck_since = time.monotonic()
        return time.monotonic() - self._stuck_since > STUCK_AFTER_S

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

    # ── consumers ──

    def _consume(self) -> None:
        """Receive, handle, ack; what fails is given back with a small delay."""
        with self._queue.consumer(max_poll_interval=LONGEST_POLL) as consumer:
            while not self._stop.is_set():
                with self._tolerated():
                    self._settle(consumer, consumer.receive(RECEIVE_BATCH, wait=WAIT))

    def _settle(self, consumer: Consumer, messages: list[ReceivedMessage]) -> None:
        numbered = self._numbered(messages)
        self._ledger.delivered(number for number, _ in numbered)
        good = [(n, message) for n, message in numbered if not self._input.fails(n, message.attempt)]
        bad = [message for n, message in numbered if self._input.fails(n, message.attempt)]
        self._ledger.handled(number for number, _ in good)
        with self._tolerated():
            consumer.ack(message for _, message in good)
            self._ledger.acked(number for number, _ in good)
        consumer.nack(bad, NACK_DELAY)

    def _numbered(self, messages: list[ReceivedMessage]) -> list[tuple[int, ReceivedMessage]]:
        numbered = []
        for message in messages:
            number = self._input.number_of(message.body)
            if number is None:
                self._ledger.altered()
            else:
                numbered.append((number, message))
        return numbered

    @contextmanager
    def _tolerated(self) -> Iterator[None]:
        """What a consumer lives with: Cassandra did not answer, or the timeout was quicker."""
        try:
            yield
        except (NotDone, OutcomeUnknown, OwnershipLost):
            self._ledger.error()
            time.sleep(REPEAT_AFTER_S)

    # ── the end ──

    def _drain_dead(self, watch: Watch) -> bool:
        """Take everything out of the dead-letter queue; False if that came to a standstill."""
        with self._dead.consumer(max_poll_interval=LONGEST_POLL) as consumer:
            while not self._is_empty(self._dead):
                with self._tolerated():
                    messages = consumer.receive(RECEIVE_BATCH, wait=WAIT)
                    consumer.ack(messages)
                    self._ledger.dead(number for number, _ in self._numbered(messages))
                if self._is_stuck(self._look(watch)):
                    return False
        return True

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
