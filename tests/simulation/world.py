"""Time, order and chance of a simulated run: one heap of events, one seeded random number generator.

Every client is a set of processes, each a generator that yields store operations and questions. A
process goes on only when the world says so, so that any two operations of different clients can come
in any order, and any of them can fail in every way that Cassandra and a network offer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.store.operations import (
    AdvanceEpoch,
    DeleteBodies,
    DeleteMessages,
    DropBodies,
    InsertBodies,
    InsertMessages,
    Mutate,
    Now,
    Operation,
    Pause,
    RandomBits,
    RegisterShard,
    Together,
    UnregisterShard,
)

Script = Generator[Operation[Any], Any, Any]

WRITES = frozenset({
    InsertMessages, InsertBodies, DeleteMessages, DeleteBodies, DropBodies, RegisterShard,
    UnregisterShard, Mutate, AdvanceEpoch,
})  # fmt: skip
REPEATED = frozenset({DeleteMessages, DeleteBodies, DropBodies, UnregisterShard})
"""Writes that the driver repeats by itself, as it does all reads."""
REPEATS = 2


@dataclass(slots=True)
class Client:
    """A program on some machine: it has one clock, and dies as a whole."""

    name: str
    offset_us: int = 0
    frozen_us: int = 0  # how far its clock lags until the next synchronisation
    dead: bool = False


@dataclass(slots=True)
class Process:
    """One thread of a client."""

    script: Script
    client: Client
    operation: Operation[Any] | None = None
    queue: list[tuple[int, Operation[Any]]] | None = None  # rest of a Together, in order of execution
    answers: list[Any] = field(default_factory=list)
    tries: int = 0


class World:
    """Runs processes over a store."""

    def __init__(self, rng: Random, skew_us: int, start_us: int) -> None:
        self.rng = rng
        self.skew_us = skew_us
        self.now_us = start_us
        self.step = 0
        self.execute: Callable[[Operation[Any]], Any] = lambda _: None
        self.accept: Callable[[Mutate], None] = lambda _: None
        self.faults = 0.0  # how likely an operation goes wrong
        self.pauses = 0.0  # how likely a process pauses before an operation
        self.longest_pause_us = 4_000_000
        self.trace: list[str] | None = None
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    # ── events ──

    def at(self, when_us: int, action: Callable[[], None]) -> None:
        """Do something at a time."""
        self._count += 1
        heapq.heappush(self._heap, (when_us, self._count, action))

    def run(self, until_us: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Go on until a time, or until `done`, asked now and then; whether it was."""
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            when_us, _, action = heapq.heappop(heap)
            self.now_us = max(self.now_us, when_us)
            self.step += 1
            action()
            if not self.step & 31 and done():
                return True
        self.now_us = max(self.now_us, until_us)
        return done()

    def spawn(self, client: Client, script: Script) -> None:
        """Start a process of a client."""
        self._resume(Process(script, client), None, None)

    def log(self, who: str, text: Callable[[], str]) -> None:
        """Note what happens, if anybody wants to know."""
        if self.trace is not None:
            self.trace.append(f"{self.now_us / 1e6:17.6f} {who:4} {text()}")

    # ── clocks ──

    def clock_us(self, client: Client) -> int:
        """What a client believes the time to be."""
        return self.now_us + client.offset_us - client.frozen_us

    def sync(self, client: Client) -> None:
        """Its clock is right again, within half of ε."""
        half = self.skew_us // 2
        client.offset_us = self.rng.randint(-half, half)
        client.frozen_us = 0

    # ── processes ──

    def _resume(self, process: Process, value: Any, error: Exception | None) -> None:
        rng, script, client = self.rng, process.script, process.client
        while not client.dead:
            try:
                operation = script.send(value) if error is None else script.throw(error)
            except StopIteration:
                return
            error = None
            kind = type(operation)
            if kind is RandomBits:
                value = rng.getrandbits(operation.bits)  # type: ignore[attr-defined]
                continue
            process.operation = operation
            if kind is Now:
                if self.pauses and rng.random() < self.pauses:
                    self.at(self.now_us + self._pause_us(), lambda: self._tell_time(process))
                    return
                value = self._time(client, operation)
                continue
            self._schedule(process, operation)
            return

    def _schedule(self, process: Process, operation: Operation[Any]) -> None:
        kind, rng = type(operation), self.rng
        wait_us = 200 + int(rng.random() * 3000)
        if kind is Pause:
            seconds_us = int(operation.seconds * 1e6)  # type: ignore[attr-defined]
            self.at(self.now_us + seconds_us + 1, lambda: self._alive(process, None, None))
            return
        if kind is Together:
            process.queue = list(enumerate(operation.operations))  # type: ignore[attr-defined]
            rng.shuffle(process.queue)
            process.answers = [None] * len(process.queue)
        if self.pauses and rng.random() < self.pauses:
            wait_us = self._pause_us()
        process.tries = REPEATS
        self.at(self.now_us + wait_us, lambda: self._perform(process))

    def _pause_us(self) -> int:
        return int(self.longest_pause_us * self.rng.random() ** 2)

    def _alive(self, process: Process, value: Any, error: Exception | None) -> None:
        if process.client.dead:
            process.script.close()
        else:
            self._resume(process, value, error)

    def _tell_time(self, process: Process) -> None:
        self._alive(process, self._time(process.client, process.operation), None)

    def _time(self, client: Client, question: Any) -> int:
        if question.checked and client.frozen_us:
            self.sync(client)
        return self.clock_us(client)

    def _perform(self, process: Process) -> None:
        if process.queue is None:
            value, error = self._try(process, process.operation)
            if error is not None and self._again(process, process.operation):
                return
            self._alive(process, value, error)
            return
        while process.queue:
            index, operation = process.queue[-1]
            value, error = self._try(process, operation)
            if error is not None and self._again(process, operation):
                return
            process.answers[index] = value if error is None else error
            process.queue.pop()
            process.tries = REPEATS
            if process.queue and self.rng.random() < 0.3:
                pause = self.pauses and self.rng.random() < self.pauses * 3
                wait_us = self._pause_us() if pause else int(self.rng.random() * 3000)
                self.at(self.now_us + wait_us, lambda: self._perform(process))
                return
        process.queue = None
        self._alive(process, process.answers, None)

    def _again(self, process: Process, operation: Any) -> bool:
        """Repeat what the driver repeats."""
        if process.client.dead or not process.tries:
            return False
        if type(operation) in WRITES and type(operation) not in REPEATED:
            return False
        process.tries -= 1
        self.at(self.now_us + 20_000, lambda: self._perform(process))
        return True

    # ── operations and their failures ──

    def _try(self, process: Process, operation: Any) -> tuple[Any, Exception | None]:
        rng, name = self.rng, process.client.name
        if process.client.dead and rng.random() < 0.5:
            return None, None  # the client died before it sent this
        if rng.random() >= self.faults:
            value = self.execute(operation)
            self.log(name, lambda: f"{operation} → {value}")
            return value, None
        if type(operation) not in WRITES:
            self.log(name, lambda: f"{operation} → NotDone")
            return None, NotDone("simulated")
        return self._fail(name, operation)

    def _fail(self, name: str, operation: Any) -> tuple[Any, Exception | None]:
        rng = self.rng
        fault = rng.randrange(6)
        how = ("not done", "request lost", "reply lost", "late", "accepted", "twice")[fault]
        self.log(name, lambda: f"{operation} → {how}")
        if fault == 0:
            return None, NotDone("simulated")
        if fault == 2:
            self.execute(operation)
        elif fault == 3:
            self._late(name, operation)
        elif fault == 4:
            if type(operation) is Mutate:
                self.accept(operation)
            else:
                self._late(name, operation)
        elif fault == 5:
            value = self.execute(operation)
            self._late(name, operation)
            return value, None
        return None, OutcomeUnknown("simulated")

    def _late(self, name: str, operation: Any) -> None:
        """Executed at some later time, with its arguments and its timestamps of now."""

        def land() -> None:
            value = self.execute(operation)
            self.log(name, lambda: f"LATE {operation} → {value}")

        self.at(self.now_us + int(self.rng.random() ** 2 * 5_000_000), land)
