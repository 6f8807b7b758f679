"""Step members of subscriptions by hand, on one store and with one clock that the test moves."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from random import Random

from cqueue.client import Client
from cqueue.errors import OutcomeUnknown
from cqueue.log import LogConfig
from cqueue.log.listeners import RetryPolicy
from cqueue.log.member_options import MemberOptions
from cqueue.log.subscription import Subscription
from cqueue.store.memory import MemoryStore
from tests.faulty_store import FaultyStore

SHARD = timedelta(seconds=10)


class Clocked(FaultyStore):
    """A store with a clock that the test sets."""

    def __init__(self):
        self.time_us = 1_800_000_000_000_000
        self.numbers = itertools.count(1)
        super().__init__(MemoryStore(lambda: self.time_us))

    @property
    def clocked(self):
        return self

    def pass_time(self, **duration):
        self.time_us += timedelta(**duration) // timedelta(microseconds=1)

    @property
    def now(self):
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.time_us)


class Through(FaultyStore):
    """One member's access to the store, with failures and a clock of its own."""

    def __init__(self, clocked, skew_us=0):
        super().__init__(clocked)
        self.clocked = clocked
        self.skew_us = skew_us

    def sample_time_us(self):
        return [(self.clocked.time_us + self.skew_us, 0)]


def client_on(store):
    """Return a client that uses the store's time."""
    clocked = store.clocked
    client = Client(store)
    client._driver.clock._local_us = client._driver.clock._wall_us = lambda: clocked.time_us
    client._driver._random_bits = Random(next(clocked.numbers)).getrandbits
    client._driver._pause = lambda seconds: clocked.pass_time(seconds=seconds)
    return client


def made_log(client, partitions=4, **values):
    return client.create_log("events", LogConfig(partitions=partitions, time_shard=SHARD, **values))


class Member:
    """A member that the test steps. handled: the records that its listener has returned from."""

    def __init__(self, client, listener=None, *, name="billing", policy=None, pace=None, **options):
        self.store = client._driver.store.clocked
        self.handled = []
        self.events = []
        values = {
            "listeners": [listener or self.handle],
            "partitions": None,
            "topics": None,
            "start": "earliest",
            "on_expired": "error",
            "policy": policy or RetryPolicy(wait=lambda state: float(state.attempt_number)),
            "options": pace or MemberOptions(),
            "low_latency": False,
            "notifier": client._append_notifier,
            "on_event": lambda what, partition, at: self.events.append((what, partition, at)),
        }
        self.subscription = Subscription(
            client._logs,
            client._driver,
            "events",
            name,
            time_s=lambda: self.store.time_us / 1e6,
            **(values | options),
        )
        self.subscription._member.name = f"member-{next(self.store.numbers)}"

    def handle(self, record):
        self.handled.append(record)

    @property
    def bodies(self):
        return [record.body for record in self.handled]

    @property
    def partitions(self):
        return self.subscription.partitions

    def pulse(self):
        """Send a heartbeat and read the members, as the member's thread does."""
        return self.subscription._member.beat_and_read()

    def step(self):
        return self.subscription._loop.step()

    def work(self, most=10_000):
        """Run steps until there is nothing to do for now."""
        for _ in range(most):
            if self.step() > 0:
                return

    def live(self, seconds=6.0, step_s=0.5):
        """Let time pass, with everything that a member does in it."""
        for _ in range(int(seconds / step_s)):
            self.pulse()
            self.work()
            self.store.pass_time(seconds=step_s)

    def leave(self):
        self.subscription._threads.leave()


def live_together(members, seconds=6.0, step_s=0.5):
    """Let several members live in turn; each reads the others before it does anything."""
    for _ in range(2):
        for member in members:
            member.pulse()
    for _ in range(int(seconds / step_s)):
        for member in members:
            member.pulse()
            member.work()
        members[0].store.pass_time(seconds=step_s)


def fill(log, store, count, start=0, **values):
    """Append records a moment apart, and wait until they are stable."""
    for number in range(start, start + count):
        log.append(f"t{number % 3}", b"%d" % number, **values)
        store.pass_time(milliseconds=10)
    store.pass_time(seconds=5)


def lose_answers(store, kind, times, *, stored):
    """Let that many operations of a kind end without an answer; return a list that they are added to.

    stored: they are carried out all the same.
    """
    lost = []

    def trouble(operation):
        if type(operation) is kind and len(lost) < times:
            lost.append(operation)
            if stored:
                store.store.execute(operation)
            raise OutcomeUnknown("no answer")

    store.trouble = trouble
    return lost


def noted(store, kind):
    """Return a list to which each operation of that kind is added from now on."""
    found = []
    store.trouble = lambda operation: found.append(operation) if type(operation) is kind else None
    return found
