"""Reads of a range of messages: so many rows at a time that the messages asked for are found in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from cqueue.errors import CqueueError, NotDone
from cqueue.store import limits, packs, tombstones
from cqueue.store.operations import Range, ReadIds
from cqueue.store.requests import Answer, Job, Request, Steps, Window

FIRST_ROWS: Final = 16
"""Rows that are asked for at first where it is not known how many messages stand in one."""
REMEMBERED: Final = 10_000
"""Queues of which a process knows how many messages a row holds."""
FORGETTING_ROWS: Final = 50
"""After so many rows that hold fewer messages that is what is expected."""
LEAST_IDS: Final = 64
"""Rows of one read without their bodies, unless fewer messages are wanted."""
MOST_ROWS: Final = 512
"""Rows of one read with their bodies: 16 MiB, should all be packs of the largest kind."""

Item = TypeVar("Item")


class Density:
    """How many messages the rows of a queue hold: so many fewer rows have to be asked for. Thread-safe."""

    def __init__(self) -> None:
        self._of: dict[str, float] = {}

    def rows(self, queue: str, limit: int) -> int:
        """How many rows to ask for, for `limit` messages."""
        of = self._of.get(queue)
        return min(limit, FIRST_ROWS) if of is None else max(1, min(limit, math.ceil(limit / of)))

    def saw(self, queue: str, row_ids: Sequence[int]) -> None:
        """These rows were read. Few single ones among packs must not have as many packs read as messages."""
        if row_ids:
            mean = sum([packs.last_in(id_) - id_ + 1 for id_ in row_ids]) / len(row_ids)
            before = self._of.get(queue, mean)
            if len(self._of) >= REMEMBERED:
                self._of.clear()
            weight = min(1.0, len(row_ids) / FORGETTING_ROWS)
            self._of[queue] = mean if mean >= before else before + (mean - before) * weight

    def forget(self, queue: str) -> None:
        """A read failed: perhaps it was too large."""
        self._of.pop(queue, None)


Take = Callable[[list[Any]], tuple[Sequence[int], Iterable[Item], Iterable[int]]]
"""Takes an answer's rows apart: their ids; what was asked for, in order; the last ids of damaged rows."""


def ranged(
    asked: Range[Any], send: Callable[[int, int], Request[Answer]], density: Density, take: Take[Item]
) -> Steps[tuple[list[Item], int, tuple[int, ...]]]:
    """Read a range: what was found, the tombstones that were crossed, and what is damaged.

    Nearly always one request is enough. Where rows hold fewer messages than those read before, it is read on,
    each time twice as many rows at least: of what comes later a later moment is seen, as if it were a further
    range.

    Args:
        asked: what for.
        send: ask for rows: above which id, and how many at most.
        density: of this store.
        take: takes an answer's rows apart.
    """
    queue, limit, upto = asked.wide_row.queue, asked.limit, asked.upto
    begin = packs.lowest(asked.after)
    # Of a row that was begun there is only a part left.
    rows = _next_rows(asked, density, limit) + (begin != asked.after)
    request = send(begin, rows)
    yield
    items, damaged, crossed = list[Item](), list[int](), 0
    while True:
        try:
            answer = request.result()
        except CqueueError:
            density.forget(queue)
            raise
        row_ids, found, broken = take(answer.rows)
        density.saw(queue, row_ids)
        items += islice(found, limit - len(items))
        damaged += broken
        crossed += tombstones.crossed(answer.warnings)
        if len(items) == limit or is_complete(row_ids, rows, upto):
            return items, crossed, tuple(damaged)
        if limits.is_over():
            raise NotDone("a range could not be read to its end in time")
        rows = _next_rows(asked, density, limit - len(items), 2 * rows)
        request = send(next_start(row_ids), rows)


def is_complete(row_ids: Sequence[int], asked_rows: int, upto: int) -> bool:
    """Whether an answer reaches the end of its range: there are no more rows, or its last row ends there."""
    return len(row_ids) < asked_rows or packs.last_in(row_ids[-1]) >= upto


def next_start(row_ids: Sequence[int]) -> int:
    """The id above which a range is read on: that of the last message in the last row of an answer."""
    return packs.last_in(row_ids[-1])


def _next_rows(asked: Range[Any], density: Density, limit: int, least: int = 1) -> int:
    rows = max(least, density.rows(asked.wide_row.queue, limit))
    return max(rows, min(limit, LEAST_IDS)) if isinstance(asked, ReadIds) else min(rows, MOST_ROWS)


def first_of(jobs: Sequence[Job[list[Item]]], in_flight: int, limit: int) -> Steps[list[Item]]:
    """Several reads whose items become one list, at most `limit` of them (0: all).

    With a limit they go one after the other, as long as there are too few.
    """
    window = Window(jobs, 1 if limit else in_flight)
    yield
    items: list[Item] = []
    for part in window.results():
        if isinstance(part, CqueueError):
            raise part
        items += part
        if limit and len(items) >= limit:
            return items[:limit]
    return items
