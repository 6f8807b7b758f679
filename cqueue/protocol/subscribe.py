"""Subscriptions: who is alive, whose a partition is, and how positions change.

A member writes down that it lives, and everybody computes from the same rows whose a partition is. What
decides is the position's row alone: it names its owner, and each change of it is conditional on its fence,
which grows every time. So two members that differ about who lives cannot both have a partition, and one
that was paused cannot move a position back.

A member trusts its partitions only for as long as others must take it for alive; after that it changes all
its positions' fences, which fails whoever is just about to take one over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from cqueue import ids
from cqueue.errors import LASTING, LogNotFound, NotDone, OutcomeUnknown
from cqueue.protocol.lock import OUTCOME_PAUSES_S
from cqueue.protocol.logs import LogSpec
from cqueue.protocol.sanity import next_fence
from cqueue.protocol.scan import ShardMap
from cqueue.protocol.spec import Proto
from cqueue.rendezvous import Names
from cqueue.store import decode
from cqueue.store.log_operations import LogShard
from cqueue.store.operations import Now, Pause
from cqueue.store.quarantine import Damage
from cqueue.store.subscriptions import (
    CHANGES_AT_ONCE,
    ChangeDefinition,
    ChangePositions,
    CountRecords,
    DefineSubscription,
    DefinitionRow,
    MemberRow,
    PositionChange,
    PositionRow,
    ReadSubscription,
    RemoveSubscription,
    SubscriptionKey,
    SubscriptionRows,
)

ACTIVE, PAUSED = "active", "paused"
NOBODY = ""

BEAT_US = 1_500_000
"""A member says so often that it lives, and looks so often who else does."""
EXPIRY_US = 3_000_000
"""So long one heartbeat lasts: one may be lost."""
MEMBER_TTL_S = 30
"""Longer than anybody counts a heartbeat: a row must not go before all agree that it is over."""
LAST_POSITION = ids.lowest_at(decode.LAST_MS * 1000)
TRIES = 4
MOVE_TRIES = 20


# ── Who is alive? ──


def is_alive(spec: LogSpec, row: MemberRow, now_us: int) -> bool:
    """Whether others take the member for alive: its clock and ours may differ by the skew."""
    return now_us <= row.seen + EXPIRY_US + spec.skew_us


def is_sure(spec: LogSpec, beat_us: int, now_us: int) -> bool:
    """Whether a member whose last heartbeat was then knows that all others take it for alive."""
    return now_us < beat_us + EXPIRY_US - spec.skew_us


def member_info(partitions: Iterable[int] | None) -> str:
    """What a member says of itself: which partitions it would read; None for all."""
    return json.dumps({"partitions": None if partitions is None else sorted(partitions)})


def assigned(
    key: SubscriptionKey, me: str, alive: Iterable[MemberRow], partitions: Iterable[int]
) -> set[int]:
    """Which of the partitions are mine among those who live."""
    readers = [(row.member, _readable(row)) for row in alive]
    mine: set[int] = set()
    for partition in partitions:
        names = [name for name, some in readers if some is None or partition in some]
        if me in names and Names(names).first(f"{key.log}\0{key.name}\0{partition}".encode()) == me:
            mine.add(partition)
    return mine


def _readable(row: MemberRow) -> frozenset[int] | None:
    """What `member_info` says; everything if it was written by a version that says it otherwise."""
    some = json.loads(row.info).get("partitions")
    is_known = isinstance(some, list) and all(type(each) is int for each in some)
    return frozenset(some) if is_known else None


# ── Where did it begin? ──


class Origin(NamedTuple):
    """Where partitions without a position begin. None stands for the earliest record.

    partitions: how many there were; those added later are read from their beginning.
    """

    partitions: int
    default: int | None
    own: Mapping[int, int]

    def of(self, partition: int) -> int | None:
        """The position of one of them."""
        return self.own.get(partition, self.default) if partition < self.partitions else None

    def to_json(self) -> str:
        """As stored."""
        return json.dumps({"partitions": self.partitions, "default": self.default, "own": self.own})

    @classmethod
    def from_json(cls, text: str) -> Origin:
        """What `to_json` wrote.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: this library did not write it.
        """
        values = json.loads(text)
        own = {int(partition): _position(position) for partition, position in values["own"].items()}
        default = values["default"]
        return cls(int(values["partitions"]), None if default is None else _position(default), own)


def _position(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LAST_POSITION:
        raise ValueError(f"{value!r} is not a position")
    return value


def origin_of(key: SubscriptionKey, row: DefinitionRow, now_us: int, report: decode.Report) -> Origin:
    """Where the subscription began.

    Raises:
        DamagedRow: the definition does not say so any more.
    """
    place = Damage("subscriptions", key.log, (*key, decode.DEFINITION, 0, ""), "config")
    origin = decode.parsed(place, lambda: Origin.from_json(row.config), report)
    latest = max([origin.default or 0, *origin.own.values()])
    decode.not_ahead(place, ids.time_us(latest), now_us, report)
    return origin


def definition_of(rows: SubscriptionRows) -> DefinitionRow | None:
    """The definition, if there is one.

    Raises:
        DamagedRow: it cannot be read.
    """
    if rows.broken is not None:
        raise decode.error(rows.broken[0])
    return rows.definition


def define(key: SubscriptionKey, origin: Origin) -> Proto[DefinitionRow]:
    """The definition, made now if there is none."""
    for _ in range(TRIES):
        stored = definition_of((yield from ReadSubscription(key, serial=True)))
        if stored is not None:
            return stored
        row = DefinitionRow(1, ACTIVE, origin.to_json())
        try:
            if (yield from DefineSubscription(key, row)):
                return row
        except OutcomeUnknown:
            continue
    raise OutcomeUnknown(f"it is not known whether subscription {key.name!r} was made")


def set_state(key: SubscriptionKey, state: str) -> Proto[None]:
    """Pause or resume all members; they follow at their next look."""
    for _ in range(MOVE_TRIES):
        stored = yield from defined(key)
        if stored.state == state:
            return
        try:
            yield from ChangeDefinition(key, stored._replace(state=state), stored.version)
        except OutcomeUnknown:
            continue  # the serial read tells
    raise NotDone(f"subscription {key.name!r} is being changed by too many at once; try again")


def defined(key: SubscriptionKey) -> Proto[DefinitionRow]:
    """The definition as it stands.

    Raises:
        LogNotFound: there is no such subscription.
        DamagedRow: it cannot be read.
    """
    stored = definition_of((yield from ReadSubscription(key, serial=True)))
    if stored is None:
        raise _no_such(key)
    return stored


def _no_such(key: SubscriptionKey) -> LogNotFound:
    return LogNotFound(f"there is no subscription {key.name!r} of log {key.log.partition('@')[0]!r}")


def remove(key: SubscriptionKey) -> Proto[None]:
    """Forget the subscription with all its positions. Members that still run end at their next look.

    One whose definition is damaged goes as well.

    Raises:
        LogNotFound: there is no such subscription.
    """
    rows = yield from ReadSubscription(key, serial=True)
    if rows.definition is None and rows.broken is None:
        raise _no_such(key)
    for _ in range(MOVE_TRIES):
        version = rows.broken[1] if rows.broken is not None else _version(rows.definition)
        with suppress(OutcomeUnknown):  # the serial read tells
            yield from RemoveSubscription(key, version)
        rows = yield from ReadSubscription(key, serial=True)
        if rows.definition is None and rows.broken is None:
            return
    raise NotDone(f"subscription {key.name!r} is being changed by too many at once; try again")


def _version(row: DefinitionRow | None) -> int | None:
    return None if row is None else row.version


# ── Changing positions ──


def changed(row: PositionRow, now_us: int, position: int, owner: str) -> PositionChange:
    """The row moved on, given away, or only its fence renewed."""
    fence = next_fence(row.fence, now_us)
    return PositionChange(row.fence, row._replace(position=position, owner=owner, fence=fence))


def taken(row: PositionRow | None, partition: int, now_us: int, position: int, owner: str) -> PositionChange:
    """The same for a row that may not exist yet."""
    if row is not None:
        return changed(row, now_us, position, owner)
    return PositionChange(None, PositionRow(partition, position, next_fence(None, now_us), owner, 0))


def change(key: SubscriptionKey, wanted: Sequence[PositionChange]) -> Proto[dict[int, PositionRow | None]]:
    """Change what still has the fence that was seen; what stands then, for each partition asked for.

    A row that equals what was wanted is changed. Any other one belongs to whom it says.

    Raises:
        NotDone: nothing more was changed.
        OutcomeUnknown: there was no answer, and no serial read succeeded either.
    """
    found: dict[int, PositionRow | None] = {}
    for chunk in _chunks(wanted):
        found.update((yield from _change_some(key, chunk)))
    return found


def _chunks(wanted: Sequence[PositionChange]) -> Iterator[Sequence[PositionChange]]:
    for start in range(0, len(wanted), CHANGES_AT_ONCE):
        yield wanted[start : start + CHANGES_AT_ONCE]


def _change_some(
    key: SubscriptionKey, changes: Sequence[PositionChange]
) -> Proto[dict[int, PositionRow | None]]:
    """One batch; where a single fence has moved on, again without that row.

    Sending the same change twice is harmless here: the rows are read before, and if the first one was
    applied late they equal what was wanted.
    """
    found: dict[int, PositionRow | None] = {}
    left = list(changes)
    for _ in range(TRIES):
        stored = yield from _try(key, left)
        if stored is None:
            found.update({each.row.partition: each.row for each in left})
            return found
        for each in left:
            found[each.row.partition] = stored.positions.get(each.row.partition)
        left = [each for each in left if _fence(found[each.row.partition]) == each.expect_fence]
        if not left:
            break
    return found


def _fence(row: PositionRow | None) -> int | None:
    return None if row is None else row.fence


def _try(key: SubscriptionKey, changes: Sequence[PositionChange]) -> Proto[SubscriptionRows | None]:
    """None if all was applied; what stands, if it was not, or if there was no answer."""
    unknown: OutcomeUnknown | None = None
    try:
        if (yield from ChangePositions(key, tuple(changes))):
            return None
    except OutcomeUnknown as exc:
        unknown = exc
    for pause_s in OUTCOME_PAUSES_S:
        try:
            return (yield from ReadSubscription(key, serial=True))
        except LASTING:
            if unknown is None:
                raise
            break
        except NotDone:
            yield from Pause(pause_s)
    raise unknown or NotDone("a position was changed by another member, and cannot be read")


def move(key: SubscriptionKey, targets: Mapping[int, int]) -> Proto[None]:
    """Move positions by hand. Their owners stay, finish what they have in hand, and go on from there.

    Raises:
        NotDone: some may be moved already, and others not; moving them again is safe.
    """
    left = dict(targets)
    for _ in range(MOVE_TRIES):
        now_us = yield from Now()
        stored = yield from ReadSubscription(key, serial=True, now_us=now_us)
        wanted = [_moved(stored, each, now_us, at) for each, at in sorted(left.items())]
        found = yield from change(key, wanted)
        for each in wanted:
            if found[each.row.partition] == each.row:
                del left[each.row.partition]
        if not left:
            return
    raise NotDone("positions are being changed by too many at once; try again")


def _moved(rows: SubscriptionRows, partition: int, now_us: int, position: int) -> PositionChange:
    """A position in place of the stored one, also of one that cannot be read."""
    if partition in rows.lost:
        seen = rows.lost[partition]
        usable = seen if seen is not None and 0 <= seen < decode.MOST else None
        mended = PositionRow(partition, position, next_fence(usable, now_us), NOBODY, now_us)
        return PositionChange(seen, mended)
    row = rows.positions.get(partition)
    to = taken(row, partition, now_us, position, NOBODY if row is None else row.owner)
    return to._replace(row=to.row._replace(generation=to.row.generation + 1))


# ── How far is it behind? ──


class Behind(NamedTuple):
    """Records that can be read and are not done yet; the time of the first one, in µs since 1970."""

    records: int
    first_us: int | None


def behind(spec: LogSpec, partition: int, position: int, known: ShardMap) -> Proto[Behind]:
    """How far a partition is behind the stable horizon."""
    now_us = yield from Now()
    end = spec.horizon(now_us)
    width = spec.width_ms
    start_us = max(ids.time_us(position), spec.oldest_us(now_us))
    shards = range(start_us // 1000 // width * width, ids.time_us(end) // 1000 + 1, width)
    yield from known.load(spec, shards, now_us)
    count, first_us = 0, None
    for at in shards:
        if known.holds(at, partition):
            span = yield from CountRecords(LogShard(spec.partition, partition, at), position, end)
            count += span.records
            if first_us is None and span.first is not None:
                first_us = ids.time_us(span.first)
    return Behind(count, first_us)
