"""Messages of one priority as columns, taken from the bytes of an answer.

For those who read a queue as a whole. Nearly all messages have nothing but a small body, so the columns that
are mostly null are kept as what there is of them, by place: then a message costs one comparison for six of
them. What record_columns says of the driver's own parser holds here as well.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from cqueue import ids
from cqueue.store.operations import MessageRow, Operation, WideRow
from cqueue.store.record_columns import text_map

TEXTS: Final = ("headers", "codec", "task", "key", "trigger")
"""Columns whose cells stay bytes as on the wire; headers: a map<text, text>."""

_COUNT = struct.Struct(">i")
_LONG = struct.Struct(">q")
# The priority; the id; the length of the body.
_HEAD = struct.Struct(">5x4x16si")
# Six nulls, most often: size and TEXTS. Then sent_at, and the length of `expires`.
_TAIL = struct.Struct(">24s4xqi")
_SIX_NULLS: Final = b"\xff" * 24
_FORMAT_SIZE: Final = 5


@dataclass(slots=True)
class MessageColumns:
    """Messages in the order of ids. Times are ms since 1970.

    ids: the 16 bytes of each TimeUUID. bodies: None where the body stands in `bodies`; then `sizes` has its
    bytes. sizes, expires, texts: by place, only of messages that have them. tombstones: as in `Slice`.
    """

    ids: list[bytes] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)
    sent_at: list[int] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    expires: dict[int, int] = field(default_factory=dict)
    texts: dict[str, dict[int, bytes]] = field(default_factory=lambda: {name: {} for name in TEXTS})
    tombstones: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def last(self) -> int:
        """The id of the last message."""
        return ids.from_bytes(self.ids[-1])

    @classmethod
    def of(cls, rows: Iterable[MessageRow], tombstones: int = 0) -> MessageColumns:
        """Messages that are decoded already."""
        found = cls(tombstones=tombstones)
        for place, row in enumerate(rows):
            found.ids.append(ids.to_bytes(row.id))
            found.bodies.append(row.body)
            found.sent_at.append(row.sent_at)
            if row.size is not None:
                found.sizes[place] = row.size
            if row.expires is not None:
                found.expires[place] = row.expires
            if row.headers is not None:
                found.texts["headers"][place] = text_map(row.headers)
            for name in TEXTS[1:]:
                text = getattr(row, name)
                if text is not None:
                    found.texts[name][place] = text.encode()
        return found


@dataclass(frozen=True, slots=True)
class ReadMessageColumns(Operation[MessageColumns]):
    """As `ReadSlice`, in columns."""

    wide_row: WideRow
    priority: int
    after: int
    upto: int
    limit: int


def parse(data: bytes, tombstones: int = 0) -> MessageColumns:
    """The rows of READ_COLUMNS' answer as protocol version 5 writes them."""
    found = MessageColumns(tombstones=tombstones)
    add_id, add_body, add_sent = found.ids.append, found.bodies.append, found.sent_at.append
    head, tail = _HEAD.unpack_from, _TAIL.unpack_from
    head_size, tail_size = _HEAD.size, _TAIL.size
    at = 4
    for place in range(_COUNT.unpack_from(data)[0]):
        id_, size = head(data, at)
        add_id(id_)
        at += head_size
        if size < 0:
            add_body(None)
        else:
            add_body(data[at : at + size])
            at += size
        nulls, sent_at, expires = tail(data, at)
        if nulls == _SIX_NULLS and expires < 0:
            add_sent(sent_at)
            at += tail_size + _FORMAT_SIZE
        else:
            at = _rest(data, at, place, found)
    return found


def _rest(data: bytes, at: int, place: int, found: MessageColumns) -> int:
    """Everything behind a message's body, where some of it is there; and where the next message begins."""
    cell, at = _cell(data, at)
    if cell is not None:
        (found.sizes[place],) = _COUNT.unpack(cell)
    for column in found.texts.values():
        cell, at = _cell(data, at)
        if cell is not None:
            column[place] = cell
    cell, at = _cell(data, at)
    found.sent_at.append(_LONG.unpack(cell)[0] if cell is not None else 0)
    cell, at = _cell(data, at)
    if cell is not None:
        (found.expires[place],) = _LONG.unpack(cell)
    return at + _FORMAT_SIZE


def _cell(data: bytes, at: int) -> tuple[bytes | None, int]:
    """A cell that may be null, and where the next one begins."""
    (size,) = _COUNT.unpack_from(data, at)
    at += 4
    return (None, at) if size < 0 else (data[at : at + size], at + size)
