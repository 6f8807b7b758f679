"""Rendezvous hashing: who of several is first for a thing, computed alike by all, so that nobody has to lead.

When one comes or goes, only what is its own changes hands.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def first(names: Iterable[str], thing: bytes) -> str:
    """The name with the highest hash of itself and the thing. There is at least one."""
    return max(names, key=lambda name: (_weight(name, thing), name))


def _weight(name: str, thing: bytes) -> bytes:
    return blake2b(thing, digest_size=8, key=blake2b(name.encode(), digest_size=32).digest()).digest()
