"""Rendezvous hashing: all members compute alike which of them owns an item, so that no leader is needed.

When a member joins or leaves, only the items that it owns change their owner.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable
from hashlib import blake2b

_names: dict[int, str] = {}


def own_name() -> str:
    """Return a unique name of this process. A process id alone is reused; in containers, at every start."""
    pid = os.getpid()
    if pid not in _names:
        _names[pid] = f"{socket.gethostname()}-{pid}-{secrets.token_hex(3)}"
    return _names[pid]


class Names:
    """The names of the members, at least one."""

    def __init__(self, names: Iterable[str]) -> None:
        self._keys = [(name, blake2b(name.encode(), digest_size=32).digest()) for name in names]

    def first(self, thing: bytes) -> str:
        """Return the owner of an item: the name with the highest hash of itself and the item."""
        return self.ranked(thing)[0]

    def ranked(self, thing: bytes) -> list[str]:
        """Return all names in the order in which they would own an item: by descending hash."""
        hashes = [(blake2b(thing, digest_size=8, key=key).digest(), name) for name, key in self._keys]
        return [name for _, name in sorted(hashes, reverse=True)]
