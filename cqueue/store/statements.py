"""All CQL of the data path: what each statement is for, and how it may be sent.

It stands in one place so that a reader can check the rules of the protocol against it: messages, bodies and
registry rows are written plainly under explicit timestamps, locks, cursors and slots only conditionally, and
never both in one row. Tables are qualified: which one a statement means does not depend on the session.
"""

# ruff: noqa: S608 - put together from constants of this module

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    """How a statement may be treated when something goes wrong."""

    READ = auto()  # no effect: any failure means "not done"
    WRITE = auto()  # plain, under a timestamp derived from its key: sending it twice changes nothing
    CONDITIONAL = auto()  # a Paxos round: sent twice, it answers "not applied" although it was


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """One CQL statement; `{keyspace}` is filled in when it is prepared.

    serial: read at serial consistency, which finishes and shows half-done mutations.
    page_rows: rows a page; 0 is everything in one answer (a slice must be one point in time).
    raw: leave the rows of the answer as they came; whoever reads them takes them apart.
    """

    name: str
    comment: str
    cql: str
    kind: Kind = Kind.READ
    serial: bool = False
    page_rows: int = 0
    raw: bool = False


_WIDE_ROW = "queue = ? AND time_shard = ? AND shard = ?"

_MESSAGE_COLUMNS = (
    "priority, id, body, size, headers, codec, task, key, trigger, sent_at, expires, format"  # as MessageRow
)
_ROW_COLUMNS = f"{_MESSAGE_COLUMNS}, gone"  # of a pack, see cqueue.store.packs
_HEAD_COLUMNS = (
    "kind, priority, id, cursor, boundary, state, owner, until, fence, ids, due, attempt, rev, died_at, tally"
)
_HEAD_CQL = f"SELECT {_HEAD_COLUMNS} FROM {{keyspace}}.messages WHERE {_WIDE_ROW} AND kind < 3"
_SLICE_WHERE = f"{_WIDE_ROW} AND kind = 3 AND priority = ? AND id > ? AND id <= ? LIMIT ?"
_LOCK_SET = (
    f"SET state = ?, owner = ?, until = ?, fence = ?, tally = ? "
    f"WHERE {_WIDE_ROW} AND kind = 1 AND priority = 0 AND id = ? IF fence = ?"
)
_QUEUE_COLUMNS = (
    "queue, incarnation, version, state, config, epoch_ms, oldest_epoch, oldest_open_epoch"  # as QueueRow
)

# ── Reads of a wide row ──

READ_HEAD = Statement("read head", "Lock, cursors and slots, before any message is touched.", _HEAD_CQL)
READ_HEAD_SERIAL = Statement(
    "read head, serial",
    "After an unknown outcome: what has become of it is decided here.",
    _HEAD_CQL,
    serial=True,
)
READ_SLICE = Statement(
    "read slice",
    "Live messages between two ids.",
    f"SELECT {_ROW_COLUMNS} FROM {{keyspace}}.messages WHERE {_SLICE_WHERE}",
)
READ_PAGE = Statement(
    "read page",
    "The same for those who read a whole queue, and take the answer apart themselves.",
    f"SELECT {_ROW_COLUMNS} FROM {{keyspace}}.messages WHERE {_SLICE_WHERE}",
    raw=True,
)
READ_IDS = Statement(
    "read ids",
    "As a slice, for sweeps.",
    f"SELECT id, format, gone FROM {{keyspace}}.messages WHERE {_SLICE_WHERE}",
)
READ_MESSAGES = Statement(
    "read messages",
    "Which of these are live still.",
    f"SELECT {_ROW_COLUMNS} FROM {{keyspace}}.messages "
    f"WHERE {_WIDE_ROW} AND kind = 3 AND priority = ? AND id IN ?",
)
READ_BODIES = Statement(
    "read bodies",
    "Bodies that were too large for the messages themselves.",
    f"SELECT id, body FROM {{keyspace}}.bodies WHERE {_WIDE_ROW} AND id IN ?",
)
READ_SHARDS = Statement(
    "read shards",
    "The registry of one epoch.",
    "SELECT time_shard, shard, priorities FROM {keyspace}.shards "
    "WHERE queue = ? AND epoch = ? AND time_shard >= ?",
    page_rows=2000,
)

# ── Plain writes ──

INSERT_MESSAGE = Statement(
    "insert message",
    "At the µs of its id. Values that are missing stay unset: a null would be a tombstone.",
    "INSERT INTO {keyspace}.messages (queue, time_shard, shard, kind, "
    f"{_MESSAGE_COLUMNS}) VALUES (?, ?, ?, 3, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
    Kind.WRITE,
)
INSERT_PLAIN_MESSAGE = Statement(
    "insert plain message",
    "The same for messages that have nothing but a small body: half as many values to send and to read.",
    "INSERT INTO {keyspace}.messages (queue, time_shard, shard, kind, priority, id, body, sent_at, format) "
    "VALUES (?, ?, ?, 3, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
    Kind.WRITE,
)
DELETE_MESSAGES = Statement(
    "delete messages",
    "One µs after the latest of their ids, so that it beats each insert whenever that arrives.",
    f"DELETE FROM {{keyspace}}.messages USING TIMESTAMP ? WHERE {_WIDE_ROW} "
    "AND kind = 3 AND priority = ? AND id IN ?",
    Kind.WRITE,
)
MARK_GONE = Statement(
    "mark gone",
    "Some messages of a pack, at the µs of its id: neither its insert nor others' marks are overwritten.",
    f"UPDATE {{keyspace}}.messages USING TIMESTAMP ? SET gone = gone + ? WHERE {_WIDE_ROW} "
    "AND kind = 3 AND priority = ? AND id = ?",
    Kind.WRITE,
)
INSERT_BODY = Statement(
    "insert body",
    "At the µs of its id, as its message.",
    "INSERT INTO {keyspace}.bodies (queue, time_shard, shard, id, body) "
    "VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
    Kind.WRITE,
)
DELETE_BODIES = Statement(
    "delete bodies",
    "As delete messages.",
    f"DELETE FROM {{keyspace}}.bodies USING TIMESTAMP ? WHERE {_WIDE_ROW} AND id IN ?",
    Kind.WRITE,
)
DROP_BODIES = Statement(
    "drop bodies",
    "All bodies of a wide row, with one tombstone.",
    f"DELETE FROM {{keyspace}}.bodies USING TIMESTAMP ? WHERE {_WIDE_ROW}",
    Kind.WRITE,
)
REGISTER_SHARD = Statement(
    "register shard",
    "At the µs of the time shard. Sets written at one timestamp add up: each deletes only what is older.",
    "INSERT INTO {keyspace}.shards (queue, epoch, time_shard, shard, priorities) "
    "VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
    Kind.WRITE,
)
UNREGISTER_SHARD = Statement(
    "unregister shard",
    "One µs after every insert there ever will be.",
    "DELETE FROM {keyspace}.shards USING TIMESTAMP ? "
    "WHERE queue = ? AND epoch = ? AND time_shard = ? AND shard = ?",
    Kind.WRITE,
)

DROP_SHARD = Statement(
    "drop shard",
    "One that is damaged, now: nobody knows at which time it was written.",
    "DELETE FROM {keyspace}.shards USING TIMESTAMP ? "
    "WHERE queue = ? AND epoch = ? AND time_shard = ? AND shard = ?",
    Kind.WRITE,
)

# ── Parts of the one conditional mutation of a wide row; a timestamp in it would be ignored ──

SET_LOCK = Statement(
    "set lock",
    "Take, renew or give up the lock.",
    f"UPDATE {{keyspace}}.messages {_LOCK_SET}",
    Kind.CONDITIONAL,
)
RETIRE_LOCK = Statement(
    "retire lock",
    "The marker of a retired wide row; it goes by itself.",
    f"UPDATE {{keyspace}}.messages USING TTL ? {_LOCK_SET}",
    Kind.CONDITIONAL,
)
RETIRE_WIDE_ROW = Statement(
    "retire wide row",
    "Commits just below the rest of its batch: the marker written beside it survives.",
    f"DELETE FROM {{keyspace}}.messages WHERE {_WIDE_ROW}",
    Kind.CONDITIONAL,
)
SET_SLOT = Statement(
    "set slot",
    "Overwrite a timeout slot; no value is ever null, so that no tombstone is left.",
    "UPDATE {keyspace}.messages "
    "SET state = ?, ids = ?, due = ?, attempt = ?, owner = ?, rev = ?, died_at = ?, tally = ? "
    f"WHERE {_WIDE_ROW} AND kind = 2 AND priority = ? AND id = ? IF rev = ?",
    Kind.CONDITIONAL,
)
SET_CURSOR = Statement(
    "set cursor",
    "Guarded by the lock in its batch.",
    "UPDATE {keyspace}.messages SET cursor = ?, boundary = ?, tally = ? "
    f"WHERE {_WIDE_ROW} AND kind = 0 AND priority = ? AND id = ?",
    Kind.CONDITIONAL,
)

# ── Queues ──

READ_QUEUE = Statement(
    "read queue",
    "At serial consistency: after an unknown outcome of a change it tells which.",
    f"SELECT {_QUEUE_COLUMNS} FROM {{keyspace}}.queues WHERE queue = ?",
    serial=True,
)
LIST_QUEUES = Statement(
    "list queues", "For people.", f"SELECT {_QUEUE_COLUMNS} FROM {{keyspace}}.queues", page_rows=500
)
CREATE_QUEUE = Statement(
    "create queue",
    "The first one wins.",
    f"INSERT INTO {{keyspace}}.queues ({_QUEUE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS",
    Kind.CONDITIONAL,
)
CHANGE_QUEUE = Statement(
    "change queue",
    "Only from the version that the caller has seen.",
    "UPDATE {keyspace}.queues SET state = ?, config = ?, version = ? WHERE queue = ? "
    "IF version = ? AND incarnation = ?",
    Kind.CONDITIONAL,
)
REMOVE_QUEUE = Statement(
    "remove queue",
    "Not one that was made anew under the same name.",
    "DELETE FROM {keyspace}.queues WHERE queue = ? IF incarnation = ?",
    Kind.CONDITIONAL,
)
ADVANCE_EPOCH = Statement(
    "advance epoch",
    "Where readers of the registry start.",
    "UPDATE {keyspace}.queues SET oldest_epoch = ? WHERE queue = ? IF oldest_epoch = ? AND incarnation = ?",
    Kind.CONDITIONAL,
)
ADVANCE_OPEN_EPOCH = Statement(
    "advance open epoch",
    "The same for open wide rows.",
    "UPDATE {keyspace}.queues SET oldest_open_epoch = ? WHERE queue = ? "
    "IF oldest_open_epoch = ? AND incarnation = ?",
    Kind.CONDITIONAL,
)

# ── Schedules and workers ──

_SCHEDULE_COLUMNS = (
    "queue, key, version, state, generation, definition, next_at, previous, fired"  # as ScheduleRow
)
READ_SCHEDULE = Statement(
    "read schedule",
    "At serial consistency: whether a firing counts hangs on it.",
    f"SELECT {_SCHEDULE_COLUMNS} FROM {{keyspace}}.schedules WHERE queue = ? AND key = ?",
    serial=True,
)
LIST_SCHEDULES = Statement(
    "list schedules",
    "For people, and for the watcher, which reads each again before it acts.",
    f"SELECT {_SCHEDULE_COLUMNS} FROM {{keyspace}}.schedules WHERE queue = ?",
    page_rows=500,
)
CREATE_SCHEDULE = Statement(
    "create schedule",
    "The first one wins.",
    f"INSERT INTO {{keyspace}}.schedules ({_SCHEDULE_COLUMNS}) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS",
    Kind.CONDITIONAL,
)
CHANGE_SCHEDULE = Statement(
    "change schedule",
    "Only from the version that the caller has seen.",
    "UPDATE {keyspace}.schedules SET version = ?, state = ?, generation = ?, definition = ?, "
    "next_at = ?, previous = ?, fired = ? WHERE queue = ? AND key = ? IF version = ?",
    Kind.CONDITIONAL,
)
REMOVE_SCHEDULE = Statement(
    "remove schedule",
    "As change schedule.",
    "DELETE FROM {keyspace}.schedules WHERE queue = ? AND key = ? IF version = ?",
    Kind.CONDITIONAL,
)
HEARTBEAT = Statement(
    "heartbeat",
    "Overwritten before it expires, so that only workers that died leave a tombstone.",
    "INSERT INTO {keyspace}.workers (fleet, worker, info, seen) VALUES ('cqueue', ?, ?, ?) USING TTL ?",
    Kind.WRITE,
)
READ_WORKERS = Statement(
    "read workers",
    "All of them: a fleet is small.",
    "SELECT worker, info, seen FROM {keyspace}.workers WHERE fleet = 'cqueue'",  # as WorkerRow
)
REMOVE_WORKER = Statement(
    "remove worker",
    "A worker says good-bye.",
    "DELETE FROM {keyspace}.workers WHERE fleet = 'cqueue' AND worker = ?",
    Kind.WRITE,
)

LISTEN = Statement(
    "listen",
    "Overwritten before it expires, as a heartbeat is.",
    "INSERT INTO {keyspace}.listeners (fleet, listener, address, port, key, names) "
    "VALUES ('cqueue', ?, ?, ?, ?, ?) USING TTL ?",
    Kind.WRITE,
)
READ_LISTENERS = Statement(
    "read listeners",
    "All of them: one for each process that waits.",
    "SELECT listener, address, port, key, names FROM {keyspace}.listeners "
    "WHERE fleet = 'cqueue'",  # as ListenerRow
)

# ── Logs ──

_LOG_SHARD = "log = ? AND partition = ? AND time_shard = ?"
_RECORD_COLUMNS = "id, topic, key, headers, body"  # as RecordRow
_RECORDS_CQL = f"SELECT {_RECORD_COLUMNS} FROM {{keyspace}}.log WHERE {_LOG_SHARD} AND id > ? AND id <= ?"
_LOG_COLUMNS = "log, incarnation, version, state, config, created"  # as LogRow

APPEND_RECORD = Statement(
    "append record",
    "At the µs of its id; values that are missing stay unset.",
    f"INSERT INTO {{keyspace}}.log (log, partition, time_shard, {_RECORD_COLUMNS}) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?",
    Kind.WRITE,
)
DELETE_RECORDS = Statement(
    "delete records",
    "Of an append that was answered too late; one µs after the latest of their ids.",
    f"DELETE FROM {{keyspace}}.log USING TIMESTAMP ? WHERE {_LOG_SHARD} AND id IN ?",
    Kind.WRITE,
)
DROP_RECORD = Statement(
    "drop record",
    "One that is damaged, now: nobody knows at which time it was written.",
    f"DELETE FROM {{keyspace}}.log USING TIMESTAMP ? WHERE {_LOG_SHARD} AND id = ?",
    Kind.WRITE,
)
READ_RECORDS = Statement(
    "read records", "In one answer: a slice is one point in time.", f"{_RECORDS_CQL} LIMIT ?", raw=True
)
READ_RECORDS_BACK = Statement(
    "read records back", "The same, newest first.", f"{_RECORDS_CQL} ORDER BY id DESC LIMIT ?", raw=True
)
READ_RECORD_IDS = Statement(
    "read record ids",
    "How many records there are, and where: for those who share them out before they read them.",
    f"SELECT id FROM {{keyspace}}.log WHERE {_LOG_SHARD} AND id > ? AND id <= ? LIMIT ?",
)
PEEK_RECORDS = Statement(
    "peek records",
    "Whether idle partitions have anything new: one statement for many of them.",
    "SELECT partition, id FROM {keyspace}.log WHERE log = ? AND partition IN ? AND time_shard = ? "
    "AND id > ? AND id <= ? PER PARTITION LIMIT 1",
)
DROP_RECORDS = Statement(
    "drop records",
    "Of a log that was deleted: a partition at a time.",
    f"DELETE FROM {{keyspace}}.log USING TIMESTAMP ? WHERE {_LOG_SHARD}",
    Kind.WRITE,
)
REGISTER_LOG_SHARD = Statement(
    "register log shard",
    "Before a record in it is acknowledged; it goes with the last record.",
    "INSERT INTO {keyspace}.log_shards (log, partition, time_shard) VALUES (?, ?, ?) USING TTL ?",
    Kind.WRITE,
)
READ_LOG_SHARDS = Statement(
    "read log shards",
    "Several time shards at once.",
    "SELECT time_shard, partition FROM {keyspace}.log_shards WHERE log = ? AND time_shard IN ?",
    page_rows=5000,
)
LIST_LOG_SHARDS = Statement(
    "list log shards",
    "To delete a log whose row does not tell any more how wide its time shards are.",
    "SELECT DISTINCT log, time_shard FROM {keyspace}.log_shards",
    page_rows=5000,
)
UNREGISTER_LOG_SHARD = Statement(
    "unregister log shard",
    "After its records were dropped.",
    "DELETE FROM {keyspace}.log_shards WHERE log = ? AND partition = ? AND time_shard = ?",
    Kind.WRITE,
)
READ_LOG = Statement(
    "read log",
    "As read queue.",
    f"SELECT {_LOG_COLUMNS} FROM {{keyspace}}.logs WHERE log = ?",
    serial=True,
)
LIST_LOGS = Statement(
    "list logs", "For people.", f"SELECT {_LOG_COLUMNS} FROM {{keyspace}}.logs", page_rows=500
)
CREATE_LOG = Statement(
    "create log",
    "The first one wins.",
    f"INSERT INTO {{keyspace}}.logs ({_LOG_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS",
    Kind.CONDITIONAL,
)
CHANGE_LOG = Statement(
    "change log",
    "Only from the version that the caller has seen.",
    "UPDATE {keyspace}.logs SET state = ?, config = ?, version = ? WHERE log = ? "
    "IF version = ? AND incarnation = ?",
    Kind.CONDITIONAL,
)
REMOVE_LOG = Statement(
    "remove log",
    "Not one that was made anew under the same name.",
    "DELETE FROM {keyspace}.logs WHERE log = ? IF incarnation = ?",
    Kind.CONDITIONAL,
)

# ── Subscriptions ──

_SUBSCRIPTION = "log = ? AND subscription = ?"
_SUBSCRIPTION_CQL = (
    "SELECT kind, partition, member, version, state, config, position, fence, owner, generation, info, seen "
    f"FROM {{keyspace}}.subscriptions WHERE {_SUBSCRIPTION}"
)

READ_SUBSCRIPTION = Statement(
    "read subscription", "Definition, positions and members in one answer.", _SUBSCRIPTION_CQL
)
READ_SUBSCRIPTION_SERIAL = Statement(
    "read subscription, serial",
    "After a change that was refused or not answered: what stands is decided here.",
    _SUBSCRIPTION_CQL,
    serial=True,
)
LIST_SUBSCRIPTIONS = Statement(
    "list subscriptions",
    "For people.",
    "SELECT DISTINCT log, subscription FROM {keyspace}.subscriptions",
    page_rows=500,
)
DEFINE_SUBSCRIPTION = Statement(
    "define subscription",
    "The first one wins.",
    "INSERT INTO {keyspace}.subscriptions (log, subscription, kind, partition, member, "
    "version, state, config) VALUES (?, ?, 0, 0, '', ?, ?, ?) IF NOT EXISTS",
    Kind.CONDITIONAL,
)
CHANGE_DEFINITION = Statement(
    "change definition",
    "Only from the version that the caller has seen.",
    "UPDATE {keyspace}.subscriptions SET state = ?, config = ?, version = ? "
    f"WHERE {_SUBSCRIPTION} AND kind = 0 AND partition = 0 AND member = '' IF version = ?",
    Kind.CONDITIONAL,
)
SET_POSITION = Statement(
    "set position",
    "Take, move on, or give back a partition; several of them in one batch.",
    "UPDATE {keyspace}.subscriptions SET position = ?, fence = ?, owner = ?, generation = ? "
    f"WHERE {_SUBSCRIPTION} AND kind = 1 AND partition = ? AND member = '' IF fence = ?",
    Kind.CONDITIONAL,
)
REMOVE_DEFINITION = Statement(
    "remove definition",
    "The condition under which all rows of a subscription go.",
    f"DELETE FROM {{keyspace}}.subscriptions WHERE {_SUBSCRIPTION} "
    "AND kind = 0 AND partition = 0 AND member = '' IF version = ?",
    Kind.CONDITIONAL,
)
REMOVE_SUBSCRIPTION = Statement(
    "remove subscription",
    "In one conditional batch with the former: a delete of the partition that no clock can put off.",
    f"DELETE FROM {{keyspace}}.subscriptions WHERE {_SUBSCRIPTION}",
    Kind.CONDITIONAL,
)
BEAT_MEMBER = Statement(
    "beat member",
    "Overwritten before it expires, so that only members that died leave a tombstone.",
    "INSERT INTO {keyspace}.subscriptions (log, subscription, kind, partition, member, info, seen) "
    "VALUES (?, ?, 2, 0, ?, ?, ?) USING TTL ?",
    Kind.WRITE,
)
REMOVE_MEMBER = Statement(
    "remove member",
    "A member says good-bye.",
    f"DELETE FROM {{keyspace}}.subscriptions WHERE {_SUBSCRIPTION} "
    "AND kind = 2 AND partition = 0 AND member = ?",
    Kind.WRITE,
)
COUNT_RECORDS = Statement(
    "count records",
    "How far a subscription is behind, for people. A column beside an aggregate is the first row's.",
    f"SELECT COUNT(*), id FROM {{keyspace}}.log WHERE {_LOG_SHARD} AND id > ? AND id <= ?",
)

# ── Deployment and time ──

READ_DEPLOYMENT = Statement(
    "read deployment",
    "What all clients agree on; polled for its change counter.",
    "SELECT format, serial_consistency, settle_ms, skew_ms, gc_grace, changes, home_dc, centre_epoch, "
    "retiring "  # as DeploymentRow
    "FROM {keyspace}.deployment WHERE name = 'cqueue'",
)
BUMP_DEPLOYMENT = Statement(
    "bump deployment",
    "Makes every client read configurations again.",
    "UPDATE {keyspace}.deployment SET changes = ? WHERE name = 'cqueue' IF changes = ?",
    Kind.CONDITIONAL,
)
READ_TIME = Statement(
    "read time",
    "The coordinator's clock in ms.",
    "SELECT to_unix_timestamp(now()) FROM system.local",
)

# ── Damaged rows ──

KEY_COLUMNS = {
    "messages": ("queue", "time_shard", "shard", "kind", "priority", "id"),
    "queues": ("queue",),
    "shards": ("queue", "epoch", "time_shard", "shard"),
    "schedules": ("queue", "key"),
    "workers": ("fleet", "worker"),
    "logs": ("log",),
    "log": ("log", "partition", "time_shard", "id"),
    "log_shards": ("log", "time_shard", "partition"),
    "subscriptions": ("log", "subscription", "kind", "partition", "member"),
}
"""The primary keys of the tables whose rows may be in quarantine."""

DUMP_ROW = {
    table: Statement(
        f"dump row of {table}",
        "Whatever stands in it, as JSON: for people, who look at a row that nobody can read.",
        f"SELECT JSON * FROM {{keyspace}}.{table} WHERE {' AND '.join(f'{name} = ?' for name in columns)}",
    )
    for table, columns in KEY_COLUMNS.items()
}
DROP_SLOT = Statement(
    "drop slot",
    "A timeout slot that is stored under no number, so that it can only be deleted.",
    f"DELETE FROM {{keyspace}}.messages WHERE {_WIDE_ROW} AND kind = 2 AND priority = ? AND id = ? IF EXISTS",
    Kind.CONDITIONAL,
)

ALL = (
    *(value for value in list(globals().values()) if isinstance(value, Statement)),
    *DUMP_ROW.values(),
)
