"""Rendezvous hashing: who of several is first for a thing, computed alike by all, so that nobody has to lead.

When one comes or goes, only what is its own changes hands.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable
from hashlib import blake2b


def thing(name: str, place: bytes) -> bytes:
    """A place in something that has a name, for `Names.first`."""
    return name.encode() + b"\0" + place


_names: dict[int, str] = {}


def own_name() -> str:
    """The name of this process among others; a process id alone comes again, in containers at every start."""
    pid = os.getpid()
    if pid not in _names:
        _names[pid] = f"{socket.gethostname()}-{pid}-{secrets.token_hex(3)}"
    return _names[pid]


class Names:
    """Several names, of which there is at least one when they are asked."""

    def __init__(self, names: Iterable[str]) -> None:
        self._keys = [(name, blake2b(name.encode(), digest_size=32).digest()) for name in names]

    def first(self, thing: bytes) -> str:
        """The name with the highest hash of itself and the thing."""
        return self.ranked(thing)[0]

    def ranked(self, thing: bytes) -> list[str]:
        """All names, by the hash of each and the thing, the highest first."""
        hashes = [(blake2b(thing, digest_size=8, key=key).digest(), name) for name, key in self._keys]
        return [name for _, name in sorted(hashes, reverse=True)]
