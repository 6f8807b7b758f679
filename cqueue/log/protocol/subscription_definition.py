"""Define subscriptions: where one began, and whether it is paused. Changes are conditional on its version."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cqueue import ids
from cqueue.errors import LogNotFound, NotDone, OutcomeUnknown, looking_again
from cqueue.log.protocol.spec import LogSpec
from cqueue.protocol.spec import Proto
from cqueue.store import decode
from cqueue.store.log_operations import (
    ChangeDefinition,
    DefineSubscription,
    DefinitionRow,
    ReadSubscription,
    RemoveSubscription,
    SubscriptionKey,
    SubscriptionRows,
)
from cqueue.store.operations import RandomBits
from cqueue.store.quarantine import Damage

ACTIVE, PAUSED = "active", "paused"
LAST_POSITION = ids.lowest_at(decode.LAST_MS * 1000)
"""The highest position that is not damaged."""
TRIES = 4
"""Tries of a definition's insert: only a missing answer costs one."""
CHANGE_TRIES = 20
"""Tries of a change: a failed try needs another client's change in that moment, or a missing answer."""


class Origin(NamedTuple):
    """Where partitions without a stored position begin. None stands for the earliest record.

    partitions: the number of partitions when the subscription was made. Those added later are read from their
    beginning. default: the position of all others. own: positions of single partitions. id: tells the
    subscription from earlier ones of its name; "" if an earlier version made it.
    """

    partitions: int
    default: int | None
    own: Mapping[int, int]
    id: str = ""

    def of(self, partition: int) -> int | None:
        """Return where a partition begins."""
        return self.own.get(partition, self.default) if partition < self.partitions else None

    def to_json(self) -> str:
        """Return the stored form."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> Origin:
        """Read what `to_json` wrote.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: this library did not write it.
        """
        values = json.loads(text)
        own = {int(partition): _position(position) for partition, position in values["own"].items()}
        default = None if values["default"] is None else _position(values["default"])
        return cls(int(values["partitions"]), default, own, str(values.get("id", "")))


def _position(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LAST_POSITION:
        raise ValueError(f"{value!r} is not a position")
    return value


def origin_of(key: SubscriptionKey, row: DefinitionRow, now_us: int, report: decode.Report) -> Origin:
    """Return where a subscription began.

    Raises:
        DamagedRow: the definition's origin is damaged.
    """
    place = Damage("subscriptions", key.log, (*key, decode.DEFINITION, 0, ""), "config")
    origin = decode.parsed(place, lambda: Origin.from_json(row.config), report)
    latest = max([origin.default or 0, *origin.own.values()])
    decode.not_ahead(place, ids.time_us(latest), now_us, report)
    return origin


def begins_at(
    spec: LogSpec, origin: Origin, rows: SubscriptionRows, partition: int, now_us: int, *, lenient: bool
) -> int:
    """Return a partition's stored position, or the one at which the first member to take it begins.

    lenient: whether members do not mind what has expired.
    """
    row = rows.positions.get(partition)
    position = origin.of(partition) if row is None else row.position
    if position is not None:
        return position
    known = [each.position for each in rows.positions.values()] if partition >= origin.partitions else ()
    return spec.beginning_beside(partition, known, now_us, lenient=lenient)


def definition_of(rows: SubscriptionRows) -> DefinitionRow | None:
    """Return the definition among the rows of a subscription, if there is one.

    Raises:
        DamagedRow: the definition is damaged.
    """
    if rows.broken is not None:
        raise decode.error(rows.broken[0])
    return rows.definition


def is_gone(rows: SubscriptionRows) -> bool:
    """Return whether there is no definition, not even a damaged one; other rows may have been left."""
    return rows.definition is None and rows.broken is None


def define(key: SubscriptionKey, origin: Callable[[], Origin]) -> Proto[DefinitionRow]:
    """Return the stored definition; create it if there is none.

    origin: called only then, because a subscription that exists goes on, however old its start is by now.
    """
    unknown: OutcomeUnknown | None = None
    for _ in range(TRIES):
        with looking_again(unknown):
            stored = definition_of((yield from ReadSubscription(key, serial=True)))
            if stored is not None:
                return stored
            bits = yield from RandomBits(64)
            row = DefinitionRow(1, ACTIVE, origin()._replace(id=f"{bits:016x}").to_json())
            try:
                if (yield from DefineSubscription(key, row)):
                    return row
            except OutcomeUnknown as exc:
                unknown = exc
    raise OutcomeUnknown(f"it is not known whether subscription {key.name!r} was made") from unknown


def set_state(key: SubscriptionKey, state: str) -> Proto[None]:
    """Pause or resume a subscription. state: ACTIVE or PAUSED; members follow at their next read."""
    unknown: OutcomeUnknown | None = None
    for _ in range(CHANGE_TRIES):
        with looking_again(unknown):
            stored = yield from defined(key)
            if stored.state == state:
                return
            try:
                yield from ChangeDefinition(key, stored._replace(state=state), stored.version)
            except OutcomeUnknown as exc:
                unknown = exc  # the serial read shows the outcome
    raise unknown or NotDone(f"subscription {key.name!r} is being changed by too many at once; try again")


def defined(key: SubscriptionKey) -> Proto[DefinitionRow]:
    """Return the definition, read at serial consistency.

    Raises:
        LogNotFound: there is no such subscription.
        DamagedRow: the definition is damaged.
    """
    stored = definition_of((yield from ReadSubscription(key, serial=True)))
    if stored is None:
        raise no_such(key)
    return stored


def no_such(key: SubscriptionKey) -> LogNotFound:
    """Return the error for a subscription that there is not."""
    return LogNotFound(f"there is no subscription {key.name!r} of log {key.log.partition('@')[0]!r}")


def remove(key: SubscriptionKey) -> Proto[None]:
    """Delete a subscription with all its positions. Members that still run end at their next read.

    A subscription with a damaged definition is deleted as well.

    Raises:
        LogNotFound: there is no such subscription.
    """
    rows = yield from ReadSubscription(key, serial=True)
    if is_gone(rows):
        raise no_such(key)
    unknown: OutcomeUnknown | None = None
    for _ in range(CHANGE_TRIES):
        version = rows.broken[1] if rows.broken is not None else _version(rows.definition)
        with looking_again(unknown):
            try:
                yield from RemoveSubscription(key, version)
            except OutcomeUnknown as exc:
                unknown = exc  # the serial read shows the outcome
        with looking_again(unknown):
            rows = yield from ReadSubscription(key, serial=True)
        if is_gone(rows):
            return
    raise unknown or NotDone(f"subscription {key.name!r} is being changed by too many at once; try again")


def _version(row: DefinitionRow | None) -> int | None:
    return None if row is None else row.version
