"""Message ids: TimeUUIDs whose time is the due time, held as integers in Cassandra's order.

Python compares `uuid.UUID` by its bytes, which is not time order, and Cassandra compares TimeUUIDs
by time and then by *signed* bytes. Every place that compared ids wrongly would lose messages
without a sign, so inside cqueue an id is a plain integer, built such that `<` is Cassandra's `<`:

    id = time in 100 ns since 1582-10-15 << 64 | (the low 8 bytes XOR 80 80 80 80 80 80 80 80)

Ids become UUID bytes only in the Cassandra store. `0 << 64` is the id of lock and metadata rows,
`n << 64` the id of timeout slot n.

Messages that are stored together in one row, a *pack* (cqueue.store.packs), have ids that say so: one time
for all, the two variant bits 11 instead of 10, then 46 random bits, the number of messages in the pack less
one, and the place in it. Which row an id stands in, and how many share it, so follows from the id alone.
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
"""Messages of one pack."""

START = 0
"""Below every message id; also the id of lock and metadata rows."""


def from_ticks(ticks: int, random_bits: int) -> int:
    """The id for `ticks` (100 ns since 1970) with 62 random bits."""
    return (ticks + TICKS_1970) << 64 | ((_VARIANT | (random_bits & _RANDOM_BITS)) ^ _SIGNS)


def packed(ticks: int, random_bits: int, count: int) -> range:
    """The ids of a pack of `count` messages (2 to MOST_PACKED), for `ticks` (100 ns since 1970)."""
    low = _PACKED | (random_bits & _PACK_RANDOM_BITS) << 16 | count - 1 << 8
    first = (ticks + TICKS_1970) << 64 | low
    return range(first, first + count)


def is_packed(id_: int) -> bool:
    """Whether a message's id is one of a pack's."""
    return id_ & _PACKED != 0


def pack_of(id_: int) -> int:
    """The first id of the pack that a packed id is of: the one that its row has."""
    return id_ & ~_PLACE


def share_row(one: int, other: int) -> bool:
    """Whether these two ids are of one pack."""
    return one & other & _PACKED != 0 and one >> 8 == other >> 8


def is_any_of_row(id_: int, some: Iterable[int]) -> bool:
    """Whether a message stands in the same row as one of these."""
    return any(id_ == one or share_row(id_, one) for one in some)


def rows_of(some: Iterable[int]) -> int:
    """In how many rows these messages stand."""
    return len({id_ >> 8 for id_ in some})  # of ids that are not packed, too, these bits differ


def place_in_pack(id_: int) -> int:
    """The place of a packed id in its pack, from 0."""
    return id_ & _PLACE


def stretches(some: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and the number of ids that follow one another in a pack, for all of these ids."""
    at = 0
    while at < len(some):
        first, count = some[at], 1
        if first & _PACKED:
            most = max(1, min(pack_size(first) - (first & _PLACE), len(some) - at))
            if some[at + most - 1] == first + most - 1 and (
                list(some[at : at + most]) == list(range(first, first + most))
            ):
                count = most  # nearly always: all that are left of the pack
            while count < most and some[at + count] == first + count:
                count += 1
        yield first, count
        at += count


def shortened(some: Sequence[int]) -> list[int]:
    """The same ids; of a pack that is there as a whole, in order, one element that is no message's id."""
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
    """What was shortened."""
    found: list[int] = []
    for id_ in some:
        if id_ & _PACKED and id_ & _PLACE > id_ >> 8 & _PLACE:  # a place that its pack does not have
            first = pack_of(id_)
            found += range(first, first + pack_size(id_))
        else:
            found.append(id_)
    return tuple(found)


def pack_size(id_: int) -> int:
    """The number of messages that were sent in the pack of a packed id."""
    return (id_ >> 8 & 0xFF) + 1


def derived(time_us: int, source: bytes) -> int:
    """The one id that `source` has at `time_us` (µs since 1970): the same whenever it is asked for."""
    digest = blake2b(source, digest_size=8, person=b"cqueue-id").digest()
    return from_ticks(time_us * 10, int.from_bytes(digest, "big"))


def ticks_of(id_: int) -> int:
    """The time of an id in 100 ns since 1970."""
    return (id_ >> 64) - TICKS_1970


def time_us(id_: int) -> int:
    """The time of an id in µs since 1970: the write timestamp of the message row."""
    return ((id_ >> 64) - TICKS_1970) // 10


def lowest_at(us: int) -> int:
    """Not above any id whose time is `us` (µs since 1970) or later."""
    return max(0, us * 10 + TICKS_1970) << 64


def highest_at(us: int) -> int:
    """Not below any id whose time is `us` (µs since 1970) or earlier."""
    return max(0, us * 10 + 9 + TICKS_1970) << 64 | _LOW


def slot_id(number: int) -> int:
    """The id under which timeout slot `number` is stored."""
    return number << 64


def slot_number(id_: int) -> int:
    """The number of the timeout slot that is stored under `id_`."""
    return id_ >> 64


def halves(id_: int) -> tuple[int, int]:
    """The 16 bytes of the TimeUUID, as on the wire, as two big-endian numbers of 8 bytes."""
    ticks = id_ >> 64
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 16 & 0xFFFF0000) | 0x1000 | ticks >> 48 & 0xFFF
    return high, (id_ & _LOW) ^ _SIGNS


def to_bytes(id_: int) -> bytes:
    """The 16 bytes of the TimeUUID, as on the wire."""
    high, low = halves(id_)
    return (high << 64 | low).to_bytes(16, "big")


def from_bytes(data: bytes) -> int:
    """The id of the TimeUUID with these 16 bytes."""
    high: int
    low: int
    high, low = _HALVES.unpack(data)
    ticks = (high & 0xFFF) << 48 | (high & 0xFFFF0000) << 16 | high >> 32
    return ticks << 64 | (low ^ _SIGNS)


def to_uuid(id_: int) -> UUID:
    """The id as a UUID object, for people and for other programs."""
    return UUID(bytes=to_bytes(id_))


def from_uuid(uuid: UUID) -> int:
    """The id of a version 1 UUID."""
    return from_bytes(uuid.bytes)
