"""Stores that go wrong on purpose, between a client and the real one."""

from __future__ import annotations

import os
import pickle
import random
import signal
from collections import defaultdict
from contextlib import contextmanager
from threading import Lock

from cqueue.client import Client, open_cassandra
from cqueue.errors import OutcomeUnknown, Unavailable
from cqueue.settings import load
from cqueue.store import operations as ops
from tests.faulty_store import FaultyStore

READS = (
    ops.ReadHead, ops.ReadSlice, ops.ReadIds, ops.HasMessages, ops.ReadMessages, ops.ReadBodies,
    ops.ReadShards, ops.ReadQueue, ops.ListQueues, ops.ReadDeployment,
)  # fmt: skip


@contextmanager
def open_client(url, wrap=lambda store: store):
    """A client whose store is wrapped."""
    store, connection = open_cassandra(load(url))
    try:
        with Client(wrap(store), on_close=lambda: None) as client:
            yield client
    finally:
        connection.close()


class Flaky(FaultyStore):
    """Injects timeouts at `rate`: of writes of a kind before and after they are executed, in turn.

    Both look alike to the caller, as they do in life. `counts` says how many there were of each kind. The
    first of each kind fails, so an odd and an even seed together have both of a rare one.
    """

    def __init__(self, store, rate, seed, counts):
        super().__init__(store)
        self._rate = rate
        self._random = random.Random(seed)
        self._turns = defaultdict(lambda: seed)
        self._mutex = Lock()
        self.counts = counts

    def together(self, operations):
        fates = [self._fate(operation) for operation in operations]
        passed = tuple(
            operation for operation, fate in zip(operations, fates, strict=True) if fate != "before"
        )
        answers = iter(self.store.together(passed) if passed else ())
        results = [next(answers) if fate != "before" else None for fate in fates]
        return [
            result if fate is None else self._timeout(operation)
            for operation, fate, result in zip(operations, fates, results, strict=True)
        ]

    def _fate(self, operation):
        with self._mutex:
            kind = kind_of(operation)
            if self._random.random() >= self._rate and kind in self._turns:
                return None
            self._turns[kind] += not isinstance(operation, READS)
            fate = "after" if self._turns[kind] % 2 and kind != "read" else "before"
            key = f"{kind} {'executed' if fate == 'after' else 'not'}"
            self.counts[key] = self.counts.get(key, 0) + 1
            return fate

    def _timeout(self, operation):
        text = f"injected timeout of {type(operation).__name__}"
        return Unavailable(text) if isinstance(operation, READS) else OutcomeUnknown(text)


def is_lock(operation):
    """The mutation by which a consumer takes a wide row's lock."""
    return (
        isinstance(operation, ops.Mutate)
        and operation.lock is not None
        and operation.lock.state is ops.LockState.LOCKED
        and not operation.slots
        and not operation.cursors
    )


def is_claim(operation):
    """The mutation by which a consumer takes messages."""
    return isinstance(operation, ops.Mutate) and any(
        change.row.state is ops.SlotState.CLAIMED for change in operation.slots
    )


def kind_of(operation):
    """What a statement is called in the table: conditional mutations are told apart by what they are for."""
    if isinstance(operation, READS):
        return "read"
    if not isinstance(operation, ops.Mutate):
        return KINDS.get(type(operation), type(operation).__name__)
    if operation.retire:
        return "retire"
    if is_claim(operation):
        return "claim"
    return "lock" if operation.lock is not None and not operation.slots else "slots"


KINDS = {
    ops.InsertMessages: "insert",
    ops.DeleteMessages: "delete",
    ops.RegisterShard: "register",
    ops.UnregisterShard: "unregister",
    ops.DropBodies: "drop bodies",
}
WRITES = (*KINDS.values(), "lock", "claim", "slots", "retire")

POINTS = {
    "lock": is_lock,
    "read": lambda operation: isinstance(operation, ops.ReadSlice),
    "mutation": is_claim,
}


class Stopping(FaultyStore):
    """Stops its own process by SIGSTOP when the named step has been executed for the nth time."""

    def __init__(self, store, point, nth=1):
        super().__init__(store)
        self._is_point = POINTS[point]
        self._left = nth

    def together(self, operations):
        results = self.store.together(operations)
        self._look(operations)
        return results

    def _look(self, operations):
        if any(self._is_point(operation) for operation in operations):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)


class Killing(FaultyStore):
    """Kills its own process by SIGKILL at the nth group of statements with an operation of this type.

    when: "after" the group is executed, or "half" way, when its first half is.
    """

    def __init__(self, store, operation, when, nth):
        super().__init__(store)
        self._operation, self._when, self._left = operation, when, nth

    def together(self, operations):
        self._left -= any(type(operation).__name__ == self._operation for operation in operations)
        if self._left > 0:
            return self.store.together(operations)
        if executed := operations if self._when == "after" else operations[: len(operations) // 2]:
            self.store.together(executed)
        return os.kill(os.getpid(), signal.SIGKILL)


class Journaling(FaultyStore):
    """Writes down every group of statements that stores messages, before it is executed."""

    def __init__(self, store, path):
        super().__init__(store)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def together(self, operations):
        if any(isinstance(operation, ops.InsertMessages) for operation in operations):
            data = pickle.dumps(operations)
            os.write(self._file, len(data).to_bytes(8, "big") + data)
        return self.store.together(operations)


def last_group(path):
    """The last group that was written down whole."""
    data, at, group = path.read_bytes(), 0, None
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 8], "big")
        if at + 8 + size > len(data):
            break
        group = pickle.loads(data[at + 8 : at + 8 + size])  # noqa: S301 - our own, of a moment ago
        at += 8 + size
    return group
