"""Records of a log as they came in an answer, of which is known where each begins.

A scan to Arrow needs columns and no record; a scan of records needs objects. Both begin here: one pass over
the bytes finds the rows, and what stands in them is taken out by those who want it, by the page where that
is quicker. The driver's own parser makes a tuple a row and an object of every map.
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
"""Where in a row its id begins, behind its own length."""
TOPIC_AT = 24
"""Where the topic begins; its length stands before it."""
NULLS = 12
"""Bytes between topic and body where a record has neither key nor headers."""

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
    """Records in the order in which they were read.

    data: their cells. starts: where each row begins, and where the last one ends.
    bodies: where the body begins, by place, of those that have a key or headers.
    broken: the records of the answer that are left out, in order.
    """

    data: bytes
    starts: list[int]
    bodies: dict[int, int]
    broken: tuple[Broken, ...] = ()

    def __len__(self) -> int:
        return len(self.starts) - 1

    def id_at(self, place: int) -> int:
        """The id of a record."""
        at = self.starts[place] + ID_AT
        return ids.from_bytes(self.data[at : at + 16])

    def texts_at(self, place: int) -> tuple[bytes | None, bytes | None]:
        """The key and the headers of a record, as on the wire."""
        if place not in self.bodies:
            return None, None
        at = self.starts[place]
        (topic,) = _TOPIC.unpack_from(self.data, at)
        key, at = cells.cell(self.data, at + TOPIC_AT + topic)
        headers, _ = cells.cell(self.data, at)
        return key, headers

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[RecordRow]:
        """The records at the places `start` to `stop` - 1, decoded."""
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
        """Records that are decoded already."""
        written = [b"".join(map(cells.of, _cells(row))) for row in rows]
        return parse(cells.COUNT.pack(len(written)) + b"".join(written))


@dataclass(frozen=True, slots=True)
class ReadRecordPage(Repeatable[RecordPage]):
    """Records with after < id <= upto, the first `limit` of them. reverse: the last, newest first."""

    shard: LogShard
    after: int
    upto: int
    limit: int
    reverse: bool = False


def parse(data: bytes) -> RecordPage:
    """The rows of an answer as protocol version 5 writes them: their number, then lengths and cells.

    A record without a topic or a body is left out.
    """
    (count,) = cells.COUNT.unpack_from(data)
    starts, bodies = [0] * (count + 1), dict[int, int]()
    broken = dict[int, Broken]()
    topic_size, rest = _TOPIC.unpack_from, _NULLS_AND_BODY.unpack_from
    at = 4
    for place in range(count):
        starts[place] = start = at
        (topic,) = topic_size(data, at)
        at += TOPIC_AT + topic if topic >= 0 else TOPIC_AT
        nulls, size = rest(data, at)
        if nulls == _TWO_NULLS:
            at += NULLS
        else:
            _, at = cells.cell(data, at)  # the key
            _, at = cells.cell(data, at)  # the headers
            (size,) = cells.COUNT.unpack_from(data, at)
            at += 4
            bodies[place] = at
        if topic | size >= 0:  # neither is null
            at += size
        else:
            at += max(0, size)
            id_ = ids.from_bytes(data[start + ID_AT : start + ID_AT + 16])
            broken[place] = Broken(id_, "topic is null" if topic < 0 else "body is null")
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
    """The page with the rows at these places cut out of it."""
    places = [place for place in range(len(page)) if place not in broken]
    kept = b"".join(page.data[page.starts[place] : page.starts[place + 1]] for place in places)
    return replace(parse(cells.COUNT.pack(len(places)) + kept), broken=tuple(broken.values()))
