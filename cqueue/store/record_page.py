"""A page of a log's records: the undecoded bytes of an answer, with the offset of each row.

A scan to Arrow needs columns, and no object per record. A scan of records needs objects. Both begin here: one
pass over the bytes finds the rows, and the readers decode what they need. The driver's own parser would make
a tuple of each row and an object of each map.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from cqueue import ids
from cqueue.store import cells
from cqueue.store.log_operations import LogShard, RecordRow
from cqueue.store.operations import Repeatable

ID_AT = 4
"""Offset of the id in a row, after the 4 bytes of its length."""
TOPIC_AT = 24
"""Offset of the topic in a row, after the id and the 4 bytes of the topic's length."""
NULLS = 12
"""Bytes between topic and body of a record without key and headers: three lengths."""

_TOPIC = struct.Struct(">20xi")
# The lengths of key and headers as one number, and the body's length if both are null.
_NULLS_AND_BODY = struct.Struct(">qi")
_TWO_NULLS = -1


class Broken(NamedTuple):
    """A record that cannot be read, and why."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Records in the order in which they were read; `len` gives their number.

    data: the bytes of the answer. starts: the offset of each row, and the end of the last one.
    bodies: the offset of the body, by place, for records that have a key or headers.
    broken: the damaged records of the answer, in order; the page leaves them out.
    """

    data: bytes
    starts: list[int]
    bodies: dict[int, int]
    broken: tuple[Broken, ...] = ()

    def __len__(self) -> int:
        return len(self.starts) - 1

    def id_at(self, place: int) -> int:
        """Return the id of the record at a place (from 0)."""
        at = self.starts[place] + ID_AT
        return ids.from_bytes(self.data[at : at + 16])

    def texts_at(self, place: int) -> tuple[bytes | None, bytes | None]:
        """Return the undecoded key and headers of the record at a place; None for null."""
        if place not in self.bodies:
            return None, None
        at = self.starts[place]
        (topic,) = _TOPIC.unpack_from(self.data, at)
        key, at = cells.cell(self.data, at + TOPIC_AT + topic)
        headers, _ = cells.cell(self.data, at)
        return key, headers

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[RecordRow]:
        """Decode the records at the places `start` to `stop` - 1 (None: to the end)."""
        data, starts, bodies = self.data, self.starts, self.bodies
        for place in range(start, len(self) if stop is None else stop):
            at = starts[place]
            (topic,) = _TOPIC.unpack_from(data, at)
            behind = at + TOPIC_AT + topic
            key: str | None = None
            headers: dict[str, str] | None = None
            body = bodies.get(place)
            if body is None:
                body = behind + NULLS
            else:
                first, second = self.texts_at(place)
                key = None if first is None else cells.shown(first)
                headers = None if second is None else dict(cells.pairs(second))
            yield RecordRow(
                ids.from_bytes(data[at + ID_AT : at + ID_AT + 16]),
                cells.shown(data[at + TOPIC_AT : behind]),
                key,
                headers,
                data[body : starts[place + 1]],
            )

    @classmethod
    def of(cls, rows: Iterable[RecordRow]) -> RecordPage:
        """Make a page of decoded records."""
        written = [b"".join(map(cells.of, _cells(row))) for row in rows]
        return parse(cells.COUNT.pack(len(written)) + b"".join(written))


@dataclass(frozen=True, slots=True)
class ReadRecordPage(Repeatable[RecordPage]):
    """Read the first `limit` records with after < id <= upto. reverse: the last ones, newest first."""

    shard: LogShard
    after: int
    upto: int
    limit: int
    reverse: bool = False


def parse(data: bytes) -> RecordPage:
    """Find the rows of an answer in protocol version 5: the number of rows, then each cell after its length.

    A record without a topic or a body is damaged, and left out; so is one whose headers are no map.
    """
    (count,) = cells.COUNT.unpack_from(data)
    starts, bodies = [0] * (count + 1), dict[int, int]()
    broken = dict[int, Broken]()
    topic_size, rest = _TOPIC.unpack_from, _NULLS_AND_BODY.unpack_from
    at = 4
    for place in range(count):
        starts[place] = start = at
        (topic,) = topic_size(data, at)
        headers: bytes | None = None
        at += TOPIC_AT + topic if topic >= 0 else TOPIC_AT
        nulls, size = rest(data, at)
        if nulls == _TWO_NULLS:
            at += NULLS
        else:
            _, at = cells.cell(data, at)  # the key
            headers, at = cells.cell(data, at)
            (size,) = cells.COUNT.unpack_from(data, at)
            at += 4
            bodies[place] = at
        at += max(0, size)
        if topic | size < 0 or (headers is not None and not cells.is_text_map(headers)):  # < 0: one is null
            id_ = ids.from_bytes(data[start + ID_AT : start + ID_AT + 16])
            reason = "topic is null" if topic < 0 else "body is null" if size < 0 else "headers are no map"
            broken[place] = Broken(id_, reason)
    starts[count] = at
    page = RecordPage(data, starts, bodies)
    return _without(page, broken) if broken else page


def _cells(row: RecordRow) -> Iterator[bytes | None]:
    yield ids.to_bytes(row.id)
    yield row.topic.encode()
    yield None if row.key is None else row.key.encode()
    yield None if row.headers is None else cells.text_map(row.headers)
    yield row.body


def _without(page: RecordPage, broken: dict[int, Broken]) -> RecordPage:
    """Return the page without the rows at the places of `broken`."""
    places = [place for place in range(len(page)) if place not in broken]
    kept = b"".join(page.data[page.starts[place] : page.starts[place + 1]] for place in places)
    return replace(parse(cells.COUNT.pack(len(places)) + kept), broken=tuple(broken.values()))
