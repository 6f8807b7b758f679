"""Messages of one priority as they came in an answer, of which is known where each begins.

For those who read a queue as a whole. Nearly all messages have nothing but a small body, so of a message all
that is taken out here is what else it has. What record_page says of the driver's own parser holds here too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cqueue import ids
from cqueue.store import cells
from cqueue.store.operations import MessageRow, Range
from cqueue.store.packs import LAST_MS, SINGLE, bodies_of, damage, gone_mask, is_partial

ID_AT: Final = 9
"""Where in a row its id begins, behind the priority and its own length."""
BODY_AT: Final = 29
"""Where the body begins."""
TAIL: Final = 49
"""Bytes behind the body where a message has nothing else."""
SENT_AT_BEFORE_END: Final = 21
"""How far before the end of such a message the 8 bytes of `sent_at` begin."""

_HEAD = struct.Struct(">17xB7xi")
_PACKED: Final = 0x40  # of the ninth byte of an id, see cqueue.ids
_SINGLE: Final = b"\0\0\0\1\0\xff\xff\xff\xff"  # format 0, and no `gone`
# Six nulls, most often: size, headers, codec, task, key, trigger. Then the length of `sent_at`, that of
# `expires`, the format, and the length of `gone`. Of a damaged row anything may be null.
_TAIL = struct.Struct(">24siqi4xbi")
_SIX_NULLS: Final = b"\xff" * 24
_MARK = struct.Struct(">4xi")
_LONG = struct.Struct(">q")
_TINY = struct.Struct(">b")


class Rest(NamedTuple):
    """What a message has besides a small body. Texts are bytes as on the wire; headers a map<text, text>.

    body_stop: where the body ends. size: bytes of a body that stands in `bodies`, else None.
    """

    body_stop: int
    size: int | None
    headers: bytes | None
    codec: bytes | None
    task: bytes | None
    key: bytes | None
    trigger: bytes | None
    sent_at: int | None
    expires: int | None
    shared_stop: int  # where that ends which all messages of a pack have in common


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages in the order of ids. Times are ms since 1970.

    data: their cells. starts: where each row begins, and where the last one ends. rest: by place, of messages
    that have any. tombstones: as in `Slice`. packs: of a page as it is stored, by place, what is gone of each
    pack, as a mask; None for a row without messages. damaged: by place, why a row cannot be read.
    """

    data: bytes
    starts: list[int]
    rest: dict[int, Rest]
    tombstones: int = 0
    packs: dict[int, int | None] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def id_at(self, place: int) -> int:
        """The id of a message."""
        at = self.starts[place] + ID_AT
        return ids.from_bytes(self.data[at : at + 16])

    @property
    def last(self) -> int:
        """The id of the last message."""
        return self.id_at(len(self) - 1)

    def body_at(self, place: int) -> bytes:
        """A body that stands beside its message."""
        rest, end = self.rest.get(place), self.starts[place + 1]
        return self.data[self.starts[place] + BODY_AT : end - TAIL if rest is None else rest.body_stop]

    def ids(self) -> list[int]:
        """All ids; of a page as it is stored those of its rows."""
        return [self.id_at(place) for place in range(len(self))]

    def messages(self, after: int, upto: int) -> Iterator[bytes]:
        """The cells of each live message of a page as it is stored, with after < id <= upto."""
        for place in range(len(self)):
            if place in self.packs:
                yield from self._of_pack(place, after, upto)
            elif after < self.id_at(place) <= upto:
                yield self.data[self.starts[place] : self.starts[place + 1]]

    def _of_pack(self, place: int, after: int, upto: int) -> Iterator[bytes]:
        gone, body_stop = self.packs[place], self.rest[place].body_stop
        if gone is None:
            return
        start = self.starts[place]
        before = self.data[start : start + ID_AT]
        behind = self.data[body_stop : self.rest[place].shared_stop] + _SINGLE
        first = self.id_at(place)
        for id_, body in enumerate(bodies_of(first, self.data[start + BODY_AT : body_stop]), first):
            if after < id_ <= upto and not gone >> id_ - first & 1:
                yield b"".join((before, ids.to_bytes(id_), cells.of(body), behind))

    @classmethod
    def joined(cls, messages: Sequence[bytes], tombstones: int = 0) -> MessagePage:
        """Messages given by their cells."""
        return parse(cells.COUNT.pack(len(messages)) + b"".join(messages), tombstones)

    @classmethod
    def of(cls, rows: Iterable[MessageRow], tombstones: int = 0) -> MessagePage:
        """Messages that are decoded already."""
        return cls.stored(((*row, None) for row in rows), tombstones)

    @classmethod
    def stored(cls, rows: Iterable[tuple[Any, ...]], tombstones: int = 0) -> MessagePage:
        """Rows that are decoded already: columns as MessageRow has them, and `gone`."""
        return cls.joined([b"".join(map(cells.of, _cells(row))) for row in rows], tombstones)


class ReadMessagePage(Range[MessagePage]):
    """The messages, not decoded."""

    __slots__ = ()


def parse(data: bytes, tombstones: int = 0) -> MessagePage:
    """The rows of READ_PAGE's answer as protocol version 5 writes them."""
    (count,) = cells.COUNT.unpack_from(data)
    starts, rest, packs, damaged = [0] * (count + 1), dict[int, Rest](), dict[int, int | None](), {}
    head, tail, end = _HEAD.unpack_from, _TAIL.unpack_from, len(data)
    at = 4
    for place in range(count):
        starts[place] = at
        lead, size = head(data, at)
        at += BODY_AT + max(size, 0)
        if end - at >= TAIL:
            nulls, *sent, expires, format_, marks = tail(data, at)
            is_plain = nulls == _SIX_NULLS and expires < 0 and format_ == SINGLE and marks < 0 <= size
            if is_plain and sent[0] == 8 and 0 <= sent[1] <= LAST_MS:
                at += TAIL
                continue
        rest[place], at, format_, gone = _rest(data, at)
        body = data[starts[place] + BODY_AT : rest[place].body_stop] if size >= 0 else None
        if lead & _PACKED and format_ == SINGLE:
            continue  # a member of a pack, taken out of it
        id_ = ids.from_bytes(data[starts[place] + ID_AT : starts[place] + ID_AT + 16])
        partial, reason = is_partial(id_, body, format_), None
        if not partial:
            own = rest[place]
            texts = (_read(own.headers, cells.pairs), *(_read(each, bytes.decode) for each in own[3:7]))
            reason = damage((0, id_, body, own.size, *texts, own.sent_at, own.expires, format_, gone))
        if reason is not None:
            damaged[place] = reason
        if partial or reason is not None:
            packs[place] = None
        elif lead & _PACKED:
            packs[place] = gone_mask(gone)
    starts[count] = at
    return MessagePage(data, starts, rest, tombstones, packs, damaged)


def _read(cell: bytes | None, decode: Callable[[bytes], Iterable[Any]]) -> Any:
    """A text or map of texts, decoded; or what stands for one that cannot be."""
    try:
        return cell if cell is None else list(decode(cell))
    except (UnicodeDecodeError, struct.error):
        return cells.Unreadable(cell or b"")


def _rest(data: bytes, body_stop: int) -> tuple[Rest, int, int | None, list[int]]:
    """Everything behind a message's body, where the next row begins; format and `gone`."""
    found: list[bytes | None] = []
    at = body_stop
    for _ in range(8):
        cell, at = cells.cell(data, at)
        found.append(cell)
    size, headers, codec, task, key, trigger, sent_at, expires = found
    shared_stop = at
    format_, at = cells.cell(data, at)
    gone, at = cells.cell(data, at)
    rest = Rest(
        body_stop,
        None if size is None else cells.COUNT.unpack(size)[0],
        headers,
        codec,
        task,
        key,
        trigger,
        None if sent_at is None else _LONG.unpack(sent_at)[0],
        None if expires is None else _LONG.unpack(expires)[0],
        shared_stop,
    )
    marks = [] if gone is None else [value for (value,) in _MARK.iter_unpack(gone[4:])]
    return rest, at, None if format_ is None else _TINY.unpack(format_)[0], marks


def _cells(row: tuple[Any, ...]) -> Iterable[bytes | None]:
    priority, id_, body, size, headers, codec, task, key, trigger, sent_at, expires, format_, gone = row
    yield _TINY.pack(priority)
    yield ids.to_bytes(id_)
    yield body
    yield None if size is None else cells.COUNT.pack(size)
    yield None if headers is None else cells.text_map(headers)
    for text in (codec, task, key, trigger):
        yield None if text is None else text.encode()
    yield None if sent_at is None else _LONG.pack(sent_at)
    yield None if expires is None else _LONG.pack(expires)
    yield None if format_ is None else _TINY.pack(format_)
    marks = [cells.of(cells.COUNT.pack(mark)) for mark in gone or ()]
    yield cells.COUNT.pack(len(marks)) + b"".join(marks) if marks else None
