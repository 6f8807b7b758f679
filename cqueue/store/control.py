"""Beside the messages: schedules, who is at work, and who waits for datagrams."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from cqueue.store.operations import Operation, Repeatable


class ScheduleRow(NamedTuple):
    """One schedule: its definition, and where it stands.

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
    """One process that is at work. info: JSON of its own; seen: ms since 1970 of its last heartbeat."""

    worker: str
    info: str
    seen: int


class ListenerRow(NamedTuple):
    """One process that waits for datagrams, as `cqueue.doorbell` writes and reads it.

    key: of the tags of datagrams to it. names: what it waits for, 4 bytes of a hash each, sorted; None for
    anything.
    """

    listener: str
    address: str
    port: int
    key: bytes
    names: bytes | None

    @property
    def digest(self) -> bytes:
        """Of all that it says: another one when anything has changed."""
        return blake2b(repr(self).encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class ReadSchedule(Repeatable["ScheduleRow | None"]):
    """A schedule, read at serial consistency.

    as_stored: also one that is damaged, whose columns may then hold anything; for who deletes or replaces it.
    """

    queue: str
    key: str
    as_stored: bool = False


@dataclass(frozen=True, slots=True)
class ListSchedules(Repeatable[list[ScheduleRow]]):
    """All schedules of a queue, by key. as_stored: as for `ReadSchedule`."""

    queue: str
    as_stored: bool = False


@dataclass(frozen=True, slots=True)
class CreateSchedule(Operation[bool]):
    """Insert IF NOT EXISTS."""

    row: ScheduleRow


@dataclass(frozen=True, slots=True)
class ChangeSchedule(Operation[bool]):
    """Write all of the row, with version = expect_version + 1, IF version is as expected."""

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
    """Say that a process is at work, for the next `ttl_s` seconds."""

    row: WorkerRow
    ttl_s: int


@dataclass(frozen=True, slots=True)
class ReadWorkers(Repeatable[list[WorkerRow]]):
    """Processes whose heartbeat is not over, by name."""


@dataclass(frozen=True, slots=True)
class RemoveWorker(Operation[None]):
    """A process has stopped."""

    worker: str


@dataclass(frozen=True, slots=True)
class Listen(Operation[None]):
    """Say where datagrams reach a process, for the next `ttl_s` seconds."""

    row: ListenerRow
    ttl_s: int


@dataclass(frozen=True, slots=True)
class ReadDigests(Operation[dict[str, bytes]]):
    """The names of processes that wait for datagrams, and the digests of their rows, which may be large."""


@dataclass(frozen=True, slots=True)
class ReadListeners(Operation[list[ListenerRow]]):
    """Processes of these names that wait for datagrams; rows that cannot be read are left out."""

    listeners: tuple[str, ...]
