"""Bury messages: move one to an open wide row of the dead-letter queue, so that it is always in one of both.

A burial first writes the time of death into the message's slot. A consumer that finishes an interrupted
burial derives the same id and the same place from that time, so the insert is idempotent. The original is
deleted only when the insert is confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from cqueue.errors import LeaseLost, NotDone, OutcomeUnknown
from cqueue.protocol import keys, policy, registry
from cqueue.protocol.ack import Placement, ack, place
from cqueue.protocol.bodies import look_everywhere, without_body
from cqueue.protocol.lease import Lease, Taken
from cqueue.protocol.registry import registration
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.runtime.texts import storable
from cqueue.store.operations import (
    InsertBodies,
    InsertMessages,
    MessageRow,
    Now,
    Pause,
    ReadBodies,
    SlotState,
    WideRow,
    together,
)

HEADER_REASON = "cqueue-dead-reason"
HEADER_QUEUE = "cqueue-dead-queue"
HEADER_ATTEMPTS = "cqueue-dead-attempts"
HEADER_ID = "cqueue-dead-id"
HEADER_TRACEBACK = "cqueue-dead-traceback"
HEADER_HOLDER = "cqueue-dead-holder"
HEADER_FENCE = "cqueue-dead-fence"
HEADER_ABANDONED = "cqueue-dead-abandoned"
HEADER_REDRIVES = "cqueue-redrives"
"""How often the message was redriven. It stays on the message; the other headers are the letter's only."""
BODY_LOST = "its body is lost: no replica has it"
"""The reason in the dead letter of a message whose body is lost."""
MAX_REASON = 2000
"""Characters kept of a reason: enough for an error message, and little beside the 16 KiB of headers."""
PAUSES_S = (0.05, 0.2, 0.5, 1.0)
"""Seconds to wait after each failed insert of a letter; after the last one the burial fails."""


def bury(spec: QueueSpec, dead: QueueSpec, taken: Taken, why: Mapping[str, str]) -> Proto[list[Lease]]:
    """Move one message to the dead-letter queue; return the leases that have become empty.

    why: headers of the dead letter beside the message's own; see `why_dead`.

    Raises:
        LeaseLost: another consumer holds the message.
        NotDone, OutcomeUnknown: the message is still in its queue; the next holder finishes the burial.
    """
    row, body = yield from _row_and_body(taken)  # first, so that a failed read changes nothing
    lease = yield from _die(spec, taken)
    died_at_us = (lease.slot.died_at_ms or 0) * 1000
    source = identity(lease.wide_row, row)
    copy = row._replace(
        id=policy.letter_id(died_at_us, source), headers={**(row.headers or {}), **why}, expires=None
    )
    yield from insert_letter(dead, registry.open_row(dead, died_at_us, source), copy, body)
    return (yield from ack([Taken(taken.row, lease)]))


def identity(wide_row: WideRow, row: MessageRow) -> bytes:
    """Return the bytes that identify a message; its derived ids follow from them."""
    return json.dumps([*wide_row, row.priority, row.id]).encode()


def why_dead(reason: str, queue: str, attempts: int, message_id: str) -> dict[str, str]:
    """Return the headers that say why a message died, in which queue, and after how many attempts."""
    return {
        HEADER_REASON: storable(reason)[:MAX_REASON],
        HEADER_QUEUE: queue,
        HEADER_ATTEMPTS: str(attempts),
        HEADER_ID: message_id,
    }


def spent(attempts: int) -> str:
    """Return the reason in the dead letter of a message without an attempt left."""
    return f"not acked in {attempts} attempts"


def _die(spec: QueueSpec, taken: Taken) -> Proto[Lease]:
    """Write the time of death into a slot that lists only this message; return the slot's lease."""
    lease, row = taken.lease, taken.row
    if lease.slot.died_at_ms is not None and lease.outstanding == {row.id}:
        return lease
    now_ms = (yield from Now()) // 1000
    dying = Placement(SlotState.CLAIMED, now_ms + spec.visibility_ms, lease.attempt, now_ms)
    slot = yield from place(lease, (row.id,), dying)
    return lease if slot is lease.slot else Lease(lease.wide_row, slot, lease.fence, keyed=lease.keyed)


def _row_and_body(taken: Taken) -> Proto[tuple[MessageRow, bytes | None]]:
    """Return a message as the letter stores it, and its body if that is stored apart."""
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
    """Insert a letter until the insert is confirmed. A repeat is harmless, because the id is derived."""
    keyed = [(target, copy)] if dead.keyed else []
    for pause_s in PAUSES_S:
        began_us = yield from Now()
        try:
            yield from keys.written(keyed)
            if body is not None:
                yield from InsertBodies(target, ((copy.id, body),))
            yield from together(*registration(dead, target, copy.priority), InsertMessages(target, (copy,)))
        except (NotDone, OutcomeUnknown) as exc:
            failure: Exception = exc
            yield from Pause(pause_s)
            continue
        now_us = yield from Now(checked=True)
        if keys.is_late(dead, began_us, now_us):
            yield from keys.written(keyed)
        if registry.open_in_time(dead, copy.id, now_us):
            return
        raise NotDone("the burial took longer than gc_grace; the message stays until its timeout")
    raise failure
