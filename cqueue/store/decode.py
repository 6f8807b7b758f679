"""Decode rows of all tables but `messages` strictly: values for readable rows, a `Damage` for each other row.

The decoding functions are pure. They take the rows of an answer as tuples, in the order of the statement's
columns, and raise nothing, whatever the columns hold. A damaged row does not affect the others.
`readable_rows` and `only_row` report damaged rows to the quarantine.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

from cqueue import ids
from cqueue.errors import DamagedRow, SchemaMismatch
from cqueue.store.cells import Unreadable
from cqueue.store.control import ListenerRow, ResultRow, ScheduleRow, WorkerRow
from cqueue.store.keys import PLACE_BYTES, KeyPlace, KeyRow, Place, ReservationRow
from cqueue.store.log_operations import (
    DefinitionRow,
    LogRow,
    MemberRow,
    PositionRow,
    ReadSubscription,
    SubscriptionKey,
    SubscriptionRows,
)
from cqueue.store.operations import DeploymentRow, QueueRow, ReadShards, ShardRow
from cqueue.store.quarantine import Damage, Quarantine
from cqueue.store.statements import KEY_COLUMNS

T = TypeVar("T")
Row = Sequence[Any]
Check = Callable[[Any], bool]
Report = Callable[[Damage], None]

LAST_MS: Final = 95_617_584_000_000
"""The year 5000 in ms since 1970. A later time is damage: messages are due within ten years, and the time of
an id can hold dates until 5236."""
FIRST_MS: Final = 1_577_836_800_000
"""The year 2020 in ms since 1970. No queue or log is as old. From 1970 on, a consumer would read half a
million epochs before its first message."""
MOST: Final = 1 << 62
"""Upper bound of versions, fences and other counters, so that the next value fits a bigint."""
PRIORITIES: Final = frozenset(range(10))
MOST_SHARDS: Final = 1000
"""Concurrency shards in one time shard: the upper bound of `QueueConfig.max_shards`."""
MOST_OPEN_SHARDS: Final = 64
"""Shards of open wide rows: the upper bound of `QueueConfig.open_shards`."""
NO_NAME: Final = "its key is no name that a client accepts"
"""The reason why the row of a queue or log is damaged that nobody can have created."""
AHEAD_US: Final = 60_000_000
"""µs (1 min) by which a time that has to lie in the past may lie ahead: more than clocks disagree by."""
WEEK_S: Final = 7 * 86_400
"""Seconds in a week: W or ε above it is damage. `schema/options.py` accepts far less."""

DEFINITION, POSITION, MEMBER = 0, 1, 2  # kinds of rows in `subscriptions`
FLEET: Final = "cqueue"
KEY_BYTES: Final = 16
"""Bytes of a listener's key."""
_SHOWN = 60

_REMEDIES: Final = {
    "queues": "mend it, or delete the queue with `cqueue queue delete`",
    "logs": "mend it, or delete the log with `cqueue log delete`",
    "schedules": "add the schedule again with replace, or remove it with `cqueue schedule remove`",
    "subscriptions": "mend it, or delete the subscription with `cqueue subscription delete`",
    "results": "it expires by itself",
    "reservations": "drop it with `cqueue quarantine drop {}`; then its key is free",
}


class Decoded(NamedTuple):
    """The decoded rows of an answer.

    values: the readable rows, mostly as a list; the decoding function says how. damages: one per damaged row.
    """

    values: Any
    damages: list[Damage]


def readable_rows(found: Decoded, quarantine: Quarantine) -> Any:
    """Return the values; report the damaged rows."""
    for damage in found.damages:
        quarantine.report(damage)
    return found.values


def only_row(found: Decoded, quarantine: Quarantine) -> Any:
    """Return the only row of an answer, or None if there is none.

    Raises:
        DamagedRow: the row cannot be read.
    """
    values = readable_rows(found, quarantine)
    check(found)
    return next(iter(values), None)


def check(found: Decoded) -> None:
    """Raise DamagedRow if any row is damaged."""
    if found.damages:
        raise error(found.damages[0])


def next_version(seen: int | None) -> int:
    """Return the version after `seen`. A damaged row may hold any version; then numbering begins again at
    1.
    """
    return seen + 1 if seen is not None and _COUNTER(seen) else 1


def error(damage: Damage) -> DamagedRow:
    """Return the error for a call that needs the damaged row, with its remedy."""
    key = ", ".join(map(str, damage.key))
    remedy = _REMEDIES.get(damage.table, "see `cqueue quarantine list`").format(damage.address)
    return DamagedRow(f"the row ({key}) of table {damage.table} cannot be read: {damage.reason}; {remedy}")


def parsed(place: Damage, parse: Callable[[], T], report: Report) -> T:
    """Return the result of `parse`, which reads the JSON of one column.

    place: a `Damage` that names the row, with the column's name as its reason.

    Raises:
        DamagedRow: the JSON does not fit the column. The row is reported as well.
    """
    try:
        return parse()
    except (
        DamagedRow,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as exc:
        damage = place._replace(reason=f"{place.reason} holds what does not belong there: {exc!r}")
        report(damage)
        raise error(damage) from exc


def not_ahead(place: Damage, at_us: int, now_us: int, report: Report) -> None:
    """Check that the time in a column lies in the past. place: as for `parsed`.

    Raises:
        DamagedRow: the time lies in the future; a reader that starts there would miss everything before it.
            Where clocks were ahead and have been set back, the row can be read again from that time on.
    """
    if at_us > now_us + AHEAD_US:
        at = datetime.fromtimestamp(at_us // 1_000_000, UTC)
        why = f"lies in the future: all until {at} would be missed; wait for it if clocks were set back"
        damage = place._replace(reason=f"{place.reason} {why}")
        report(damage)
        raise error(damage)


# ── What a column may hold ──


def number(low: int, high: int) -> Check:
    """Return a check for whole numbers from `low` to `high`."""
    return lambda value: type(value) is int and low <= value <= high


def one_of(*names: str) -> Check:
    """Return a check for one of these texts."""
    return lambda value: value in names


def is_text(value: Any) -> bool:
    """Return whether the value is a non-empty text."""
    return isinstance(value, str) and value != ""


def is_object(value: Any) -> bool:
    """Return whether the value is the text of a JSON object."""
    try:
        return isinstance(value, str) and isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False


def is_address(value: Any) -> bool:
    """Return whether the value is an IP address. A host name does not count: each sender would look it up."""
    try:
        is_plain = isinstance(value, str) and value.isascii() and value.isprintable()  # also its scope
        return is_plain and bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def or_none(check: Check) -> Check:
    """Return a check that also accepts null."""
    return lambda value: value is None or check(value)


_COUNTER = number(1, MOST)
_FROM_ZERO = number(0, MOST)
_TIME = number(0, LAST_MS)

_LISTENER: Final[Mapping[str, Check]] = {
    "listener": is_text,
    "address": is_address,
    "port": number(1, 65_535),
    "key": lambda value: isinstance(value, bytes) and len(value) == KEY_BYTES,
    "names": lambda value: value is None or isinstance(value, bytes),
}
DEPLOYMENT: Final[Mapping[str, Check]] = {
    "format": _FROM_ZERO,
    "serial_consistency": one_of("local_serial", "serial"),
    "settle_ms": number(1, WEEK_S * 1000),
    "skew_ms": number(1, WEEK_S * 1000),
    "gc_grace": number(0, 100 * 365 * 86_400),
    "changes": _FROM_ZERO,
    "home_dc": or_none(is_text),
    "centre_epoch": or_none(_FROM_ZERO),
    "retiring": or_none(lambda value: type(value) is bool),
}
_DEFINITION: Final[Mapping[str, Check]] = {
    "version": _COUNTER,
    "state": one_of("active", "paused"),
    "config": is_object,
}
_POSITION: Final[Mapping[str, Check]] = {
    "partition": number(0, 32_767),
    "position": number(0, ids.lowest_at(LAST_MS * 1000)),
    "fence": _FROM_ZERO,
    "owner": lambda value: isinstance(value, str),
    "generation": _FROM_ZERO,
}
RECORD: Final[Mapping[str, Check]] = {
    "topic": lambda value: isinstance(value, str),
    "key": lambda value: value is None or isinstance(value, str),
    "headers": lambda value: not isinstance(value, Unreadable),
    "body": lambda value: isinstance(value, bytes),
}
_MEMBER: Final[Mapping[str, Check]] = {
    "member": is_text,
    "info": is_object,
    "seen": number(0, LAST_MS * 1000),
}


def fault(values: Row, checks: Mapping[str, Check]) -> str:
    """Return why a row is damaged, or "" if it is not.

    values: the row's columns, in the order of `checks`.
    """
    for value, (column, is_right) in zip(values, checks.items(), strict=True):
        if not is_right(value):
            return _complaint(column, value)
    return ""


def _complaint(column: str, value: Any) -> str:
    if value is None:
        return f"{column} is null"
    if isinstance(value, Unreadable):
        return f"{column} holds bytes that are no text"
    if column == "state":
        return f"state is {_shown(value)}, which this version does not know; a newer one may have written it"
    if isinstance(value, str) and column in {"config", "definition", "info"}:
        return f"{column} is no JSON object"  # its text may be secret
    return f"{column} is {_shown(value)}, which is out of range"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# ── Queues, logs, schedules, workers ──


@dataclass(frozen=True, slots=True)
class Table:
    """Decodes the rows of a table whose rows are all of one kind; call it with the rows.

    make: makes the value of a row. checks: the checks of the columns after the key, in order. before:
    leading key columns that are constant, and so not read.
    """

    name: str
    make: Callable[[Any], Any]
    checks: Mapping[str, Check]
    before: tuple[str, ...] = ()

    def __call__(self, rows: Iterable[Row], *, as_stored: bool = False) -> Decoded:
        """Decode rows. as_stored: accept every row, damaged ones as well."""
        found, size = Decoded([], []), len(KEY_COLUMNS[self.name]) - len(self.before)
        for row in rows:
            damage = None if as_stored else self._damage((*self.before, *row[:size]), row[size:])
            if damage is None:
                found.values.append(self.make(row))
            else:
                found.damages.append(damage)
        return found

    def _damage(self, key: tuple[Any, ...], values: Row) -> Damage | None:
        reason, owner = fault(values, self.checks), "" if self.before else key[0]
        if any(isinstance(each, Unreadable) for each in key):
            reason, owner = "its key holds bytes that are no text", ""
        return Damage(self.name, owner, key, reason) if reason else None


queues: Final = Table(
    "queues",
    QueueRow._make,
    {
        "incarnation": is_text,
        "version": _COUNTER,
        "state": one_of("active", "paused", "deleting"),
        "config": is_object,
        "epoch_ms": number(1000, 30 * 86_400_000),
        "oldest_epoch": number(FIRST_MS, LAST_MS),
        "oldest_open_epoch": number(-LAST_MS, -1),
    },
)
logs: Final = Table(
    "logs",
    LogRow._make,
    {
        "incarnation": is_text,
        "version": _COUNTER,
        "state": one_of("active", "deleting"),
        "config": is_object,
        "created": number(FIRST_MS, LAST_MS),
    },
)
schedules: Final = Table(
    "schedules",
    ScheduleRow._make,
    {
        "version": _COUNTER,
        "state": one_of("active", "paused", "done"),
        "generation": _FROM_ZERO,
        "definition": is_object,
        "next_at": _TIME,
        "previous": _TIME,
        "fired": _FROM_ZERO,
    },
)
workers: Final = Table("workers", WorkerRow._make, {"info": is_object, "seen": _TIME}, (FLEET,))

results: Final = Table(
    "results",
    ResultRow._make,
    {
        "state": one_of("succeeded", "failed", "cancelled"),
        "codec": or_none(is_text),
        "value": or_none(lambda value: isinstance(value, bytes)),
        "error": or_none(is_text),
        "reason": or_none(lambda value: isinstance(value, str)),
        "at": _TIME,
    },
)


def is_place(value: Any) -> bool:
    """Return whether the value is the packed place of a message, so that a condition can name it again."""
    if not isinstance(value, bytes) or len(value) != PLACE_BYTES:
        return False
    place = Place.unpacked(value)
    return place.priority in PRIORITIES and place.packed() == value


def _reservation(row: Row) -> ReservationRow:
    queue, key, message, replaces, made_us, sent = row
    old = Place.unpacked(replaces) if replaces else None
    return ReservationRow(queue, key, Place.unpacked(message), old, made_us, sent)


reservations: Final = Table(
    "reservations",
    _reservation,
    {
        "message": is_place,
        "replaces": lambda value: value == b"" or is_place(value),
        "made": number(0, LAST_MS * 1000),
        "sent": lambda value: type(value) is bool,
    },
)


def is_damaged(row: ScheduleRow) -> bool:
    """Return whether a schedule that was read with `as_stored` is damaged."""
    return bool(schedules([row]).damages)


def listeners(rows: Iterable[Row]) -> list[ListenerRow]:
    """Decode listeners, without damaged rows. They expire within half a minute, so they are not reported."""
    return [ListenerRow._make(row) for row in rows if not fault(row, _LISTENER)]


def digests(rows: Iterable[Row]) -> dict[str, bytes]:
    """Decode digests by listener, without damaged rows."""
    return {row[0]: row[1] for row in rows if is_text(row[0]) and isinstance(row[1], bytes)}


def deployment(rows: Iterable[Row]) -> DeploymentRow | None:
    """Decode the deployment row; None if there is none.

    Raises:
        SchemaMismatch: the row is damaged. No client may guess values that all have to agree on.
    """
    for row in rows:
        reason = fault(row, DEPLOYMENT)
        if reason:
            raise SchemaMismatch(
                f"the row of table deployment cannot be read: {reason}; set it to what it was at bootstrap"
            )
        stored = DeploymentRow._make(row)
        return stored._replace(centre_epoch=stored.centre_epoch or 0, retiring=stored.retiring is not False)
    return None


# ── The registry ──


def shards(op: ReadShards, rows: Iterable[Row]) -> Decoded:
    """Decode `ShardRow`s. A row without priorities counts as one with all: any may have messages."""
    found = Decoded([], [])
    for time_shard, shard, priorities in rows:
        reason = _misplaced(op, time_shard, shard)
        if reason:
            key = (op.queue, op.epoch, time_shard, shard)
            found.damages.append(Damage("shards", op.queue, key, reason))
        else:
            known = PRIORITIES & frozenset(priorities or ()) or PRIORITIES
            found.values.append(ShardRow(time_shard, shard, known))
    return found


def _misplaced(op: ReadShards, time_shard: Any, shard: Any) -> str:
    if not _TIME(time_shard):
        return _complaint("time_shard", time_shard)
    if not number(-MOST_OPEN_SHARDS, MOST_SHARDS - 1)(shard):
        return _complaint("shard", shard)
    if op.grid is None:
        return ""
    start_ms, length_ms, width_ms = op.grid
    if not start_ms <= time_shard < start_ms + length_ms or (shard < 0) != (op.epoch < 0):
        return f"time_shard {time_shard} with shard {shard} does not belong to epoch {op.epoch}"
    if time_shard % width_ms:
        return f"time_shard {time_shard} is not a multiple of the queue's, {width_ms} ms"
    return ""


# ── Keys ──

_KEY: Final[Mapping[str, Check]] = {
    "priority": number(0, 9),
    "time_shard": _TIME,
    "shard": number(-MOST_OPEN_SHARDS, MOST_SHARDS - 1),
    "its write timestamp": number(0, LAST_MS * 1000),
}


def key_rows(place: KeyPlace, rows: Iterable[Row]) -> Decoded:
    """Decode `KeyRow`s of one key."""
    found = Decoded([], [])
    for row in rows:
        reason = fault(row[1:], _KEY)
        if reason:
            found.damages.append(Damage("message_keys", place.queue, (*place, *row[:2]), reason))
        else:
            found.values.append(KeyRow._make(row))
    return found


# ── Subscriptions ──


def subscription(op: ReadSubscription, rows: Iterable[Row]) -> Decoded:
    """Decode all rows of a subscription into `SubscriptionRows`, which also names the damaged ones."""
    definition: DefinitionRow | None = None
    broken: tuple[Damage, int | None] | None = None
    positions: dict[int, PositionRow] = {}
    lost: dict[int, int | None] = {}
    members: list[MemberRow] = []
    damages: list[Damage] = []
    for kind, partition, member, *rest in rows:
        version, state, config, position, fence, owner, generation, info, seen = rest
        key = (op.key.log, op.key.name, kind, partition, member)
        if (kind, partition, member) == (DEFINITION, 0, ""):
            reason = fault((version, state, config), _DEFINITION)
            if reason:
                broken = (Damage("subscriptions", op.key.log, key, reason), version)
            else:
                definition = DefinitionRow(version, state, config)
        elif (kind, member) == (POSITION, ""):
            row = PositionRow(partition, position, fence, owner or "", generation or 0)
            reason = _wrong_position(op, row)
            if reason:
                lost[partition] = fence
            else:
                positions[partition] = row
        elif (kind, partition) == (MEMBER, 0):
            reason = _wrong_member(op, member, info, seen)
            if not reason:
                members.append(MemberRow(member, info, seen))
        else:
            reason = "no definition, position or member has such a key; a newer version may have written it"
        if reason:
            damages.append(Damage("subscriptions", op.key.log, key, reason))
    return Decoded(SubscriptionRows(definition, positions, tuple(members), broken, lost), damages)


def _wrong_position(op: ReadSubscription, row: PositionRow) -> str:
    reason = fault((row.partition, row.position, row.fence, row.owner, row.generation), _POSITION)
    if not reason and op.now_us is not None and row.position > ids.highest_at(op.now_us + AHEAD_US):
        return "position lies in the future: all that comes until then would be passed over"
    return reason


def _wrong_member(op: ReadSubscription, member: Any, info: Any, seen: Any) -> str:
    reason = fault((member, info, seen), _MEMBER)
    if not reason and op.now_us is not None and seen > op.now_us + AHEAD_US:
        return "seen lies in the future: its partitions would wait for it"
    return reason


def subscription_keys(rows: Iterable[Row]) -> list[SubscriptionKey]:
    """Decode subscription keys, without damaged ones."""
    return [SubscriptionKey._make(row) for row in rows if all(isinstance(each, str) for each in row)]


# ── Logs' registry, bodies ──


def log_shards(log: str, rows: Iterable[Row]) -> Decoded:
    """Decode a log's registry into {time shard: partitions that exist}."""
    found: dict[int, set[int]] = {}
    damages: list[Damage] = []
    for time_shard, partition in rows:
        if number(0, 32_767)(partition):
            found.setdefault(time_shard, set()).add(partition)
        else:
            reason = _complaint("partition", partition)
            damages.append(Damage("log_shards", log, (log, time_shard, partition), reason))
    return Decoded({time_shard: frozenset(partitions) for time_shard, partitions in found.items()}, damages)


def bodies(rows: Iterable[tuple[int, bytes | None]]) -> dict[int, bytes]:
    """Decode bodies by message id, without null ones."""
    return {id_: body for id_, body in rows if body is not None}
