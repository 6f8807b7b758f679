"""Store operations on schedules, workers (processes at work), listeners (for datagrams) and results."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from cqueue.store.operations import Operation, Repeatable


class ScheduleRow(NamedTuple):
    """One schedule: its definition, and how far it has come.

    queue: the queue's partition name; state: active, paused, done; generation: grows whenever its chain
    of firings is begun anew; next_at, previous: ms since 1970 of the next firing and the one before,
    0 for none; fired: how many firings there have been.
    """

    queue: str
    key: str
    version: int
    state: str
    generation: int
    definition: str
    next_at: int
    previous: int
    fired: int


class WorkerRow(NamedTuple):
    """One process at work. info: JSON that the process writes; seen: ms since 1970 of its last heartbeat."""

    worker: str
    info: str
    seen: int


class ListenerRow(NamedTuple):
    """One process that waits for datagrams, as `cqueue.doorbell` writes and reads it.

    key: authenticates the tags of datagrams to this process. names: hashes of the names that it waits for, 4
    bytes each, sorted; None for all names.
    """

    listener: str
    address: str
    port: int
    key: bytes
    names: bytes | None

    @property
    def digest(self) -> bytes:
        """Return 8 bytes of a hash over all columns, which change when any column does."""
        return blake2b(repr(self).encode(), digest_size=8).digest()


class ResultRow(NamedTuple):
    """What became of a message whose task keeps results.

    message: the message's id; state: succeeded, failed or cancelled; codec, value: what the task returned,
    None if that is not stored; error, reason: class and text of what went wrong; at: ms since 1970
    of the decision.
    """

    message: str
    state: str
    codec: str | None
    value: bytes | None
    error: str | None
    reason: str | None
    at: int


@dataclass(frozen=True, slots=True)
class ReadSchedule(Repeatable["ScheduleRow | None"]):
    """Read a schedule at serial consistency.

    as_stored: return a damaged row, too, with whatever its columns hold, so that it can be deleted or
        replaced.
    """

    queue: str
    key: str
    as_stored: bool = False


@dataclass(frozen=True, slots=True)
class ListSchedules(Repeatable[list[ScheduleRow]]):
    """List all schedules of a queue in order of key. as_stored: as for `ReadSchedule`."""

    queue: str
    as_stored: bool = False


@dataclass(frozen=True, slots=True)
class CreateSchedule(Operation[bool]):
    """Insert IF NOT EXISTS."""

    row: ScheduleRow


@dataclass(frozen=True, slots=True)
class ChangeSchedule(Operation[bool]):
    """Write all columns, with version = expect_version + 1, IF the version is as expected."""

    row: ScheduleRow
    expect_version: int | None


@dataclass(frozen=True, slots=True)
class RemoveSchedule(Operation[bool]):
    """Delete IF version is as expected."""

    queue: str
    key: str
    expect_version: int | None


@dataclass(frozen=True, slots=True)
class Heartbeat(Operation[None]):
    """Record for the next `ttl_s` seconds that a process is at work."""

    row: WorkerRow
    ttl_s: int


@dataclass(frozen=True, slots=True)
class ReadWorkers(Repeatable[list[WorkerRow]]):
    """List the processes whose heartbeat has not expired, in order of name."""


@dataclass(frozen=True, slots=True)
class RemoveWorker(Operation[None]):
    """Delete the heartbeat of a process that has stopped."""

    worker: str


@dataclass(frozen=True, slots=True)
class Listen(Operation[None]):
    """Record for the next `ttl_s` seconds where datagrams reach a process."""

    row: ListenerRow
    ttl_s: int


@dataclass(frozen=True, slots=True)
class ReadDigests(Operation[dict[str, bytes]]):
    """Read the digest of each listener's row by listener: a few bytes, where a row may be large."""


@dataclass(frozen=True, slots=True)
class ReadListeners(Operation[list[ListenerRow]]):
    """Read the rows of these listeners, without those that cannot be read."""

    listeners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeepResult(Operation[None]):
    """Write a result for the next `ttl_s` seconds; of several the one that was decided last counts."""

    row: ResultRow
    ttl_s: int


@dataclass(frozen=True, slots=True)
class ReadResult(Repeatable["ResultRow | None"]):
    """Read the result of a message; None if there is none, or if it has expired."""

    message: str
