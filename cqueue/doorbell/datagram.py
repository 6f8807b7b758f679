"""Datagrams: what they say, and how a listener tells that a sender of its keyspace made them."""

from __future__ import annotations

import struct
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, NamedTuple

VERSION: Final = 1
NAME_BYTES: Final = 8
MAX_PLACE: Final = 48

_HEAD: Final = struct.Struct("!B8sHq")
_TAG_BYTES: Final = 16
LONGEST: Final = _HEAD.size + MAX_PLACE + _TAG_BYTES
"""Bytes of a datagram, which fits any network unfragmented."""


class Ring(NamedTuple):
    """What a datagram says.

    name: `short_name` of what rings, the partition name of a queue or of a log. place: where in it, in bytes
    that only those know who ring and listen there. flags: 16 bits that are added up when rings of one place
    are merged. due_us: the cluster's time, before which there may be nothing to find; 0: at once.
    """

    name: bytes
    place: bytes
    flags: int
    due_us: int = 0

    def __or__(self, other: Ring) -> Ring:
        """Two rings of one place as one."""
        return self._replace(flags=self.flags | other.flags, due_us=max(self.due_us, other.due_us))


def short_name(name: str) -> bytes:
    """A hash for a name of any length."""
    return blake2b(name.encode(), digest_size=NAME_BYTES).digest()


def encode(ring: Ring, key: bytes) -> bytes:
    """The datagram for the listener that has this key."""
    said = _HEAD.pack(VERSION, ring.name, ring.flags, ring.due_us) + ring.place
    return said + _tag(said, key)


def decode(data: bytes, key: bytes) -> Ring | None:
    """What a datagram says; None if nobody who knows the key has made it, or another version."""
    said, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
    if not _HEAD.size <= len(said) <= LONGEST - _TAG_BYTES or not compare_digest(tag, _tag(said, key)):
        return None
    version, name, flags, due_us = _HEAD.unpack_from(said)
    return Ring(name, said[_HEAD.size :], flags, due_us) if version == VERSION else None


def _tag(said: bytes, key: bytes) -> bytes:
    return blake2b(said, digest_size=_TAG_BYTES, key=key).digest()
