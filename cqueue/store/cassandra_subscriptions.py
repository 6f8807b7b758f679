"""Subscriptions in Cassandra: how each operation on them is sent, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cqueue.store import decode
from cqueue.store import statements as cql
from cqueue.store import subscriptions as ops
from cqueue.store.operations import Operation
from cqueue.store.quarantine import Quarantine
from cqueue.store.requests import Answer, Request, Requests

Starter = Callable[[Any], Request[Any]]


class CassandraSubscriptions:
    """Starts the requests of all operations on subscriptions."""

    def __init__(self, requests: Requests, quarantine: Quarantine) -> None:
        self._requests = requests
        self._quarantine = quarantine

    def starters(self) -> dict[type[Operation[Any]], Starter]:
        """By operation."""
        send = self._requests.send
        return {
            ops.ReadSubscription: self._read,
            ops.ListSubscriptions: lambda _: send(
                cql.LIST_SUBSCRIPTIONS, (), lambda found: decode.subscription_keys(found.rows)
            ),
            ops.DefineSubscription: lambda op: send(cql.DEFINE_SUBSCRIPTION, (*op.key, *op.row), _applied),
            ops.ChangeDefinition: self._change_definition,
            ops.RemoveSubscription: self._remove,
            ops.ChangePositions: self._change_positions,
            ops.BeatMember: lambda op: send(cql.BEAT_MEMBER, (*op.key, *op.row, op.ttl_s), _nothing),
            ops.RemoveMember: lambda op: send(cql.REMOVE_MEMBER, (*op.key, op.member), _nothing),
            ops.CountRecords: lambda op: send(cql.COUNT_RECORDS, (*op.shard, op.after, op.upto), _span),
        }

    def _read(self, op: ops.ReadSubscription) -> Request[ops.SubscriptionRows]:
        statement = cql.READ_SUBSCRIPTION_SERIAL if op.serial else cql.READ_SUBSCRIPTION

        def decoded(found: Answer) -> ops.SubscriptionRows:
            rows, damages = decode.subscription(op, found.rows)
            for damage in damages:
                self._quarantine.report(damage)
            return rows

        return self._requests.send(statement, op.key, decoded)

    def _change_definition(self, op: ops.ChangeDefinition) -> Request[bool]:
        values = (
            op.row.state,
            op.row.config,
            decode.next_version(op.expect_version),
            *op.key,
            op.expect_version,
        )
        return self._requests.send(cql.CHANGE_DEFINITION, values, _applied)

    def _remove(self, op: ops.RemoveSubscription) -> Request[bool]:
        parts = (
            (cql.REMOVE_DEFINITION, (*op.key, op.expect_version)),
            (cql.REMOVE_SUBSCRIPTION, op.key),
        )
        return self._requests.send_conditional(parts, _applied)

    def _change_positions(self, op: ops.ChangePositions) -> Request[bool]:
        parts = (
            (
                cql.SET_POSITION,
                (row.position, row.fence, row.owner, row.generation, *op.key, row.partition, expect),
            )
            for expect, row in op.changes
        )
        return self._requests.send_conditional(parts, _applied)


def _nothing(_found: Answer) -> None:
    return None


def _applied(found: Answer) -> bool:
    return bool(found.rows[0][0])


def _span(found: Answer) -> ops.Span:
    count, first = found.rows[0]
    return ops.Span(count, first if count else None)
