"""Packs: messages that were sent together, in one row.

A row of 200 bytes costs Cassandra about as much as one of 20,000: to write, to read, and to delete. So
messages of one flush that differ only in their bodies share a row. A message's id says which row it stands in
(cqueue.ids). So only the store and the code that makes ids know of packs.

A pack's row has the id of its first message. Its body holds the lengths of all bodies, then the bodies. The
other columns hold what all messages have in common. The column `gone` says which messages were deleted, as a
set of stretches of places, each `first * 256 + last`. Each message behaves as if it had a row of its own:

*Inserting* a pack is one row written at the time of its ids, as each of its messages would be.
*Deleting* messages adds to `gone` under the same time, or, if no message is left, deletes the row one µs
later. Both only take messages away. They may be repeated, and may arrive in any order: nobody overwrites
cells of the set, and the row's tombstone lies above them and above the insert.
*A message is live* if its pack's row is live, and `gone` lacks its place. A quorum read merges the different
parts of `gone` that replicas know, as it merges tombstones.

A client that deletes the last message of a pack may not know that the others are gone. Then an empty row
stays, until its next reader deletes it.
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
"""Bytes of one body, at most; a row that says more is damaged."""
LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999 in ms since 1970; a later time is damage, as `datetime` cannot hold it."""
REMEMBERED: Final = 20_000
"""Packs of which a process remembers the deleted places: a few MB. A forgotten pack costs one empty row."""

EVERY: Final = 1 << 128
"""Above every id."""

_LENGTHS = [struct.Struct(f">{count}H") for count in range(ids.MOST_PACKED + 1)]
_new_tuple = tuple.__new__
_STRETCH = 256

Row = tuple[Any, ...]
"""The columns of MessageRow, then `gone`."""


def joined(rows: Sequence[MessageRow]) -> list[MessageRow]:
    """Join messages with packed ids into one row for each pack; leave other messages as they are.

    Raises:
        ValueError: a pack is not complete and in order.
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
    """Split a pack's body into the bodies of its messages, by place. `damage` must have found it sound."""
    lengths = _LENGTHS[ids.pack_size(id_)]
    ends = accumulate(lengths.unpack_from(body), initial=lengths.size)
    return [body[start:end] for start, end in pairwise(ends)]


def gone_mask(marks: Iterable[int] | None) -> int:
    """Turn the column `gone` into a bit mask of deleted places."""
    mask = 0
    for mark in marks or ():
        first, last = divmod(mark, _STRETCH)
        mask |= (1 << last + 1) - (1 << first) if 0 <= first <= last else 0
    return mask


def marks_of(mask: int) -> set[int]:
    """Turn a bit mask of places into the column `gone`, with as few stretches as possible."""
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
    """Return the bit mask of all places in the pack of this id."""
    return (1 << ids.pack_size(id_)) - 1


def lowest(after: int) -> int:
    """Return the id above which to read rows, so that the row of the first message above `after` is read."""
    if ids.is_packed(after) and ids.place_in_pack(after) < ids.pack_size(after) - 1:
        return ids.pack_of(after) - 1
    return after


def last_in(row_id: int) -> int:
    """Return the id of the last message in the row with this id."""
    whole = ids.is_packed(row_id) and not ids.place_in_pack(row_id)
    return row_id + ids.pack_size(row_id) - 1 if whole else row_id


def row_ids(some: Iterable[int]) -> list[int]:
    """Return the ids of the rows of these messages, each once, in order."""
    return sorted({ids.pack_of(id_) if ids.is_packed(id_) else id_ for id_ in some})


def is_partial(row: Row) -> bool:
    """Return whether a row is incomplete, and so is no message unless the rest arrives.

    Such a row has only `gone`: marks that arrived after its tombstone was forgotten. Or its insert is not
    acknowledged yet, and the read repair of a read of ids brought its format, and no other column. A row that
    lacks anything else is damaged.
    """
    *_, format_, gone = row
    return has_only_marks(format_, gone) or all(value is None for value in row[2:11])


def has_only_marks(format_: int | None, gone: Any) -> bool:
    """Return whether a row has nothing but `gone`, as far as a read of ids shows it."""
    return format_ is None and bool(gone)


def damage(row: Row) -> str | None:
    """Return why a row that is not partial is damaged; None if it is sound."""
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
    return _pack_damage(id_, body) if ids.is_packed(id_) else None


def _pack_damage(id_: int, body: bytes | None) -> str | None:
    if body is None:
        return "it is a pack without a body"
    lengths = _LENGTHS[ids.pack_size(id_)]
    if len(body) < lengths.size:
        return "its body is too short for the lengths of its messages"
    if lengths.size + sum(lengths.unpack_from(body)) != len(body):
        return "the lengths of its messages do not add up to its body"
    return None


def id_damage(row: IdRow) -> str | None:
    """Return why a row is damaged, as far as id, format and `gone` show it; None if they are sound."""
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
    """Return whether the row is a single message with nothing but a small body, as most single messages
    are.
    """
    _, id_, body, *more, sent_at, expires, format_, gone = row
    if body is None or sent_at is None or gone or expires is not None or format_ != SINGLE:
        return False
    return tuple(more) == _NOTHING and 0 <= sent_at <= LAST_MS and not ids.is_packed(id_)


class Read(NamedTuple):
    """Live messages, and for each damaged row its id and the reason."""

    messages: list[MessageRow]
    damaged: dict[int, str]


def messages(rows: Iterable[Row], after: int = ids.START, upto: int = EVERY) -> Read:
    """Return the live messages of stored rows with after < id <= upto, and the damaged rows."""
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
    # Most received messages come this way, so no Python code runs per message.
    shared = map(repeat, (*others, 0))
    columns = zip(repeat(priority), map(id_.__add__, places), bodies, *shared)
    return map(_new_tuple, repeat(MessageRow), columns)


IdRow = tuple[int, int | None, Any]
"""Id, format, and `gone`."""


def live_ids(rows: Iterable[IdRow], after: int, upto: int) -> Iterator[int]:
    """Return the ids of live messages with after < id <= upto; of a damaged row all ids."""
    for row in rows:
        id_, format_, gone = row
        if not has_only_marks(format_, gone):
            dead, last = 0 if gone and id_damage(row) else gone_mask(gone), last_in(id_)
            if after < id_ and last <= upto and not dead:
                yield from range(id_, last + 1)
                continue
            for one in range(id_, last + 1):
                if after < one <= upto and not dead >> one - id_ & 1:
                    yield one


def wholly_gone(rows: Iterable[IdRow]) -> list[int]:
    """Return the ids of packs without a live message."""
    return [row[0] for row in rows if row[2] and _is_wholly_gone(row)]


def _is_wholly_gone(row: IdRow) -> bool:
    id_, format_, gone = row
    if format_ is not None and id_damage(row):
        return False
    return ids.is_packed(id_) and gone_mask(gone) & full_mask(id_) == full_mask(id_)


class Deletion(NamedTuple):
    """How to delete messages. rows: ids of rows to delete; marks: places to mark as gone, by pack id, as
    masks.
    """

    rows: list[int]
    marks: dict[int, int]


class Known:
    """The deleted places, as far as this process knows, of packs with live messages. Thread-safe.

    With this knowledge the process deletes the row together with the last message of a pack. A pack that was
    forgotten leaves an empty row, which its next reader deletes.
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._gone: dict[tuple[WideRow, int, int], int] = {}

    def learn(self, wide_row: WideRow, priority: int, pack: int, mask: int) -> None:
        """Remember places (a bit mask) of a pack that are certainly deleted."""
        key = (wide_row, priority, pack)
        with self._mutex:
            before = self._gone.pop(key, 0)
            if len(self._gone) >= REMEMBERED:
                del self._gone[next(iter(self._gone))]  # the least recently used one
            self._gone[key] = before | mask

    def forget(self, wide_row: WideRow, priority: int, packs: Iterable[int]) -> None:
        """Forget packs whose rows were deleted."""
        with self._mutex:
            for pack in packs:
                self._gone.pop((wide_row, priority, pack), None)

    def deletion(self, wide_row: WideRow, priority: int, some: Sequence[int]) -> Deletion:
        """Plan how to delete these messages: as whole rows, or by marks in packs."""
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
