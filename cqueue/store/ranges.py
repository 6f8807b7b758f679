"""Reads of a range of messages: so many rows at a time that the messages asked for are found in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from cqueue.errors import CqueueError, NotDone
from cqueue.store import limits, packs, tombstones
from cqueue.store.operations import Range
from cqueue.store.requests import Answer, Job, Request, Window

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

T = TypeVar("T")
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


@dataclass(frozen=True, slots=True)
class Reader(Generic[Item, T]):
    """How an answer becomes a result.

    take: the ids of the rows of an answer, and what was asked for out of them, in order.
    make: the result, of all that was found and of the tombstones that were crossed.
    small: the rows come without bodies.
    """

    take: Callable[[Any], tuple[Sequence[int], Iterable[Item]]]
    make: Callable[[list[Item], int], T]
    small: bool = False


class Ranged(Generic[Item, T]):
    """A range under way.

    Nearly always one request is enough. Where rows hold fewer messages than those read before, it is read on,
    each time twice as many rows at least: of what comes later a later moment is seen, as if it were a further
    range.

    Args:
        asked: what for.
        send: ask for rows: above which id, and how many at most.
        density: of this store.
        reader: for the answers.
    """

    def __init__(
        self,
        asked: Range[Any],
        send: Callable[[int, int], Request[Answer]],
        density: Density,
        reader: Reader[Item, T],
    ) -> None:
        self._asked = asked
        self._send = send
        self._density = density
        self._reader = reader
        begin = packs.lowest(asked.after)
        # Of a row that was begun there is only a part left.
        self._rows = self._next_rows(asked.limit) + (begin != asked.after)
        self._request = send(begin, self._rows)

    def result(self) -> T:
        """Wait for it, and read on where it is needed."""
        queue, limit, upto = self._asked.wide_row.queue, self._asked.limit, self._asked.upto
        request, rows, reader = self._request, self._rows, self._reader
        items: list[Item] = []
        crossed = 0
        while True:
            try:
                answer = request.result()
            except CqueueError:
                self._density.forget(queue)
                raise
            row_ids, found = reader.take(answer.rows)
            self._density.saw(queue, row_ids)
            items += islice(found, limit - len(items))
            crossed += tombstones.crossed(answer.warnings)
            if len(row_ids) < rows or len(items) == limit or packs.last_in(row_ids[-1]) >= upto:
                return reader.make(items, crossed)
            if limits.is_over():
                raise NotDone("a range could not be read to its end in time")
            rows = self._next_rows(limit - len(items), 2 * rows)
            request = self._send(packs.last_in(row_ids[-1]), rows)

    def _next_rows(self, limit: int, least: int = 1) -> int:
        rows = max(least, self._density.rows(self._asked.wide_row.queue, limit))
        return max(rows, min(limit, LEAST_IDS)) if self._reader.small else min(rows, MOST_ROWS)


class FirstOf(Generic[Item]):
    """Several reads whose items become one list, at most `limit` of them (0: all).

    With a limit they go one after the other, as long as there are too few.
    """

    def __init__(self, jobs: Sequence[Job[list[Item]]], in_flight: int, limit: int) -> None:
        self._limit = limit
        self._window = Window(jobs, 1 if limit else in_flight)

    def result(self) -> list[Item]:
        """Wait for them. Raises the first error."""
        items: list[Item] = []
        for part in self._window.results():
            if isinstance(part, CqueueError):
                raise part
            items += part
            if self._limit and len(items) >= self._limit:
                return items[: self._limit]
        return items
