"""Dead letters: a message moves to an open wide row of the dead-letter queue, and is never in neither.

The time of death goes into the message's slot first. With it, whoever has to finish a burial that
was cut off derives the same id and the same place, so that the insert is idempotent. Only when the
insert is confirmed is the original deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from cqueue import ids
from cqueue.errors import LeaseLost, NotDone, OutcomeUnknown
from cqueue.protocol.ack import Placement, ack, move, overwrite
from cqueue.protocol.fresh import together
from cqueue.protocol.shards import open_in_time as in_time
from cqueue.protocol.shards import open_row, registration
from cqueue.protocol.spec import Lease, Proto, QueueSpec, Taken
from cqueue.store.operations import (
    InsertBodies,
    InsertMessages,
    MessageRow,
    Now,
    Pause,
    ReadBodies,
    ReadMessages,
    SlotState,
    WideRow,
)

HEADER_REASON = "cqueue-dead-reason"
HEADER_QUEUE = "cqueue-dead-queue"
HEADER_ATTEMPTS = "cqueue-dead-attempts"
HEADER_ID = "cqueue-dead-id"
HEADER_TRACEBACK = "cqueue-dead-traceback"
HEADER_LOST = "cqueue-dead-lost"
"""How many bytes the body had of which no replica has a copy; the letter's own body is empty."""
MAX_REASON = 2000
PAUSES_S = (0.05, 0.2, 0.5, 1.0)


def bury(  # noqa: PLR0917 - all of it makes up one letter
    spec: QueueSpec,
    dead: QueueSpec,
    taken: Taken,
    reason: str,
    message_id: str,
    more: Mapping[str, str] | None = None,
) -> Proto[list[Lease]]:
    """Move one message to the dead-letter queue; the leases that have become empty.

    more: headers of the dead letter beside the message's own and those that say why it died.

    Raises:
        LeaseLost: the message belongs to somebody else.
        NotDone, OutcomeUnknown: it is still in its queue; whoever takes it over finishes the burial.
    """
    lease = yield from _die(spec, taken)
    row = taken.row
    died_at_us = (lease.died_at_ms or 0) * 1000
    source = identity(lease.wide_row, row)
    copy = row._replace(
        id=ids.derived(died_at_us, source),
        headers={
            **dead_headers(row.headers, reason, spec.name, lease.attempt, message_id),
            **(more or {}),
        },
        expires=None,
    )
    body: bytes | None = None
    if row.size is not None:
        bodies = yield from ReadBodies(lease.wide_row, (row.id,))
        body = bodies[row.id] if row.id in bodies else (yield from find_body(taken))
        copy = copy if body is not None else without_body(copy)
    yield from _insert(dead, open_row(dead, died_at_us, source), copy, body)
    return (yield from ack([Taken(row, lease)]))


def identity(wide_row: WideRow, row: MessageRow) -> bytes:
    """What makes a message this message: the source of its derived ids."""
    return json.dumps([*wide_row, row.priority, row.id]).encode()


def dead_headers(
    headers: Mapping[str, str] | None, reason: str, queue: str, attempts: int, message_id: str
) -> dict[str, str]:
    """The message's headers and why, where from and after how many attempts it died."""
    return {
        **(headers or {}),
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
    if lease.died_at_ms is not None and lease.outstanding == {row.id}:
        return lease
    now_ms = (yield from Now()) // 1000
    due_ms = now_ms + spec.visibility_ms
    placement = Placement(SlotState.CLAIMED, due_ms, lease.attempt, now_ms)
    if lease.outstanding == {row.id}:
        yield from overwrite(lease, placement)
        return lease
    slot = yield from move(lease, (row.id,), placement, None)
    return Lease(
        lease.wide_row, lease.priority, slot.number, slot.rev, slot.due_ms, slot.attempt,
        slot.owner, lease.fence, slot.ids, slot.tally, now_ms,
    )  # fmt: skip


def find_body(taken: Taken) -> Proto[bytes | None]:
    """A body that a quorum does not have; None if it is lost: its message is there, and no replica has it.

    The message is looked for last. An ack deletes it before its body, so that one that is still there then
    had not been acked when its body was not found.

    Raises:
        LeaseLost: somebody has acked the message.
        NotDone: the body cannot be read now.
    """
    wide_row, row = taken.lease.wide_row, taken.row
    bodies = yield from ReadBodies(wide_row, (row.id,), everywhere=True)
    if row.id in bodies:
        return bodies[row.id]
    if not (yield from ReadMessages(wide_row, row.priority, (row.id,))):
        raise LeaseLost("the message has been acked by somebody else")
    return None


def without_body(row: MessageRow) -> MessageRow:
    """The same with an empty body, and a header that says how large the lost one was."""
    return row._replace(size=None, body=b"", headers={**(row.headers or {}), HEADER_LOST: str(row.size)})


def _insert(dead: QueueSpec, target: WideRow, copy: MessageRow, body: bytes | None) -> Proto[None]:
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
        if in_time(dead, copy.id, now_us):
            return
        raise NotDone("the burial took longer than gc_grace; the message stays until its timeout")
    raise failure
