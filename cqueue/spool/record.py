"""Records of a segment as bytes: written in bulk, and found again among damaged ones.

docs/explanation/spool.md shows the layout. A scan believes only the checksum and the offset of a record.
Behind a damaged record it looks at every place, and does not trust a length to lead it to the next record.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from google_crc32c import extend

HEAD: Final = struct.Struct("<IIQQ")
_CHECKSUM: Final = struct.Struct("<I")
_BODY: Final = struct.Struct("<IQQ")
_OFFSET: Final = struct.Struct("<Q")
_PADDING: Final = (b"", *(bytes(8 - odd) for odd in range(1, 8)))
_PRESENT: Final = 1
"""A flag that every record has, so that a region of zeros holds none."""
_FLAG_BITS: Final = 16


class SpoolRecord(NamedTuple):
    """One message of a queue, as it was appended at `appended_ms` (since 1970).

    A named tuple, because making a frozen dataclass takes longer than reading the record.
    """

    offset: int
    payload: bytes
    appended_ms: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that hold no record, and the offsets that they cost."""

    offsets: range
    start: int
    stop: int


@dataclass(slots=True)
class Scan:
    """The contents of a segment: the position of each offset from the first on, 0 for a lost one."""

    first: int
    end_position: int
    positions: array[int] = field(default_factory=lambda: array("I"))
    damage: list[Damage] = field(default_factory=list)

    @property
    def next_offset(self) -> int:
        """The offset behind the last record."""
        return self.first + len(self.positions)


def positions(payloads: Sequence[bytes], start: int) -> Iterable[int]:
    """Return where the record of each payload begins, if the first one is at `start`."""
    beyond = HEAD.size + 7  # and rounded down: padded to a multiple of 8 bytes
    sizes = [(len(payload) + beyond) & -8 for payload in payloads[:-1]]
    return itertools.accumulate(sizes, initial=start)


def encode(payloads: Iterable[bytes], *, first: int, now_ms: int, salt: int) -> bytes:
    """Return the records of the payloads, with offsets from `first` on."""
    stamp = now_ms << _FLAG_BITS | _PRESENT
    pack, checksum, padding, crc = _BODY.pack, _CHECKSUM.pack, _PADDING, extend
    parts: list[bytes] = []
    for offset, payload in enumerate(payloads, first):
        body = pack(len(payload), offset, stamp) + payload
        parts += (checksum(crc(salt, body)), body, padding[(len(body) + 4) & 7])
    return b"".join(parts)


def decode(
    data: bytes, position: int = 0, *, first: int, salt: int, count: int
) -> tuple[list[SpoolRecord], int]:
    """Return up to `count` records from that position of the data on, and the position behind them.

    The records end at the first that is not whole.
    """
    found: list[SpoolRecord] = []
    for at, stop, stamp in itertools.islice(_whole(data, position, first, salt), count):
        found.append(SpoolRecord(first + len(found), data[at + HEAD.size : stop], stamp >> _FLAG_BITS))
        position = (stop + 7) & -8
    return found, position


def _whole(data: bytes, position: int, first: int, salt: int) -> Iterator[tuple[int, int, int]]:
    """Yield position, end and stamp of each record that follows the one before whole."""
    unpack, crc, head, size = HEAD.unpack_from, extend, HEAD.size, len(data)
    while position + head <= size:
        checksum, length, offset, stamp = unpack(data, position)
        stop = position + head + length
        if offset != first or not stamp & _PRESENT or stop > size:
            return
        if crc(salt, data[position + 4 : stop]) != checksum:
            return
        yield position, stop, stamp
        first += 1
        position = (stop + 7) & -8


def appended_ms(data: bytes, position: int) -> int:
    """Return when the record at that position was appended."""
    return int(HEAD.unpack_from(data, position)[3]) >> _FLAG_BITS


def scan(data: bytes, *, first: int, salt: int, start: int) -> Scan:
    """Find all records from position `start` on, over damaged ones as well.

    A caller decides whether the bytes behind the last record are a torn tail.
    """
    result = Scan(first, start)
    used = len(data.rstrip(b"\0"))
    while True:
        broken = result.end_position = _run(data, result, salt)
        found = _next_valid(data, broken, used, expected=result.next_offset, salt=salt)
        if found is None:
            return result
        position, offset = found
        lost = range(result.next_offset, offset)
        result.damage.append(Damage(lost, broken, position))
        result.positions.extend(bytes(len(lost)))
        result.end_position = position


def _run(data: bytes, result: Scan, salt: int) -> int:
    """Take all records that follow each other whole; return the position behind them."""
    position, take = result.end_position, result.positions.append
    for at, stop, _ in _whole(data, position, result.next_offset, salt):
        take(at)
        position = (stop + 7) & -8
    return position


def _next_valid(data: bytes, broken: int, used: int, *, expected: int, salt: int) -> tuple[int, int] | None:
    """Return position and offset of the first whole record behind a broken one.

    Its offset must be one that the bytes between have room for: a copy of an old record inside a payload
    has an older one.
    """
    for position in range(broken + 8, min(used, len(data) - HEAD.size + 1), 8):
        (offset,) = _OFFSET.unpack_from(data, position + 8)
        has_room = 0 < offset - expected <= (position - broken) // HEAD.size
        if has_room and any(_whole(data, position, offset, salt)):
            return position, offset
    return None
