"""Change the positions of a subscription.

A position's row names its owner. Each change is conditional on the row's fence, which grows with each change.
So two members cannot both own a partition, and a member that was paused cannot move a position back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cqueue.errors import LASTING, NotDone, OutcomeUnknown
from cqueue.log.protocol.subscription_definition import definition_of, no_such
from cqueue.protocol import policy
from cqueue.protocol.lock import OUTCOME_PAUSES_S
from cqueue.protocol.spec import Proto
from cqueue.runtime.sequences import parts
from cqueue.store import decode
from cqueue.store.log_operations import (
    CHANGES_AT_ONCE,
    ChangePositions,
    PositionChange,
    PositionRow,
    ReadSubscription,
    SubscriptionKey,
    SubscriptionRows,
)
from cqueue.store.operations import Now, Pause

NOBODY = ""
"""The owner of a released partition."""
TRIES = 4
"""Tries of one batch: a failed try leaves out rows whose fence has moved on."""
MOVE_TRIES = 20
"""Tries of a seek: a failed try needs a member's checkpoint in that moment, for at least one partition."""


def changed(row: PositionRow, now_us: int, position: int, owner: str) -> PositionChange:
    """Return the change of a stored row to another position or owner, under a new fence."""
    fence = policy.next_fence(row.fence, now_us)
    return PositionChange(row.fence, row._replace(position=position, owner=owner, fence=fence))


def taken(row: PositionRow | None, partition: int, now_us: int, position: int, owner: str) -> PositionChange:
    """As `changed`, for a row that may not exist yet."""
    if row is not None:
        return changed(row, now_us, position, owner)
    return PositionChange(None, PositionRow(partition, position, policy.next_fence(None, now_us), owner, 0))


def change(
    key: SubscriptionKey, config: str, wanted: Sequence[PositionChange]
) -> Proto[dict[int, PositionRow | None]]:
    """Change the rows whose fence is unchanged; return for each partition the row that is stored then.

    A batch that is refused is sent again without the rows for which it was. If a returned row equals the
    wanted one, the change was applied. Otherwise the row names its owner.

    config: of the definition for which the changes were made up. Rows of another one are not made.

    Raises:
        NotDone: a change was not applied; earlier batches may be.
        OutcomeUnknown: the last try had no answer, and no serial read shows this or another change.
    """
    found: dict[int, PositionRow | None] = {}
    for some in parts(wanted, CHANGES_AT_ONCE):
        left = list(some)
        for _ in range(TRIES):
            # Sending a change twice is harmless: one that was applied late equals the row that is read then
            stored, unknown = yield from _try(ChangePositions(key, config, tuple(left)))
            if stored is None:
                found.update({each.row.partition: each.row for each in left})
                break
            found.update({each.row.partition: stored.positions.get(each.row.partition) for each in left})
            stands = stored.definition is not None and stored.definition.config == config
            left = [
                each
                for each in left
                if _fence(found[each.row.partition]) == each.expect_fence
                and (stands or each.expect_fence is not None)
            ]
            if not left:
                break
        else:
            if unknown is not None:
                raise unknown
    return found


def _fence(row: PositionRow | None) -> int | None:
    return None if row is None else row.fence


def _try(batch: ChangePositions) -> Proto[tuple[SubscriptionRows | None, OutcomeUnknown | None]]:
    """Send one batch; return None if it was applied, else the rows that are stored then.

    Returns the error as well if the batch had no answer.
    """
    unknown: OutcomeUnknown | None = None
    try:
        if (yield from batch):
            return None, None
    except OutcomeUnknown as exc:
        unknown = exc
    for pause_s in OUTCOME_PAUSES_S:
        try:
            return (yield from ReadSubscription(batch.key, serial=True)), unknown
        except LASTING:
            if unknown is None:
                raise
            break
        except NotDone:
            yield from Pause(pause_s)
    raise unknown or NotDone("a position was changed by another member, and cannot be read")


def move(key: SubscriptionKey, targets: Mapping[int, int]) -> Proto[None]:
    """Move positions to these targets. Owners stay, finish the records in hand, and go on from there.

    Raises:
        LogNotFound: there is no such subscription.
        DamagedRow: its definition is damaged.
        NotDone, OutcomeUnknown: some positions may be moved and others not; moving them again is safe.
    """
    left = dict(targets)
    for _ in range(MOVE_TRIES):
        now_us = yield from Now()
        stored = yield from ReadSubscription(key, serial=True, now_us=now_us)
        definition = definition_of(stored)
        if definition is None:
            raise no_such(key)
        wanted = [_moved(stored, each, now_us, at) for each, at in sorted(left.items())]
        found = yield from change(key, definition.config, wanted)
        for each in wanted:
            if found[each.row.partition] == each.row:
                del left[each.row.partition]
        if not left:
            return
    raise NotDone("positions are being changed by too many at once; try again")


def _moved(rows: SubscriptionRows, partition: int, now_us: int, position: int) -> PositionChange:
    """Return the change that moves a stored position, or replaces a damaged one."""
    if partition in rows.lost:
        seen = rows.lost[partition]
        usable = seen if seen is not None and 0 <= seen < decode.MOST else None
        mended = PositionRow(partition, position, policy.next_fence(usable, now_us), NOBODY, now_us)
        return PositionChange(seen, mended)
    row = rows.positions.get(partition)
    to = taken(row, partition, now_us, position, NOBODY if row is None else row.owner)
    return to._replace(row=to.row._replace(generation=to.row.generation + 1))
