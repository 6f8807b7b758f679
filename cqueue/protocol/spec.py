"""What protocol functions know of a queue, and the values they hand to each other."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from cqueue.config import QueueConfig
from cqueue.protocol import policy
from cqueue.store.operations import (
    PACKS_SINCE,
    DeploymentRow,
    MessageRow,
    Operation,
    QueueRow,
    SlotRow,
    WideRow,
)

T = TypeVar("T")
Proto = Generator[Operation[Any], Any, T]
"""A protocol function: yields operations, returns a T."""

DEAD_SUFFIX = ".dead"


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue as the protocol sees it. `_ms` are milliseconds, `_us` microseconds."""

    name: str
    incarnation: str
    shards: int
    width_ms: int
    epoch_ms: int
    open_shards: int
    visibility_ms: int
    lease_ms: int
    max_attempts: int
    settle_us: int  # W
    skew_us: int  # ε
    gc_grace_us: int
    derived_sends: bool = False
    packs: bool = False  # everybody who reads here knows packs
    retiring: bool = True  # wide rows and epochs may be given up: no data centre may bring messages back

    @property
    def partition(self) -> str:
        """The queue's name in partition keys: a queue deleted and made again starts on fresh partitions."""
        return f"{self.name}@{self.incarnation}"

    @property
    def has_open_rows(self) -> bool:
        """Whether readers look for open wide rows."""
        return self.derived_sends or self.is_dead_letter

    @property
    def is_dead_letter(self) -> bool:
        """Whether this is a dead-letter queue."""
        return self.name.endswith(DEAD_SUFFIX)


def spec_of(row: QueueRow, config: QueueConfig, deployment: DeploymentRow) -> QueueSpec:
    """The spec of a stored queue."""
    return QueueSpec(
        name=row.name,
        incarnation=row.incarnation,
        shards=config.shards,
        width_ms=config.time_shard_ms,
        epoch_ms=row.epoch_ms,
        open_shards=config.open_shards,
        visibility_ms=config.visibility_ms,
        lease_ms=config.lease_ms,
        # A dead letter does not die again.
        max_attempts=0 if row.name.endswith(DEAD_SUFFIX) else config.max_attempts,
        settle_us=deployment.settle_ms * 1000,
        skew_us=deployment.skew_ms * 1000,
        gc_grace_us=deployment.gc_grace_s * 1_000_000,
        derived_sends=config.derived_sends,
        packs=deployment.format >= PACKS_SINCE,
        retiring=deployment.retiring,
    )


class Tried(NamedTuple):
    """A change of a lease's slot whose outcome is unknown: its source and target slot as they would be."""

    source: SlotRow
    target: SlotRow
    moving: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Lease:
    """One timeout slot as its holder knows it; its messages refer to it.

    The holder serialises changes, so that `rev` always is the newest one that it wrote.
    """

    wide_row: WideRow
    priority: int
    number: int
    rev: int
    due_ms: int
    attempt: int
    owner: bytes
    fence: int
    ids: tuple[int, ...]  # as the slot lists them
    tally: int  # of the slot
    died_at_ms: int | None = None
    suspect: bool = False  # given up by an earlier holder: held alone
    outstanding: set[int] = field(default_factory=set)  # neither acked nor moved away
    lost: bool = False
    over: bool = False  # a suspect that the gate let go of when its time had passed: not to be held again
    asked_ms: int = 0  # until when an extension of a suspect holds it, should it be found to stand
    given: bool = False  # back to the queue as a whole: the slot is no longer ours to free
    tried: dict[int, Tried] = field(default_factory=dict)  # by the revision that it would leave

    def __post_init__(self) -> None:
        """At first, all that the slot lists is outstanding."""
        self.outstanding = set(self.ids)


class SuspectGate:
    """At most one message that an earlier holder gave up is held by a process at a time.

    One that kills its worker then cannot burn the attempts of its neighbours. Not thread-safe: a
    process with several threads shares one under a mutex.
    """

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self._reserved = False

    def busy(self, now_ms: int) -> bool:
        """Whether a suspect is held, or is just being claimed."""
        held = self.lease
        if held is not None and (held.lost or not held.outstanding or self._is_over(held, now_ms)):
            held = self.lease = None
        return policy.is_suspect_held(held, reserved=self._reserved)

    @staticmethod
    def _is_over(lease: Lease, now_ms: int) -> bool:
        """Whether a suspect's time has passed; then nobody may extend it, as another one may be taken.

        Holders look the other way round, in `hold_on`: of the two one sees the other.
        """
        if lease.due_ms > now_ms:
            return False
        lease.over = True
        if lease.asked_ms > now_ms:
            lease.over = False
        return lease.over

    def hold(self, lease: Lease) -> None:
        """A claim has granted a suspect."""
        self.lease = lease

    def reserve(self, now_ms: int) -> bool:
        """Take the right to claim one suspect; to be settled by the claim."""
        if self.busy(now_ms):
            return False
        self._reserved = True
        return True

    def settle(self) -> None:
        """The claim is over: from now on only the lease counts, if one was granted."""
        self._reserved = False


class Taken:
    """A message that a claim gave us, with the lease that it is held by."""

    __slots__ = ("lease", "row")

    def __init__(self, row: MessageRow, lease: Lease) -> None:
        self.row = row
        self.lease = lease
