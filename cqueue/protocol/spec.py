"""Describe a queue to protocol functions."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from cqueue.config import QueueConfig
from cqueue.store.operations import (
    PACKS_SINCE,
    DeploymentRow,
    Operation,
    QueueRow,
)

T = TypeVar("T")
Proto = Generator[Operation[Any], Any, T]
"""A protocol function: yields operations, returns a T."""

DEAD_SUFFIX = ".dead"
"""What follows a queue's name in the name of its dead-letter queue."""


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
    keyed: bool = False  # messages can be looked up by their keys
    packs: bool = False  # all clients of the deployment can read packs
    retiring: bool = True  # wide rows and epochs may be dropped: no data centre can bring messages back

    @property
    def partition(self) -> str:
        """The queue's name in partition keys: a queue deleted and made again starts on fresh partitions."""
        return f"{self.name}@{self.incarnation}"

    @property
    def has_open_rows(self) -> bool:
        """Return whether the queue may have open wide rows, so that consumers read their registry."""
        return self.derived_sends or self.is_dead_letter

    @property
    def is_dead_letter(self) -> bool:
        """Return whether this is a dead-letter queue."""
        return self.name.endswith(DEAD_SUFFIX)


def spec_of(row: QueueRow, config: QueueConfig, deployment: DeploymentRow) -> QueueSpec:
    """Build the spec of a stored queue from its row, its configuration and the deployment."""
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
        keyed=config.keyed,
        packs=deployment.format >= PACKS_SINCE,
        retiring=deployment.retiring,
    )
