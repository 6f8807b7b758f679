"""All CQL of the data path: what each statement is for, and how it may be sent.

It stands in one place so that a reader can check the rules of the protocol against it: messages, bodies and
registry rows are written plainly under explicit timestamps, locks, cursors and slots only conditionally, and
never both in one row. Tables are qualified: which one a statement means does not depend on the session.
"""

# ruff: noqa: S608 - put together from constants of this module

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import partial


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

    cql: str
    kind: Kind = Kind.READ
    serial: bool = False
    page_rows: int = 0
    raw: bool = False


_read = Statement
_write = partial(Statement, kind=Kind.WRITE)
_conditional = partial(Statement, kind=Kind.CONDITIONAL)

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

# Lock, cursors and slots, before any message is touched.
READ_HEAD = _read(_HEAD_CQL)
# After an unknown outcome: what has become of it is decided here.
READ_HEAD_SERIAL = _read(_HEAD_CQL, serial=True)
# Live messages between two ids.
READ_SLICE = _read(f"SELECT {_ROW_COLUMNS} FROM {{keyspace}}.messages WHERE {_SLICE_WHERE}")
# As a slice, for sweeps.
READ_IDS = _read(f"SELECT id, format, gone FROM {{keyspace}}.messages WHERE {_SLICE_WHERE}")
# Which of these are live still.
READ_MESSAGES = _read(
    f"SELECT {_ROW_COLUMNS} FROM {{keyspace}}.messages "
    f"WHERE {_WIDE_ROW} AND kind = 3 AND priority = ? AND id IN ?"
)
# Bodies that were too large for the messages themselves.
READ_BODIES = _read(f"SELECT id, body FROM {{keyspace}}.bodies WHERE {_WIDE_ROW} AND id IN ?")
# The registry of one epoch.
READ_SHARDS = _read(
    "SELECT time_shard, shard, priorities FROM {keyspace}.shards "
    "WHERE queue = ? AND epoch = ? AND time_shard >= ?",
    page_rows=2000,
)

# ── Plain writes ──

# At the µs of its id. Values that are missing stay unset: a null would be a tombstone.
INSERT_MESSAGE = _write(
    "INSERT INTO {keyspace}.messages (queue, time_shard, shard, kind, "
    f"{_MESSAGE_COLUMNS}) VALUES (?, ?, ?, 3, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
)
# One µs after the latest of their ids, so that it beats each insert whenever that arrives.
DELETE_MESSAGES = _write(
    f"DELETE FROM {{keyspace}}.messages USING TIMESTAMP ? WHERE {_WIDE_ROW} "
    "AND kind = 3 AND priority = ? AND id IN ?"
)
# Some messages of a pack, at the µs of its id: neither its insert nor others' marks are overwritten.
MARK_GONE = _write(
    f"UPDATE {{keyspace}}.messages USING TIMESTAMP ? SET gone = gone + ? WHERE {_WIDE_ROW} "
    "AND kind = 3 AND priority = ? AND id = ?"
)
# At the µs of its id, as its message.
INSERT_BODY = _write(
    "INSERT INTO {keyspace}.bodies (queue, time_shard, shard, id, body) "
    "VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?"
)
# As delete messages.
DELETE_BODIES = _write(f"DELETE FROM {{keyspace}}.bodies USING TIMESTAMP ? WHERE {_WIDE_ROW} AND id IN ?")
# All bodies of a wide row, with one tombstone.
DROP_BODIES = _write(f"DELETE FROM {{keyspace}}.bodies USING TIMESTAMP ? WHERE {_WIDE_ROW}")
# At the µs of the time shard. Sets written at one timestamp add up: each deletes only what is older.
REGISTER_SHARD = _write(
    "INSERT INTO {keyspace}.shards (queue, epoch, time_shard, shard, priorities) "
    "VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?"
)
# One µs after every insert there ever will be; one that is damaged now, as nobody knows when it was written.
UNREGISTER_SHARD = _write(
    "DELETE FROM {keyspace}.shards USING TIMESTAMP ? "
    "WHERE queue = ? AND epoch = ? AND time_shard = ? AND shard = ?"
)

# ── Parts of the one conditional mutation of a wide row; a timestamp in it would be ignored ──

# Take, renew or give up the lock.
SET_LOCK = _conditional(f"UPDATE {{keyspace}}.messages {_LOCK_SET}")
# The marker of a retired wide row; it goes by itself.
RETIRE_LOCK = _conditional(f"UPDATE {{keyspace}}.messages USING TTL ? {_LOCK_SET}")
# Commits just below the rest of its batch: the marker written beside it survives.
RETIRE_WIDE_ROW = _conditional(f"DELETE FROM {{keyspace}}.messages WHERE {_WIDE_ROW}")
# Overwrite a timeout slot; no value is ever null, so that no tombstone is left.
SET_SLOT = _conditional(
    "UPDATE {keyspace}.messages "
    "SET state = ?, ids = ?, due = ?, attempt = ?, owner = ?, rev = ?, died_at = ?, tally = ? "
    f"WHERE {_WIDE_ROW} AND kind = 2 AND priority = ? AND id = ? IF rev = ?"
)
# Guarded by the lock in its batch.
SET_CURSOR = _conditional(
    "UPDATE {keyspace}.messages SET cursor = ?, boundary = ?, tally = ? "
    f"WHERE {_WIDE_ROW} AND kind = 0 AND priority = ? AND id = ?"
)

# ── Queues ──

# At serial consistency: after an unknown outcome of a change it tells which.
READ_QUEUE = _read(f"SELECT {_QUEUE_COLUMNS} FROM {{keyspace}}.queues WHERE queue = ?", serial=True)
# For people.
LIST_QUEUES = _read(f"SELECT {_QUEUE_COLUMNS} FROM {{keyspace}}.queues", page_rows=500)
# The first one wins.
CREATE_QUEUE = _conditional(
    f"INSERT INTO {{keyspace}}.queues ({_QUEUE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS"
)
# Only from the version that the caller has seen.
CHANGE_QUEUE = _conditional(
    "UPDATE {keyspace}.queues SET state = ?, config = ?, version = ? WHERE queue = ? "
    "IF version = ? AND incarnation = ?"
)
# Not one that was made anew under the same name.
REMOVE_QUEUE = _conditional("DELETE FROM {keyspace}.queues WHERE queue = ? IF incarnation = ?")
# Where readers of the registry start.
ADVANCE_EPOCH = _conditional(
    "UPDATE {keyspace}.queues SET oldest_epoch = ? WHERE queue = ? IF oldest_epoch = ? AND incarnation = ?"
)
# The same for open wide rows.
ADVANCE_OPEN_EPOCH = _conditional(
    "UPDATE {keyspace}.queues SET oldest_open_epoch = ? WHERE queue = ? "
    "IF oldest_open_epoch = ? AND incarnation = ?"
)

# ── Schedules and workers ──

_SCHEDULE_COLUMNS = (
    "queue, key, version, state, generation, definition, next_at, previous, fired"  # as ScheduleRow
)
# At serial consistency: whether a firing counts hangs on it.
READ_SCHEDULE = _read(
    f"SELECT {_SCHEDULE_COLUMNS} FROM {{keyspace}}.schedules WHERE queue = ? AND key = ?", serial=True
)
# For people, and for the watcher, which reads each again before it acts.
LIST_SCHEDULES = _read(
    f"SELECT {_SCHEDULE_COLUMNS} FROM {{keyspace}}.schedules WHERE queue = ?", page_rows=500
)
# The first one wins.
CREATE_SCHEDULE = _conditional(
    f"INSERT INTO {{keyspace}}.schedules ({_SCHEDULE_COLUMNS}) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS"
)
# Only from the version that the caller has seen.
CHANGE_SCHEDULE = _conditional(
    "UPDATE {keyspace}.schedules SET version = ?, state = ?, generation = ?, definition = ?, "
    "next_at = ?, previous = ?, fired = ? WHERE queue = ? AND key = ? IF version = ?"
)
# As change schedule.
REMOVE_SCHEDULE = _conditional("DELETE FROM {keyspace}.schedules WHERE queue = ? AND key = ? IF version = ?")
# Overwritten before it expires, so that only workers that died leave a tombstone.
HEARTBEAT = _write(
    "INSERT INTO {keyspace}.workers (fleet, worker, info, seen) VALUES ('cqueue', ?, ?, ?) USING TTL ?"
)
# All of them: a fleet is small.
READ_WORKERS = _read(
    "SELECT worker, info, seen FROM {keyspace}.workers WHERE fleet = 'cqueue'"
)  # as WorkerRow
# A worker says good-bye.
REMOVE_WORKER = _write("DELETE FROM {keyspace}.workers WHERE fleet = 'cqueue' AND worker = ?")

# Overwritten before it expires, as a heartbeat is.
LISTEN = _write(
    "INSERT INTO {keyspace}.listeners (fleet, listener, address, port, key, names, digest) "
    "VALUES ('cqueue', ?, ?, ?, ?, ?, ?) USING TTL ?"
)
# All of them, in a few bytes each: one for each process that waits.
READ_DIGESTS = _read("SELECT listener, digest FROM {keyspace}.listeners WHERE fleet = 'cqueue'")
# Those whose digests have changed.
READ_LISTENERS = _read(
    "SELECT listener, address, port, key, names FROM {keyspace}.listeners "
    "WHERE fleet = 'cqueue' AND listener IN ?"  # as ListenerRow
)

# ── Logs ──

_LOG_SHARD = "log = ? AND partition = ? AND time_shard = ?"
_RECORD_COLUMNS = "id, topic, key, headers, body"  # as RecordRow
_RECORDS_CQL = f"SELECT {_RECORD_COLUMNS} FROM {{keyspace}}.log WHERE {_LOG_SHARD} AND id > ? AND id <= ?"
_LOG_COLUMNS = "log, incarnation, version, state, config, created"  # as LogRow

# At the µs of its id; values that are missing stay unset.
APPEND_RECORD = _write(
    f"INSERT INTO {{keyspace}}.log (log, partition, time_shard, {_RECORD_COLUMNS}) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
)
# Of an append that was answered too late: one µs after the latest of their ids. A damaged one: now.
DELETE_RECORDS = _write(f"DELETE FROM {{keyspace}}.log USING TIMESTAMP ? WHERE {_LOG_SHARD} AND id IN ?")
# In one answer: a slice is one point in time.
READ_RECORDS = _read(f"{_RECORDS_CQL} LIMIT ?", raw=True)
# The same, newest first.
READ_RECORDS_BACK = _read(f"{_RECORDS_CQL} ORDER BY id DESC LIMIT ?", raw=True)
# How many records there are, and where: for those who share them out before they read them.
READ_RECORD_IDS = _read(f"SELECT id FROM {{keyspace}}.log WHERE {_LOG_SHARD} AND id > ? AND id <= ? LIMIT ?")
# Whether idle partitions have anything new: one statement for many of them.
PEEK_RECORDS = _read(
    "SELECT partition, id FROM {keyspace}.log WHERE log = ? AND partition IN ? AND time_shard = ? "
    "AND id > ? AND id <= ? PER PARTITION LIMIT 1"
)
# Of a log that was deleted: a partition at a time.
DROP_RECORDS = _write(f"DELETE FROM {{keyspace}}.log USING TIMESTAMP ? WHERE {_LOG_SHARD}")
# Before a record in it is acknowledged; it goes with the last record.
REGISTER_LOG_SHARD = _write(
    "INSERT INTO {keyspace}.log_shards (log, partition, time_shard) VALUES (?, ?, ?) USING TTL ?"
)
# Several time shards at once.
READ_LOG_SHARDS = _read(
    "SELECT time_shard, partition FROM {keyspace}.log_shards WHERE log = ? AND time_shard IN ?",
    page_rows=5000,
)
# To delete a log whose row does not tell any more how wide its time shards are.
LIST_LOG_SHARDS = _read("SELECT DISTINCT log, time_shard FROM {keyspace}.log_shards", page_rows=5000)
# After its records were dropped.
UNREGISTER_LOG_SHARD = _write(
    "DELETE FROM {keyspace}.log_shards WHERE log = ? AND partition = ? AND time_shard = ?"
)
# As read queue.
READ_LOG = _read(f"SELECT {_LOG_COLUMNS} FROM {{keyspace}}.logs WHERE log = ?", serial=True)
# For people.
LIST_LOGS = _read(f"SELECT {_LOG_COLUMNS} FROM {{keyspace}}.logs", page_rows=500)
# The first one wins.
CREATE_LOG = _conditional(
    f"INSERT INTO {{keyspace}}.logs ({_LOG_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS"
)
# Only from the version that the caller has seen.
CHANGE_LOG = _conditional(
    "UPDATE {keyspace}.logs SET state = ?, config = ?, version = ? WHERE log = ? "
    "IF version = ? AND incarnation = ?"
)
# Not one that was made anew under the same name.
REMOVE_LOG = _conditional("DELETE FROM {keyspace}.logs WHERE log = ? IF incarnation = ?")

# ── Subscriptions ──

_SUBSCRIPTION = "log = ? AND subscription = ?"
_SUBSCRIPTION_CQL = (
    "SELECT kind, partition, member, version, state, config, position, fence, owner, generation, info, seen "
    f"FROM {{keyspace}}.subscriptions WHERE {_SUBSCRIPTION}"
)

# Definition, positions and members in one answer.
READ_SUBSCRIPTION = _read(_SUBSCRIPTION_CQL)
# After a change that was refused or not answered: what stands is decided here.
READ_SUBSCRIPTION_SERIAL = _read(_SUBSCRIPTION_CQL, serial=True)
# For people.
LIST_SUBSCRIPTIONS = _read("SELECT DISTINCT log, subscription FROM {keyspace}.subscriptions", page_rows=500)
# The first one wins.
DEFINE_SUBSCRIPTION = _conditional(
    "INSERT INTO {keyspace}.subscriptions (log, subscription, kind, partition, member, "
    "version, state, config) VALUES (?, ?, 0, 0, '', ?, ?, ?) IF NOT EXISTS"
)
# Only from the version that the caller has seen.
CHANGE_DEFINITION = _conditional(
    "UPDATE {keyspace}.subscriptions SET state = ?, config = ?, version = ? "
    f"WHERE {_SUBSCRIPTION} AND kind = 0 AND partition = 0 AND member = '' IF version = ?"
)
# Take, move on, or give back a partition; several of them in one batch.
SET_POSITION = _conditional(
    "UPDATE {keyspace}.subscriptions SET position = ?, fence = ?, owner = ?, generation = ? "
    f"WHERE {_SUBSCRIPTION} AND kind = 1 AND partition = ? AND member = '' IF fence = ?"
)
# The condition under which all rows of a subscription go.
REMOVE_DEFINITION = _conditional(
    f"DELETE FROM {{keyspace}}.subscriptions WHERE {_SUBSCRIPTION} "
    "AND kind = 0 AND partition = 0 AND member = '' IF version = ?"
)
# In one conditional batch with the former: a delete of the partition that no clock can put off.
REMOVE_SUBSCRIPTION = _conditional(f"DELETE FROM {{keyspace}}.subscriptions WHERE {_SUBSCRIPTION}")
# Overwritten before it expires, so that only members that died leave a tombstone.
BEAT_MEMBER = _write(
    "INSERT INTO {keyspace}.subscriptions (log, subscription, kind, partition, member, info, seen) "
    "VALUES (?, ?, 2, 0, ?, ?, ?) USING TTL ?"
)
# A member says good-bye.
REMOVE_MEMBER = _write(
    f"DELETE FROM {{keyspace}}.subscriptions WHERE {_SUBSCRIPTION} "
    "AND kind = 2 AND partition = 0 AND member = ?"
)
# How far a subscription is behind, for people. A column beside an aggregate is the first row's.
COUNT_RECORDS = _read(f"SELECT COUNT(*), id FROM {{keyspace}}.log WHERE {_LOG_SHARD} AND id > ? AND id <= ?")

# ── Deployment and time ──

# What all clients agree on; polled for its change counter.
READ_DEPLOYMENT = _read(
    "SELECT format, serial_consistency, settle_ms, skew_ms, gc_grace, changes, home_dc, centre_epoch, "
    "retiring FROM {keyspace}.deployment WHERE name = 'cqueue'"
)  # as DeploymentRow
# Makes every client read configurations again.
BUMP_DEPLOYMENT = _conditional(
    "UPDATE {keyspace}.deployment SET changes = ? WHERE name = 'cqueue' IF changes = ?"
)
# The coordinator's clock in ms.
READ_TIME = _read("SELECT to_unix_timestamp(now()) FROM system.local")

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

# By table, whatever stands in a row, as JSON: for people, who look at one that nobody can read.
DUMP_ROW = {
    table: _read(
        f"SELECT JSON * FROM {{keyspace}}.{table} WHERE {' AND '.join(f'{name} = ?' for name in columns)}"
    )
    for table, columns in KEY_COLUMNS.items()
}
# A timeout slot that is stored under no number, so that it can only be deleted.
DROP_SLOT = _conditional(
    f"DELETE FROM {{keyspace}}.messages WHERE {_WIDE_ROW} AND kind = 2 AND priority = ? AND id = ? IF EXISTS"
)

ALL = {name: value for name, value in list(globals().items()) if isinstance(value, Statement)} | {
    f"DUMP_ROW of {table}": statement for table, statement in DUMP_ROW.items()
}
"""Every statement, by its name."""
