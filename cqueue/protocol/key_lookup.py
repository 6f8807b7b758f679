"""Look messages up by their keys, and heal the look-up table where a process died between two writes.

A look-up reads the message of each row of a key. A row without a message is an orphan, once no send can be
between the two writes any more, and is deleted as it was read. So a row that is written again stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol.inspection import Found, as_found
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.runtime.sequences import grouped, parts
from cqueue.store.keys import DeleteKeys, KeyPlace, KeyRow, KeyWrite, ReadKey
from cqueue.store.operations import Now, ReadHead, ReadMessages, together

READ_AT_ONCE = 32
"""Wide rows whose messages a look-up reads side by side."""
START = (0, -1)
"""An (id, priority) before all rows of a key."""


class Page(NamedTuple):
    """A page of a key.

    found: messages, in order of due time. orphans: rows that have no message, and can have none.
    last: (id, priority) of the last row; None if there are no rows after this page.
    """

    found: list[Found]
    orphans: list[KeyRow]
    last: tuple[int, int] | None


def look_up(spec: QueueSpec, key: str, after: tuple[int, int], limit: int) -> Proto[Page]:
    """Read up to `limit` rows of a key above `after`, and the messages that they have."""
    rows: list[KeyRow] = yield from ReadKey(KeyPlace(spec.partition, key), after, limit)
    now_us = yield from Now()  # before the messages are read: a row that is old now had time to get one
    found = yield from _messages_of(spec, rows, now_us)
    lost_us = now_us - spec.settle_us - spec.skew_us
    known = {(one.row.id, one.row.priority) for one in found}
    orphans = [row for row in rows if row[:2] not in known and row.at_us < lost_us]
    return Page(found, orphans, rows[-1][:2] if len(rows) == limit else None)


def _messages_of(spec: QueueSpec, rows: Iterable[KeyRow], now_us: int) -> Proto[list[Found]]:
    places = grouped(((row.wide_row(spec.partition), row.priority), row.id) for row in rows)
    found: list[Found] = []
    for some in parts(list(places.items()), READ_AT_ONCE):
        heads = yield from together(*(ReadHead(wide_row) for (wide_row, _), _ in some))
        answers = yield from together(*(ReadMessages(*place, tuple(ids_)) for place, ids_ in some))
        for ((wide_row, priority), _), head, messages in zip(some, heads, answers, strict=True):
            found += as_found(wide_row, messages, head.listing(priority), now_us)
    return sorted(found, key=lambda one: (one.row.id, one.row.priority))


def heal(spec: QueueSpec, key: str, orphans: Sequence[KeyRow]) -> Proto[None]:
    """Delete rows that have no message, as they were read. If that fails, the next look-up does it."""
    with suppress(NotDone, OutcomeUnknown):
        place = KeyPlace(spec.partition, key)
        yield from DeleteKeys(tuple(KeyWrite(place, row) for row in orphans))
