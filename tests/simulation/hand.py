"""A table for small scenarios written by hand: one store, one clock that stands still until told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol import registry
from cqueue.protocol.claim import claim
from cqueue.protocol.claim_draft import Claim
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.lock import unlock
from cqueue.protocol.poll import Poll
from cqueue.protocol.probe import probe
from cqueue.protocol.registry import remember_row
from cqueue.protocol.row_memory import Hint, RowMemory
from cqueue.protocol.spec import QueueSpec
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import (
    Answers,
    CreateQueue,
    CursorRow,
    Head,
    InsertMessages,
    MessageRow,
    Now,
    Operation,
    Pause,
    QueueRow,
    RandomBits,
    ReadHead,
    SlotState,
    Together,
    WideRow,
)
from tests.simulation.cluster import Known

NOON_US = 20_000 * 86_400_000_000 + 12 * 3_600_000_000
SETTLE_US, SKEW_US = 2_000_000, 500_000
SECOND_US = 1_000_000

Hook = Callable[[Operation[Any]], None]


def nothing(_: Operation[Any]) -> None:
    """No trouble."""


class Table:
    """Runs generators over one store. `time_us` is true time, and everybody's clock."""

    def __init__(self, **changes: Any) -> None:
        self.time_us = NOON_US
        self.store = MemoryStore(lambda: self.time_us)
        values: dict[str, Any] = {
            "name": "q", "incarnation": "1", "shards": 1, "width_ms": 60_000, "epoch_ms": 3_600_000,
            "open_shards": 1, "visibility_ms": 30_000, "lease_ms": 5000, "max_attempts": 5,
            "settle_us": SETTLE_US, "skew_us": SKEW_US, "gc_grace_us": 3_600_000_000, "packs": True,
        }  # fmt: skip
        self.spec = QueueSpec(**(values | changes))
        self.row = WideRow(self.spec.partition, NOON_US // 1000, 0)
        self.bits = 0  # what RandomBits(16) gives
        self._numbers = itertools.count(1)
        self.log: list[Operation[Any]] = []

    # ── running ──

    def run(self, script: Any, hook: Hook = nothing) -> Any:
        """Run a generator; `hook` sees each operation first, and may raise, or change the world."""
        value: Any = None
        error: Exception | None = None
        while True:
            try:
                operation = script.send(value) if error is None else script.throw(error)
            except StopIteration as stop:
                return stop.value
            value = error = None
            try:
                value = self._answer(operation, hook)
            except (NotDone, OutcomeUnknown) as exc:
                error = exc

    def _answer(self, operation: Any, hook: Hook) -> Any:
        if type(operation) is Together:
            answers: list[Any] = []
            times_us: list[int] = []
            for each in operation.operations:
                try:
                    answers.append(self._answer(each, hook))
                except (NotDone, OutcomeUnknown) as exc:
                    answers.append(exc)
                times_us.append(self.time_us)
            return Answers(answers, [self.time_us - at_us for at_us in times_us])
        if type(operation) is Now:
            return self.time_us
        if type(operation) is RandomBits:
            return self.bits if operation.bits == 16 else next(self._numbers)
        if type(operation) is Known:
            return operation.answer
        hook(operation)
        if type(operation) is Pause:
            self.time_us += int(operation.seconds * SECOND_US)
            return None
        self.log.append(operation)
        return self.store.execute(operation)

    # ── things to do ──

    def pass_time(self, us: int) -> None:
        """Let time go by."""
        self.time_us += us

    def id_at(self, us: int) -> int:
        """A new id at a time."""
        return ids.from_ticks(us * 10, next(self._numbers))

    def put(self, *at_us: int, priority: int = 0, row: WideRow | None = None) -> list[int]:
        """Store messages that are due at those times."""
        return self.insert([self.id_at(us) for us in at_us], priority, row)

    def insert(self, some: Sequence[int], priority: int = 0, row: WideRow | None = None) -> list[int]:
        """Store messages under these ids."""
        rows = tuple([message(id_, priority) for id_ in some])
        self.store.execute(InsertMessages(row or self.row, rows))
        return list(some)

    def view(self, row: WideRow | None = None, *priorities: int) -> RowMemory:
        """A consumer's view that knows nothing."""
        return remember_row(self.spec, row or self.row, frozenset(priorities or (0,)))

    def claim(
        self,
        view: RowMemory | None = None,
        *,
        gate: SuspectGate | None = None,
        want: int = 10,
        hook: Hook = nothing,
    ) -> Claim:
        """One claim. Without a view, by somebody new, who lets go of the lock."""
        mine = view or self.view()
        script = claim(mine, self.spec, gate or SuspectGate(), want)
        result: Claim = self.run(script, hook)
        if view is None:
            self.run(unlock(mine))
        return result

    def poll(self, view: RowMemory, gate: SuspectGate | None = None, want: int = 10) -> Claim:
        """Probe, and claim if there is work, as a consumer does."""
        gate = gate or SuspectGate()
        found = self.run(probe([view], self.spec, gate))
        return self.claim(view, gate=gate, want=want) if found else Claim()

    def rounds(self) -> Poll:
        """Make the queue with this wide row, for a consumer that runs rounds."""
        epoch = registry.epoch_at(self.spec, NOON_US // 1000)
        row = QueueRow(self.spec.name, self.spec.incarnation, 1, "active", "{}", self.spec.epoch_ms, epoch, 0)
        self.store.execute(CreateQueue(row))
        for registration in registry.registration(self.spec, self.row, 0):
            self.store.execute(registration)
        return Poll(row, self.spec, SuspectGate())

    def receive(self, poll: Poll, *hints: Hint, hook: Hook = nothing) -> list[int]:
        """One round of a consumer that is told of something: what it delivers."""
        self.run(poll.begin(self.spec, hints), hook)
        claimed: Claim | None = self.run(poll.next_claim(self.spec, 10), hook)
        return ids_of(claimed) if claimed is not None else []

    def head(self, row: WideRow | None = None) -> Head:
        """What stands in the head."""
        result: Head = self.store.execute(ReadHead(row or self.row))
        return result

    def cursor(self) -> CursorRow:
        """Where priority 0 stands."""
        return self.head().cursors.get(0) or CursorRow(0, 0, 0)

    def listed(self, row: WideRow | None = None) -> list[int]:
        """All ids that slots list, one for each slot that does."""
        used = [slot for slot in self.head(row).slots if slot.state is not SlotState.FREE]
        return sorted(id_ for slot in used for id_ in slot.ids)

    @property
    def end_us(self) -> int:
        """The end of the row's time shard."""
        return registry.end_us(self.spec, self.row)


def message(id_: int, priority: int = 0) -> MessageRow:
    """A small message."""
    return MessageRow(priority, id_, b"m", None, None, None, None, None, None, 0, None, 0)


def ids_of(claimed: Claim) -> list[int]:
    """What a claim gave."""
    return [taken.row.id for taken in claimed.taken]
