"""Quarantine: remember stored rows that cannot be read, so that they hold up nothing else.

A row may be damaged by a restore, by a bug, or by hand-written CQL; or a newer version of cqueue wrote it.
The decoders report such a row here and go on without it. Nothing is deleted: the row stays in its table until
an operator mends or drops it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from threading import Lock
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from cqueue import ids
from cqueue.errors import BadInput, DamagedRow
from cqueue.runtime import logs
from cqueue.store.statements import KEY_COLUMNS

MESSAGES: Final = "messages"
SLOT_KIND: Final = 2
MESSAGE_KIND: Final = 3
"""Values of the column `kind` in `messages`: timeout slots, and messages."""
REMEMBERED: Final = 10_000
"""Damaged rows that a process remembers, to log each of them once. Each further one takes the place of the
oldest, without a log line, so that a table that is damaged throughout fills neither memory nor log."""
REMEMBERED_S: Final = 86_400.0
"""Seconds (a day) for which a row is remembered that is not met again, as it was mended or dropped. Where
retiring is paused, nobody comes back to a damaged message below a boundary, and it is forgotten as well."""

_TEXTS: Final = frozenset({"queue", "key", "fleet", "worker", "log", "subscription", "member", "message"})
LOGGER: Final = "cqueue.quarantine"


class Damage(NamedTuple):
    """One row that cannot be read.

    Attributes:
        table: the name of the table.
        owner: the partition name of the queue or log that the row belongs to, or "" if there is none.
        key: the row's primary key, column by column in the table's order; message ids are integers
            (cqueue.ids).
        reason: why the row cannot be read, for people; never a body.
    """

    table: str
    owner: str
    key: tuple[Any, ...]
    reason: str

    @property
    def address(self) -> str:
        """Table and key as one text, for people; `parse_address` reads it."""
        columns = zip(KEY_COLUMNS[self.table], self.key, strict=True)
        return "/".join([self.table, *(_written(*each) for each in columns)])


def _written(column: str, value: Any) -> str:
    text = str(ids.to_uuid(value)) if column == "id" else str(value)
    return quote(text, safe="@:+")


def parse_address(text: str) -> tuple[str, tuple[Any, ...]]:
    """Read the table and the key from the text of `Damage.address`.

    Raises:
        BadInput: the text is no such address.
    """
    table, *parts = text.split("/")
    try:
        return table, tuple(_read(*each) for each in zip(KEY_COLUMNS[table], parts, strict=True))
    except (KeyError, ValueError) as exc:
        raise BadInput(
            f"{text!r} is the address of no row; `cqueue quarantine list` shows the addresses"
        ) from exc


def _read(column: str, part: str) -> Any:
    if column == "id":
        return ids.from_uuid(UUID(part))
    return unquote(part) if column in _TEXTS else int(part)


class Quarantine:
    """The damaged rows that one process has met lately. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = Lock()
        # With the time in s at which each was met last, in this order.
        self._met: dict[tuple[str, tuple[Any, ...]], tuple[Damage, float]] = {}

    def report(self, damage: Damage) -> None:
        """Remember a damaged row. Log it, with its key, the first time."""
        place = (damage.table, damage.key)
        with self._mutex:
            rows = self._remembered()
            is_new, is_full = rows.pop(place, None) is None, len(rows) >= REMEMBERED
            if is_full:  # a caller that has just read this row has to find it
                del rows[next(iter(rows))]
            rows[place] = damage, time.monotonic()
        if is_new and not is_full:
            logs.logger(LOGGER).error("row_quarantined", **damage._asdict())

    def _remembered(self) -> dict[tuple[str, tuple[Any, ...]], tuple[Damage, float]]:
        """Forget what was not met for long; return the rest. The caller holds the mutex."""
        since_s = time.monotonic() - REMEMBERED_S
        while self._met and next(iter(self._met.values()))[1] < since_s:
            del self._met[next(iter(self._met))]
        return self._met

    def find(self, table: str, key: tuple[Any, ...]) -> Damage | None:
        """Return the damage that was reported for this row, if any."""
        if not self._met:  # nearly always, and this is asked of each row of some reads
            return None
        with self._mutex:
            damage, _ = self._remembered().get((table, key), (None, 0.0))
        return damage

    def check_message(self, wide_row: tuple[Any, ...], priority: int, id_: int) -> None:
        """Raise DamagedRow if the row of this message was reported."""
        row = ids.pack_of(id_) if ids.is_packed(id_) else id_
        damage = self.find(MESSAGES, (*wide_row, MESSAGE_KIND, priority, row))
        if damage is not None:
            raise DamagedRow(
                f"the message's row cannot be read: {damage.reason}; `cqueue quarantine dump` shows it"
            )

    def of(self, *tables: str) -> list[Damage]:
        """Return the damaged rows of these tables, in the order of their keys as text."""
        with self._mutex:
            found = [damage for damage, _ in self._remembered().values() if damage.table in tables]
        return sorted(found, key=lambda damage: (damage.table, *map(str, damage.key)))

    def forget(self, damage: Damage) -> None:
        """Forget a row that was mended or deleted."""
        with self._mutex:
            self._met.pop((damage.table, damage.key), None)

    def counts(self) -> Mapping[str, int]:
        """Count the damaged rows that this process has met lately, by owner."""
        with self._mutex:
            return Counter(damage.owner for damage, _ in self._remembered().values())
