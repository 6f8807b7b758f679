"""Records of a log as columns, taken from the bytes of an answer without decoding what nobody may want.

A scan to Arrow needs columns and no record; a scan of records needs topics and headers as texts. Both begin
here: one pass over the bytes finds the cells, and only ids become numbers, because readers order by them.
The driver's own parser makes a tuple a row and an object of every map, which costs two to four times as much.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cqueue import ids
from cqueue.store.log_operations import LogShard, RecordRow
from cqueue.store.operations import Operation

_COUNT = struct.Struct(">i")
# The id's length, its 16 bytes as the numbers that a TimeUUID is made of, and the topic's length.
_ID_AND_TOPIC = struct.Struct(">4xIHHQi")
_THREE_LENGTHS = struct.Struct(">iii")
_SIGNS = 0x8080808080808080


@dataclass(slots=True)
class RecordColumns:
    """Records in order. Topics, keys and headers are bytes as on the wire; None for null.

    headers: a map<text, text>.
    """

    ids: list[int] = field(default_factory=list)
    topics: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[bytes | None] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self) -> list[RecordRow]:
        """All records, decoded."""
        return [
            RecordRow(
                id_,
                topic.decode(),
                None if key is None else key.decode(),
                None if headers is None else dict(pairs(headers)),
                body,
            )
            for id_, topic, key, headers, body in zip(*self.columns, strict=True)
        ]

    def extend(self, other: RecordColumns, start: int, stop: int) -> None:
        """Add some records of another one."""
        self.ids += other.ids[start:stop]
        self.topics += other.topics[start:stop]
        self.keys += other.keys[start:stop]
        self.headers += other.headers[start:stop]
        self.bodies += other.bodies[start:stop]

    def chosen(self, places: list[int]) -> RecordColumns:
        """The records at these places, in their order."""
        return RecordColumns(
            *(list(map(column.__getitem__, places)) for column in self.columns)  # type: ignore[arg-type]
        )

    @property
    def columns(self) -> tuple[list[int], list[bytes], list[bytes | None], list[bytes | None], list[bytes]]:
        """All of them, in the order of RecordRow."""
        return self.ids, self.topics, self.keys, self.headers, self.bodies

    @classmethod
    def of(cls, rows: Iterable[RecordRow]) -> RecordColumns:
        """Records that are decoded already."""
        columns = cls()
        for id_, topic, key, headers, body in rows:
            columns.ids.append(id_)
            columns.topics.append(topic.encode())
            columns.keys.append(None if key is None else key.encode())
            columns.headers.append(None if headers is None else text_map(headers))
            columns.bodies.append(body)
        return columns


@dataclass(frozen=True, slots=True)
class ReadColumns(Operation[RecordColumns]):
    """As `ReadRecords`, in columns."""

    shard: LogShard
    after: int
    upto: int
    limit: int
    reverse: bool = False


def parse(data: bytes) -> RecordColumns:
    """The rows of an answer as protocol version 5 writes them: their number, then lengths and cells."""
    found = RecordColumns()
    add_id, add_topic, add_body = found.ids.append, found.topics.append, found.bodies.append
    add_key, add_headers = found.keys.append, found.headers.append
    head, lengths, count = _ID_AND_TOPIC.unpack_from, _THREE_LENGTHS.unpack_from, _COUNT.unpack_from
    at = 4
    for _ in range(count(data)[0]):
        low_time, mid_time, high_time, low, size = head(data, at)
        add_id(((high_time & 0xFFF) << 48 | mid_time << 32 | low_time) << 64 | (low ^ _SIGNS))
        at += 24
        add_topic(data[at : at + size])
        at += size
        # Most records have neither key nor headers: then the body's length is known at once.
        key, headers, size = lengths(data, at)
        if key < 0 and headers < 0:
            add_key(None)
            add_headers(None)
            at += 12
        else:
            cell, at = _cell(data, at)
            add_key(cell)
            cell, at = _cell(data, at)
            add_headers(cell)
            (size,) = count(data, at)
            at += 4
        add_body(data[at : at + size])
        at += size
    return found


def _cell(data: bytes, at: int) -> tuple[bytes | None, int]:
    """A cell that may be null, and where the next one begins."""
    (size,) = _COUNT.unpack_from(data, at)
    at += 4
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def text_map(texts: Mapping[str, str]) -> bytes:
    """A map<text, text>."""
    parts = [_COUNT.pack(len(texts))]
    # Sorted, as Cassandra stores a frozen map: the same headers are the same bytes.
    for item in sorted((key.encode(), value.encode()) for key, value in texts.items()):
        for data in item:
            parts += (_COUNT.pack(len(data)), data)
    return b"".join(parts)


def pairs(data: bytes) -> Iterator[tuple[str, str]]:
    """What `text_map` wrote."""
    (count,) = _COUNT.unpack_from(data)
    at = 4
    for _ in range(count):
        key, at = _cell(data, at)
        value, at = _cell(data, at)
        yield (key or b"").decode(), (value or b"").decode()


def uuids(some: Iterable[int]) -> bytes:
    """The 16 bytes of each id's TimeUUID, one after the other."""
    return b"".join(map(ids.to_bytes, some))
