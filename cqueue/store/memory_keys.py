"""Keys of messages in the in-memory twin.

In the look-up table the later write wins, and a delete wins a tie. Reservations take conditional writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cqueue.store import keys as ops
from cqueue.store.memory_rows import Expiring
from cqueue.store.operations import Operation

_FOR_EVER_US = 1 << 62
_Id = tuple[int, int]  # id and priority


@dataclass(slots=True)
class _Stored:
    """A row, live or deleted. deleted_us: write timestamp of the latest delete."""

    row: ops.KeyRow | None = None
    until_us: int = _FOR_EVER_US
    deleted_us: int = 0


class MemoryKeys:
    """Runs all operations on keys of the in-memory twin."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._rows: dict[ops.KeyPlace, dict[_Id, _Stored]] = {}
        self._order: dict[ops.KeyPlace, int] = {}  # its tokens: the order in which partitions were made
        self._reservations = Expiring[tuple[str, str], ops.ReservationRow](clock_us)

    def handlers(self) -> dict[type[Operation[Any]], Callable[[Any], Any]]:
        """Return, by operation type, the function that runs it."""
        return {
            ops.ReadKey: self._read,
            ops.InsertKeys: self._insert,
            ops.DeleteKeys: lambda op: self._delete(op.writes),
            ops.ScanKeys: self._scan,
            ops.DropKey: self._drop,
            ops.ReadReservation: lambda op: self._reservations.get((op.queue, op.key)),
            ops.WriteReservation: self._reserve,
            ops.ListReservations: lambda op: [
                place for place in self._reservations.alive() if place[0] in op.queues
            ],
            ops.RemoveReservation: self._remove_reservation,
        }

    def _live(self, place: ops.KeyPlace) -> list[ops.KeyRow]:
        now_us = self._clock_us()
        stored = self._rows.get(place, {})
        return [one.row for _, one in sorted(stored.items()) if one.row is not None and now_us < one.until_us]

    def _read(self, op: ops.ReadKey) -> list[ops.KeyRow]:
        return [row for row in self._live(op.place) if row[:2] > op.after][: op.limit]

    def _stored(self, place: ops.KeyPlace, row: ops.KeyRow) -> _Stored:
        return self._rows.setdefault(place, {}).setdefault(row[:2], _Stored())

    def _insert(self, op: ops.InsertKeys) -> None:
        for place, row, ttl_s in op.writes:
            self._order.setdefault(place, len(self._order))
            stored = self._stored(place, row)
            newest_us = stored.row.at_us if stored.row is not None else 0
            if row.at_us > stored.deleted_us and row.at_us >= newest_us:
                stored.row = row
                stored.until_us = self._clock_us() + ttl_s * 1_000_000 if ttl_s else _FOR_EVER_US

    def _delete(self, writes: Iterable[ops.KeyWrite]) -> None:
        for place, row, _ in writes:
            stored = self._stored(place, row)
            stored.deleted_us = max(stored.deleted_us, row.at_us)
            if stored.row is not None and stored.row.at_us <= row.at_us:
                stored.row = None

    def _drop(self, op: ops.DropKey) -> None:
        rows = [row._replace(at_us=op.at_us) for row in self._live(op.place)]
        self._delete(ops.KeyWrite(op.place, row) for row in rows)

    def _scan(self, op: ops.ScanKeys) -> list[tuple[ops.KeyPlace, int]]:
        found = [(place, token) for place, token in self._order.items() if self._live(place)]
        return [pair for pair in found if pair[1] > op.after][: op.limit]

    def _reserve(self, op: ops.WriteReservation) -> bool:
        stored = self._reservations.get(op.row[:2])
        if (stored.message if stored is not None else None) != op.expect:
            return False
        self._reservations.put(op.row[:2], op.row, op.ttl_s)
        return True

    def _remove_reservation(self, op: ops.RemoveReservation) -> bool:
        stored = self._reservations.get((op.queue, op.key))
        self._reservations.remove((op.queue, op.key))
        return stored is not None
