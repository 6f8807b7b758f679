"""All CQL of the data path: the purpose of each statement, and how it may be sent.

All statements stand in one module, so that a reader can check the protocol's rules against them. Messages,
bodies and registry rows are written plainly, under explicit timestamps. Locks, cursors and slots are written
only conditionally. No row gets both kinds of write. Tables are qualified, so a statement's meaning does not
depend on the session's keyspace.
"""

# ruff: noqa: S608 - put together from constants of this module

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import partial


class Kind(Enum):
    """How a failed statement is to be understood, and whether it may be repeated."""

    READ = auto()  # no effect: any failure means "not done"
    WRITE = auto()  # plain, under a timestamp derived from its key: sending it twice changes nothing
    CONDITIONAL = auto()  # a Paxos round: sent twice, it answers "not applied" although it was


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """One CQL statement; `{keyspace}` is filled in when it is prepared.

    serial: read at serial consistency, which finishes and shows half-done mutations.
    page_rows: rows a page; 0 is everything in one answer (a slice must be one point in time).
    raw: leave the rows of the answer undecoded; the caller decodes them.
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
# After an unknown outcome: finishes the mutation, or shows that it was not applied.
READ_HEAD_SERIAL = _read(_HEAD_CQL, serial=True)
# Live messages between two ids.
READ_SLICE = _read(f"SELECT {_ROW_COLUMNS} FROM {{keyspace}}.messages WHERE {_SLICE_WHERE}")
# The same range without bodies, for sweeps.
READ_IDS = _read(f"SELECT id, format, gone FROM {{keyspace}}.messages WHERE {_SLICE_WHERE}")
# Whether a wide row holds anything but its head. The columns are those of READ_IDS: read repair copies them.
HAS_MESSAGES = _read(
    f"SELECT id, format, gone FROM {{keyspace}}.messages WHERE {_WIDE_ROW} AND kind = 3 LIMIT 1"
)
# The live ones among the messages of a slot.
READ_MESSAGES = _read(
    f"SELECT {_ROW_COLUMNS} FROM {{keyspace}}.messages "
    f"WHERE {_WIDE_ROW} AND kind = 3 AND priority = ? AND id IN ?"
)
# Bodies above 16 KiB, which stand apart from their messages.
READ_BODIES = _read(f"SELECT id, body FROM {{keyspace}}.bodies WHERE {_WIDE_ROW} AND id IN ?")
# The registry of one epoch.
READ_SHARDS = _read(
    "SELECT time_shard, shard, priorities FROM {keyspace}.shards "
    "WHERE queue = ? AND epoch = ? AND time_shard >= ?",
    page_rows=2000,
)

# ── Plain writes ──

# At the µs of its id. Missing values stay unset: a null would write a tombstone.
INSERT_MESSAGE = _write(
    "INSERT INTO {keyspace}.messages (queue, time_shard, shard, kind, "
    f"{_MESSAGE_COLUMNS}) VALUES (?, ?, ?, 3, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
)
# The same for one row, as applications prepare it: with the columns that have values.
INSERT_GIVEN = "INSERT INTO {keyspace}.messages ({columns}) VALUES ({places}) USING TIMESTAMP ?"
# One µs after the latest of their ids: the delete beats each insert, whichever arrives first.
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
# One µs after the latest of their ids, as DELETE_MESSAGES.
DELETE_BODIES = _write(f"DELETE FROM {{keyspace}}.bodies USING TIMESTAMP ? WHERE {_WIDE_ROW} AND id IN ?")
# All bodies of a wide row, with one tombstone.
DROP_BODIES = _write(f"DELETE FROM {{keyspace}}.bodies USING TIMESTAMP ? WHERE {_WIDE_ROW}")
# At the µs of the time shard. Sets written at one timestamp add up: each deletes only what is older.
REGISTER_SHARD = _write(
    "INSERT INTO {keyspace}.shards (queue, epoch, time_shard, shard, priorities) "
    "VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?"
)
# One µs after each possible insert. A damaged row is deleted at the present time: its write time is unknown.
UNREGISTER_SHARD = _write(
    "DELETE FROM {keyspace}.shards USING TIMESTAMP ? "
    "WHERE queue = ? AND epoch = ? AND time_shard = ? AND shard = ?"
)

# ── The look-up table of keyed queues ──

# A page of a key. The write timestamp says how old a row is.
READ_KEY = _read(
    "SELECT id, priority, time_shard, shard, WRITETIME(shard) FROM {keyspace}.message_keys "  # as KeyRow
    "WHERE queue = ? AND key = ? AND (id, priority) > (?, ?) LIMIT ?"
)
# Before the message, and again with each try of the send.
INSERT_KEY = _write(
    "INSERT INTO {keyspace}.message_keys (queue, key, id, priority, time_shard, shard) "
    "VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
)
# After the message; or, if there is no message, at the write timestamp that was read.
DELETE_KEY = _write(
    "DELETE FROM {keyspace}.message_keys USING TIMESTAMP ? "
    "WHERE queue = ? AND key = ? AND id = ? AND priority = ?"
)
# For a deleted queue: nothing else knows the keys of rows without a message.
SCAN_KEYS = _read(
    "SELECT DISTINCT queue, key, token(queue, key) FROM {keyspace}.message_keys "
    "WHERE token(queue, key) > ? LIMIT ?"
)
# All rows of one key of a deleted queue.
DROP_KEY = _write("DELETE FROM {keyspace}.message_keys USING TIMESTAMP ? WHERE queue = ? AND key = ?")

# ── Parts of the one conditional mutation of a wide row; a timestamp in it would be ignored ──

# Take, renew or give up the lock.
SET_LOCK = _conditional(f"UPDATE {{keyspace}}.messages {_LOCK_SET}")
# Take the lock from a client that claims too fast for its fence to be read; the tally stays as it is.
OVERTAKE_LOCK = _conditional(
    f"UPDATE {{keyspace}}.messages SET state = ?, owner = ?, until = ?, fence = ? "
    f"WHERE {_WIDE_ROW} AND kind = 1 AND priority = 0 AND id = ? IF fence < ? AND state != 2"  # RETIRED
)
# The marker of a retired wide row, which expires.
RETIRE_LOCK = _conditional(f"UPDATE {{keyspace}}.messages USING TTL ? {_LOCK_SET}")
# Deletes just below the timestamp of its batch, so the marker in the same batch survives.
RETIRE_WIDE_ROW = _conditional(f"DELETE FROM {{keyspace}}.messages WHERE {_WIDE_ROW}")
# Overwrite a timeout slot; no value is ever null, so that no tombstone is left.
SET_SLOT = _conditional(
    "UPDATE {keyspace}.messages "
    "SET state = ?, ids = ?, due = ?, attempt = ?, owner = ?, rev = ?, died_at = ?, tally = ? "
    f"WHERE {_WIDE_ROW} AND kind = 2 AND priority = ? AND id = ? IF rev = ?"
)
# Has no condition of its own; the lock in the same batch is its condition.
SET_CURSOR = _conditional(
    "UPDATE {keyspace}.messages SET cursor = ?, boundary = ?, tally = ? "
    f"WHERE {_WIDE_ROW} AND kind = 0 AND priority = ? AND id = ?"
)

# ── Queues ──

# At serial consistency: after a change with an unknown outcome, shows whether it was applied.
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
# Only this incarnation, not a queue that was made again under the same name.
REMOVE_QUEUE = _conditional("DELETE FROM {keyspace}.queues WHERE queue = ? IF incarnation = ?")
# Moves the epoch at which readers of the registry start.
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
# At serial consistency: the answer decides whether a firing counts.
READ_SCHEDULE = _read(
    f"SELECT {_SCHEDULE_COLUMNS} FROM {{keyspace}}.schedules WHERE queue = ? AND key = ?", serial=True
)
# For people, and for the schedule monitor, which reads a schedule again before it acts.
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
# Only from the version that the caller has seen.
REMOVE_SCHEDULE = _conditional("DELETE FROM {keyspace}.schedules WHERE queue = ? AND key = ? IF version = ?")
# Overwritten before it expires, so that only workers that died leave a tombstone.
HEARTBEAT = _write(
    "INSERT INTO {keyspace}.workers (fleet, worker, info, seen) VALUES ('cqueue', ?, ?, ?) USING TTL ?"
)
# All of them: a fleet is small.
READ_WORKERS = _read(
    "SELECT worker, info, seen FROM {keyspace}.workers WHERE fleet = 'cqueue'"
)  # as WorkerRow
# A worker has stopped.
REMOVE_WORKER = _write("DELETE FROM {keyspace}.workers WHERE fleet = 'cqueue' AND worker = ?")

# Overwritten before it expires, as a heartbeat is.
LISTEN = _write(
    "INSERT INTO {keyspace}.listeners (fleet, listener, address, port, key, names, digest) "
    "VALUES ('cqueue', ?, ?, ?, ?, ?, ?) USING TTL ?"
)
# All listeners, in a few bytes each.
READ_DIGESTS = _read("SELECT listener, digest FROM {keyspace}.listeners WHERE fleet = 'cqueue'")
# The listeners whose digests have changed.
READ_LISTENERS = _read(
    "SELECT listener, address, port, key, names FROM {keyspace}.listeners "
    "WHERE fleet = 'cqueue' AND listener IN ?"  # as ListenerRow
)

# ── Results ──

_RESULT_COLUMNS = "message, state, codec, value, error, reason, at"  # as ResultRow
# Before the ack, at the time of the decision: an ack that is repeated sets no later result back.
KEEP_RESULT = _write(
    f"INSERT INTO {{keyspace}}.results ({_RESULT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " USING TIMESTAMP ? AND TTL ?"
)
# For programs that wait for the task.
READ_RESULT = _read(f"SELECT {_RESULT_COLUMNS} FROM {{keyspace}}.results WHERE message = ?")

# ── Logs ──

_LOG_SHARD = "log = ? AND partition = ? AND time_shard = ?"
_RECORD_COLUMNS = "id, topic, key, headers, body"  # as RecordRow
_RECORDS_CQL = f"SELECT {_RECORD_COLUMNS} FROM {{keyspace}}.log WHERE {_LOG_SHARD} AND id > ? AND id <= ?"
_LOG_COLUMNS = "log, incarnation, version, state, config, created"  # as LogRow

# At the µs of its id; missing values stay unset.
APPEND_RECORD = _write(
    f"INSERT INTO {{keyspace}}.log (log, partition, time_shard, {_RECORD_COLUMNS}) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
)
# After an append that was answered too late: one µs after the latest id. Damaged records: at the present
# time.
DELETE_RECORDS = _write(f"DELETE FROM {{keyspace}}.log USING TIMESTAMP ? WHERE {_LOG_SHARD} AND id IN ?")
# In one answer: a slice is one point in time.
READ_RECORDS = _read(f"{_RECORDS_CQL} LIMIT ?", raw=True)
# The same, newest first.
READ_RECORDS_BACK = _read(f"{_RECORDS_CQL} ORDER BY id DESC LIMIT ?", raw=True)
# For readers that split the records among several tasks before they read them (Spark).
READ_RECORD_IDS = _read(f"SELECT id FROM {{keyspace}}.log WHERE {_LOG_SHARD} AND id > ? AND id <= ? LIMIT ?")
# One statement shows which of many idle partitions have new records.
PEEK_RECORDS = _read(
    "SELECT partition, id FROM {keyspace}.log WHERE log = ? AND partition IN ? AND time_shard = ? "
    "AND id > ? AND id <= ? PER PARTITION LIMIT 1"
)
# For a deleted log, one partition at a time.
DROP_RECORDS = _write(f"DELETE FROM {{keyspace}}.log USING TIMESTAMP ? WHERE {_LOG_SHARD}")
# Before the first record of a partition is acknowledged; expires with its last record. All write times of a
# row are the same, so that the one that expires last wins, in whichever order they came.
REGISTER_LOG_SHARD = _write(
    "INSERT INTO {keyspace}.log_shards (log, partition, time_shard) VALUES (?, ?, ?)"
    " USING TTL ? AND TIMESTAMP ?"
)
# Several time shards at once.
READ_LOG_SHARDS = _read(
    "SELECT time_shard, partition FROM {keyspace}.log_shards WHERE log = ? AND time_shard IN ?",
    page_rows=5000,
)
# For deleting a log whose row is damaged, so that the width of its time shards is unknown.
LIST_LOG_SHARDS = _read("SELECT DISTINCT log, time_shard FROM {keyspace}.log_shards", page_rows=5000)
# After its records were dropped.
UNREGISTER_LOG_SHARD = _write(
    "DELETE FROM {keyspace}.log_shards WHERE log = ? AND partition = ? AND time_shard = ?"
)
# At serial consistency, as READ_QUEUE.
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
# Only this incarnation, not a log that was made again under the same name.
REMOVE_LOG = _conditional("DELETE FROM {keyspace}.logs WHERE log = ? IF incarnation = ?")

# ── Subscriptions ──

_SUBSCRIPTION = "log = ? AND subscription = ?"
_SUBSCRIPTION_CQL = (
    "SELECT kind, partition, member, version, state, config, position, fence, owner, generation, info, seen "
    f"FROM {{keyspace}}.subscriptions WHERE {_SUBSCRIPTION}"
)

# Definition, positions and members in one answer.
READ_SUBSCRIPTION = _read(_SUBSCRIPTION_CQL)
# After a change that was refused or not answered: shows what is stored.
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
# In one conditional batch with SET_POSITION of rows that are not stored yet: a deletion may come before it,
# and another subscription of that name. Changes nothing.
SUBSCRIPTION_STANDS = _conditional(
    f"UPDATE {{keyspace}}.subscriptions SET owner = '' WHERE {_SUBSCRIPTION} "
    "AND kind = 0 AND partition = 0 AND member = '' IF config = ?"
)
# The condition under which all rows of a subscription go.
REMOVE_DEFINITION = _conditional(
    f"DELETE FROM {{keyspace}}.subscriptions WHERE {_SUBSCRIPTION} "
    "AND kind = 0 AND partition = 0 AND member = '' IF version = ?"
)
# In one conditional batch with REMOVE_DEFINITION, so that no clock decides about this delete.
REMOVE_SUBSCRIPTION = _conditional(f"DELETE FROM {{keyspace}}.subscriptions WHERE {_SUBSCRIPTION}")
# Overwritten before it expires, so that only members that died leave a tombstone.
BEAT_MEMBER = _write(
    "INSERT INTO {keyspace}.subscriptions (log, subscription, kind, partition, member, info, seen) "
    "VALUES (?, ?, 2, 0, ?, ?, ?) USING TTL ?"
)
# A member has stopped.
REMOVE_MEMBER = _write(
    f"DELETE FROM {{keyspace}}.subscriptions WHERE {_SUBSCRIPTION} "
    "AND kind = 2 AND partition = 0 AND member = ?"
)
# How far a subscription is behind, for people. A column beside an aggregate is the first row's.
COUNT_RECORDS = _read(f"SELECT COUNT(*), id FROM {{keyspace}}.log WHERE {_LOG_SHARD} AND id > ? AND id <= ?")

# ── Reservations ──

_RESERVATION_COLUMNS = "queue, key, message, replaces, made, sent"  # as ReservationRow
# At serial consistency: after a change that was refused or not answered, shows what is stored.
READ_RESERVATION = _read(
    f"SELECT {_RESERVATION_COLUMNS} FROM {{keyspace}}.reservations WHERE queue = ? AND key = ?", serial=True
)
# The first one wins.
MAKE_RESERVATION = _conditional(
    f"INSERT INTO {{keyspace}}.reservations ({_RESERVATION_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) "
    "IF NOT EXISTS USING TTL ?"
)
# Only from the message that the caller has seen. All columns, so that all of them expire together.
CHANGE_RESERVATION = _conditional(
    "UPDATE {keyspace}.reservations USING TTL ? SET message = ?, replaces = ?, made = ?, sent = ? "
    "WHERE queue = ? AND key = ? IF message = ?"
)
# For deleting a queue. By tokens: one read across all keys that have expired lately may be refused.
LIST_RESERVATIONS = _read(
    "SELECT queue, key FROM {keyspace}.reservations WHERE token(queue, key) > ? AND token(queue, key) <= ?",
    page_rows=5000,
)
# Of a queue that is being deleted, or a damaged one.
REMOVE_RESERVATION = _conditional("DELETE FROM {keyspace}.reservations WHERE queue = ? AND key = ? IF EXISTS")

# ── Deployment and time ──

# The values that all clients agree on; polled for the change counter.
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
    "results": ("message",),
    "logs": ("log",),
    "log": ("log", "partition", "time_shard", "id"),
    "log_shards": ("log", "time_shard", "partition"),
    "subscriptions": ("log", "subscription", "kind", "partition", "member"),
    "message_keys": ("queue", "key", "id", "priority"),
    "reservations": ("queue", "key"),
}
"""The primary keys of the tables whose rows may be in quarantine."""

# By table, all columns of a row as JSON, so that people can look at a damaged row.
DUMP_ROW = {
    table: _read(
        f"SELECT JSON * FROM {{keyspace}}.{table} WHERE {' AND '.join(f'{name} = ?' for name in columns)}"
    )
    for table, columns in KEY_COLUMNS.items()
}
# A damaged timeout slot whose id is not that of a slot: no claim can overwrite it.
DROP_SLOT = _conditional(
    f"DELETE FROM {{keyspace}}.messages WHERE {_WIDE_ROW} AND kind = 2 AND priority = ? AND id = ? IF EXISTS"
)

ALL = {name: value for name, value in list(globals().items()) if isinstance(value, Statement)} | {
    f"DUMP_ROW of {table}": statement for table, statement in DUMP_ROW.items()
}
"""Every statement, by its name."""
