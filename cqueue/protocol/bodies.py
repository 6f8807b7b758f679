"""Read large bodies, which are stored apart from their messages, and handle lost ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cqueue.protocol.lease import Taken
from cqueue.protocol.spec import Proto
from cqueue.runtime.sequences import grouped
from cqueue.store.operations import MessageRow, ReadBodies, ReadMessages, Together, WideRow

HEADER_LOST = "cqueue-dead-lost"
"""Header of a dead letter whose body is lost, and empty in the letter: the lost body's size in bytes."""


def reads(messages: Iterable[tuple[WideRow, MessageRow]]) -> list[ReadBodies]:
    """Return the reads that load the bodies of the messages that were read without one."""
    sizes: dict[WideRow, dict[int, int]] = {}
    for wide_row, row in messages:
        if row.body is None:
            sizes.setdefault(wide_row, {})[row.id] = row.size or 0
    return [ReadBodies(wide_row, tuple(some), tuple(some.values())) for wide_row, some in sizes.items()]


def look_everywhere(missing: Sequence[Taken]) -> Proto[dict[int, bytes | None]]:
    """Ask all replicas for bodies of one wide row that a quorum lacks; return them by id, None if lost.

    A body is lost if its message is live and no replica has the body. The messages are read after the bodies.
    An ack deletes a message before its body, so a message that is still live had not been acked when its body
    was missing. Acked messages are left out. No read is repeated: a replica that is away stays away for
    longer than a claim can wait.

    Raises:
        NotDone: not all replicas answered.
    """
    wide_row = missing[0].lease.wide_row
    sizes = {one.row.id: one.row.size or 0 for one in missing}
    read = ReadBodies(wide_row, tuple(sizes), tuple(sizes.values()), everywhere=True)
    (answer,) = yield from Together((read,), retried=False)
    if isinstance(answer, Exception):
        raise answer
    found: dict[int, bytes | None] = {**answer}
    left = [one.row for one in missing if one.row.id not in found]
    for priority, ids_ in grouped((row.priority, row.id) for row in left).items():
        rows = yield from ReadMessages(wide_row, priority, tuple(ids_))
        found.update({row.id: None for row in rows})
    return found


def without_body(row: MessageRow) -> MessageRow:
    """Return the message with an empty body, and a header with the lost body's size."""
    return row._replace(size=None, body=b"", headers={**(row.headers or {}), HEADER_LOST: str(row.size)})
