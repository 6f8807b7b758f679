"""What a record of the spool holds: all that makes up a message or a record of a log, fixed at append.

Two times and a source stand in front, because the id of a message follows from them. Whoever forwards the
record again, with this version or another one, has to find the same.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Final, NamedTuple

from cqueue.errors import DamagedRow

VERSION: Final = 1
SOURCE_BYTES: Final = 16
"""Of a random source: no two sends of all producers meet."""
_HEAD: Final = struct.Struct(">BBqqHI")  # version, priority, at, due, lengths of source and of the rest


class Frame(NamedTuple):
    """One spooled entry.

    at_us: when it was spooled. due_us: when it is due; of a log's record, as `at_us`. source: what its id
    is derived from. more: what else there is, by name; JSON.
    """

    at_us: int
    due_us: int
    priority: int
    source: bytes
    more: dict[str, Any]
    body: bytes

    def pack(self) -> bytes:
        """As bytes."""
        more = json.dumps(self.more, separators=(",", ":")).encode() if self.more else b""
        lengths = (len(self.source), len(more))
        head = _HEAD.pack(VERSION, self.priority, self.at_us, self.due_us, *lengths)
        return b"".join((head, self.source, more, self.body))

    @classmethod
    def unpack(cls, payload: bytes) -> Frame:
        """What was packed.

        Raises:
            DamagedRow: another version, or another program, has written it.
        """
        try:
            version, priority, at_us, due_us, source_length, more_length = _HEAD.unpack_from(payload)
            start = _HEAD.size + source_length
            end = start + more_length
            more = json.loads(payload[start:end]) if more_length else {}
        except (struct.error, ValueError) as exc:
            raise DamagedRow(f"a record of the spool is no message: {exc}") from exc
        if version != VERSION or end > len(payload):
            raise DamagedRow(
                f"a record of the spool has format {version}, this code knows {VERSION}: upgrade cqueue"
            )
        return cls(at_us, due_us, priority, bytes(payload[_HEAD.size : start]), more, bytes(payload[end:]))


def new_source() -> bytes:
    """A source that nobody else has; also after a fork."""
    return os.urandom(SOURCE_BYTES)
