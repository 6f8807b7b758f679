"""Logs in Cassandra: how each log operation is sent, and what comes back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from cqueue import ids
from cqueue.store import cells
from cqueue.store import log_operations as ops
from cqueue.store import statements as cql
from cqueue.store.operations import Operation
from cqueue.store.record_page import ReadRecordPage, RecordPage, parse
from cqueue.store.requests import Answer, Decode, Request, Requests

_smallint = struct.Struct(">h").pack
_int = struct.Struct(">i").pack
_bigint = struct.Struct(">q").pack
_id = struct.Struct(">iQQ").pack
_timestamp = struct.Struct(">iq").pack

T = TypeVar("T")
Starter = Callable[[Any], Request[Any]]


class CassandraLogs:
    """Starts the requests of all log operations."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def starters(self) -> dict[type[Operation[Any]], Starter]:
        """By operation."""
        return {
            ops.AppendRecords: self._append,
            ops.DeleteRecords: self._delete,
            ops.ReadRecords: lambda op: self._read(op, lambda found: list(_page(found).rows())),
            ReadRecordPage: lambda op: self._read(op, _page),
            ops.ReadRecordIds: self._read_ids,
            ops.PeekRecords: self._peek,
            ops.DropRecords: lambda op: self._plain(cql.DROP_RECORDS, (op.at_us, *op.shard)),
            ops.RegisterLogShard: lambda op: self._plain(cql.REGISTER_LOG_SHARD, (*op.shard, op.ttl_s)),
            ops.ReadLogShards: self._read_shards,
            ops.UnregisterLogShard: lambda op: self._plain(cql.UNREGISTER_LOG_SHARD, op.shard),
            ops.ReadLog: self._read_log,
            ops.ListLogs: lambda _: self._requests.send(cql.LIST_LOGS, (), _logs),
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

    def _read(self, op: ops.ReadRecords | ReadRecordPage, decode: Decode[T]) -> Request[T]:
        statement = cql.READ_RECORDS_BACK if op.reverse else cql.READ_RECORDS
        return self._requests.send(statement, (*op.shard, op.after, op.upto, op.limit), decode)

    def _read_ids(self, op: ops.ReadRecordIds) -> Request[list[int]]:
        values = (*op.shard, op.after, op.upto, op.limit)
        return self._requests.send(cql.READ_RECORD_IDS, values, lambda found: [row[0] for row in found.rows])

    def _peek(self, op: ops.PeekRecords) -> Request[dict[int, int]]:
        values = (op.log, op.partitions, op.time_shard, op.after, op.upto)
        return self._requests.send(cql.PEEK_RECORDS, values, lambda found: dict(found.rows))

    def _read_shards(self, op: ops.ReadLogShards) -> Request[dict[int, frozenset[int]]]:
        return self._requests.send(cql.READ_LOG_SHARDS, (op.log, op.time_shards), _shards)

    def _read_log(self, op: ops.ReadLog) -> Request[ops.LogRow | None]:
        return self._requests.send(cql.READ_LOG, (op.name,), lambda found: next(iter(_logs(found)), None))

    def _change_log(self, op: ops.ChangeLog) -> Request[bool]:
        row, seen = op.row, op.expect_version
        values = (row.state, row.config, seen + 1, row.name, seen, row.incarnation)
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
    return RecordPage.of(
        ops.RecordRow._make(row if row[3] is None else (*row[:3], dict(row[3]), row[4])) for row in rows
    )


def _shards(found: Answer) -> dict[int, frozenset[int]]:
    shards: dict[int, set[int]] = {}
    for time_shard, partition in found.rows:
        shards.setdefault(time_shard, set()).add(partition)
    return {time_shard: frozenset(partitions) for time_shard, partitions in shards.items()}


def _logs(found: Answer) -> list[ops.LogRow]:
    return [ops.LogRow._make(row) for row in found.rows]
