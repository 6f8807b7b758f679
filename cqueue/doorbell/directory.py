"""Keep a copy of all listeners' rows; a refresh reads only rows that have changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cqueue.doorbell.datagram import short_name
from cqueue.runtime.rendezvous import Names
from cqueue.store.control import ListenerRow, ReadDigests, ReadListeners
from cqueue.store.operations import Operation

NAME_PREFIX_BYTES: Final = 4
"""Bytes of each hashed name in a listener's row; a collision costs a misdirected datagram."""
MAX_NAMES: Final = 16_000
"""Names in a listener's row at most, 64 KB, as it is written often. A process with more names lists "all"."""
REMEMBERED: Final = 10_000
"""Targets whose listeners are remembered; beyond that all are forgotten and computed again."""


def encode_names(names: Iterable[bytes]) -> bytes | None:
    """Return the column `names` of a process that waits for these short names; None stands for all."""
    short = sorted({name[:NAME_PREFIX_BYTES] for name in names})
    return b"".join(short) if len(short) <= MAX_NAMES else None


def names_contain(names: bytes | None, name: bytes) -> bool:
    """Return whether a listener's column `names` holds a short name."""
    if names is None:
        return True
    at = names.find(name[:NAME_PREFIX_BYTES])
    while at > 0 and at % NAME_PREFIX_BYTES:
        at = names.find(name[:NAME_PREFIX_BYTES], at + 1)
    return at >= 0


class Target(NamedTuple):
    """What a ring is about, which decides the listeners that are notified.

    name: the queue's or log's name in partition keys. place: where in it. here: this process waits for the
    name as well. to_all: notify all listeners, not only the one that ranks first for the place. passed: this
    process was notified and cannot poll, so the listener that ranks next is notified.
    """

    name: str
    place: bytes
    here: bool = False
    to_all: bool = False
    passed: bool = False


class Directory:
    """The listeners of a keyspace. Thread-safe, because remembered values are replaced whole.

    me: this process's name among listeners. digests: of the rows, by listener. read_s: when the read of the
    digests began.
    """

    def __init__(
        self,
        rows: Sequence[ListenerRow] = (),
        *,
        me: str,
        digests: Mapping[str, bytes] | None = None,
        read_s: float = float("-inf"),
    ) -> None:
        self.digests = digests or {}
        self.read_s = read_s
        self._rows = [row for row in rows if row.listener != me]
        self._me = me
        self._others: dict[str, Mapping[str, ListenerRow]] = {}
        self._by_target: dict[Target, Sequence[ListenerRow]] = {}

    def refreshed(self, ask: Callable[[Operation[Any]], Any]) -> Directory:
        """Return an up-to-date directory, this one if nothing has changed. Only changed rows are read.

        ask: performs one operation.
        """
        began_s = time.monotonic()
        digests: dict[str, bytes] = ask(ReadDigests())
        if digests == self.digests:
            self.read_s = began_s
            return self
        same = {name for name, digest in digests.items() if self.digests.get(name) == digest}
        rows = [row for row in self._rows if row.listener in same]
        if new := tuple(digests.keys() - same - {self._me}):
            rows += ask(ReadListeners(new))
        return Directory(rows, me=self._me, digests=digests, read_s=began_s)

    def others(self, target: Target) -> Sequence[ListenerRow]:
        """Return the other processes to notify; none if this process is to be notified, or nobody waits."""
        told = self._by_target.get(target)
        if told is None:
            if len(self._by_target) >= REMEMBERED:
                self._by_target.clear()
                self._others.clear()
            told = self._by_target[target] = self._find(target)
        return told

    def _find(self, target: Target) -> Sequence[ListenerRow]:
        waiting = self._waiting(target.name)
        if target.to_all or not waiting:
            return list(waiting.values())
        names = Names([*waiting, self._me] if target.here or target.passed else waiting)
        ranked = names.ranked(target.name.encode() + b"\0" + target.place)
        first = ranked.index(self._me) + 1 if target.passed else 0
        return [waiting[name] for name in ranked[first : first + 1] if name in waiting]

    def _waiting(self, name: str) -> Mapping[str, ListenerRow]:
        """Return the other processes that wait for a name, by process name."""
        found = self._others.get(name)
        if found is None:
            short = short_name(name)
            found = {row.listener: row for row in self._rows if names_contain(row.names, short)}
            self._others[name] = found
        return found
