"""Operations in Cassandra beside messages: queues, deployment, schedules, workers, listeners, results."""

from __future__ import annotations

from zlib import crc32

from cqueue.store import codec, control, decode
from cqueue.store import operations as ops
from cqueue.store import statements as cql
from cqueue.store.requests import Requests, Starters


def starters(requests: Requests) -> Starters:
    """Return, by operation type, the function that sends it."""
    send, write, change = requests.send, requests.write, requests.change
    one, all_ = requests.row, requests.rows
    return {
        ops.ReadQueue: lambda op: one(cql.READ_QUEUE, (op.name,), decode.queues, as_stored=op.as_stored),
        ops.ListQueues: lambda _: all_(cql.LIST_QUEUES, (), decode.queues),
        ops.CreateQueue: lambda op: change(cql.CREATE_QUEUE, *op.row),
        ops.ChangeQueue: lambda op: change(cql.CHANGE_QUEUE, *codec.change_values(op)),
        ops.RemoveQueue: lambda op: change(cql.REMOVE_QUEUE, op.name, op.incarnation),
        ops.AdvanceEpoch: lambda op: change(
            cql.ADVANCE_OPEN_EPOCH if op.open else cql.ADVANCE_EPOCH,
            *(op.to, op.name, op.expect, op.incarnation),
        ),
        ops.ReadDeployment: lambda _: send(cql.READ_DEPLOYMENT, (), decode.deployment),
        ops.BumpDeployment: lambda op: change(cql.BUMP_DEPLOYMENT, op.expect + 1, op.expect),
        control.ReadSchedule: lambda op: one(
            cql.READ_SCHEDULE, (op.queue, op.key), decode.schedules, as_stored=op.as_stored
        ),
        control.ListSchedules: lambda op: all_(
            cql.LIST_SCHEDULES, (op.queue,), decode.schedules, as_stored=op.as_stored
        ),
        control.CreateSchedule: lambda op: change(cql.CREATE_SCHEDULE, *op.row),
        control.ChangeSchedule: lambda op: change(
            cql.CHANGE_SCHEDULE,
            *(decode.next_version(op.expect_version), *op.row[3:], *op.row[:2], op.expect_version),
        ),
        control.RemoveSchedule: lambda op: change(cql.REMOVE_SCHEDULE, op.queue, op.key, op.expect_version),
        control.Heartbeat: lambda op: write(cql.HEARTBEAT, *op.row, op.ttl_s),
        control.ReadWorkers: lambda _: all_(cql.READ_WORKERS, (), decode.workers),
        control.RemoveWorker: lambda op: write(cql.REMOVE_WORKER, op.worker),
        control.Listen: lambda op: write(cql.LISTEN, *op.row, op.row.digest, op.ttl_s),
        control.ReadDigests: lambda _: send(cql.READ_DIGESTS, (), decode.digests),
        control.ReadListeners: lambda op: send(cql.READ_LISTENERS, (list(op.listeners),), decode.listeners),
        control.KeepResult: lambda op: write(
            cql.KEEP_RESULT, *op.row, _decided_us(op.row), codec.ttl(op.ttl_s)
        ),
        control.ReadResult: lambda op: one(cql.READ_RESULT, (op.message,), decode.results),
    }


def _decided_us(row: control.ResultRow) -> int:
    """Return a µs of the row's ms for each content. Of two rows with one timestamp, Cassandra would mix the
    cells; a row that is stored again gets the same timestamp.
    """
    told = f"{row.state} {row.error} {row.reason}".encode()
    return row.at * 1000 + crc32(told, crc32(row.value or b"")) % 1000
