"""Shared by sending to queues and appending to logs: results in which each entry has an id or an error."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Generic, TypeVar

from cqueue.errors import AppendUnknown, BadInput, BatchTooLarge, CqueueError, NotDone, SendUnknown, caused
from cqueue.message import MAX_BATCH
from cqueue.protocol.writing import Part, WriterState

Id = TypeVar("Id")
P = TypeVar("P", bound=Part)
S = TypeVar("S", bound=WriterState)
Entry = TypeVar("Entry")
Checked = TypeVar("Checked")
R = TypeVar("R")

Failed = list[tuple[int, CqueueError]]
"""(index, error) of each entry that is not stored, or may not be stored."""


class Result(Generic[P, Id]):
    """The result of storing entries together. ids_of: returns the ids of a part's rows, in order."""

    def __init__(self, size: int, parts: list[P], failed: Failed, ids_of: Callable[[P], list[Id]]) -> None:
        self._size = size
        self._parts = parts
        self._ids_of = ids_of
        self.failed = sorted(failed, key=lambda pair: pair[0])
        self.remade = sum(len(part.rows) for part in parts if part.remade)

    @cached_property
    def ids(self) -> list[Id | None]:
        """The id of each entry, in order; None for an entry that failed."""
        found: list[Id | None] = [None] * self._size
        for part in self._parts:
            if part.error is None:
                for index, id_ in zip(part.indexes, self._ids_of(part), strict=True):
                    found[index] = id_
        return found


class States(Generic[S]):
    """A pool of writer states, one for each concurrent call: calls must not share ids or shards' turns."""

    def __init__(self, make: Callable[[int], S]) -> None:
        self._make = make
        self._free: list[S] = []

    def run(self, act: Callable[[S], R]) -> R:
        """Call `act` with a state that no other call uses meanwhile."""
        try:
            state = self._free.pop()
        except IndexError:
            state = self._make(random.randrange(1 << 16))
        try:
            return act(state)
        finally:
            self._free.append(state)


def listed(entries: Iterable[Any], kind: type, call: str) -> list[Any]:
    """Return the entries of a call as a list. kind: their class; call: the method's name, for errors.

    Raises:
        BatchTooLarge: there are more than 10,000 entries.
        BadInput: a single entry was given, a text or a mapping, or no iterable.
    """
    if isinstance(entries, kind | str | bytes | Mapping) or not isinstance(entries, Iterable):
        plural = f"{kind.__name__.lower()}s"
        raise BadInput(f"{call} takes several {plural}, not one {type(entries).__name__}")
    found = entries if isinstance(entries, list) else list(entries)
    if len(found) > MAX_BATCH:
        raise BatchTooLarge(f"{len(found):,} entries; at most {MAX_BATCH:,} in one {call}")
    return found


def checked(
    entries: Sequence[Entry], check: Callable[[Entry], Checked]
) -> tuple[list[Checked], Sequence[int], Failed]:
    """Check entries. Return the checked ones, their indexes, and the errors of the others."""
    with suppress(BadInput):
        return [check(entry) for entry in entries], range(len(entries)), []
    good: list[Checked] = []
    places: list[int] = []
    failed: Failed = []
    for place, entry in enumerate(entries):
        try:
            good.append(check(entry))
            places.append(place)
        except BadInput as exc:
            failed.append((place, exc))
    return good, places, failed


def failures(
    part: P, ids_of: Callable[[P], list[Any]], unknown: type[SendUnknown | AppendUnknown], what: str
) -> Failed:
    """Return a failed part's error for each of its entries; an unknown outcome names the ids in question."""
    error = part.error
    if isinstance(error, NotDone):
        return [(index, error) for index in part.indexes]
    text = f"it is not known whether the {what} was stored: {error}"
    tries = zip(part.indexes, _ids_of_tries(part, ids_of), strict=True)
    return [(index, caused(unknown(text, ids), error)) for index, ids in tries]


def _ids_of_tries(part: P, ids_of: Callable[[P], list[Id]]) -> list[list[Id]]:
    """Return for each row the ids under which it was written, the first one first."""
    ids = ids_of(part)
    if part.late is None:
        return [[id_] for id_ in ids]
    earlier = _ids_of_tries(part.late, ids_of)
    return [[*earlier[place], id_] for place, id_ in zip(part.late_places, ids, strict=True)]
