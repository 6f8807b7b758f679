"""Encode and decode datagrams, with a tag that proves that a sender of the keyspace made them; count them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, NamedTuple

VERSION: Final = 2
"""Version of the datagram's format; a listener drops all others."""
NAME_BYTES: Final = 8
"""Bytes of a hashed name: two names of one keyspace are unlikely to collide."""
MAX_PLACE: Final = 48
"""Bytes of a place at most."""
MAX_DETAILS: Final = 128
"""Bytes of details at most, eight ids of messages; more are left out."""

_HEAD: Final = struct.Struct("!B8sHqB")
_TAG_BYTES: Final = 16
LONGEST: Final = _HEAD.size + MAX_PLACE + MAX_DETAILS + _TAG_BYTES
"""Bytes of a datagram at most: it fits any network unfragmented."""


class Ring(NamedTuple):
    """The content of a datagram.

    name: `short_name` of the queue's or log's name in partition keys. place: where in the queue or log, in a
    form that only its senders and listeners know. flags: 16 bits, combined by OR when rings of one place are
    merged. due_us: cluster time before which there may be nothing to find; 0 for at once. details: all that
    there is to find, if it is little, in such a form as `place`; merged details follow each other.
    """

    name: bytes
    place: bytes
    flags: int
    due_us: int = 0
    details: bytes = b""

    def __or__(self, other: Ring) -> Ring:
        """Merge two rings of one place. Without the details of both, the merged ring has none."""
        details = self.details + other.details if self.details and other.details else b""
        return self._replace(
            flags=self.flags | other.flags,
            due_us=max(self.due_us, other.due_us),
            details=details if len(details) <= MAX_DETAILS else b"",
        )


def short_name(name: str) -> bytes:
    """Return the hash of a name of any length."""
    return blake2b(name.encode(), digest_size=NAME_BYTES).digest()


def encode(ring: Ring, key: bytes) -> bytes:
    """Return the datagram for the listener with this key."""
    head = _HEAD.pack(VERSION, ring.name, ring.flags, ring.due_us, len(ring.place))
    said = head + ring.place + ring.details
    return said + _tag(said, key)


def decode(data: bytes, key: bytes) -> Ring | None:
    """Return a datagram's content; None if its tag does not fit the key, or its version is another one."""
    said, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
    if not _HEAD.size <= len(said) <= LONGEST - _TAG_BYTES or not compare_digest(tag, _tag(said, key)):
        return None
    version, name, flags, due_us, length = _HEAD.unpack_from(said)
    place, details = said[_HEAD.size :][:length], said[_HEAD.size + length :]
    is_known = version == VERSION and len(place) == length
    return Ring(name, place, flags, due_us, details) if is_known else None


def _tag(said: bytes, key: bytes) -> bytes:
    return blake2b(said, digest_size=_TAG_BYTES, key=key).digest()


@dataclass(slots=True)
class HintCounts:
    """Counts of a client's datagrams since it was made; each count only grows.

    Attributes:
        sent: datagrams handed to the network; nobody knows how many arrived.
        unsent: datagrams that the network refused.
        received: datagrams from senders of this keyspace.
        deferred: of those received, datagrams that caused no poll at once, and perhaps one together: they
            came too often, or from a sender whose clock is ahead.
        misdirected: of those received, datagrams of a queue or log that nobody here waits for any more.
        forged: datagrams not made by a sender of this keyspace, or damaged on the way.
    """

    sent: int = 0
    unsent: int = 0
    received: int = 0
    deferred: int = 0
    misdirected: int = 0
    forged: int = 0


def added(counts: Iterable[HintCounts]) -> HintCounts:
    """Return the sum of several clients' counts."""
    return HintCounts(*(sum(each) for each in zip(*map(astuple, counts), strict=True)))
