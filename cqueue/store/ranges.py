"""Reads of a range of messages: so many rows at a time that the messages asked for are found in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from cqueue.store import packs, tombstones
from cqueue.store.operations import WideRow
from cqueue.store.requests import Answer, Request

FIRST_ROWS: Final = 16
"""Rows that are asked for at first where it is not known how many messages stand in one."""
REMEMBERED: Final = 10_000
"""Queues of which a process knows how many messages a row holds."""

T = TypeVar("T")
Item = TypeVar("Item")


class Asked(Protocol):
    """Live messages of one priority with after < id <= upto, at most `limit`."""

    @property
    def wide_row(self) -> WideRow:
        """Where."""

    @property
    def after(self) -> int:
        """Not these."""

    @property
    def upto(self) -> int:
        """The last one."""

    @property
    def limit(self) -> int:
        """Messages, at least one."""


class Density:
    """How many messages the rows of a queue hold: so many fewer rows have to be asked for. Thread-safe."""

    def __init__(self) -> None:
        self._of: dict[str, float] = {}

    def rows(self, queue: str, limit: int) -> int:
        """How many rows to ask for, for `limit` messages."""
        of = self._of.get(queue)
        return min(limit, FIRST_ROWS) if of is None else max(1, min(limit, round(limit / of + 0.499)))

    def saw(self, queue: str, row_ids_: Sequence[int]) -> None:
        """These rows were read."""
        if row_ids_:
            if len(self._of) >= REMEMBERED:
                self._of.clear()
            sizes = [packs.last_in(id_) - id_ + 1 for id_ in row_ids_]
            self._of[queue] = sum(sizes) / len(sizes)


@dataclass(frozen=True, slots=True)
class Reader(Generic[Item, T]):
    """How an answer becomes a result.

    take: the ids of the rows of an answer, and what was asked for out of them, in order.
    make: the result, of all that was found and of the tombstones that were crossed.
    as_it_is: the result of an answer that is all, if nothing has to be taken out of it.
    """

    take: Callable[[Any], tuple[Sequence[int], Iterable[Item]]]
    make: Callable[[list[Item], int], T]
    as_it_is: Callable[[Answer], T | None] | None = None


class Ranged(Generic[Item, T]):
    """A range under way.

    Nearly always one request is enough. Where rows hold fewer messages than those read before, it is read on:
    of what comes later a later moment is seen, as if it were a further range.

    Args:
        asked: what for.
        send: ask for rows: above which id, and how many at most.
        density: of this store.
        reader: for the answers.
    """

    def __init__(
        self,
        asked: Asked,
        send: Callable[[int, int], Request[Answer]],
        density: Density,
        reader: Reader[Item, T],
    ) -> None:
        self._asked = asked
        self._send = send
        self._density = density
        self._reader = reader
        self._rows = density.rows(asked.wide_row.queue, asked.limit)
        self._request = send(packs.lowest(asked.after), self._rows)

    def result(self) -> T:
        """Wait for it, and read on where it is needed."""
        queue, limit, upto = self._asked.wide_row.queue, self._asked.limit, self._asked.upto
        request, rows, reader = self._request, self._rows, self._reader
        items: list[Item] = []
        crossed = 0
        while True:
            answer = request.result()
            row_ids, found = reader.take(answer.rows)
            self._density.saw(queue, row_ids)
            is_all = not items and (len(row_ids) < rows or len(row_ids) == limit)
            if is_all and reader.as_it_is is not None and (result := reader.as_it_is(answer)) is not None:
                return result
            items += islice(found, limit - len(items))
            crossed += tombstones.crossed(answer.warnings)
            if len(row_ids) < rows or len(items) == limit or packs.last_in(row_ids[-1]) >= upto:
                return reader.make(items, crossed)
            rows = self._density.rows(queue, limit - len(items))
            request = self._send(packs.last_in(row_ids[-1]), rows)
