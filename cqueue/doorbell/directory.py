"""What senders know of listeners: all rows, of which those were read anew that had changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cqueue.doorbell.datagram import short_name
from cqueue.rendezvous import Names, thing
from cqueue.store.control import ListenerRow, ReadDigests, ReadListeners
from cqueue.store.operations import Operation

LISTED_BYTES: Final = 4
MOST_LISTED: Final = 16_000
"""A process that waits for more names than this says that it waits for all: its row is written often."""
REMEMBERED: Final = 10_000
"""Places whose listener need not be found out again."""


def listing(names: Iterable[bytes]) -> bytes | None:
    """The column `names` of a process that waits for these short names."""
    short = sorted({name[:LISTED_BYTES] for name in names})
    return b"".join(short) if len(short) <= MOST_LISTED else None


def lists(names: bytes | None, name: bytes) -> bool:
    """Whether a listing holds a short name."""
    if names is None:
        return True
    at = names.find(name[:LISTED_BYTES])
    while at > 0 and at % LISTED_BYTES:
        at = names.find(name[:LISTED_BYTES], at + 1)
    return at >= 0


class Target(NamedTuple):
    """Who is told of what.

    name: of what rings, a queue's or a log's partition name. place: where in it. here: this process waits for
    the name as well. to_all: all who wait are told, and not only the one that comes first for the place.
    passed: this process was told and cannot look; who comes after it is to be told.
    """

    name: str
    place: bytes
    here: bool = False
    to_all: bool = False
    passed: bool = False


class Directory:
    """Listeners by what they wait for. Thread-safe: what it remembers is written whole.

    me: the name of this process among listeners. digests: of the rows, by listener. read_s: when the read
    began by which they are known.
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
        self._names: dict[tuple[str, bool], Names] = {}
        self._told: dict[Target, Sequence[ListenerRow]] = {}

    def refreshed(
        self, ask: Callable[[Operation[Any]], Any], clock: Callable[[], float] = time.monotonic
    ) -> Directory:
        """The directory of now: only what has changed is read, and this one stays if nothing has.

        ask: performs one operation.
        """
        began_s = clock()
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
        """The other processes that are to be told; none if it is this one, or nobody waits."""
        told = self._told.get(target)
        if told is None:
            if len(self._told) >= REMEMBERED:
                self._told.clear()
            told = self._told[target] = self._find(target)
        return told

    def _find(self, target: Target) -> Sequence[ListenerRow]:
        waiting = self._waiting(target.name)
        if target.to_all or not waiting:
            return list(waiting.values())
        with_me = target.here or target.passed
        names = self._names.get((target.name, with_me))
        if names is None:
            names = Names([*waiting, self._me] if with_me else waiting)
            self._names[target.name, with_me] = names
        ranked = names.ranked(thing(target.name, target.place))
        first = ranked.index(self._me) + 1 if target.passed else 0
        return [waiting[name] for name in ranked[first : first + 1] if name in waiting]

    def _waiting(self, name: str) -> Mapping[str, ListenerRow]:
        """Other processes that wait for a name, by their own names."""
        found = self._others.get(name)
        if found is None:
            short = short_name(name)
            found = {row.listener: row for row in self._rows if lists(row.names, short)}
            self._others[name] = found
        return found
