"""Reservations in the in-memory twin: conditional writes, and rows that expire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cqueue.store import reservations as ops
from cqueue.store.memory_rows import Expiring
from cqueue.store.operations import Operation


class MemoryReservations:
    """Runs all operations on reservations of the in-memory twin."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._rows = Expiring[tuple[str, str], ops.ReservationRow](clock_us)

    def handlers(self) -> dict[type[Operation[Any]], Callable[[Any], Any]]:
        """Return, by operation type, the function that runs it."""
        return {
            ops.ReadReservation: lambda op: self._rows.get((op.queue, op.key)),
            ops.WriteReservation: self._write,
            ops.ListReservations: lambda op: [place for place in self._rows.alive() if place[0] in op.queues],
            ops.RemoveReservation: self._remove,
        }

    def _write(self, op: ops.WriteReservation) -> bool:
        stored = self._rows.get(op.row[:2])
        if (stored.message if stored is not None else None) != op.expect:
            return False
        self._rows.put(op.row[:2], op.row, op.ttl_s)
        return True

    def _remove(self, op: ops.RemoveReservation) -> bool:
        stored = self._rows.get((op.queue, op.key))
        self._rows.remove((op.queue, op.key))
        return stored is not None
