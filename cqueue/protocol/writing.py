"""Writing new rows until they count: what sending messages and appending records have in common.

A reader passes an id once W and the skew are over. So what is written counts only if its answer arrives
within W of its ids' time. Without an answer the same ids are written again, which is idempotent; after W
the outcome is unknown. What is answered too late is written again under new ids, and then its first copy
is deleted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from cqueue import ids
from cqueue.errors import LASTING, NotDone, OutcomeUnknown
from cqueue.protocol.spec import Proto
from cqueue.store.operations import Now, Operation, Pause, RandomBits, Together

PART_ROWS = 500
PART_BYTES = 1 << 20
"""A part is one single-partition batch of at most so many rows, and bytes with its last row on top."""
PARTS_IN_FLIGHT = 32
BYTES_IN_FLIGHT = 4 << 20
REMAKES = 5
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5
MAX_REGISTERED = 20_000

Failure = NotDone | OutcomeUnknown


class Spec(Protocol):
    """What of a queue or a log says when a write counts."""

    @property
    def settle_us(self) -> int:
        """W."""

    @property
    def width_ms(self) -> int:
        """Of a time shard."""


@dataclass(slots=True, kw_only=True)
class Part:
    """Rows of one Cassandra partition, written together. `indexes` are their places in what was asked.

    size: bytes, about. remade: a late first try was replaced, and a copy of it may be read as well.
    """

    indexes: list[int] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    size: int = 0
    error: Failure | None = None
    remade: bool = False

    @property
    def is_full(self) -> bool:
        """Whether it takes no more."""
        return len(self.rows) >= PART_ROWS or self.size >= PART_BYTES


@dataclass(slots=True)
class WriterState:
    """What a writer remembers: whose turn it is, ids handed out, what it has registered."""

    turn: int = 0
    last_ticks: int = 0
    registered: set[Any] = field(default_factory=set)

    def next_ticks(self, now_us: int) -> int:
        """The time of the next id: now, or just after the last one."""
        self.last_ticks = max(now_us * 10, self.last_ticks + 1)
        return self.last_ticks

    def note_registered(self, new: set[Any]) -> None:
        """Register these no more."""
        if new and len(self.registered) > MAX_REGISTERED:
            self.registered.clear()  # registering again is harmless
        self.registered |= new


P = TypeVar("P", bound=Part)
Entry = TypeVar("Entry")
S = TypeVar("S", bound=WriterState)
AnySpec = TypeVar("AnySpec", bound=Spec)


class Writer(ABC, Generic[AnySpec, S, Entry, P]):
    """Writes what is asked in parts; each says what became of it."""

    rows_in_flight: ClassVar[int]
    copy_may: ClassVar[str]
    """What may happen to a copy that stays: "readers may have passed it"."""

    def __init__(self, spec: AnySpec, state: S) -> None:
        self.spec = spec
        self.state = state

    # ── what differs ──

    @abstractmethod
    def parts_of(self, entries: Sequence[Entry], now_us: int, bits: Bits) -> list[P]:
        """Give every entry its id, and group them by where they are stored."""

    @abstractmethod
    def insert(self, part: P) -> Operation[Any]:
        """Store the part's rows."""

    @abstractmethod
    def places(self, part: P) -> set[Any]:
        """What has to be registered before the part counts."""

    @abstractmethod
    def registrations(self, new: set[Any]) -> list[Operation[Any]]:
        """Register these."""

    @abstractmethod
    def judge(self, part: P, now_us: int) -> tuple[list[P], P | None]:
        """What counts, answered at `now_us`, or has failed; and what is too late and is to be made again."""

    @abstractmethod
    def successor(self, late: P, time_us: int, now_us: int) -> P:
        """An empty part for ids of that time, to go on with rows of a late one."""

    @abstractmethod
    def delete(self, late: P) -> Proto[None]:
        """Delete what has been made again.

        Raises:
            NotDone, OutcomeUnknown: both copies may be read.
        """

    def before(self, _: list[P]) -> Proto[Failure | None]:
        """Write what must be stored before any row of the parts; how that failed."""
        yield from ()
        return None

    def move(self, row: Any, id_: int, late: P, fresh: P) -> None:
        """Put a row of a late part into a fresh one, under another id."""
        fresh.rows.append(row._replace(id=id_))

    # ── what is the same ──

    def write(self, entries: Sequence[Entry]) -> Proto[list[P]]:
        """Write all; each part says what became of it."""
        done: list[P] = []
        for start, end in _stretches(entries, self.rows_in_flight):
            now_us = yield from Now()  # ids are made when they are written: W counts from them
            bits = yield from bits_for(end - start)
            parts = self.parts_of(entries[start:end], now_us, bits)
            if start:
                for part in parts:
                    part.indexes = [start + index for index in part.indexes]
            for group in _groups(parts):
                done += yield from self._write_group(group)
        return done

    def _write_group(self, group: list[P]) -> Proto[list[P]]:
        began_us = yield from Now()
        errors = yield from self._try(group)
        done: list[P] = []
        for part, error in zip(group, errors, strict=True):
            done += yield from self._finish(part, began_us, error)
        return done

    def _try(self, parts: list[P]) -> Proto[list[Failure | None]]:
        """One try of several parts side by side; for each, how it failed, or None when it is stored."""
        failed = yield from self.before(parts)
        if failed is not None:
            return [failed] * len(parts)
        operations: list[Operation[Any]] = []
        tried: list[tuple[int, set[Any]]] = []
        for part in parts:
            new = self.places(part) - self.state.registered
            tried.append((len(operations), new))
            operations += [self.insert(part), *self.registrations(new)]
        results = yield from Together(tuple(operations))
        ends = [start for start, _ in tried[1:]] + [len(results)]
        errors: list[Failure | None] = []
        for (start, new), end in zip(tried, ends, strict=True):
            errors.append(worst(results[start:end]))
            if errors[-1] is None:
                self.state.note_registered(new)
        return errors

    def _finish(
        self, part: P, began_us: int, error: Failure | None, remakes: int = REMAKES
    ) -> Proto[list[P]]:
        """Write a part until it is acknowledged in time, or say what is known about it."""
        part.error = yield from self._repeat(part, began_us, error)
        if part.error is not None:
            return [part]
        try:
            now_us = yield from Now(checked=True)
        except NotDone as exc:
            part.error = unknown("stored, but the cluster's time cannot be read to confirm it", exc)
            return [part]
        counted, late = self.judge(part, now_us)
        if late is None:
            return counted
        if not remakes:
            part.error = OutcomeUnknown("stored, but each time too late to count as acknowledged")
            return [part]
        return counted + (yield from self._remake(late, remakes - 1))

    def _repeat(self, part: P, began_us: int, error: Failure | None) -> Proto[Failure | None]:
        """Repeat the same ids until they are stored (None), refused for good, or W since it began is over."""
        pause_s = FIRST_PAUSE_S
        doubt: OutcomeUnknown | None = None
        while error is not None:
            doubt = error if isinstance(error, OutcomeUnknown) else doubt
            now_us = yield from Now()
            if isinstance(error, LASTING) or now_us + pause_s * 1e6 > began_us + self.spec.settle_us:
                return doubt or error
            yield from Pause(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            (error,) = yield from self._try([part])
        return None

    def _remake(self, late: P, remakes: int) -> Proto[list[P]]:
        """Write late rows again under new ids, and only then delete the old ones."""
        done: list[P] = []
        for fresh in (yield from self._renewed(late)):
            began_us = yield from Now()
            (error,) = yield from self._try([fresh])
            done += yield from self._finish(fresh, began_us, error, remakes)
        for part in done:
            if part.error is not None:
                part.error = unknown(f"an earlier try is stored, but {self.copy_may}", part.error)
        if all(part.error is None for part in done):
            with suppress(NotDone, OutcomeUnknown):  # else both copies may be read
                yield from self.delete(late)
        return done

    def _renewed(self, late: P) -> Proto[list[P]]:
        """The rows under new ids, each in the time shard of its id.

        Ids handed out lately may lie ahead of the clock, and so beyond the time shard of now.
        """
        now_us = yield from Now()
        bits = yield from bits_for(len(late.rows))
        parts: dict[int, P] = {}
        for place, (index, row) in enumerate(zip(late.indexes, late.rows, strict=True)):
            ticks = self.state.next_ticks(now_us)
            shard = ticks // 10 // (self.spec.width_ms * 1000)
            if shard not in parts:
                parts[shard] = self.successor(late, ticks // 10, now_us)
                parts[shard].remade = True
            parts[shard].indexes.append(index)
            self.move(row, ids.from_ticks(ticks, bits.at(place)), late, parts[shard])
        return list(parts.values())


def in_time(spec: Spec, id_: int, now_us: int) -> bool:
    """Whether an answer at `now_us` acknowledges a write: no reader can have passed the id yet."""
    return now_us <= ids.time_us(id_) + spec.settle_us


class Bits(bytes):
    """Random bits, 64 for each of several ids."""

    __slots__ = ()

    def at(self, place: int) -> int:
        """Those of one id."""
        return int.from_bytes(self[8 * place : 8 * place + 8], "big")


def bits_for(count: int) -> Proto[Bits]:
    """Random bits for each of `count` ids."""
    bits = yield from RandomBits(64 * count)
    return Bits(bits.to_bytes(8 * count, "big"))


def _stretches(entries: Sequence[Any], most: int) -> Iterator[tuple[int, int]]:
    """Where stretches begin and end, so that each is written in a fraction of W."""
    start = size = 0
    for index, entry in enumerate(entries):
        if index > start and (index - start == most or size + len(entry.body) > BYTES_IN_FLIGHT):
            yield start, index
            start, size = index, 0
        size += len(entry.body)
    if start < len(entries):
        yield start, len(entries)


def _groups(parts: list[P]) -> Iterable[list[P]]:
    """Parts to be written side by side, the earliest ids in front."""
    if len(parts) == 1:
        yield parts
        return
    group: list[P] = []
    size = 0
    for part in sorted(parts, key=lambda part: part.rows[0].id):
        if group and (len(group) == PARTS_IN_FLIGHT or size + part.size > BYTES_IN_FLIGHT):
            yield group
            group, size = [], 0
        group.append(part)
        size += part.size
    if group:
        yield group


def worst(results: list[Any]) -> Failure | None:
    """What is known of rows (the first result) written beside their registration.

    Not done only if the rows themselves certainly were not stored.
    """
    errors = [result for result in results if isinstance(result, Exception)]
    if not errors:
        return None
    if isinstance(results[0], NotDone | OutcomeUnknown):
        return results[0]
    return unknown("the rows may be stored, but not their registration", errors[0])


def unknown(text: str, cause: Exception) -> OutcomeUnknown:
    """An unknown outcome, and what made it so."""
    error = OutcomeUnknown(text)
    error.__cause__ = cause
    return error
