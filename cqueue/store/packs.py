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
nothing in it, until somebody reads it, who deletes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from threading import Lock
from typing import Any, Final, NamedTuple

from cqueue import ids
from cqueue.store.cells import Unreadable
from cqueue.store.operations import MessageRow, WideRow

SINGLE: Final = 0
"""The format of a row that is one message."""
PACK: Final = 1
"""The format of a row that is a pack."""
LARGEST_BODY: Final = 1 << 20
"""Bytes of one body, as far as a message's row may claim."""
LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999 in ms since 1970: later times are no times."""
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
    """The bodies of a pack's messages, by their places; of a body that `damage` finds nothing wrong with."""
    lengths = _LENGTHS[ids.pack_size(id_)]
    ends = accumulate(lengths.unpack_from(body), initial=lengths.size)
    return [body[start:end] for start, end in pairwise(ends)]


def gone_mask(marks: Iterable[int] | None) -> int:
    """The places that a `gone` says, as a number with these bits."""
    mask = 0
    for mark in marks or ():
        first, last = divmod(mark, _STRETCH)
        mask |= (1 << last + 1) - (1 << first) if 0 <= first <= last else 0
    return mask


def marks_of(mask: int) -> set[int]:
    """A `gone` that says these places, in as few stretches as there are."""
    marks: set[int] = set()
    first = 0
    while mask >> first:
        first += (mask >> first & -(mask >> first)).bit_length() - 1  # the lowest bit from here on
        beyond = mask >> first
        length = (~beyond & beyond + 1).bit_length() - 1  # of the stretch that begins there
        marks.add(first * _STRETCH + first + length - 1)
        first += length
    return marks


def full_mask(id_: int) -> int:
    """All places of the pack of an id."""
    return (1 << ids.pack_size(id_)) - 1


def lowest(after: int) -> int:
    """Above which id to read rows, so that the row of the first message above `after` is met."""
    if ids.is_packed(after) and ids.place_in_pack(after) < ids.pack_size(after) - 1:
        return ids.pack_of(after) - 1
    return after


def last_in(row_id: int) -> int:
    """The id of the last message that stands in the row with this id."""
    whole = ids.is_packed(row_id) and not ids.place_in_pack(row_id)
    return row_id + ids.pack_size(row_id) - 1 if whole else row_id


def row_ids(some: Iterable[int]) -> list[int]:
    """The ids of the rows in which these messages stand, each once, in order."""
    return sorted({ids.pack_of(id_) if ids.is_packed(id_) else id_ for id_ in some})


def is_partial(row: Row) -> bool:
    """Whether a row is no message until the rest of it comes, if it ever does.

    It has nothing but `gone`: marks that came after its tombstone was forgotten. Or it is not acknowledged
    yet, and the read repair of a read of ids brought its format, and no other column. A single row that lacks
    its body alone is damaged.
    """
    _, id_, body, size, *_, sent_at, _, format_, _ = row
    nothing = body is None and size is None and sent_at is None
    return format_ is None or nothing or (body is None and ids.is_packed(id_))


def damage(row: Row) -> str | None:
    """What keeps a row that is not partial from being read; None if nothing does."""
    _, id_, body, size, _, _, _, _, _, sent_at, expires, _, _ = row
    mark = id_damage((id_, row[11], row[12]))
    if mark is not None:
        return mark
    if (body is None) == (size is None):
        return "it has neither a body nor the size of one" if body is None else "it has a body and a size"
    if size is not None and not 0 < size <= LARGEST_BODY:
        return f"the size of its body is {size}"
    if sent_at is None or not (0 <= sent_at <= LAST_MS and 0 <= (expires or 0) <= LAST_MS):
        return f"sent_at is {sent_at}, expires {expires}"
    if any(type(text) is Unreadable for text in row[4:9]):
        return "its headers, codec, task, key or trigger hold bytes that are no text"
    return _length_damage(id_, body) if body is not None and ids.is_packed(id_) else None


def _length_damage(id_: int, body: bytes) -> str | None:
    lengths = _LENGTHS[ids.pack_size(id_)]
    if len(body) < lengths.size:
        return "its body is too short for the lengths of its messages"
    if lengths.size + sum(lengths.unpack_from(body)) != len(body):
        return "the lengths of its messages do not add up to its body"
    return None


def id_damage(row: IdRow) -> str | None:
    """The part of `damage` that shows without the body and the other columns."""
    id_, format_, gone = row
    if format_ not in {SINGLE, PACK}:
        return f"its format is {format_}; perhaps a newer version of cqueue wrote it"
    packed = ids.is_packed(id_)
    if packed != (format_ == PACK):
        return "its format is not that of its id"
    if packed and ids.place_in_pack(id_):
        return "its id is not that of the first message of a pack"
    if not gone:
        return None
    size = ids.pack_size(id_) if packed else 0
    if any(mark < 0 or not mark // _STRETCH <= mark % _STRETCH < size for mark in gone):
        return "it marks messages as gone that it does not have"
    return None


_NOTHING = (None,) * 6


def _is_plain(row: Row) -> bool:
    """Whether it is one message with nothing but a small body, as most are that stand alone."""
    _, id_, body, *more, sent_at, expires, format_, gone = row
    if body is None or sent_at is None or gone or expires is not None or format_ != SINGLE:
        return False
    return tuple(more) == _NOTHING and 0 <= sent_at <= LAST_MS and not ids.is_packed(id_)


class Read(NamedTuple):
    """Live messages, and the rows that could not be read: why, by the id of the row."""

    messages: list[MessageRow]
    damaged: dict[int, str]


def messages(rows: Iterable[Row], after: int = ids.START, upto: int = EVERY) -> Read:
    """The live messages of stored rows, with after < id <= upto."""
    found, damaged = list[MessageRow](), dict[int, str]()
    for row in rows:
        id_ = row[1]
        if not _is_plain(row):
            if is_partial(row):
                continue
            if (reason := damage(row)) is not None:
                damaged[id_] = reason
                continue
            if ids.is_packed(id_):
                found += _members(row, after, upto)
                continue
        if after < id_ <= upto:
            found.append(MessageRow._make(row[:12]))
    return Read(found, damaged)


def _members(row: Row, after: int, upto: int) -> Iterator[MessageRow]:
    priority, id_, body, *others, _, gone = row
    bodies, dead = bodies_of(id_, body), gone_mask(gone)
    places: Iterable[int] = range(len(bodies))
    if id_ <= after or last_in(id_) > upto or dead:
        places = [at for at in places if after < id_ + at <= upto and not dead >> at & 1]
        bodies = [bodies[at] for at in places]
    # Of what most consumers receive, so without a step of Python's for each.
    shared = map(repeat, (*others, 0))
    columns = zip(repeat(priority), map(id_.__add__, places), bodies, *shared)
    return map(_new_tuple, repeat(MessageRow), columns)


IdRow = tuple[int, int | None, Any]
"""Id, format, and `gone`."""


def live_ids(rows: Iterable[IdRow], after: int, upto: int) -> Iterator[int]:
    """The ids of live messages of stored rows, with after < id <= upto; of a damaged row all of its ids."""
    for row in rows:
        id_, format_, gone = row
        if format_ is not None:
            dead, last = 0 if gone and id_damage(row) else gone_mask(gone), last_in(id_)
            if after < id_ and last <= upto and not dead:
                yield from range(id_, last + 1)
                continue
            for one in range(id_, last + 1):
                if after < one <= upto and not dead >> one - id_ & 1:
                    yield one


def wholly_gone(rows: Iterable[IdRow]) -> list[int]:
    """The ids of rows of which no message is left."""
    return [row[0] for row in rows if row[2] and _is_wholly_gone(row)]


def _is_wholly_gone(row: IdRow) -> bool:
    id_, format_, gone = row
    if format_ is not None and id_damage(row):
        return False
    return ids.is_packed(id_) and gone_mask(gone) & full_mask(id_) == full_mask(id_)


class Deletion(NamedTuple):
    """What deletes messages. rows: the ids of whole rows; marks: of other packs, by their ids, a mask."""

    rows: list[int]
    marks: dict[int, int]


class Known:
    """What this process knows to be gone of packs of which something is left. Thread-safe.

    Whoever deletes the last message of a pack so knows that the row can go. Forgetting costs nothing but
    that such a row stays.
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._gone: dict[tuple[WideRow, int, int], int] = {}

    def learn(self, wide_row: WideRow, priority: int, pack: int, mask: int) -> None:
        """These places are gone for certain."""
        key = (wide_row, priority, pack)
        with self._mutex:
            before = self._gone.pop(key, 0)
            if len(self._gone) >= REMEMBERED:
                del self._gone[next(iter(self._gone))]  # the one that nobody has touched for longest
            self._gone[key] = before | mask

    def forget(self, wide_row: WideRow, priority: int, packs: Iterable[int]) -> None:
        """These rows are gone."""
        with self._mutex:
            for pack in packs:
                self._gone.pop((wide_row, priority, pack), None)

    def deletion(self, wide_row: WideRow, priority: int, some: Sequence[int]) -> Deletion:
        """How these messages are deleted."""
        plan, masks = Deletion([], {}), dict[int, int]()
        for first, count in ids.stretches(some):
            if ids.is_packed(first):
                pack = ids.pack_of(first)
                masks[pack] = masks.get(pack, 0) | (1 << count) - 1 << first - pack
            else:
                plan.rows.append(first)
        for pack, mask in masks.items():
            gone, full = self._gone.get((wide_row, priority, pack), 0), full_mask(pack)
            if (mask | gone) & full == full:
                plan.rows.append(pack)
            else:
                plan.marks[pack] = mask
        return plan
