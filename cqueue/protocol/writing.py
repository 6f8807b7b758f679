"""Write new rows until they count: the part that sending messages and appending records share.

A reader may pass an id once W + ε are over. So a write counts only if its answer arrives within W of its ids'
time. Without an answer the same ids are written again, which is idempotent; after W the outcome is unknown.
If the answer comes too late, the rows are written again under new ids, and then the first copy is deleted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from cqueue import ids
from cqueue.errors import LASTING, NotDone, OutcomeUnknown, Unavailable, caused
from cqueue.protocol.spec import Proto
from cqueue.runtime import sequences
from cqueue.store.operations import Answers, Now, Operation, Pause, RandomBits, Together

PART_ROWS = 500
"""Rows of one part at most: a part is one single-partition batch, and a claim may take as many."""
PART_BYTES = 1 << 20
"""Bytes at which a part takes no further row; its last row may exceed them."""
PARTS_IN_FLIGHT = 32
"""Parts written side by side at most."""
BYTES_IN_FLIGHT = 4 << 20
"""Bytes written side by side at most: a slow network still answers them within a fraction of W."""
REMAKES = 5
"""Times that late rows are written again under new ids, before the outcome counts as unknown."""
FIRST_PAUSE_S = 0.01
"""Seconds to wait before the first repeat; each further wait is twice as long."""
LONGEST_PAUSE_S = 0.5
"""Seconds to wait between repeats at most: a quarter of the default W, so that several fit into it."""
MAX_REGISTERED = 20_000
"""Registrations that a writer remembers, a few MB; beyond that it forgets all and registers again."""

Failure = NotDone | OutcomeUnknown


class Spec(Protocol):
    """The settings of a queue or a log that decide when a write counts."""

    @property
    def settle_us(self) -> int:
        """Return W in µs."""

    @property
    def width_ms(self) -> int:
        """Return the width of a time shard in ms."""


@dataclass(slots=True, kw_only=True)
class Part:
    """Rows of one Cassandra partition that are written together.

    indexes: the rows' places among the entries. size: approximate bytes. error: of all tries so far.
    is_refused: the last try was refused for good. began_us: when the first try began. age_us: for how long
    the answer has waited for those of other parts. late: the earlier try that the rows replace, of which a
    copy may be read as well. late_places: the rows' places in it.
    """

    indexes: list[int] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    size: int = 0
    error: Failure | None = None
    is_refused: bool = False
    began_us: int = 0
    age_us: int = 0
    late: Self | None = None
    late_places: list[int] = field(default_factory=list)

    @property
    def remade(self) -> bool:
        """Return whether the rows were stored before, under other ids."""
        return self.late is not None

    @property
    def is_full(self) -> bool:
        """Return whether the part takes no further row."""
        return len(self.rows) >= PART_ROWS or self.size >= PART_BYTES


@dataclass(slots=True)
class WriterState:
    """A writer's state: the shard or partition in turn, the last id's time, and registrations made."""

    turn: int = 0
    last_ticks: int = 0
    registered: set[Any] = field(default_factory=set)

    def next_ticks(self, now_us: int) -> int:
        """Return the time of the next id: now, or just after the last one."""
        self.last_ticks = max(now_us * 10, self.last_ticks + 1)
        return self.last_ticks

    def note_registered(self, new: set[Any]) -> None:
        """Remember registrations that are stored, so that they are not written again."""
        if new and len(self.registered) > MAX_REGISTERED:
            self.registered.clear()  # registering again is harmless
        self.registered |= new


P = TypeVar("P", bound=Part)
Entry = TypeVar("Entry")
S = TypeVar("S", bound=WriterState)
AnySpec = TypeVar("AnySpec", bound=Spec)


class Writer(ABC, Generic[AnySpec, S, Entry, P]):
    """Writes entries in parts; each part tells its outcome."""

    rows_in_flight: ClassVar[int]
    """Entries that are written in one stretch at most, so that a stretch ends within a fraction of W."""
    copy_may: ClassVar[str]
    """The end of an error's text: why a stored copy may not be read, e.g. "readers may have passed it"."""

    def __init__(self, spec: AnySpec, state: S) -> None:
        self.spec = spec
        self.state = state

    # ── what subclasses define ──

    @abstractmethod
    def parts_of(self, entries: Sequence[Entry], now_us: int, bits: Bits) -> list[P]:
        """Give each entry its id, and group entries into parts."""

    @abstractmethod
    def insert(self, part: P) -> Operation[Any]:
        """Return the operation that stores the part's rows."""

    @abstractmethod
    def places(self, part: P) -> set[Any]:
        """Return what has to be registered before the part counts."""

    @abstractmethod
    def registrations(self, new: set[Any]) -> list[Operation[Any]]:
        """Return the operations that register these places."""

    @abstractmethod
    def judge(self, part: P, now_us: int) -> tuple[list[P], P | None]:
        """Split a part that was answered at `now_us`: what counts or has failed, and what to write again."""

    def settled(self, done: list[P], late: list[P]) -> tuple[list[P], list[P]]:
        """Split parts when all are answered: what is done, and what to write again, in this order."""
        return done, late

    @abstractmethod
    def successor(self, late: P, time_us: int, now_us: int) -> P:
        """Return an empty part for ids of `time_us`, to take rows of a late part."""

    @abstractmethod
    def delete(self, late: P) -> Proto[None]:
        """Delete the first copy of rows that were written again.

        Raises:
            NotDone, OutcomeUnknown: both copies may be read.
        """

    def before(self, _: list[P]) -> Proto[Failure | None]:
        """Write what must be stored before any row of the parts; return the failure, if any."""
        yield from ()
        return None

    def move(self, row: Any, id_: int, late: P, renewed: P) -> None:
        """Copy a row of a late part into a new part, under another id."""
        renewed.rows.append(row._replace(id=id_))

    def register(self, parts: list[P]) -> Proto[Failure | None]:
        """Register the places of these parts before anything is written there."""
        new = set[Any]().union(*map(self.places, parts)) - self.state.registered
        failed = worst((yield from Together(tuple(self.registrations(new))))) if new else None
        if failed is None:
            self.state.note_registered(new)
        return failed

    # ── writing ──

    def write(self, entries: Sequence[Entry]) -> Proto[list[P]]:
        """Write all entries; return parts that each tell their outcome."""
        done: list[P] = []
        for start, end in _stretches(entries, self.rows_in_flight):
            now_us = yield from Now()  # W counts from the ids, so they are made just before the write
            bits = yield from bits_for(end - start)
            parts = self.parts_of(entries[start:end], now_us, bits)
            if start:
                for part in parts:
                    part.indexes = [start + index for index in part.indexes]
                if (yield from Pause(0)):
                    for part in parts:
                        part.error = Unavailable("the call's time is over, and this was not written any more")
                    done += parts
                    continue
            done += yield from self.write_parts(parts)
        return done

    def write_parts(self, parts: list[P], remakes: int = REMAKES) -> Proto[list[P]]:
        """Write parts until each has its outcome; return parts that each tell it.

        Parts that fail are repeated together, once all have been tried, each until W after its first try, and
        none beyond the time of the call.
        """
        done: list[P] = []
        late: list[P] = []
        pause_s = FIRST_PAUSE_S
        while parts:
            failed: list[P] = []
            earliest_first = sorted(parts, key=lambda part: part.rows[0].id)
            for group in sequences.parts(earliest_first, PARTS_IN_FLIGHT):
                stored, refused = yield from self._try(group)
                counted, behind = yield from self._judged(stored)
                done, late, failed = done + counted, late + behind, failed + refused
            latest_us = (yield from Now()) + pause_s * 1e6 - self.spec.settle_us
            parts = [part for part in failed if not part.is_refused and part.began_us >= latest_us]
            done += [part for part in failed if part.is_refused or part.began_us < latest_us]
            if parts and (yield from Pause(pause_s)):
                done, parts = done + parts, []
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        done, late = self.settled(done, late)
        for part in late:
            done += yield from self._remake(part, remakes)
        return done

    def _try(self, parts: list[P]) -> Proto[tuple[list[P], list[P]]]:
        """Try several parts side by side; return those that are stored, and those that failed."""
        now_us = yield from Now()
        errors = yield from self._insert(parts)
        for part, error in zip(parts, errors, strict=True):
            part.began_us = part.began_us or now_us
            part.is_refused = isinstance(error, LASTING)
            if not (isinstance(error, NotDone) and isinstance(part.error, OutcomeUnknown)):
                part.error = error
        return [part for part in parts if part.error is None], [part for part in parts if part.error]

    def _insert(self, parts: list[P]) -> Proto[list[Failure | None]]:
        """Insert and register parts side by side; return each part's failure, or None if it is stored."""
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
        ages_us = results.ages_us if isinstance(results, Answers) else [0] * len(results)
        ends = [start for start, _ in tried[1:]] + [len(results)]
        errors: list[Failure | None] = []
        for part, (start, new), end in zip(parts, tried, ends, strict=True):
            part.age_us = min(ages_us[start:end])
            errors.append(worst(results[start:end]))
            if errors[-1] is None:
                self.state.note_registered(new)
        return errors

    def _judged(self, stored: list[P]) -> Proto[tuple[list[P], list[P]]]:
        """Split parts that were just answered: what counts or has failed, and what to write again."""
        counted: list[P] = []
        late: list[P] = []
        try:
            now_us = (yield from Now(checked=True)) if stored else 0
        except NotDone as exc:
            for part in stored:
                unconfirmed = OutcomeUnknown("stored, but the cluster's time cannot be read to confirm it")
                part.error = caused(unconfirmed, exc)
            return stored, []
        for part in stored:
            kept, behind = self.judge(part, now_us - part.age_us)
            counted += kept
            late += [] if behind is None else [behind]
        return counted, late

    def _remake(self, late: P, remakes: int) -> Proto[list[P]]:
        """Write late rows again under new ids, and only then delete the first copy."""
        if not remakes:
            late.error = OutcomeUnknown("stored, but each time too late to count as acknowledged")
            return [late]
        renewed = yield from self._renewed(late)
        done = yield from self.write_parts(renewed, remakes - 1)
        for part in done:
            if part.error is not None:
                earlier = OutcomeUnknown(f"an earlier try is stored, but {self.copy_may}")
                part.error = caused(earlier, part.error)
        if all(part.error is None for part in done):
            with suppress(NotDone, OutcomeUnknown):  # if the delete fails, both copies may be read
                yield from self.delete(late)
        return done

    def _renewed(self, late: P) -> Proto[list[P]]:
        """Return the rows under new ids, each in the time shard of its id.

        The last ids of this writer may lie ahead of the clock, so new ids may fall into a later time shard.
        """
        now_us = yield from Now()
        bits = yield from bits_for(len(late.rows))
        parts: dict[int, P] = {}
        for place, (index, row) in enumerate(zip(late.indexes, late.rows, strict=True)):
            ticks = self.state.next_ticks(now_us)
            shard = ticks // 10 // (self.spec.width_ms * 1000)
            if shard not in parts:
                parts[shard] = self.successor(late, ticks // 10, now_us)
                parts[shard].late = late
            parts[shard].late_places.append(place)
            parts[shard].indexes.append(index)
            self.move(row, ids.from_ticks(ticks, bits.at(place)), late, parts[shard])
        return list(parts.values())


def in_time(spec: Spec, id_: int, now_us: int) -> bool:
    """Return whether an answer at `now_us` acknowledges a write: no reader can have passed the id yet."""
    return now_us <= ids.time_us(id_) + spec.settle_us


class Bits(bytes):
    """Random bits, 64 for each of several ids."""

    __slots__ = ()

    def at(self, place: int) -> int:
        """Return the bits of the id at this place."""
        return int.from_bytes(self[8 * place : 8 * place + 8], "big")


def bits_for(count: int) -> Proto[Bits]:
    """Return random bits for `count` ids."""
    bits = yield from RandomBits(64 * count)
    return Bits(bits.to_bytes(8 * count, "big"))


def _stretches(entries: Sequence[Any], most: int) -> Iterator[tuple[int, int]]:
    """Split entries into stretches (start, end) that are each written within a fraction of W."""
    sizes = [len(entry.body) + (_size(entry.headers) if entry.headers else 0) for entry in entries]
    start = size = 0
    if len(entries) > most or sum(sizes) > BYTES_IN_FLIGHT:
        for index, its in enumerate(sizes):
            if index > start and (index - start == most or size + its > BYTES_IN_FLIGHT):
                yield start, index
                start, size = index, 0
            size += its
    if start < len(entries):
        yield start, len(entries)


def _size(headers: Mapping[str, str]) -> int:
    return sum(map(len, chain(*headers.items())))


def worst(results: list[Any]) -> Failure | None:
    """Return the failure of rows (the first result) that were written beside their registration.

    The failure is `NotDone` only if the rows were certainly not stored.
    """
    errors = [result for result in results if isinstance(result, Exception)]
    if not errors:
        return None
    if isinstance(results[0], NotDone | OutcomeUnknown):
        return results[0]
    return caused(OutcomeUnknown("the rows may be stored, but not their registration"), errors[0])


def not_written(text: str, failed: Failure) -> Failure:
    """Return the error of rows that were not written, because `failed` stopped what comes before them."""
    if isinstance(failed, LASTING):
        return failed
    return caused(NotDone(text), failed)
