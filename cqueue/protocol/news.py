"""What a process tells its own consumers of what it has sent, so that they need not look for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from cqueue.store.operations import MessageRow, WideRow

FEW = 100
"""Messages of one send whose ids are told as well."""
FEWER = 16
"""Of which the rows are, too."""

moments = itertools.count(1)
"""What happens in this process, in order: a moment that was taken later is a higher number."""


class News(NamedTuple):
    """Messages that were stored: where, of which priorities, and which ones, if they are few.

    rows: they themselves, if they are very few, and small. began: the moment before they were first written.
    received: whoever hears of them has received them meanwhile.
    """

    wide_row: WideRow
    priorities: frozenset[int]
    ids: frozenset[int] = frozenset()
    rows: tuple[MessageRow, ...] = ()
    began: int = 0
    received: bool = False


def news_of(wide_row: WideRow, rows: Sequence[MessageRow], began: int) -> News:
    """The news of one flush that is acknowledged."""
    ids = frozenset(row.id for row in rows) if len(rows) <= FEW else frozenset[int]()
    told = tuple(rows) if len(rows) <= FEWER and all(row.body is not None for row in rows) else ()
    return News(wide_row, frozenset(row.priority for row in rows), ids, told, began)
