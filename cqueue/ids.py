"""Message ids: TimeUUIDs whose time is the due time, held as integers in Cassandra's order.

Python compares `uuid.UUID` by its bytes, which is not the order of time. Cassandra compares TimeUUIDs by
time, then by *signed* bytes. Code that compared ids wrongly would lose messages silently. So inside cqueue an
id is a plain integer, built such that `<` is Cassandra's `<`:

    id = time in 100 ns since 1582-10-15 << 64 | (the low 8 bytes XOR 80 80 80 80 80 80 80 80)

Ids become UUID bytes only in the Cassandra store. `0 << 64` is the id of lock and cursor rows, `n << 64` the
id of timeout slot n.

A *pack* (cqueue.store.packs) is a row that several messages share. The ids of its messages have one time, and
the variant bits 11 instead of 10. After those come 46 random bits, the number of messages in the pack less
one (8 bits), and the message's place in the pack (8 bits). So an id alone tells which row its message stands
in, and how many messages share the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from struct import Struct
from uuid import UUID

TICKS_1970 = 0x01B21DD213814000
"""100 ns intervals from the start of UUID time (1582-10-15) to 1970-01-01."""

_HALVES = Struct(">QQ")
_LOW = (1 << 64) - 1
_SIGNS = 0x8080808080808080
_VARIANT = 1 << 63
_RANDOM_BITS = (1 << 62) - 1
_PACKED = 1 << 62  # in an id as it is here, where the variant bits 10 have become 00
_PLACE = 0xFF
_PACK_RANDOM_BITS = (1 << 46) - 1

MOST_PACKED = 256
"""Messages in one pack, at most: their number less one has to fit 8 bits."""

START = 0
"""An id below every message id; also the id of lock and cursor rows."""


def from_ticks(ticks: int, random_bits: int) -> int:
    """Make the id for `ticks` (100 ns since 1970) with 62 random bits."""
    return (ticks + TICKS_1970) << 64 | ((_VARIANT | (random_bits & _RANDOM_BITS)) ^ _SIGNS)


def packed(ticks: int, random_bits: int, count: int) -> range:
    """Make the ids of a pack of `count` messages (2 to MOST_PACKED), for `ticks` (100 ns since 1970)."""
    low = _PACKED | (random_bits & _PACK_RANDOM_BITS) << 16 | count - 1 << 8
    first = (ticks + TICKS_1970) << 64 | low
    return range(first, first + count)


def is_packed(id_: int) -> bool:
    """Return whether the message stands in a pack."""
    return id_ & _PACKED != 0


def pack_of(id_: int) -> int:
    """Return the first id of a packed id's pack, which is the id of the pack's row."""
    return id_ & ~_PLACE


def share_row(one: int, other: int) -> bool:
    """Return whether both messages stand in the same pack."""
    return one & other & _PACKED != 0 and one >> 8 == other >> 8


def is_any_of_row(id_: int, some: Iterable[int]) -> bool:
    """Return whether the message is one of `some`, or stands in a pack with one of them."""
    return any(id_ == one or share_row(id_, one) for one in some)


def rows_of(some: Iterable[int]) -> int:
    """Count the rows in which these messages stand."""
    return len({id_ >> 8 for id_ in some})  # single messages differ in these bits, too


def place_in_pack(id_: int) -> int:
    """Return the place of a packed id in its pack, from 0."""
    return id_ & _PLACE


def stretches(some: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut ids into (first id, count) stretches of neighbours in one pack; a single message is one stretch."""
    at = 0
    while at < len(some):
        first, count = some[at], 1
        if first & _PACKED:
            most = max(1, min(pack_size(first) - (first & _PLACE), len(some) - at))
            if some[at + most - 1] == first + most - 1 and (
                list(some[at : at + most]) == list(range(first, first + most))
            ):
                count = most  # the usual case: the rest of the pack, in order
            while count < most and some[at + count] == first + count:
                count += 1
        yield first, count
        at += count


def shortened(some: Sequence[int]) -> list[int]:
    """Replace each whole pack (all ids, in order) by one element, which is no message's id."""
    found: list[int] = []
    at = 0
    while at < len(some):
        id_ = some[at]
        count = pack_size(id_) if id_ & (_PACKED | _PLACE) == _PACKED else 1
        if count > 1 and count <= _PLACE and list(some[at : at + count]) == list(range(id_, id_ + count)):
            found.append(id_ | _PLACE)
            at += count
        else:
            found.append(id_)
            at += 1
    return found


def lengthened(some: Sequence[int]) -> tuple[int, ...]:
    """Undo `shortened`."""
    found: list[int] = []
    for id_ in some:
        if id_ & _PACKED and id_ & _PLACE > id_ >> 8 & _PLACE:  # beyond the pack: stands for all of it
            first = pack_of(id_)
            found += range(first, first + pack_size(id_))
        else:
            found.append(id_)
    return tuple(found)


def pack_size(id_: int) -> int:
    """Return the number of messages that were sent in a packed id's pack."""
    return (id_ >> 8 & 0xFF) + 1


def derived(time_us: int, source: bytes) -> int:
    """Derive an id from `source` and `time_us` (µs since 1970): equal arguments give equal ids."""
    digest = blake2b(source, digest_size=8, person=b"cqueue-id").digest()
    return from_ticks(time_us * 10, int.from_bytes(digest, "big"))


def time_us(id_: int) -> int:
    """Return the time of an id in µs since 1970: the write timestamp of its message's row."""
    return ((id_ >> 64) - TICKS_1970) // 10


def lowest_at(us: int) -> int:
    """Return a lower bound of all ids whose time is `us` (µs since 1970) or later."""
    return max(0, us * 10 + TICKS_1970) << 64


def highest_at(us: int) -> int:
    """Return an upper bound of all ids whose time is `us` (µs since 1970) or earlier."""
    return max(0, us * 10 + 9 + TICKS_1970) << 64 | _LOW


def slot_id(number: int) -> int:
    """Return the id under which timeout slot `number` is stored."""
    return number << 64


def slot_number(id_: int) -> int:
    """Return the number of the timeout slot that is stored under `id_`."""
    return id_ >> 64


def halves(id_: int) -> tuple[int, int]:
    """Return the 16 bytes of the TimeUUID as two big-endian numbers of 8 bytes."""
    ticks = id_ >> 64
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 16 & 0xFFFF0000) | 0x1000 | ticks >> 48 & 0xFFF
    return high, (id_ & _LOW) ^ _SIGNS


def to_bytes(id_: int) -> bytes:
    """Return the 16 bytes of the TimeUUID."""
    high, low = halves(id_)
    return (high << 64 | low).to_bytes(16, "big")


def from_bytes(data: bytes) -> int:
    """Return the id of the TimeUUID with these 16 bytes."""
    high: int
    low: int
    high, low = _HALVES.unpack(data)
    ticks = (high & 0xFFF) << 48 | (high & 0xFFFF0000) << 16 | high >> 32
    return ticks << 64 | (low ^ _SIGNS)


def to_uuid(id_: int) -> UUID:
    """Return the id as a UUID object, for people and for other programs."""
    return UUID(bytes=to_bytes(id_))


def from_uuid(uuid: UUID) -> int:
    """Return the id of a version 1 UUID."""
    return from_bytes(uuid.bytes)
