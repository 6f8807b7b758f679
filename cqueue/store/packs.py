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

Nobody knows in advance how many messages the rows of a range hold. So a read estimates how many rows hold as
many messages as are wanted, and reads on if these held too few.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise, repeat
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar

from cqueue import ids
from cqueue.errors import CqueueError, NotDone
from cqueue.runtime import waiting
from cqueue.store.cells import Unreadable
from cqueue.store.operations import MessageRow, Range, ReadIds, WideRow
from cqueue.store.requests import Job, Request, Steps, Window, tombstones

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
FIRST_ROWS: Final = 16
"""Rows of the first read of a queue whose rows hold an unknown number of messages: 0.5 MiB of packs."""
QUEUES_REMEMBERED: Final = 10_000
"""Queues whose density a process remembers; with more, all are forgotten, and learned again."""
DENSITY_ROWS: Final = 50
"""Rows with fewer messages than expected after which the lower density counts fully. A higher density counts
at once: reading too few rows costs one more read, reading too many packs costs megabytes."""
LEAST_IDS: Final = 64
"""Rows of one read of ids, at least, unless fewer messages are wanted: rows without bodies are cheap."""
MOST_ROWS: Final = 512
"""Rows of one read with bodies, at most: 16 MiB if all are packs of 32 KiB."""

EVERY: Final = 1 << 128
"""Above every id."""

_LENGTHS = [struct.Struct(f">{count}H") for count in range(ids.MOST_PACKED + 1)]
_new_tuple = tuple.__new__
_STRETCH = 256

Item = TypeVar("Item")
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


# ── reads of ranges ──


class Density:
    """Mean number of messages in a row, by queue: with packs, fewer rows have to be read. Thread-safe."""

    def __init__(self) -> None:
        self._of: dict[str, float] = {}

    def rows(self, queue: str, limit: int) -> int:
        """Estimate how many rows hold `limit` messages."""
        of = self._of.get(queue)
        return min(limit, FIRST_ROWS) if of is None else max(1, min(limit, math.ceil(limit / of)))

    def saw(self, queue: str, row_ids: Sequence[int]) -> None:
        """Learn from rows that were read. A few single messages among packs lower the estimate only a
        little.
        """
        if row_ids:
            mean = sum([last_in(id_) - id_ + 1 for id_ in row_ids]) / len(row_ids)
            before = self._of.get(queue, mean)
            if len(self._of) >= QUEUES_REMEMBERED:
                self._of.clear()
            weight = min(1.0, len(row_ids) / DENSITY_ROWS)
            self._of[queue] = mean if mean >= before else before + (mean - before) * weight

    def forget(self, queue: str) -> None:
        """Forget a queue's density after a failed read, which may have been too large."""
        self._of.pop(queue, None)


Part = tuple[Sequence[int], Iterable[Item], Iterable[int]]
"""What an answer holds: ids of rows; items asked for, in order; last message ids of damaged rows."""


def ranged(
    asked: Range[Any], send: Callable[[int, int], Request[Part[Item]]], density: Density
) -> Steps[tuple[list[Item], int, tuple[int, ...]]]:
    """Read a range. Return the items, the tombstones crossed, and the last message ids of damaged rows.

    One request is nearly always enough. If the rows hold fewer messages than estimated, the range is read on,
    each time with at least twice as many rows. Later requests show a later moment, like reads of further
    ranges.

    Args:
        asked: the operation.
        send: sends a request for rows above an id, up to a number of rows.
        density: the density of this store's queues.

    Raises:
        NotDone: a request failed, or the call's time was over before the end of the range.
    """
    queue, limit, upto = asked.wide_row.queue, asked.limit, asked.upto
    begin = lowest(asked.after)
    # The first row is read again for its remaining messages only, so it does not count fully.
    rows = _next_rows(asked, density, limit) + (begin != asked.after)
    request = send(begin, rows)
    yield
    items, damaged, crossed = list[Item](), list[int](), 0
    while True:
        try:
            row_ids, found, broken = request.result()
        except CqueueError:
            density.forget(queue)
            raise
        density.saw(queue, row_ids)
        items += islice(found, limit - len(items))
        damaged += broken
        crossed += tombstones(request.warnings)
        if len(items) == limit or is_complete(row_ids, rows, upto):
            return items, crossed, tuple(damaged)
        if waiting.is_over():
            raise NotDone("a range could not be read to its end in time")
        rows = _next_rows(asked, density, limit - len(items), 2 * rows)
        request = send(next_start(row_ids), rows)


def is_complete(row_ids: Sequence[int], asked_rows: int, upto: int) -> bool:
    """Whether an answer reaches the end of its range: there are no more rows, or its last row ends there."""
    return len(row_ids) < asked_rows or last_in(row_ids[-1]) >= upto


def next_start(row_ids: Sequence[int]) -> int:
    """The id above which a range is read on: that of the last message in the last row of an answer."""
    return last_in(row_ids[-1])


def _next_rows(asked: Range[Any], density: Density, limit: int, least: int = 1) -> int:
    rows = max(least, density.rows(asked.wide_row.queue, limit))
    return max(rows, min(limit, LEAST_IDS)) if isinstance(asked, ReadIds) else min(rows, MOST_ROWS)


def joined_items(jobs: Sequence[Job[list[Item]]], in_flight: int, limit: int) -> Steps[list[Item]]:
    """Join the items of several reads into one list, at most `limit` items (0: all).

    With a limit the reads are sent one after the other, until there are enough items.
    """
    window = Window(jobs, 1 if limit else in_flight)
    yield
    items: list[Item] = []
    for part in window.results():
        if isinstance(part, CqueueError):
            raise part
        items += part
        if limit and len(items) >= limit:
            return items[:limit]
    return items
