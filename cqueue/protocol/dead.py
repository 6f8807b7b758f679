"""Dead letters: a message moves to an open wide row of the dead-letter queue, and is never in neither.

The time of death goes into the message's slot first. With it, whoever has to finish a burial that
was cut off derives the same id and the same place, so that the insert is idempotent. Only when the
insert is confirmed is the original deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cqueue.errors import LeaseLost, NotDone, OutcomeUnknown
from cqueue.protocol import policy, shards
from cqueue.protocol.ack import Placement, ack, move, overwrite
from cqueue.protocol.fresh import together
from cqueue.protocol.shards import registration
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
    Together,
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
    row, body = yield from _row_and_body(taken)  # first: nothing is changed if it cannot be read
    lease = yield from _die(spec, taken)
    died_at_us = (lease.died_at_ms or 0) * 1000
    source = identity(lease.wide_row, row)
    copy = row._replace(
        id=policy.letter_id(died_at_us, source),
        headers={
            **dead_headers(row.headers, reason, spec.name, lease.attempt, message_id),
            **(more or {}),
        },
        expires=None,
    )
    yield from insert_letter(dead, shards.open_row(dead, died_at_us, source), copy, body)
    return (yield from ack([Taken(taken.row, lease)]))


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


def look_everywhere(missing: Sequence[Taken]) -> Proto[dict[int, bytes | None]]:
    """Bodies of one wide row that a quorum does not have, by id; None: lost. What was acked is left out.

    A body is lost if its message is there, and no replica has it. Messages are looked for last. An ack
    deletes them before their bodies, so that one that is still there then had not been acked when its body
    was not found. Nothing is asked twice: a replica that is away stays so for longer than a claim can wait.

    Raises:
        NotDone: they cannot be read now.
    """
    wide_row = missing[0].lease.wide_row
    sizes = {one.row.id: one.row.size or 0 for one in missing}
    read = ReadBodies(wide_row, tuple(sizes), tuple(sizes.values()), everywhere=True)
    (answer,) = yield from Together((read,), retried=False)
    if isinstance(answer, Exception):
        raise answer
    found: dict[int, bytes | None] = {**answer}
    left: dict[int, list[int]] = {}
    for one in missing:
        if one.row.id not in found:
            left.setdefault(one.row.priority, []).append(one.row.id)
    for priority, ids_ in left.items():
        rows = yield from ReadMessages(wide_row, priority, tuple(ids_))
        found.update({row.id: None for row in rows})
    return found


def without_body(row: MessageRow) -> MessageRow:
    """The same with an empty body, and a header that says how large the lost one was."""
    return row._replace(size=None, body=b"", headers={**(row.headers or {}), HEADER_LOST: str(row.size)})


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
