"""The payload of a spooled record: a message or a record of a log, fixed at the append.

Two times and a source stand in front, because the id of a message follows from them. Each try to forward the
record, by this version or another one, has to find the same ones.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cqueue.errors import DamagedRow

if TYPE_CHECKING:
    from cqueue.spool import SpoolRecord

VERSION: Final = 1
SOURCE_BYTES: Final = 16
"""Bytes of a random source: as many as a UUID has, so that no two sends of all producers share one."""
NEWER: Final = range(2, 8)
"""Formats of later versions of this code. Another program's payload hardly begins with such a byte."""
_HEAD: Final = struct.Struct(">BBqqHI")  # version, priority, at, due, lengths of source and of the rest


class ForeignPayload(DamagedRow):
    """Another program has written the payload: no version of this code can forward it."""


class Frame(NamedTuple):
    """A spooled message, or a spooled record of a log.

    Attributes:
        at_us: time of the append.
        due_us: when the message is due; for a record of a log the same as `at_us`.
        source: bytes from which the id is derived.
        more: optional fields by name, as JSON has them.
    """

    at_us: int
    due_us: int
    priority: int
    source: bytes
    more: dict[str, Any]
    body: bytes

    def pack(self) -> bytes:
        """Return the frame as bytes."""
        more = json.dumps(self.more, separators=(",", ":")).encode() if self.more else b""
        lengths = (len(self.source), len(more))
        head = _HEAD.pack(VERSION, self.priority, self.at_us, self.due_us, *lengths)
        return b"".join((head, self.source, more, self.body))

    @classmethod
    def unpack(cls, payload: bytes) -> Frame:
        """Return the frame that was packed.

        Raises:
            DamagedRow: a later version has written the payload.
            ForeignPayload: another program has.
        """
        if payload[:1] and payload[0] in NEWER:
            raise DamagedRow(
                f"a record of the spool has format {payload[0]}, this code knows {VERSION}: upgrade cqueue"
            )
        try:
            version, priority, at_us, due_us, source_length, more_length = _HEAD.unpack_from(payload)
            start = _HEAD.size + source_length
            end = start + more_length
            more = dict(json.loads(payload[start:end])) if more_length else {}
        except (struct.error, ValueError, TypeError, RecursionError) as exc:
            raise ForeignPayload(f"a record of the spool is no message: {exc}") from exc
        if version != VERSION or end > len(payload):
            raise ForeignPayload("a record of the spool is no message: another program has written it")
        return cls(at_us, due_us, priority, bytes(payload[_HEAD.size : start]), more, bytes(payload[end:]))


def unpacked(records: Iterable[SpoolRecord]) -> tuple[list[Frame], DamagedRow | None]:
    """Return the frames of the first records, and the error of the next one; None if all are good."""
    frames: list[Frame] = []
    try:
        frames.extend(Frame.unpack(record.payload) for record in records)
    except DamagedRow as exc:
        return frames, exc
    return frames, None


def new_source() -> bytes:
    """Return a random source. A forked child gets others than its parent."""
    return os.urandom(SOURCE_BYTES)
