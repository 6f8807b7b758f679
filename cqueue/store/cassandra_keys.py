"""Keys of messages in Cassandra: how each operation on look-up table and reservations is sent and decoded."""

from __future__ import annotations

from functools import partial
from typing import Any

from cqueue.store import codec, decode
from cqueue.store import keys as ops
from cqueue.store import statements as cql
from cqueue.store.requests import Request, Requests, Starters, nothing
from cqueue.store.statements import Kind


def starters(requests: Requests) -> Starters:
    """Return, by operation type, the function that sends it."""
    return {
        ops.ReadKey: lambda op: requests.rows(
            cql.READ_KEY, (*op.place, *op.after, op.limit), partial(decode.key_rows, op.place)
        ),
        ops.InsertKeys: lambda op: requests.send_batch(
            Kind.WRITE,
            [(cql.INSERT_KEY, (*place, *row, codec.ttl(ttl_s))) for place, row, ttl_s in op.writes],
            nothing,
        ),
        ops.DeleteKeys: lambda op: requests.send_batch(
            Kind.WRITE,
            [(cql.DELETE_KEY, (row.at_us, *place, *row[:2])) for place, row, _ in op.writes],
            nothing,
        ),
        ops.ScanKeys: lambda op: requests.send(cql.SCAN_KEYS, (op.after, op.limit), _places),
        ops.DropKey: lambda op: requests.write(cql.DROP_KEY, op.at_us, *op.place),
        ops.ReadReservation: lambda op: requests.row(
            cql.READ_RESERVATION, (op.queue, op.key), decode.reservations
        ),
        ops.WriteReservation: lambda op: _reserve(requests, op),
        ops.ListReservations: lambda op: requests.send(
            cql.LIST_RESERVATIONS,
            op.tokens,
            lambda rows: [(queue, key) for queue, key in rows if queue in op.queues],
        ),
        ops.RemoveReservation: lambda op: requests.change(cql.REMOVE_RESERVATION, op.queue, op.key),
    }


def _places(rows: list[Any]) -> list[tuple[ops.KeyPlace, int]]:
    return [(ops.KeyPlace(queue, key), token) for queue, key, token in rows]


def _reserve(requests: Requests, op: ops.WriteReservation) -> Request[bool]:
    queue, key, message, replaces, made_us, sent = op.row
    values = (message.packed(), replaces.packed() if replaces else b"", made_us, sent)
    ttl_s = codec.ttl(op.ttl_s)
    if op.expect is None:
        return requests.change(cql.MAKE_RESERVATION, queue, key, *values, ttl_s)
    return requests.change(cql.CHANGE_RESERVATION, ttl_s, *values, queue, key, op.expect.packed())
