"""Dead letters: a message moves to an open wide row of the dead-letter queue, and is never in neither.

The time of death goes into the message's slot first. With it, whoever has to finish a burial that
was cut off derives the same id and the same place, so that the insert is idempotent. Only when the
insert is confirmed is the original deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from cqueue.errors import LeaseLost, NotDone, OutcomeUnknown
from cqueue.protocol import policy, shards
from cqueue.protocol.ack import Placement, ack, place
from cqueue.protocol.bodies import look_everywhere, without_body
from cqueue.protocol.fresh import together
from cqueue.protocol.lease import Lease, Taken
from cqueue.protocol.shards import registration
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.store.operations import (
    InsertBodies,
    InsertMessages,
    MessageRow,
    Now,
    Pause,
    ReadBodies,
    SlotState,
    WideRow,
)

HEADER_REASON = "cqueue-dead-reason"
HEADER_QUEUE = "cqueue-dead-queue"
HEADER_ATTEMPTS = "cqueue-dead-attempts"
HEADER_ID = "cqueue-dead-id"
HEADER_TRACEBACK = "cqueue-dead-traceback"
MAX_REASON = 2000
PAUSES_S = (0.05, 0.2, 0.5, 1.0)


def bury(spec: QueueSpec, dead: QueueSpec, taken: Taken, why: Mapping[str, str]) -> Proto[list[Lease]]:
    """Move one message to the dead-letter queue; the leases that have become empty.

    why: headers of the dead letter beside the message's own; see `why_dead`.

    Raises:
        LeaseLost: the message belongs to somebody else.
        NotDone, OutcomeUnknown: it is still in its queue; whoever takes it over finishes the burial.
    """
    row, body = yield from _row_and_body(taken)  # first: nothing is changed if it cannot be read
    lease = yield from _die(spec, taken)
    died_at_us = (lease.slot.died_at_ms or 0) * 1000
    source = identity(lease.wide_row, row)
    copy = row._replace(
        id=policy.letter_id(died_at_us, source), headers={**(row.headers or {}), **why}, expires=None
    )
    yield from insert_letter(dead, shards.open_row(dead, died_at_us, source), copy, body)
    return (yield from ack([Taken(taken.row, lease)]))


def identity(wide_row: WideRow, row: MessageRow) -> bytes:
    """What makes a message this message: the source of its derived ids."""
    return json.dumps([*wide_row, row.priority, row.id]).encode()


def why_dead(reason: str, queue: str, attempts: int, message_id: str) -> dict[str, str]:
    """Headers that say why a message died, where from and after how many attempts."""
    return {
        HEADER_REASON: storable(reason)[:MAX_REASON],
        HEADER_QUEUE: queue,
        HEADER_ATTEMPTS: str(attempts),
        HEADER_ID: message_id,
    }


def storable(text: str) -> str:
    """The text with what no encoding has (lone surrogates) written out: a burial must not fail for it."""
    return text.encode(errors="backslashreplace").decode()


def _die(spec: QueueSpec, taken: Taken) -> Proto[Lease]:
    """Write the time of death into a slot that the message has to itself."""
    lease, row = taken.lease, taken.row
    if lease.slot.died_at_ms is not None and lease.outstanding == {row.id}:
        return lease
    now_ms = (yield from Now()) // 1000
    dying = Placement(SlotState.CLAIMED, now_ms + spec.visibility_ms, lease.attempt, now_ms)
    slot = yield from place(lease, (row.id,), dying)
    return lease if slot is lease.slot else Lease(lease.wide_row, slot, lease.fence)


def _row_and_body(taken: Taken) -> Proto[tuple[MessageRow, bytes | None]]:
    """A message as it is to be stored, and its body if that stands apart."""
    row = taken.row
    if row.size is None:
        return row, None
    bodies: Mapping[int, bytes | None] = yield from ReadBodies(taken.lease.wide_row, (row.id,))
    if row.id not in bodies:
        bodies = yield from look_everywhere([taken])
    if row.id not in bodies:
        raise LeaseLost("the message has been acked by somebody else")
    body = bodies[row.id]
    return (row if body is not None else without_body(row)), body


def insert_letter(dead: QueueSpec, target: WideRow, copy: MessageRow, body: bytes | None) -> Proto[None]:
    """Insert until it is confirmed: the id is derived, so that repeating it is harmless."""
    for pause_s in PAUSES_S:
        try:
            if body is not None:
                yield from InsertBodies(target, ((copy.id, body),))
            yield from together(*registration(dead, target, copy.priority), InsertMessages(target, (copy,)))
        except (NotDone, OutcomeUnknown) as exc:
            failure: Exception = exc
            yield from Pause(pause_s)
            continue
        now_us = yield from Now(checked=True)
        if shards.open_in_time(dead, copy.id, now_us):
            return
        raise NotDone("the burial took longer than gc_grace; the message stays until its timeout")
    raise failure
