"""Messages of one priority as they came in an answer, of which is known where each begins.

For those who read a queue as a whole. Nearly all messages have nothing but a small body, so of a message all
that is taken out here is what else it has. What record_page says of the driver's own parser holds here too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from cqueue import ids
from cqueue.store import cells
from cqueue.store.operations import MessageRow, Operation, WideRow

ID_AT: Final = 9
"""Where in a row its id begins, behind the priority and its own length."""
BODY_AT: Final = 29
"""Where the body begins."""
TAIL: Final = 45
"""Bytes behind the body where a message has nothing else."""
SENT_AT_BEFORE_END: Final = 17
"""How far before the end of such a message the 8 bytes of `sent_at` begin."""

_BODY_SIZE = struct.Struct(">25xi")
# Six nulls, most often: size, headers, codec, task, key, trigger. Then sent_at, and the length of `expires`.
_TAIL = struct.Struct(">24s12xi")
_SIX_NULLS: Final = b"\xff" * 24
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
    sent_at: int
    expires: int | None


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages in the order of ids. Times are ms since 1970.

    data: their cells. starts: where each row begins, and where the last one ends. rest: by place, of messages
    that have any. tombstones: as in `Slice`.
    """

    data: bytes
    starts: list[int]
    rest: dict[int, Rest]
    tombstones: int = 0

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

    @classmethod
    def of(cls, rows: Iterable[MessageRow], tombstones: int = 0) -> MessagePage:
        """Messages that are decoded already."""
        written = [b"".join(map(cells.of, _cells(row))) for row in rows]
        return parse(cells.COUNT.pack(len(written)) + b"".join(written), tombstones)


@dataclass(frozen=True, slots=True)
class ReadMessagePage(Operation[MessagePage]):
    """As `ReadSlice`, not decoded."""

    wide_row: WideRow
    priority: int
    after: int
    upto: int
    limit: int


def parse(data: bytes, tombstones: int = 0) -> MessagePage:
    """The rows of READ_PAGE's answer as protocol version 5 writes them."""
    (count,) = cells.COUNT.unpack_from(data)
    starts, rest = [0] * (count + 1), dict[int, Rest]()
    body_size, tail = _BODY_SIZE.unpack_from, _TAIL.unpack_from
    at = 4
    for place in range(count):
        starts[place] = at
        (size,) = body_size(data, at)
        at += BODY_AT + max(size, 0)
        nulls, expires = tail(data, at)
        if nulls == _SIX_NULLS and expires < 0:
            at += TAIL
        else:
            rest[place], at = _rest(data, at)
    starts[count] = at
    return MessagePage(data, starts, rest, tombstones)


def _rest(data: bytes, body_stop: int) -> tuple[Rest, int]:
    """Everything behind a message's body, and where the next message begins."""
    found: list[bytes | None] = []
    at = body_stop
    for _ in range(9):
        cell, at = cells.cell(data, at)
        found.append(cell)
    size, headers, codec, task, key, trigger, sent_at, expires, _ = found
    rest = Rest(
        body_stop,
        None if size is None else cells.COUNT.unpack(size)[0],
        headers,
        codec,
        task,
        key,
        trigger,
        0 if sent_at is None else _LONG.unpack(sent_at)[0],
        None if expires is None else _LONG.unpack(expires)[0],
    )
    return rest, at


def _cells(row: MessageRow) -> Iterable[bytes | None]:
    yield _TINY.pack(row.priority)
    yield ids.to_bytes(row.id)
    yield row.body
    yield None if row.size is None else cells.COUNT.pack(row.size)
    yield None if row.headers is None else cells.text_map(row.headers)
    for text in (row.codec, row.task, row.key, row.trigger):
        yield None if text is None else text.encode()
    yield _LONG.pack(row.sent_at)
    yield None if row.expires is None else _LONG.pack(row.expires)
    yield _TINY.pack(row.format)
