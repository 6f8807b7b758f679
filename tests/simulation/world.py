"""Time, order and chance of a simulated run: one heap of events, one seeded random number generator.

Every client is a set of processes, each a generator that yields store operations and questions. A
process goes on only when the world says so, so that any two operations of different clients can come
in any order, and any of them can fail in every way that Cassandra and a network offer.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Generator
from random import Random
from typing import TYPE_CHECKING, Any

from cqueue.errors import NotDone, OutcomeUnknown, Unavailable
from cqueue.store.operations import (
    AdvanceEpoch,
    Answers,
    DeleteBodies,
    DropBodies,
    InsertBodies,
    Mutate,
    Now,
    Operation,
    Pause,
    RandomBits,
    ReadBodies,
    RegisterShard,
    Together,
    UnregisterShard,
)
from tests.simulation.replica import ALL
from tests.simulation.rows import PLANNED, Delete, Insert, RowStore, planned

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster, Look

Script = Generator[Operation[Any], Any, Any]

REPEATED = frozenset({Delete, DeleteBodies, DropBodies, UnregisterShard})
"""Writes that the driver repeats by itself, as it does all reads."""
PLAIN = REPEATED | {Insert, InsertBodies, RegisterShard}
WRITES = PLAIN | {Mutate, AdvanceEpoch}
REPEATS = 2
LATEST_US = 5_000_000
REPLAYED_US = 60_000_000
"""What arrives late does so within this: a request that was held up; a batch that is replayed."""


class Client:
    """A program on some machine: it has one clock, and dies as a whole."""

    __slots__ = (
        "dead", "frozen_us", "name", "offset_us", "pauses", "slow", "slow_us", "stopped_us", "store",
        "told_us",
    )  # fmt: skip

    def __init__(self, name: str, store: RowStore, pauses: float = 0.0) -> None:
        self.name = name
        self.store = store
        self.pauses = pauses  # how likely it pauses before an operation
        self.slow = 0.0  # how likely an operation takes about slow_us
        self.slow_us = 0
        self.offset_us = 0
        self.frozen_us = 0  # how far its clock lags until the next synchronisation
        self.told_us = 0  # the latest time that it was told: a clock that is set right may go back
        self.stopped_us = 0  # all its threads stand still until then
        self.dead = False


class Process:
    """One thread of a client."""

    __slots__ = ("answered_us", "answers", "client", "looks", "queue", "script", "since_us", "tries")

    def __init__(self, script: Script, client: Client) -> None:
        self.script = script
        self.client = client
        self.queue: list[tuple[int, Any]] = []  # operations not yet done, in reverse order
        self.answers: list[Any] | None = None  # of a Together
        self.answered_us: list[int] = []
        self.looks: dict[int, Look] = {}  # operations that one replica has served already
        self.tries = 0
        self.since_us = 0  # when these operations were made up


class World:
    """Runs processes over a cluster."""

    def __init__(self, rng: Random, skew_us: int, start_us: int) -> None:
        self.rng = rng
        self.skew_us = skew_us
        self.now_us = start_us
        self.step = 0
        self.held_us = 0  # how long ago the operation that is being performed was made up
        self.cluster: Cluster
        self.faults = 0.0  # how likely an operation goes wrong
        self.replays = False  # whether batches are replayed up to a minute later
        self.pausing = False  # whether programs pause
        self.torn = 0.0  # how likely the replicas serve an operation at two instants
        self.longest_pause_us = 4_000_000
        self.swift: dict[type, float] = {}  # how likely an operation takes no time at all, by kind
        self.swift_else = 0.0
        self.extreme = False  # clocks are as far apart as they may be
        self.happened: Counter[str] = Counter()
        self.trace: list[str] | None = None
        self.watch: Callable[[Client, Mutate, bool], None] | None = None
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._count = 0

    # ── events ──

    def at(self, when_us: int, action: Callable[[Any], None], argument: Any = None) -> None:
        """Do something at a time."""
        self._count += 1
        heapq.heappush(self._heap, (when_us, self._count, action, argument))

    def run(self, until_us: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Go on until a time, or until `done`, asked now and then; whether it was."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until_us:
            when_us, _, action, argument = pop(heap)
            self.now_us = max(self.now_us, when_us)
            self.step += 1
            action(argument)
            if not self.step & 7 and done():
                return True
        self.now_us = max(self.now_us, until_us)
        return done()

    def spawn(self, client: Client, script: Script) -> None:
        """Start a process of a client."""
        self._resume(Process(script, client), None, None)

    def note(self, who: str, *what: Any) -> None:
        """Note what happens, if anybody wants to know."""
        if self.trace is not None:
            text = " ".join(part if isinstance(part, str) else repr(part) for part in what)
            self.trace.append(f"{self.now_us / 1e6:17.6f} {who:4} {text}")

    # ── clocks ──

    def clock_us(self, client: Client) -> int:
        """What a client believes the time to be."""
        return self.now_us + client.offset_us - client.frozen_us

    def sync(self, client: Client) -> None:
        """Its clock is right again, within half of ε."""
        half = self.skew_us // 2
        client.offset_us = self.rng.choice((-half, half)) if self.extreme else self.rng.randint(-half, half)
        client.frozen_us = 0

    def _time(self, client: Client, question: Now) -> int:
        if question.checked and client.frozen_us:
            self.sync(client)
        now_us = self.clock_us(client)
        client.told_us = max(client.told_us, now_us)
        return now_us

    def pause_us(self) -> int:
        """How long a pause takes: mostly short."""
        self.happened["pause"] += 1
        return int(self.longest_pause_us * self.rng.random() ** 2)

    # ── processes ──

    def _resume(self, process: Process, value: Any, error: Exception | None) -> None:
        rng, script, client = self.rng, process.script, process.client
        while not client.dead:
            try:
                operation: Any = script.send(value) if error is None else script.throw(error)
            except StopIteration:
                return
            error = None
            kind = type(operation)
            if kind is RandomBits:
                value = rng.getrandbits(operation.bits)
            elif kind is Now:
                if self.pausing and rng.random() < client.pauses:
                    self.at(self.now_us + self.pause_us(), self._tell_time, (process, operation))
                    return
                value = self._time(client, operation)
            elif kind is Pause:
                self.at(self.now_us + int(operation.seconds * 1e6) + 1, self._wake, process)
                return
            elif (swift := self.swift.get(kind, self.swift_else)) and rng.random() < swift:
                value, error = self._at_once(process, operation, kind)
            else:
                self._send(process, operation, kind)
                return

    def _at_once(self, process: Process, operation: Any, kind: type) -> tuple[Any, Exception | None]:
        """An operation that takes no time: nobody comes between."""
        client = process.client
        if kind is not Together:
            if kind in PLANNED:
                operation = planned(operation, client.store)
            return self._try(client, operation, None)
        answers = [self._try(client, each, None) for each in _planned(client, operation)]
        return [value if error is None else error for value, error in answers], None

    def _wake(self, process: Process) -> None:
        self._alive(process, None, None)

    def _tell_time(self, asked: tuple[Process, Now]) -> None:
        process, question = asked
        self._alive(process, self._time(process.client, question), None)

    def _alive(self, process: Process, value: Any, error: Exception | None) -> None:
        if process.client.dead:
            process.script.close()
        elif process.client.stopped_us > self.now_us:
            self.at(process.client.stopped_us, self._continue, (process, value, error))
        else:
            self._resume(process, value, error)

    def _continue(self, what: tuple[Process, Any, Exception | None]) -> None:
        self._alive(*what)

    def _send(self, process: Process, operation: Any, kind: type) -> None:
        """A request leaves; its operations are performed when it arrives, or half of it at once."""
        rng = self.rng
        process.tries, process.since_us = REPEATS, self.now_us
        if kind is Together:
            process.queue = list(enumerate(_planned(process.client, operation)))
            process.answers = [None] * len(process.queue)
            process.answered_us = [0] * len(process.queue)
            if len(process.queue) > 1:
                rng.shuffle(process.queue)
        else:
            process.queue = [(0, planned(operation, process.client.store) if kind in PLANNED else operation)]
            process.answers = None
        wait_us, slow = 200 + int(rng.random() * 3000), True
        if self.pausing and rng.random() < process.client.pauses:
            wait_us = self.pause_us()
            slow = rng.random() < 0.5  # the request is slow, not the client
        elif process.client.slow and rng.random() < process.client.slow:
            wait_us = int(process.client.slow_us * (0.3 + 0.9 * rng.random()))
        if self.torn and slow:
            self._look(process)
        self.at(self.now_us + wait_us, self._perform, process)

    def _look(self, process: Process) -> None:
        for index, operation in process.queue:
            if self.rng.random() < self.torn:
                look = self.cluster.look(operation)
                if look is not None:
                    self.happened["two instants"] += 1
                    process.looks[index] = look
                    self.note(process.client.name, "HALF", operation)

    def _perform(self, process: Process) -> None:
        queue, client = process.queue, process.client
        if client.stopped_us > self.now_us:
            self.at(client.stopped_us, self._perform, process)
            return
        while True:
            index, operation = queue[-1]
            look = process.looks.pop(index, None) if process.looks else None
            self.held_us = self.now_us - process.since_us
            value, error = self._try(client, operation, look)
            self.held_us = 0
            if error is not None and self._again(process, operation):
                return
            queue.pop()
            if process.answers is None:
                self._alive(process, value, error)
                return
            process.answers[index] = value if error is None else error
            process.answered_us[index] = self.now_us
            if not queue:
                ages_us = [self.now_us - at_us for at_us in process.answered_us]
                self._alive(process, Answers(process.answers, ages_us), None)
                return
            process.tries = REPEATS
            if self.rng.random() < 0.3:
                pause = self.pausing and self.rng.random() < client.pauses * 3
                wait_us = self.pause_us() if pause else int(self.rng.random() * 3000)
                self.at(self.now_us + wait_us, self._perform, process)
                return

    def _again(self, process: Process, operation: Any) -> bool:
        """Repeat what the driver repeats."""
        if process.client.dead or not process.tries:
            return False
        if type(operation) in WRITES and type(operation) not in REPEATED:
            return False
        process.tries -= 1
        self.at(self.now_us + 20_000, self._perform, process)
        return True

    # ── operations and their failures ──

    def _try(self, client: Client, operation: Any, look: Look | None) -> tuple[Any, Exception | None]:
        rng = self.rng
        if client.dead and rng.random() < 0.5:
            return None, None  # the client died before it sent this
        if type(operation) is ReadBodies and operation.everywhere and self.cluster.up != ALL:
            return None, Unavailable("a replica is away")
        if not self.faults or rng.random() >= self.faults:
            value = self.cluster.execute(operation, look, client.store)
            if type(operation) is Delete:
                operation.answered(None)
            if self.trace is not None:
                self.note(client.name, operation, "→", value)
            if self.watch is not None and value is True and type(operation) is Mutate:
                self.watch(client, operation, True)
            return value, None
        kind = type(operation)
        if kind not in WRITES:
            self.happened["read failed"] += 1
            self.note(client.name, operation, "→ NotDone")
            return None, NotDone("simulated")
        if kind is Mutate:
            how, value, error = self._fail_mutation(client, operation)
        elif kind is AdvanceEpoch:
            how, value, error = self._fail_queue(operation)
        else:
            how, value, error = self._fail_plain(operation, begun=look is not None)
        self.happened[how] += 1
        self.note(client.name, operation, "→", how, value)
        return value, error

    def _fail_plain(self, operation: Any, *, begun: bool) -> tuple[str, Any, Exception | None]:
        fault = self.rng.randrange(7)
        unknown = OutcomeUnknown("simulated")
        if fault == 0 and not begun:
            return "plain write: not done", None, NotDone("simulated")
        if fault <= 1:
            return "plain write: request lost", None, unknown
        if fault == 2:
            self.cluster.execute(operation)
            return "plain write: reply lost", None, unknown
        if fault == 3:
            self.cluster.partly(operation)
            return "plain write: on one replica", None, unknown
        answered = fault == 4
        if answered:
            self.cluster.execute(operation)
            if type(operation) is Delete:
                operation.answered(None)
        if fault == 6 and self.replays:
            self.cluster.late(operation, REPLAYED_US)
            return "plain write: replayed", None, unknown
        self.cluster.late(operation, LATEST_US)
        return ("plain write: twice", None, None) if answered else ("plain write: late", None, unknown)

    def _fail_mutation(self, client: Client, operation: Mutate) -> tuple[str, Any, Exception | None]:
        fault = self.rng.randrange(7)
        if fault == 0:
            return "mutation: not done", None, NotDone("simulated")
        value = None
        error: Exception | None = OutcomeUnknown("simulated")
        if fault == 2:
            how, value = "mutation: reply lost", self.cluster.execute(operation)
        elif fault == 3:
            how = "mutation: late"
            self._late(operation)
        elif fault == 4:
            how = "mutation: accepted by a minority"
            self.cluster.accept(operation)
        elif fault == 5:
            reach = self.rng.choice((0, 1, 2, 4)) & self.cluster.up
            how, value = "mutation: decided, not committed", self.cluster.mutate(operation, reach)
        elif fault == 6:
            how, value, error = "mutation: twice", self.cluster.execute(operation), None
            self._late(operation)
        else:
            how = "mutation: request lost"
        if value is True and self.watch is not None:
            self.watch(client, operation, True)
        return how, value if error is None else None, error

    def _fail_queue(self, operation: AdvanceEpoch) -> tuple[str, Any, Exception | None]:
        fault = self.rng.randrange(4)
        if fault == 0:
            return "queue: not done", None, NotDone("simulated")
        if fault == 2:
            self.cluster.execute(operation)
        elif fault == 3:
            self._late(operation)
        return "queue: unknown", None, OutcomeUnknown("simulated")

    def _late(self, operation: Any) -> None:
        """Executed at some later time, with its arguments of now."""
        self.at(self.now_us + int(self.rng.random() ** 2 * LATEST_US), self._land, operation)

    def _land(self, operation: Any) -> None:
        self.note("", "LATE", operation, "→", self.cluster.execute(operation))


def _planned(client: Client, together: Together) -> list[Any]:
    """Operations as a client's store sends them."""
    store = client.store
    return [planned(each, store) if type(each) in PLANNED else each for each in together.operations]
