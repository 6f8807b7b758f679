"""The look-up table of keyed queues in the in-memory twin: the later write wins, and a delete wins a tie."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cqueue.store import keys
from cqueue.store.operations import Operation

_FOR_EVER_US = 1 << 62
_Id = tuple[int, int]  # id and priority


@dataclass(slots=True)
class _Stored:
    """A row, live or deleted. deleted_us: write timestamp of the latest delete."""

    row: keys.KeyRow | None = None
    until_us: int = _FOR_EVER_US
    deleted_us: int = 0


class MemoryKeys:
    """Runs all operations on the look-up table of the in-memory twin."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._rows: dict[keys.KeyPlace, dict[_Id, _Stored]] = {}
        self._order: dict[keys.KeyPlace, int] = {}  # its tokens: the order in which partitions were made

    def handlers(self) -> dict[type[Operation[Any]], Callable[[Any], Any]]:
        """Return, by operation type, the function that runs it."""
        return {
            keys.ReadKey: self._read,
            keys.InsertKeys: self._insert,
            keys.DeleteKeys: lambda op: self._delete(op.place, [(row[:2], row.at_us) for row in op.rows]),
            keys.ScanKeys: self._scan,
            keys.DropKey: lambda op: self._delete(
                op.place, [(id_, op.at_us) for id_ in self._rows.get(op.place, ())]
            ),
        }

    def _live(self, place: keys.KeyPlace) -> list[keys.KeyRow]:
        now_us = self._clock_us()
        stored = self._rows.get(place, {})
        return [one.row for _, one in sorted(stored.items()) if one.row is not None and now_us < one.until_us]

    def _read(self, op: keys.ReadKey) -> list[keys.KeyRow]:
        return [row for row in self._live(op.place) if row[:2] > op.after][: op.limit]

    def _insert(self, op: keys.InsertKeys) -> None:
        until_us = self._clock_us() + op.ttl_s * 1_000_000 if op.ttl_s else _FOR_EVER_US
        self._order.setdefault(op.place, len(self._order))
        for row in op.rows:
            stored = self._rows.setdefault(op.place, {}).setdefault(row[:2], _Stored())
            newest_us = stored.row.at_us if stored.row is not None else 0
            if row.at_us > stored.deleted_us and row.at_us >= newest_us:
                stored.row, stored.until_us = row, until_us

    def _delete(self, place: keys.KeyPlace, deletes: Iterable[tuple[_Id, int]]) -> None:
        for id_, at_us in deletes:
            stored = self._rows.setdefault(place, {}).setdefault(id_, _Stored())
            stored.deleted_us = max(stored.deleted_us, at_us)
            if stored.row is not None and stored.row.at_us <= at_us:
                stored.row = None

    def _scan(self, op: keys.ScanKeys) -> list[tuple[keys.KeyPlace, int]]:
        found = [(place, token) for place, token in self._order.items() if self._live(place)]
        return [pair for pair in found if pair[1] > op.after][: op.limit]
