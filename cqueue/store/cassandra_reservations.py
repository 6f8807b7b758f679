"""Reservations in Cassandra: how each operation on them is sent, and what comes back."""

from __future__ import annotations

from cqueue.store import decode
from cqueue.store import reservations as ops
from cqueue.store import statements as cql
from cqueue.store.requests import Request
from cqueue.store.sender import Sender, Starters


class CassandraReservations(Sender):
    """Starts the requests of all operations on reservations."""

    def starters(self) -> Starters:
        """Return, by operation type, the function that sends it."""
        return {
            ops.ReadReservation: lambda op: self._one(
                cql.READ_RESERVATION, (op.queue, op.key), decode.reservations
            ),
            ops.WriteReservation: self._write_reservation,
            ops.ListReservations: lambda op: self._requests.send(
                cql.LIST_RESERVATIONS,
                (),
                lambda rows: [key for queue, key in rows if queue == op.queue],
            ),
            ops.RemoveReservation: lambda op: self._change(cql.REMOVE_RESERVATION, op.queue, op.key),
        }

    def _write_reservation(self, op: ops.WriteReservation) -> Request[bool]:
        queue, key, message, replaces, made_us, sent = op.row
        values = (message.packed(), replaces.packed() if replaces else b"", made_us, sent)
        if op.expect is None:
            return self._change(cql.MAKE_RESERVATION, queue, key, *values, op.ttl_s)
        return self._change(cql.CHANGE_RESERVATION, op.ttl_s, *values, queue, key, op.expect.packed())
