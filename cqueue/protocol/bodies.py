"""Bodies that stand apart from their messages, as they are large; and what is done where one is lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cqueue.protocol.lease import Taken
from cqueue.protocol.spec import Proto
from cqueue.store.operations import MessageRow, ReadBodies, ReadMessages, Together, WideRow

HEADER_LOST = "cqueue-dead-lost"
"""How many bytes the body had of which no replica has a copy; the letter's own body is empty."""


def reads(messages: Iterable[tuple[WideRow, MessageRow]]) -> list[ReadBodies]:
    """The reads that give the bodies of those messages that were read without."""
    sizes: dict[WideRow, dict[int, int]] = {}
    for wide_row, row in messages:
        if row.body is None:
            sizes.setdefault(wide_row, {})[row.id] = row.size or 0
    return [ReadBodies(wide_row, tuple(some), tuple(some.values())) for wide_row, some in sizes.items()]


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
