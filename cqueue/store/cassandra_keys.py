"""The look-up table of keyed queues in Cassandra: how each operation on it is sent, and what comes back."""

from __future__ import annotations

from functools import partial
from typing import Any

from cqueue.store import codec, decode, keys
from cqueue.store import statements as cql
from cqueue.store.requests import Requests, Starters, nothing
from cqueue.store.statements import Kind


def starters(requests: Requests) -> Starters:
    """Return, by operation type, the function that sends it."""
    return {
        keys.ReadKey: lambda op: requests.rows(
            cql.READ_KEY, (*op.place, *op.after, op.limit), partial(decode.key_rows, op.place)
        ),
        keys.InsertKeys: lambda op: requests.send_batch(
            Kind.WRITE,
            [(cql.INSERT_KEY, (*place, *row, codec.ttl(ttl_s))) for place, row, ttl_s in op.writes],
            nothing,
        ),
        keys.DeleteKeys: lambda op: requests.send_batch(
            Kind.WRITE,
            [(cql.DELETE_KEY, (row.at_us, *place, *row[:2])) for place, row, _ in op.writes],
            nothing,
        ),
        keys.ScanKeys: lambda op: requests.send(cql.SCAN_KEYS, (op.after, op.limit), _places),
        keys.DropKey: lambda op: requests.write(cql.DROP_KEY, op.at_us, *op.place),
    }


def _places(rows: list[Any]) -> list[tuple[keys.KeyPlace, int]]:
    return [(keys.KeyPlace(queue, key), token) for queue, key, token in rows]
