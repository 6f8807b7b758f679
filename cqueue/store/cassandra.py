"""The storage seam on Apache Cassandra: which CQL statements make up each operation.

The store takes no decisions and repeats nothing. It translates a failure (cqueue.store.outcome) and raises it
to the protocol, which knows whether a repetition is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from cassandra.cluster import Session

from cqueue import ids
from cqueue.settings import CONSISTENCY_OF, Consistency, SerialConsistency
from cqueue.store import (
    cassandra_control,
    cassandra_keys,
    cassandra_log,
    codec,
    decode,
    driver,
    packs,
)
from cqueue.store import operations as ops
from cqueue.store import statements as cql
from cqueue.store.connection import level
from cqueue.store.operations import Pending
from cqueue.store.packs import Density, Part, joined_items, ranged
from cqueue.store.quarantine import MESSAGE_KIND, MESSAGES, Damage
from cqueue.store.requests import (
    ManyRequests,
    Request,
    Requests,
    Starters,
    Steps,
    Window,
    applied,
    collected,
    results_of,
    sent_or_error,
    silence_warnings,
)
from cqueue.store.statements import Kind
from cqueue.store.timing import sample_time_us

T = TypeVar("T")
Item = TypeVar("Item")

BODY_BYTES_IN_FLIGHT: Final = 4 << 20
"""Bytes of bodies that one operation has on their way at a time. A node with a small heap refuses 13 MiB."""
BODY_BYTES_A_WRITE: Final = 512 << 10
"""Bytes of bodies in one batch; a single body may exceed it. Far below Cassandra's limit for a mutation."""
BODY_BYTES_A_READ: Final = 4 << 20
"""Bytes of bodies that one read asks for, as far as their sizes are known."""
LARGEST_BODY: Final = 1 << 20
"""Bytes assumed for a body of unknown size: the largest that a message may have."""
BODIES_AT_ONCE: Final = 500
"""Number of bodies in one read or write, at most, however small they are."""
BODY_READS_IN_FLIGHT: Final = 4
"""Reads of bodies that one operation has under way at a time: 16 MiB at most."""
REAPED_AT_ONCE: Final = 500
"""Empty packs that one read deletes, at most; the next read deletes the rest."""
PACKS_AT_ONCE: Final = 64
"""Rows in one read by ids where packs are among them: 2 MiB at most, as a pack has up to 32 KiB."""
FEW_ROWS: Final = 4
"""Rows in the first read by ids where only a few live messages are wanted. Each further read asks for four
times as many, so that a long list of acked messages is passed quickly."""
SINGLES_AT_ONCE: Final = 250
"""Rows in one read by ids where all of them are single messages and only a few are wanted."""
PACK_READS_IN_FLIGHT: Final = 2
"""Reads by ids that one operation has under way at a time."""


class CassandraStore:
    """A `Store` on an open session. `close` closes the session.

    Args:
        session: a session with the deployment's keyspace selected. From now on its timeuuid columns come back
            as integers (cqueue.store.driver).
        serial_consistency: of conditional mutations and serial reads; the deployment's.
        consistency: of plain reads and writes; follows from `serial_consistency` by default.
    """

    is_shared: Final = True  # with other processes

    def __init__(
        self,
        session: Session,
        *,
        serial_consistency: SerialConsistency = "local_serial",
        consistency: Consistency | None = None,
    ) -> None:
        session.client_protocol_handler = driver.used().protocol_handler
        silence_warnings()
        levels = (level(consistency or CONSISTENCY_OF[serial_consistency]), level(serial_consistency))
        self._requests = requests = Requests(session, *levels)
        self.quarantine = requests.quarantine
        self._session = session
        self._known = packs.Known()
        self._density = Density()
        self._starters: Final[Starters] = {
            ops.ReadHead: self._read_head,
            ops.ReadSlice: self._read_slice,
            ops.ReadIds: self._read_ids,
            ops.HasMessages: lambda op: requests.send(cql.HAS_MESSAGES, op.wide_row, bool),
            ops.ReadMessages: self._read_messages,
            ops.ReadBodies: self._read_bodies,
            ops.InsertMessages: self._insert_messages,
            ops.ShowInsert: lambda op: _Known(_insert_of(op, session.keyspace)),
            ops.DeleteMessages: self._delete_messages,
            ops.InsertBodies: self._insert_bodies,
            ops.DeleteBodies: lambda op: requests.write(
                cql.DELETE_BODIES, _delete_us(op.ids), *op.wide_row, op.ids
            ),
            ops.DropBodies: lambda op: requests.write(cql.DROP_BODIES, op.at_us, *op.wide_row),
            ops.Mutate: lambda op: requests.send_batch(Kind.CONDITIONAL, _mutation(op), applied),
            ops.ReadShards: lambda op: requests.rows(
                cql.READ_SHARDS, (op.queue, op.epoch, op.from_time_shard), partial(decode.shards, op)
            ),
            ops.RegisterShard: lambda op: requests.write(
                cql.REGISTER_SHARD, *_shard(op), op.priorities, op.time_shard * 1000
            ),
            ops.UnregisterShard: lambda op: requests.write(
                cql.UNREGISTER_SHARD, op.at_us or op.time_shard * 1000 + 1, *_shard(op)
            ),
            ops.DropSlot: lambda op: requests.change(cql.DROP_SLOT, *op.wide_row, op.priority, op.id),
            ops.DumpRow: lambda op: requests.send(
                cql.DUMP_ROW[op.table], op.key, lambda rows: next((row[0] for row in rows), None)
            ),
            **cassandra_control.starters(requests),
            **cassandra_keys.starters(requests),
            **cassandra_log.starters(requests),
        }

    def execute(self, operation: ops.Operation[Any]) -> Any:
        """Run one store operation.

        Raises:
            NotDone: the operation had no effect (Unavailable: trying again may help).
            OutcomeUnknown: the operation may take effect, now or later.
            SchemaMismatch: a table is missing, or has other columns.
        """
        return self._starters[type(operation)](operation).result()

    def together(self, operations: tuple[ops.Operation[Any], ...]) -> ops.Answers:
        """Run operations side by side. Return, in order, the result or the error of each."""
        return results_of([sent_or_error(partial(self._starters[type(one)], one)) for one in operations])

    @property
    def request_timeout_s(self) -> float:
        """Seconds that one request may take."""
        return self._requests.profile.request_timeout  # type: ignore[no-any-return]

    def sample_time_us(self) -> list[tuple[int, int]]:
        """Ask several coordinators of the local data centre: (cluster time now, round trip), both in µs."""
        return sample_time_us(self._session, self._requests.profile)

    def close(self) -> None:
        """Close the session, with everything that is under way through it."""
        self._session.shutdown()

    # ── Reads of a wide row ──

    def _read_head(self, op: ops.ReadHead) -> Request[ops.Head]:
        statement = cql.READ_HEAD_SERIAL if op.serial else cql.READ_HEAD
        report = partial(self._set_aside, op.wide_row)
        return self._requests.send(statement, op.wide_row, lambda rows: codec.head(rows, report))

    def _read_slice(self, op: ops.ReadSlice) -> Pending[ops.Slice]:
        def take(rows: list[packs.Row]) -> Part[ops.MessageRow]:
            self._reap(op, packs.wholly_gone((row[1], row[11], row[12]) for row in rows))
            found = self._live(op.wide_row, op.priority, rows, op.after, op.upto)
            return [row[1] for row in rows], found.messages, map(packs.last_in, found.damaged)

        return self._ranged(cql.READ_SLICE, op, take, ops.Slice)

    def _read_ids(self, op: ops.ReadIds) -> Pending[ops.IdSlice]:
        def take(rows: list[packs.IdRow]) -> Part[int]:
            self._reap(op, packs.wholly_gone(rows))
            live = packs.live_ids(rows, op.after, op.upto)
            return [row[0] for row in rows], live, self._damaged_ids(op, rows)

        return self._ranged(cql.READ_IDS, op, take, ops.IdSlice)

    def _damaged_ids(self, op: ops.ReadIds, rows: Iterable[packs.IdRow]) -> Iterator[int]:
        for row in rows:
            if packs.has_only_marks(row[1], row[2]):
                continue
            place, reason = (MESSAGE_KIND, op.priority, row[0]), packs.id_damage(row)
            if reason is not None:
                self._set_aside(op.wide_row, place, reason)
            if reason is not None or self.quarantine.find(MESSAGES, (*op.wide_row, *place)) is not None:
                yield packs.last_in(row[0])

    def _set_aside(self, wide_row: ops.WideRow, place: tuple[int, int, int], reason: str) -> None:
        """Report a row of `messages` that cannot be read. place: (kind, priority, id) of the row."""
        self.quarantine.report(Damage(MESSAGES, wide_row.queue, (*wide_row, *place), reason))

    def _reap(self, op: ops.ReadIds | ops.ReadSlice, rows: list[int]) -> None:
        """Delete packs without a live message.

        Such a row remains when several clients deleted parts of it, each unaware of the others. Nobody waits
        for this deletion: if it fails, the next reader deletes the row.
        """
        if rows:
            rows = rows[:REAPED_AT_ONCE]
            values = (_delete_us(rows), *op.wide_row, op.priority, rows)
            sent_or_error(lambda: self._requests.write(cql.DELETE_MESSAGES, *values))

    def _ranged(
        self,
        statement: cql.Statement,
        op: ops.ReadSlice | ops.ReadIds,
        take: Callable[[list[Any]], Part[Item]],
        make: Callable[[list[Item], int, tuple[int, ...]], T],
    ) -> ManyRequests[T]:
        def send(after: int, rows: int) -> Request[Part[Item]]:
            return self._requests.send(statement, (*op.wide_row, op.priority, after, op.upto, rows), take)

        def steps() -> Steps[T]:
            return make(*(yield from ranged(op, send, self._density)))

        return ManyRequests(steps())

    def _read_messages(self, op: ops.ReadMessages) -> Pending[list[ops.MessageRow]]:
        wanted = set(op.ids)
        row_ids = packs.row_ids(wanted)
        place = (*op.wide_row, op.priority)

        def decode(rows: list[packs.Row]) -> list[ops.MessageRow]:
            return [row for row in self._live(op.wide_row, op.priority, rows).messages if row.id in wanted]

        def send(start_: int, end: int) -> Request[list[ops.MessageRow]]:
            return self._requests.send(cql.READ_MESSAGES, (*place, row_ids[start_:end]), decode)

        packed = any(map(ids.is_packed, row_ids))
        if not packed and not op.limit:
            return send(0, len(row_ids))
        most = PACKS_AT_ONCE if packed else SINGLES_AT_ONCE
        parts = _parts(len(row_ids), most, first=FEW_ROWS if op.limit else most)
        jobs = [(1, partial(send, start_, end)) for start_, end in parts]
        return ManyRequests(joined_items(jobs, PACK_READS_IN_FLIGHT, op.limit))

    def _live(
        self,
        wide_row: ops.WideRow,
        priority: int,
        rows: Sequence[packs.Row],
        after: int = ids.START,
        upto: int = packs.EVERY,
    ) -> packs.Read:
        found = packs.messages(codec.rows(rows), after, upto)
        for row in rows:
            if row[12] and row[1] not in found.damaged:
                self._known.learn(wide_row, priority, row[1], packs.gone_mask(row[12]))
        for id_, reason in found.damaged.items():
            self._set_aside(wide_row, (MESSAGE_KIND, priority, id_), reason)
        return found

    def _read_bodies(self, op: ops.ReadBodies) -> Pending[dict[int, bytes]]:
        sizes = op.sizes or (LARGEST_BODY,) * len(op.ids)
        send = partial(self._requests.send, cql.READ_BODIES, decode=decode.bodies, everywhere=op.everywhere)
        jobs = (
            (1, partial(send, (*op.wide_row, op.ids[start:end])))
            for start, end, _ in _portions(sizes, BODY_BYTES_A_READ)
        )
        window = Window(jobs, BODY_READS_IN_FLIGHT)
        return ManyRequests(
            collected(window, Kind.READ, lambda parts: {id_: part[id_] for part in parts for id_ in part})
        )

    # ── Plain writes ──

    def _insert_messages(self, op: ops.InsertMessages) -> Request[None]:
        rows = codec.message_cells(packs.joined(op.rows))
        return self._requests.send_encoded(cql.INSERT_MESSAGE, codec.partition(op.wide_row), rows)

    def _delete_messages(self, op: ops.DeleteMessages) -> Request[None]:
        place = (*op.wide_row, op.priority)
        if op.at_us is not None:
            rows = sorted({*packs.row_ids(op.ids), *op.ids})  # a damaged row may have any id
            return self._requests.write(cql.DELETE_MESSAGES, max(op.at_us, _delete_us(rows)), *place, rows)
        rows, marks = self._known.deletion(op.wide_row, op.priority, op.ids)

        def deleted(_rows: list[Any]) -> None:
            self._known.forget(op.wide_row, op.priority, rows)
            for pack, mask in marks.items():
                self._known.learn(op.wide_row, op.priority, pack, mask)

        parts: list[tuple[cql.Statement, tuple[Any, ...]]] = [
            (cql.MARK_GONE, (ids.time_us(pack), packs.marks_of(mask), *place, pack))
            for pack, mask in marks.items()
        ]
        if rows:
            parts.append((cql.DELETE_MESSAGES, (_delete_us(rows), *place, rows)))
        if len(parts) == 1:
            return self._requests.send(*parts[0], deleted)
        return self._requests.send_batch(Kind.WRITE, parts, deleted)

    def _insert_bodies(self, op: ops.InsertBodies) -> Pending[None]:
        partition = codec.partition(op.wide_row)

        def send(start: int, end: int) -> Request[None]:
            rows = codec.body_cells(op.bodies[start:end])
            return self._requests.send_encoded(cql.INSERT_BODY, partition, rows)

        portions = _portions([len(body) for _, body in op.bodies], BODY_BYTES_A_WRITE)
        jobs = ((size, partial(send, start, end)) for start, end, size in portions)
        return ManyRequests(collected(Window(jobs, BODY_BYTES_IN_FLIGHT), Kind.WRITE, lambda _: None))


@dataclass(frozen=True, slots=True)
class _Known(Generic[T]):
    """A `Pending` that asks nobody."""

    value: T

    def result(self) -> T:
        """Return the value."""
        return self.value


def _insert_of(op: ops.ShowInsert, keyspace: str) -> tuple[str, tuple[Any, ...]]:
    """Return the insert of a message, and its values as the driver takes them."""
    row = op.wide_row._asdict() | {"kind": MESSAGE_KIND} | op.row._asdict() | {"id": ids.to_uuid(op.row.id)}
    given = {column: value for column, value in row.items() if value is not None}
    columns, places = ", ".join(given), ", ".join("?" * len(given))
    insert = cql.INSERT_GIVEN.format(keyspace=keyspace, columns=columns, places=places)
    return insert, (*given.values(), ids.time_us(op.row.id))


def _delete_us(some: Iterable[int]) -> int:
    return max(map(ids.time_us, some)) + 1


def _shard(op: ops.RegisterShard | ops.UnregisterShard) -> tuple[str, int, int, int]:
    return op.queue, op.epoch, op.time_shard, op.shard


def _parts(total: int, most: int, *, first: int) -> Iterator[tuple[int, int]]:
    """Cut `total` items into (start, end) parts: the first of size `first`, each further four times as large.

    most: upper bound of a part's size.
    """
    start, size = 0, first
    while start < total:
        yield start, min(total, start + size)
        start, size = start + size, min(most, 4 * size)


def _portions(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int, int]]:
    """Cut bodies into (start, end, bytes) portions of at most `most` bytes, or of one body."""
    start = total = 0
    for at, size in enumerate(sizes):
        if at > start and (total + size > most or at - start == BODIES_AT_ONCE):
            yield start, at, total
            start = at
            total = 0
        total += size
    if start < len(sizes):
        yield start, len(sizes), total


def _mutation(op: ops.Mutate) -> Iterator[tuple[cql.Statement, Iterable[Any]]]:
    """The statements of one conditional batch."""
    if op.lock is not None and op.overtakes:
        yield cql.OVERTAKE_LOCK, codec.overtaking_values(op.wide_row, op.lock)
    elif op.lock is not None:
        lock = codec.lock_values(op.wide_row, op.lock, op.expect_fence)
        yield (cql.RETIRE_LOCK, (ops.RETIRED_TTL_S, *lock)) if op.retire else (cql.SET_LOCK, lock)
    if op.retire:
        yield cql.RETIRE_WIDE_ROW, op.wide_row
    for cursor in op.cursors:
        yield cql.SET_CURSOR, codec.cursor_values(op.wide_row, cursor)
    for expect_rev, slot in op.slots:
        yield cql.SET_SLOT, codec.slot_values(op.wide_row, slot, expect_rev)
