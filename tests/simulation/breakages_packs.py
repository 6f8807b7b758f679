"""Rules about messages that share a row taken out. See `breakages`."""

# ruff: noqa: ARG001, ARG005 - a replacement takes the arguments of what it replaces
from __future__ import annotations

from typing import Any

from cqueue import ids
from cqueue.store.packs import Deletion
from tests.simulation.points import replaced, right


def row_deleted_for_a_part() -> Any:
    """Deletes of messages delete their whole rows."""
    rows_of = right("rows of messages")
    return replaced("deletion", lambda self, wide_row, priority, some: Deletion(rows_of(some), {}))


def marks_span_gaps() -> Any:
    """Marks name one stretch, from the first to the last place."""

    def marks_of(mask: int) -> set[int]:
        first = (mask & -mask).bit_length() - 1
        return {first * 256 + mask.bit_length() - 1}

    return replaced("marks", marks_of)


def marks_overwrite() -> Any:
    """Marks are written as the whole set, and overwrite those of others."""

    def mark(rows: Any, pack: int, marks: Any, mask: int) -> None:
        cell = rows.cells.get(pack)
        if cell is not None:
            cell.marks = {one: known & ~mask for one, known in cell.marks.items() if known & ~mask}
        rows.mark(pack, marks, mask)

    return replaced("marking", mark)


def marks_ignored() -> Any:
    """A message is live if its row is."""
    return replaced("gone", lambda marks: 0)


def only_rows_listed() -> Any:
    """A read of ids gives one for each row."""
    live_ids = right("live ids")

    def first_ids(rows: Any, after: int, upto: int) -> Any:
        seen = set[int]()
        for id_ in live_ids(rows, after, upto):
            row = ids.pack_of(id_) if ids.is_packed(id_) else id_
            if row not in seen:
                seen.add(row)
                yield id_

    return replaced("live ids", first_ids)


def row_begun_is_passed() -> Any:
    """A read that begins within a row begins behind it."""
    return replaced("first row", lambda after: after)


def rows_by_message_ids() -> Any:
    """The row of a message is looked for under the message's own id."""
    return replaced("rows of messages", lambda some: sorted(set(some)))


def partial_is_damaged() -> Any:
    """A row of which a read repair has brought a part only is set aside as damaged."""
    return replaced("partial", lambda row: False)


def reaped_in_part() -> Any:
    """A reader deletes rows of which something is gone."""
    return replaced("wholly gone", lambda rows: [row[0] for row in rows if row[2]])


def one_request_is_a_range() -> Any:
    """The first answer is taken for the whole range."""
    return replaced("end of a range", lambda row_ids, asked_rows, upto: True)


def last_row_read_again() -> Any:
    """A range is read on from the last row, not from behind it."""
    return replaced("reading on", lambda row_ids: row_ids[-1] - 1)


def bodies_out_of_place() -> Any:
    """Bodies belong to the messages that are left, counted from the first of them."""
    members = right("members")

    def shifted(row: Any, after: int, upto: int) -> Any:
        whole = list(members((*row[:12], None), row[1] - 1, row[1] + 255))
        left = list(members(row, after, upto))
        return [one._replace(body=other.body) for one, other in zip(left, whole, strict=False)]

    return replaced("members", shifted)


def phantoms_kept() -> Any:
    """What a read of ids lists, and no read finds, stays."""

    def keep(draft: Any, priority: int, phantoms: Any) -> Any:
        yield from ()

    return replaced("phantoms", keep)


def unread_are_phantoms() -> Any:
    """Of strays whatever an answer that is full of others lacks is deleted."""
    return replaced("seen", lambda rows, wanted: wanted[-1])
