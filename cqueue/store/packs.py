"""Packs: messages that were sent together, in one row.

A row costs Cassandra much the same whether it holds 200 bytes or 20,000: to write, to read, and to delete. So
messages of one flush that differ in nothing but their bodies share a row. Which row an id stands in follows
from the id (cqueue.ids), so nobody above this module knows of packs but the one who makes the ids.

A pack's row has the id of its first message; its body is the bodies' lengths and the bodies. What all its
messages have in common stands in the row's other columns. Its column `gone` says which messages were deleted:
a set of stretches, first * 256 + last. Everything about a message stays as if it had a row of its own:

*Inserting* a pack is one row written at the time of its ids, as each of its messages would be.
*Deleting* messages adds to `gone` under the same time, or, if nothing is left, deletes the row one µs later.
Both only ever take away, in any order and however often, and what they take away stays away: a set of cells
that nobody overwrites, and a row's tombstone above them and above the insert.
*A message is live* if its pack's row is, and `gone` does not have its place. Replicas that know different
parts of `gone` add up in a quorum read, as their tombstones would.

Who deletes the last of a pack's messages may not know that the others are gone. Then the row stays, with
nothing in it, until its wide row is retired.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from threading import Lock
from typing import Any, Final, NamedTuple

from cqueue import ids
from cqueue.store.operations import MessageRow, WideRow

PACK: Final = 1
"""The format of a row that is a pack, for those who look at the table; 0 is a single message."""
REMEMBERED: Final = 20_000
"""Packs of which a process knows what is gone."""

EVERY: Final = 1 << 128
"""Above every id."""

_LENGTHS = [struct.Struct(f">{count}H") for count in range(ids.MOST_PACKED + 1)]
_new_tuple = tuple.__new__
_STRETCH = 256

Row = tuple[Any, ...]
"""Columns as MessageRow has them, and `gone`."""


def joined(rows: Sequence[MessageRow]) -> list[MessageRow]:
    """Rows as they are stored: those with packed ids become one for each pack.

    Raises:
        ValueError: some of a pack's messages are missing.
    """
    stored: list[MessageRow] = []
    at = 0
    while at < len(rows):
        first = rows[at]
        if not ids.is_packed(first.id):
            stored.append(first)
            at += 1
            continue
        count = ids.pack_size(first.id)
        members = rows[at : at + count]
        pack = ids.pack_of(first.id)
        if [row.id for row in members] != list(range(pack, pack + count)):
            raise ValueError("A pack is written with all of its messages, in order.")
        stored.append(_pack(members))
        at += count
    return stored


def _pack(members: Sequence[MessageRow]) -> MessageRow:
    bodies: list[Any] = [row[2] for row in members]
    body = _LENGTHS[len(bodies)].pack(*map(len, bodies)) + b"".join(bodies)
    return members[0]._replace(body=body, format=PACK)


def bodies_of(id_: int, body: bytes) -> list[bytes]:
    """The bodies of a pack's messages, by their places."""
    lengths = _LENGTHS[ids.pack_size(id_)]
    ends = accumulate(lengths.unpack_from(body), initial=lengths.size)
    return [body[start:end] for start, end in pairwise(ends)]


def places_gone(gone: Iterable[int] | None) -> set[int]:
    """The places that a `gone` says."""
    places: set[int] = set()
    for stretch in gone or ():
        places.update(range(stretch // _STRETCH, stretch % _STRETCH + 1))
    return places


def stretches(places: Iterable[int]) -> list[int]:
    """A `gone` that says these places."""
    found: list[int] = []
    first = last = -2
    for place in sorted(places):
        if place != last + 1:
            if first >= 0:
                found.append(first * _STRETCH + last)
            first = place
        last = place
    if first >= 0:
        found.append(first * _STRETCH + last)
    return found


def lowest(after: int) -> int:
    """Above which id to read rows, so that the row of the first message above `after` is met."""
    if ids.is_packed(after) and ids.place_in_pack(after) < ids.pack_size(after) - 1:
        return ids.pack_of(after) - 1
    return after


def last_in(row_id: int) -> int:
    """The id of the last message that stands in the row with this id."""
    return row_id + ids.pack_size(row_id) - 1 if ids.is_packed(row_id) else row_id


def row_ids(some: Iterable[int]) -> list[int]:
    """The ids of the rows in which these messages stand, each once, in order."""
    return sorted({ids.pack_of(id_) if ids.is_packed(id_) else id_ for id_ in some})


def messages(rows: Iterable[Row], after: int = ids.START, upto: int = EVERY) -> Iterator[MessageRow]:
    """The live messages of stored rows, with after < id <= upto."""
    for row in rows:
        if not ids.is_packed(row[1]):
            if after < row[1] <= upto:
                yield MessageRow._make(row[:12])
        elif row[11] is not None:  # else it has nothing but `gone`: marks that came after its tombstone went
            yield from _members(row, after, upto)


def _members(row: Row, after: int, upto: int) -> Iterator[MessageRow]:
    priority, id_, body, *others, _, gone = row
    shared, new, dead = (*others, 0), _new_tuple, places_gone(gone)
    bodies = enumerate(bodies_of(id_, body), id_)
    if id_ > after and id_ + 255 <= upto and not dead:
        for one, body in bodies:
            yield new(MessageRow, (priority, one, body, *shared))
        return
    for one, body in bodies:
        if after < one <= upto and one - id_ not in dead:
            yield new(MessageRow, (priority, one, body, *shared))


def live_ids(rows: Iterable[tuple[int, int | None, Any]], after: int, upto: int) -> Iterator[int]:
    """The ids of live messages of stored rows, given as id, format and `gone`, with after < id <= upto."""
    for id_, format_, gone in rows:
        if format_ is None:
            continue
        dead = places_gone(gone)
        for one in range(id_, last_in(id_) + 1):
            if after < one <= upto and one - id_ not in dead:
                yield one


class Deletion(NamedTuple):
    """What deletes messages. rows: the ids of whole rows; marks: of other packs, by their ids, the places."""

    rows: list[int]
    marks: dict[int, set[int]]


class Known:
    """What this process knows to be gone of packs of which something is left. Thread-safe.

    Whoever deletes the last message of a pack so knows that the row can go. Forgetting costs nothing but
    that such a row stays.
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._gone: dict[tuple[WideRow, int, int], set[int]] = {}

    def learn(self, wide_row: WideRow, priority: int, pack: int, places: set[int]) -> None:
        """These places are gone for certain."""
        with self._mutex:
            if len(self._gone) >= REMEMBERED:
                self._gone.clear()
            key = (wide_row, priority, pack)
            self._gone[key] = self._gone.get(key, set()) | places

    def forget(self, wide_row: WideRow, priority: int, packs: Iterable[int]) -> None:
        """These rows are gone."""
        with self._mutex:
            for pack in packs:
                self._gone.pop((wide_row, priority, pack), None)

    def deletion(self, wide_row: WideRow, priority: int, some: Iterable[int]) -> Deletion:
        """How these messages are deleted."""
        ordered = sorted(set(some))
        plan = Deletion([], {})
        at = 0
        while at < len(ordered):
            id_ = ordered[at]
            if not ids.is_packed(id_):
                plan.rows.append(id_)
                at += 1
                continue
            pack, end = ids.pack_of(id_), at
            while end < len(ordered) and ids.pack_of(ordered[end]) == pack:
                end += 1
            places = {one - pack for one in ordered[at:end]}
            gone = self._gone.get((wide_row, priority, pack)) or set()
            if len(places | gone) == ids.pack_size(id_):
                plan.rows.append(pack)
            else:
                plan.marks[pack] = places
            at = end
        return plan
