"""What senders know of listeners: all rows, as they were read at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cqueue.doorbell.datagram import short_name
from cqueue.rendezvous import Names, thing
from cqueue.store.control import ListenerRow

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


class Directory:
    """Listeners by what they wait for. Thread-safe: what it remembers is written whole.

    me: the name of this process among listeners. read_s: when the read began that gave the rows.
    """

    def __init__(self, rows: Sequence[ListenerRow], me: str, read_s: float) -> None:
        self.read_s = read_s
        self._rows = [row for row in rows if row.listener != me]
        self._me = me
        self._others: dict[str, Mapping[str, ListenerRow]] = {}
        self._names: dict[tuple[str, bool], Names] = {}
        self._first: dict[tuple[str, bytes, bool], ListenerRow | None] = {}

    def others(self, name: str) -> Mapping[str, ListenerRow]:
        """Other processes that wait for a name, by their own names."""
        found = self._others.get(name)
        if found is None:
            short = short_name(name)
            found = {row.listener: row for row in self._rows if lists(row.names, short)}
            self._others[name] = found
        return found

    def first(self, name: str, place: bytes, *, here: bool) -> ListenerRow | None:
        """The other process that is to be told of a place; None if it is this one, or nobody waits.

        here: whether this process waits for the name as well.
        """
        key = (name, place, here)
        if key not in self._first:
            if len(self._first) >= REMEMBERED:
                self._first.clear()
            self._first[key] = self._find(name, place, here=here)
        return self._first[key]

    def _find(self, name: str, place: bytes, *, here: bool) -> ListenerRow | None:
        others = self.others(name)
        if not others:
            return None
        names = self._names.get((name, here))
        if names is None:
            names = self._names[name, here] = Names([*others, self._me] if here else others)
        return others.get(names.first(thing(name, place)))
