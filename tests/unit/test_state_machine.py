"""The façade against a simple model: any order of calls, two programs, a clock that only tests move."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule

from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.errors import LeaseLost
from cqueue.message import Message
from cqueue.protocol import poll
from cqueue.store.memory import MemoryStore
from tests.properties import examples

START_US = 20_000 * 86_400_000_000
VISIBILITY_US = 10_000_000
SKEW_US = 500_000
ROUNDED_US = 100_000  # delays are rounded up to a tenth of a second
CONFIG = QueueConfig(visibility=timedelta(microseconds=VISIBILITY_US), max_attempts=4, shards=2)
DELAYS = st.sampled_from([timedelta(seconds=s) for s in (0, 1, 7, 40, 4000)])


@dataclass
class Known:
    """What the model knows of one message."""

    due_us: int
    priority: int
    attempts: int = 0
    holder: Any = None  # the delivery that holds it
    until_us: int = 0
    over: bool = False  # acked
    buried: bool = False
    deliveries: list[Any] = field(default_factory=list)


class FakeClock:
    """The cluster's time, moved by the test."""

    def __init__(self) -> None:
        self.us = START_US

    def now_us(self, *, checked: bool = False) -> int:
        return self.us

    def pause(self, seconds: float) -> None:
        self.us += int(seconds * 1e6)


class Facade(RuleBasedStateMachine):
    """Sends, receives and settles; every answer is compared with the model's."""

    deliveries = Bundle("deliveries")

    def __init__(self) -> None:
        super().__init__()
        self.patched = patch.object(poll, "FREE_AFTER_US", 0)
        self.patched.start()
        self.clock = FakeClock()
        self.store = MemoryStore(lambda: self.clock.us)
        self.known: dict[bytes, Known] = {}
        self.clients: list[Client] = []
        self.consumers: list[Any] = []
        self._client().create_queue("q", CONFIG)
        self.queue = self.clients[0].queue("q")
        for _ in range(2):
            self._new_program()

    def _client(self) -> Client:
        client = Client(self.store)
        client._driver.clock = self.clock
        client._driver._pause = self.clock.pause
        self.clients.append(client)
        return client

    def _new_program(self) -> None:
        self.consumers.append(self._client().queue("q").consumer())

    # ── sending, time, crashes ──

    @rule(delay=DELAYS, priority=st.sampled_from((0, 0, 5, 9)), count=st.integers(1, 4))
    def send(self, delay: timedelta, priority: int, count: int) -> None:
        """Messages are stored, and due when they shall be."""
        bodies = [f"m{len(self.known) + number}".encode() for number in range(count)]
        result = self.queue.send_many([Message(body, delay=delay, priority=priority) for body in bodies])
        assert result.failed == []
        for body in bodies:
            due_us = self.clock.us + delay // timedelta(microseconds=1)
            self.known[body] = Known(due_us, priority)

    @rule(us=st.sampled_from((1000, 200_000, 3_000_000, 11_000_000, 60_000_000)))
    def pass_time(self, us: int) -> None:
        """Time goes by."""
        self.clock.us += us

    @rule(which=st.integers(0, 1))
    def crash(self, which: int) -> None:
        """A program is gone without a word; another one is started."""
        del self.consumers[which]
        self._new_program()

    # ── receiving ──

    @rule(target=deliveries, which=st.integers(0, 1), want=st.integers(1, 5))
    def receive(self, which: int, want: int) -> Any:
        """Only what is due comes, and nothing that somebody holds."""
        messages = self.consumers[which].receive(want)
        assert len(messages) <= want
        for message in messages:
            self._check(message)
        return messages[0] if messages else None

    def _check(self, message: Any) -> None:
        known = self.known[message.body]
        assert not known.over, "delivered after its ack"
        assert not known.buried, "delivered after its burial"
        assert known.due_us <= self.clock.us, "delivered before it is due"
        if known.holder is not None:
            assert self.clock.us >= known.until_us + SKEW_US, "delivered to two"
        assert message.priority == known.priority
        assert message.attempt in (known.attempts + 1, CONFIG.max_attempts)
        assert 1 <= message.attempt <= CONFIG.max_attempts
        known.attempts = message.attempt
        known.holder, known.until_us = message, self.clock.us + VISIBILITY_US
        known.deliveries.append(message)

    # ── settling ──

    def _held(self, message: Any) -> Known:
        assume(message is not None)
        known = self.known[message.body]
        assume(not known.over and not known.buried)
        return known

    @rule(message=deliveries)
    def ack(self, message: Any) -> None:
        """An ack counts from every consumer, and however late."""
        known = self._held(message)
        message.ack()
        known.over = True

    @rule(message=consumes(deliveries), delay=DELAYS, counted=st.booleans())
    def give_back(self, message: Any, delay: timedelta, counted: bool) -> None:  # noqa: FBT001
        """A nack or snooze makes it due later; a holder that lost it is told so."""
        known = self._held(message)
        try:
            (message.nack if counted else message.snooze)(delay)
        except LeaseLost:
            assert known.holder is not message or self.clock.us > known.until_us, "a false LeaseLost"
            return
        assert known.holder is message, "a stale holder's nack was accepted"
        known.attempts -= not counted
        known.holder = None
        # Rounding down happens only for what is due at once.
        known.due_us = self.clock.us + (delay // timedelta(microseconds=1) or -ROUNDED_US)

    @rule(message=deliveries, seconds=st.sampled_from((2, 20)))
    def extend(self, message: Any, seconds: int) -> None:
        """A holder keeps what it holds; nobody else can."""
        known = self._held(message)
        try:
            message.extend(timedelta(seconds=seconds))
        except LeaseLost:
            assert known.holder is not message or self.clock.us > known.until_us, "a false LeaseLost"
            return
        assert known.holder is message, "a stale holder's extension was accepted"
        until_us = self.clock.us + seconds * 1_000_000
        for other in self.known.values():  # they were received together, and share a timeout
            if other.holder is not None and other.holder.lease is message.lease:
                other.until_us = max(other.until_us, until_us)

    @rule(message=consumes(deliveries))
    def bury(self, message: Any) -> None:
        """A holder may send a message to the dead-letter queue."""
        known = self._held(message)
        try:
            message.dead("because")
        except LeaseLost:
            assert known.holder is not message or self.clock.us > known.until_us, "a false LeaseLost"
            return
        assert known.holder is message
        known.buried = True

    # ── the end ──

    def teardown(self) -> None:
        """Everything that was sent is delivered or dead in the end, and the queue is empty."""
        try:
            self._drain()
        finally:
            self.patched.stop()
            for client in self.clients:
                client.close()

    def _drain(self) -> None:
        consumer, graves = self.consumers[0], self.clients[0].queue("q.dead").consumer()
        dead: set[bytes] = set()
        for _ in range(400):
            for message in consumer.receive(100):
                self._check(message)
                message.ack()
                self.known[message.body].over = True
            for message in graves.receive(100):
                dead.add(message.body)
                message.ack()
            live = self.queue.stats(exact=True).live
            if not live and all(known.over or body in dead for body, known in self.known.items()):
                break
            self.clock.us += 1_000_000 if live and _ < 60 else 20_000_000
        left = {body for body, known in self.known.items() if not known.over} - dead
        assert not left, f"never delivered: {left}"
        assert {body for body, known in self.known.items() if known.buried} <= dead
        for body in dead:
            known = self.known[body]
            assert known.buried or known.attempts >= CONFIG.max_attempts, "buried with attempts left"


Facade.TestCase.settings = settings(
    max_examples=examples(120),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestFacade = pytest.mark.slow(Facade.TestCase)
