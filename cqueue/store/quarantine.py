"""Quarantine: stored rows that cannot be read are set aside, so that they stop nobody.

A row may be damaged by a restore, a bug, or a hand at CQL; or a newer version of cqueue may have written it.
Whoever decodes rows reports such a row here and goes on without it. Nothing is deleted: the row stays where
it is until an operator mends or drops it.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any, Final, NamedTuple

from cqueue import logs

REMEMBERED: Final = 10_000
"""Rows that a process remembers, to log each of them once; beyond that it only counts."""

LOGGER: Final = "cqueue.quarantine"


class Damage(NamedTuple):
    """One row that cannot be read.

    Attributes:
        table: where it stands.
        owner: whose row it is: the name of a queue or log in partition keys, or "" where there is none.
        key: its primary key, column by column, in the table's order; message ids are integers (cqueue.ids).
        reason: what is wrong with it, for people; never a body.
    """

    table: str
    owner: str
    key: tuple[Any, ...]
    reason: str


class Quarantine:
    """The damaged rows that one process has met. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._met: dict[tuple[str, tuple[Any, ...]], Damage] = {}
        self._counts: dict[str, int] = {}

    def report(self, damage: Damage) -> None:
        """Note a damaged row; the first time it is logged with its key."""
        place = (damage.table, damage.key)
        with self._mutex:
            if place in self._met or len(self._met) >= REMEMBERED:
                return
            self._met[place] = damage
            self._counts[damage.owner] = self._counts.get(damage.owner, 0) + 1
        logs.logger(LOGGER).error("row_quarantined", **damage._asdict())

    def find(self, table: str, key: tuple[Any, ...]) -> Damage | None:
        """What was reported of this row, if anything."""
        return self._met.get((table, key))

    def of(self, *tables: str) -> list[Damage]:
        """What was reported of these tables' rows, in the order of their keys as text."""
        with self._mutex:
            found = [damage for damage in self._met.values() if damage.table in tables]
        return sorted(found, key=lambda damage: (damage.table, *map(str, damage.key)))

    def counts(self) -> Mapping[str, int]:
        """How many damaged rows this process has met, by owner."""
        with self._mutex:
            return dict(self._counts)
