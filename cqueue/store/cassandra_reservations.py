"""Reservations in Cassandra: how each operation on them is sent, and what comes back."""

from __future__ import annotations

from cqueue.store import codec, decode
from cqueue.store import reservations as ops
from cqueue.store import statements as cql
from cqueue.store.requests import Request, Requests, Starters


def starters(requests: Requests) -> Starters:
    """Return, by operation type, the function that sends it."""
    return {
        ops.ReadReservation: lambda op: requests.row(
            cql.READ_RESERVATION, (op.queue, op.key), decode.reservations
        ),
        ops.WriteReservation: lambda op: _write(requests, op),
        ops.ListReservations: lambda op: requests.send(
            cql.LIST_RESERVATIONS,
            op.tokens,
            lambda rows: [(queue, key) for queue, key in rows if queue in op.queues],
        ),
        ops.RemoveReservation: lambda op: requests.change(cql.REMOVE_RESERVATION, op.queue, op.key),
    }


def _write(requests: Requests, op: ops.WriteReservation) -> Request[bool]:
    queue, key, message, replaces, made_us, sent = op.row
    values = (message.packed(), replaces.packed() if replaces else b"", made_us, sent)
    ttl_s = codec.ttl(op.ttl_s)
    if op.expect is None:
        return requests.change(cql.MAKE_RESERVATION, queue, key, *values, ttl_s)
    return requests.change(cql.CHANGE_RESERVATION, ttl_s, *values, queue, key, op.expect.packed())
