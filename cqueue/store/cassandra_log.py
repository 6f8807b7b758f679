"""Logs and subscriptions in Cassandra: how each operation on them is sent, and what comes back."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from cqueue import ids
from cqueue.store import codec, decode
from cqueue.store import log_operations as ops
from cqueue.store import statements as cql
from cqueue.store.quarantine import Damage
from cqueue.store.record_page import Broken, ReadRecordPage, RecordPage, parse
from cqueue.store.requests import ManyRequests, Request, Requests, Starters, Steps, applied
from cqueue.store.statements import Kind


def starters(requests: Requests) -> Starters:
    """Return, by operation type, the function that sends it."""
    write, change, one, all_ = requests.write, requests.change, requests.row, requests.rows
    return {
        ops.AppendRecords: lambda op: _append(requests, op),
        ops.DeleteRecords: lambda op: write(
            cql.DELETE_RECORDS, op.at_us or max(map(ids.time_us, op.ids)) + 1, *op.shard, op.ids
        ),
        ReadRecordPage: lambda op: ManyRequests(_read_whole(requests, op)),
        ops.ReadRecordIds: lambda op: requests.send(
            cql.READ_RECORD_IDS,
            (*op.shard, op.after, op.upto, op.limit),
            lambda rows: [row[0] for row in rows],
        ),
        ops.PeekRecords: lambda op: requests.send(
            cql.PEEK_RECORDS,
            (op.log, op.partitions, op.time_shard, op.after, op.upto),
            dict,
        ),
        ops.CountRecords: lambda op: requests.send(cql.COUNT_RECORDS, (*op.shard, op.after, op.upto), _span),
        ops.DropRecords: lambda op: write(cql.DROP_RECORDS, op.at_us, *op.shard),
        ops.RegisterLogShard: lambda op: _register(requests, op),
        ops.ReadLogShards: lambda op: all_(
            cql.READ_LOG_SHARDS, (op.log, op.time_shards), partial(decode.log_shards, op.log)
        ),
        ops.ListLogShards: lambda op: requests.send(
            cql.LIST_LOG_SHARDS, (), lambda rows: sorted(at for log, at in rows if log == op.log)
        ),
        ops.UnregisterLogShard: lambda op: write(cql.UNREGISTER_LOG_SHARD, *op.shard),
        ops.ReadLog: lambda op: one(cql.READ_LOG, (op.name,), decode.logs, as_stored=op.as_stored),
        ops.ListLogs: lambda _: all_(cql.LIST_LOGS, (), decode.logs),
        ops.CreateLog: lambda op: change(cql.CREATE_LOG, *op.row),
        ops.ChangeLog: lambda op: change(cql.CHANGE_LOG, *codec.change_values(op)),
        ops.RemoveLog: lambda op: change(cql.REMOVE_LOG, op.name, op.incarnation),
        ops.ReadSubscription: lambda op: requests.rows(
            cql.READ_SUBSCRIPTION_SERIAL if op.serial else cql.READ_SUBSCRIPTION,
            op.key,
            partial(decode.subscription, op),
        ),
        ops.ListSubscriptions: lambda _: requests.send(cql.LIST_SUBSCRIPTIONS, (), decode.subscription_keys),
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


def _append(requests: Requests, op: ops.AppendRecords) -> Request[None]:
    rows = codec.record_cells(op)
    return requests.send_encoded(cql.APPEND_RECORD, codec.log_partition(op.shard), rows)


def _register(requests: Requests, op: ops.RegisterLogShard) -> Request[None]:
    ttl_s = codec.ttl(op.ttl_s)
    # One µs later without a ttl: at equal times, Cassandra prefers what expires.
    at_us = op.shard.time_shard * 1000 + (not ttl_s)
    return requests.write(cql.REGISTER_LOG_SHARD, *op.shard, ttl_s, at_us)


def _read_whole(requests: Requests, op: ReadRecordPage) -> Steps[RecordPage]:
    """Read records, and read on for each one that is damaged and left out, until `limit` are found.

    A page below `limit` tells the caller that no more records follow, so damaged ones must not shorten
    it.
    """
    request = _read(requests, op)
    yield
    page = request.result()
    if not page.broken:
        return page
    rows, limit = list(page.rows()), op.limit
    while len(rows) < limit and len(page) + len(page.broken) == limit:
        read = [page.id_at(place) for place in range(len(page))] + [each.id for each in page.broken]
        op = replace(op, upto=min(read) - 1) if op.reverse else replace(op, after=max(read))
        page = _read(requests, op).result()
        rows += page.rows()
    return RecordPage.of(rows[:limit])


def _read(requests: Requests, op: ReadRecordPage) -> Request[RecordPage]:
    statement = cql.READ_RECORDS_BACK if op.reverse else cql.READ_RECORDS

    def decoded(rows: list[Any] | bytes) -> RecordPage:
        page = _page(rows)
        for broken in page.broken:
            key = (*op.shard, broken.id)
            requests.quarantine.report(Damage("log", op.shard.log, key, broken.reason))
        return page

    return requests.send(statement, (*op.shard, op.after, op.upto, op.limit), decoded)


def _span(rows: list[Any]) -> ops.Span:
    count, first = rows[0]
    return ops.Span(count, first if count else None)


def _page(rows: list[Any] | bytes) -> RecordPage:
    if isinstance(rows, bytes):
        return parse(rows)
    reasons = [decode.fault(row[1:], decode.RECORD) for row in rows]
    broken = tuple(Broken(row[0], reason) for row, reason in zip(rows, reasons, strict=True) if reason)
    page = RecordPage.of(
        ops.RecordRow._make(row if row[3] is None else (*row[:3], dict(row[3]), row[4]))
        for row, reason in zip(rows, reasons, strict=True)
        if not reason
    )
    return replace(page, broken=broken)


def _change_positions(requests: Requests, op: ops.ChangePositions) -> Request[bool]:
    stands = [(cql.SUBSCRIPTION_STANDS, (*op.key, op.config))] if op.makes_rows else []
    changes = (
        (cql.SET_POSITION, (*row[1:], *op.key, row.partition, expect_fence))
        for expect_fence, row in op.changes
    )
    return requests.send_batch(Kind.CONDITIONAL, (*stands, *changes), applied)
