"""Logs in Cassandra: how each log operation is sent, and what comes back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

from cqueue import ids
from cqueue.store import cells, decode
from cqueue.store import log_operations as ops
from cqueue.store import statements as cql
from cqueue.store.operations import Operation, Pending
from cqueue.store.quarantine import Damage, Quarantine
from cqueue.store.record_page import Broken, ReadRecordPage, RecordPage, parse
from cqueue.store.requests import Answer, Request, Requests

_smallint = struct.Struct(">h").pack
_int = struct.Struct(">i").pack
_bigint = struct.Struct(">q").pack
_id = struct.Struct(">iQQ").pack
_timestamp = struct.Struct(">iq").pack

Starter = Callable[[Any], Pending[Any]]
Read = ops.ReadRecords | ReadRecordPage


class CassandraLogs:
    """Starts the requests of all log operations."""

    def __init__(self, requests: Requests, quarantine: Quarantine) -> None:
        self._requests = requests
        self._quarantine = quarantine

    def starters(self) -> dict[type[Operation[Any]], Starter]:
        """By operation."""
        return {
            ops.AppendRecords: self._append,
            ops.DeleteRecords: self._delete,
            ops.ReadRecords: lambda op: _Rows(_Whole(self._read, op)),
            ReadRecordPage: lambda op: _Whole(self._read, op),
            ops.ReadRecordIds: self._read_ids,
            ops.PeekRecords: self._peek,
            ops.DropRecords: lambda op: self._plain(cql.DROP_RECORDS, (op.at_us, *op.shard)),
            ops.DropRecord: lambda op: self._plain(cql.DROP_RECORD, (op.at_us, *op.shard, op.id)),
            ops.RegisterLogShard: lambda op: self._plain(cql.REGISTER_LOG_SHARD, (*op.shard, op.ttl_s)),
            ops.ReadLogShards: self._read_shards,
            ops.ListLogShards: self._list_shards,
            ops.UnregisterLogShard: lambda op: self._plain(cql.UNREGISTER_LOG_SHARD, op.shard),
            ops.ReadLog: self._read_log,
            ops.ListLogs: lambda _: self._requests.send(
                cql.LIST_LOGS, (), lambda found: decode.kept(decode.logs(found.rows), self._quarantine)
            ),
            ops.CreateLog: lambda op: self._requests.send(cql.CREATE_LOG, op.row, _applied),
            ops.ChangeLog: self._change_log,
            ops.RemoveLog: lambda op: self._requests.send(
                cql.REMOVE_LOG, (op.name, op.incarnation), _applied
            ),
        }

    def _plain(self, statement: cql.Statement, values: Iterable[Any]) -> Request[None]:
        return self._requests.send(statement, values, _nothing)

    def _append(self, op: ops.AppendRecords) -> Request[None]:
        log, partition, time_shard = op.shard
        shard = (log.encode(), _smallint(partition), _bigint(time_shard))
        return self._requests.send_encoded(cql.APPEND_RECORD, shard, record_cells(op), _nothing)

    def _delete(self, op: ops.DeleteRecords) -> Request[None]:
        at_us = max(map(ids.time_us, op.ids)) + 1
        return self._plain(cql.DELETE_RECORDS, (at_us, *op.shard, op.ids))

    def _read(self, op: Read) -> Request[RecordPage]:
        statement = cql.READ_RECORDS_BACK if op.reverse else cql.READ_RECORDS

        def decoded(found: Answer) -> RecordPage:
            page = _page(found)
            for broken in page.broken:
                key = (*op.shard, broken.id)
                self._quarantine.report(Damage("log", op.shard.log, key, broken.reason))
            return page

        return self._requests.send(statement, (*op.shard, op.after, op.upto, op.limit), decoded)

    def _read_ids(self, op: ops.ReadRecordIds) -> Request[list[int]]:
        values = (*op.shard, op.after, op.upto, op.limit)
        return self._requests.send(cql.READ_RECORD_IDS, values, lambda found: [row[0] for row in found.rows])

    def _peek(self, op: ops.PeekRecords) -> Request[dict[int, int]]:
        values = (op.log, op.partitions, op.time_shard, op.after, op.upto)
        return self._requests.send(cql.PEEK_RECORDS, values, lambda found: dict(found.rows))

    def _read_shards(self, op: ops.ReadLogShards) -> Request[dict[int, frozenset[int]]]:
        def decoded(found: Answer) -> dict[int, frozenset[int]]:
            shards, damages = decode.log_shards(op.log, found.rows)
            decode.kept(decode.Found([], damages), self._quarantine)
            return shards

        return self._requests.send(cql.READ_LOG_SHARDS, (op.log, op.time_shards), decoded)

    def _list_shards(self, op: ops.ListLogShards) -> Request[list[int]]:
        def decoded(found: Answer) -> list[int]:
            return sorted(time_shard for log, time_shard in found.rows if log == op.log)

        return self._requests.send(cql.LIST_LOG_SHARDS, (), decoded)

    def _read_log(self, op: ops.ReadLog) -> Request[ops.LogRow | None]:
        def decoded(found: Answer) -> ops.LogRow | None:
            if op.as_stored:
                return next(map(ops.LogRow._make, found.rows), None)
            return cast("ops.LogRow | None", decode.single(decode.logs(found.rows), self._quarantine))

        return self._requests.send(cql.READ_LOG, (op.name,), decoded)

    def _change_log(self, op: ops.ChangeLog) -> Request[bool]:
        row, seen = op.row, op.expect_version
        values = (row.state, row.config, decode.next_version(seen), row.name, seen, row.incarnation)
        return self._requests.send(cql.CHANGE_LOG, values, _applied)


def record_cells(op: ops.AppendRecords) -> list[bytes]:
    """For each record the cells of APPEND_RECORD's values after the partition key, in its order."""
    encoded: list[bytes] = []
    of, text, ttl = cells.of, cells.text, cells.of(_int(op.ttl_s))
    for id_, topic, key, headers, body in op.rows:
        parts = (
            _id(16, *ids.halves(id_)),
            of(topic.encode()),
            text(key),
            cells.UNSET if headers is None else of(cells.text_map(headers)),
            of(body),
            _timestamp(8, ids.time_us(id_)),
            ttl,
        )
        encoded.append(b"".join(parts))
    return encoded


def _nothing(_found: Answer) -> None:
    return None


def _applied(found: Answer) -> bool:
    return bool(found.rows[0][0])


def _page(found: Answer) -> RecordPage:
    rows: Any = found.rows
    if isinstance(rows, bytes):
        return parse(rows)
    reasons = [decode.wrong(row[1:], decode.RECORD) for row in rows]
    broken = tuple(Broken(row[0], reason) for row, reason in zip(rows, reasons, strict=True) if reason)
    page = RecordPage.of(
        ops.RecordRow._make(row if row[3] is None else (*row[:3], dict(row[3]), row[4]))
        for row, reason in zip(rows, reasons, strict=True)
        if not reason
    )
    return replace(page, broken=broken)


class _Whole:
    """A read of records of which some may be broken: it goes on until there are as many as were asked for.

    A short answer says that there are no more records, so one must not be short for those left out.
    """

    def __init__(self, send: Callable[[Read], Pending[RecordPage]], op: Read) -> None:
        self._send = send
        self._op = op
        self._first = send(op)

    def result(self) -> RecordPage:
        """Wait for it, and for what follows it."""
        op, page = self._op, self._first.result()
        if not page.broken:
            return page
        rows = list(page.rows())
        while len(rows) < op.limit and len(page) + len(page.broken) == op.limit:
            read = [page.id_at(place) for place in range(len(page))] + [each.id for each in page.broken]
            op = replace(op, upto=min(read) - 1) if op.reverse else replace(op, after=max(read))
            page = self._send(op).result()
            rows += page.rows()
        return RecordPage.of(rows[: op.limit])


class _Rows:
    """A page under way, as rows."""

    def __init__(self, page: Pending[RecordPage]) -> None:
        self._page = page

    def result(self) -> list[ops.RecordRow]:
        """Wait for it."""
        return list(self._page.result().rows())
