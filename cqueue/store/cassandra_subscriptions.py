"""Subscriptions in Cassandra: how each operation on them is sent, and what comes back."""

from __future__ import annotations

from functools import partial

from cqueue.store import decode
from cqueue.store import statements as cql
from cqueue.store import subscriptions as ops
from cqueue.store.requests import Request, Requests, Starters, applied
from cqueue.store.statements import Kind


def starters(requests: Requests) -> Starters:
    """Return, by operation type, the function that sends it."""
    send, write, change = requests.send, requests.write, requests.change
    return {
        ops.ReadSubscription: lambda op: requests.rows(
            cql.READ_SUBSCRIPTION_SERIAL if op.serial else cql.READ_SUBSCRIPTION,
            op.key,
            partial(decode.subscription, op),
        ),
        ops.ListSubscriptions: lambda _: send(cql.LIST_SUBSCRIPTIONS, (), decode.subscription_keys),
        ops.DefineSubscription: lambda op: change(cql.DEFINE_SUBSCRIPTION, *op.key, *op.row),
        ops.ChangeDefinition: lambda op: change(
            cql.CHANGE_DEFINITION,
            *(op.row.state, op.row.config, decode.next_version(op.expect_version)),
            *(*op.key, op.expect_version),
        ),
        ops.RemoveSubscription: lambda op: requests.send_batch(
            Kind.CONDITIONAL,
            (
                (cql.REMOVE_DEFINITION, (*op.key, op.expect_version)),
                (cql.REMOVE_SUBSCRIPTION, op.key),
            ),
            applied,
        ),
        ops.ChangePositions: lambda op: _change_positions(requests, op),
        ops.BeatMember: lambda op: write(cql.BEAT_MEMBER, *op.key, *op.row, op.ttl_s),
        ops.RemoveMember: lambda op: write(cql.REMOVE_MEMBER, *op.key, op.member),
    }


def _change_positions(requests: Requests, op: ops.ChangePositions) -> Request[bool]:
    stands = [(cql.SUBSCRIPTION_STANDS, (*op.key, op.config))] if op.makes_rows else []
    changes = (
        (cql.SET_POSITION, (*row[1:], *op.key, row.partition, expect_fence))
        for expect_fence, row in op.changes
    )
    return requests.send_batch(Kind.CONDITIONAL, (*stands, *changes), applied)
