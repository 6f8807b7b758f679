"""Read a range of messages: estimate how many rows hold the messages, and read on if too few did.

Cassandra tells how many tombstones a read crossed only in a warning to the client, above
`tombstone_warn_threshold` (1,000). The driver logs every warning. cqueue uses these as part of the answer,
and keeps them out of the log, where each read of a busy wide row would add one.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from cqueue.errors import CqueueError, NotDone
from cqueue.runtime import waiting
from cqueue.store import packs
from cqueue.store.operations import Range, ReadIds
from cqueue.store.requests import Job, Request, Steps, Window

FIRST_ROWS: Final = 16
"""Rows of the first read of a queue whose rows hold an unknown number of messages: 0.5 MiB of packs."""
REMEMBERED: Final = 10_000
"""Queues whose density a process remembers; with more, all are forgotten, and learned again."""
DENSITY_ROWS: Final = 50
"""Rows with fewer messages than expected after which the lower density counts fully. A higher density counts
at
once: reading too few rows costs one more read, reading too many packs costs megabytes."""
LEAST_IDS: Final = 64
"""Rows of one read of ids, at least, unless fewer messages are wanted: rows without bodies are cheap."""
MOST_ROWS: Final = 512
"""Rows of one read with bodies, at most: 16 MiB if all are packs of 32 KiB."""

# The coordinator's own read, or what it was told by replicas (`read_thresholds_enabled`).
_WARNING = re.compile(r"Read \d+ live rows and (\d+) tombstone cells|scanned up to (\d+) tombstones")

Item = TypeVar("Item")


class Density:
    """Mean number of messages in a row, by queue: with packs, fewer rows have to be read. Thread-safe."""

    def __init__(self) -> None:
        self._of: dict[str, float] = {}

    def rows(self, queue: str, limit: int) -> int:
        """Estimate how many rows hold `limit` messages."""
        of = self._of.get(queue)
        return min(limit, FIRST_ROWS) if of is None else max(1, min(limit, math.ceil(limit / of)))

    def saw(self, queue: str, row_ids: Sequence[int]) -> None:
        """Learn from rows that were read. A few single messages among packs lower the estimate only a
        little.
        """
        if row_ids:
            mean = sum([packs.last_in(id_) - id_ + 1 for id_ in row_ids]) / len(row_ids)
            before = self._of.get(queue, mean)
            if len(self._of) >= REMEMBERED:
                self._of.clear()
            weight = min(1.0, len(row_ids) / DENSITY_ROWS)
            self._of[queue] = mean if mean >= before else before + (mean - before) * weight

    def forget(self, queue: str) -> None:
        """Forget a queue's density after a failed read, which may have been too large."""
        self._of.pop(queue, None)


Part = tuple[Sequence[int], Iterable[Item], Iterable[int]]
"""What an answer holds: ids of rows; items asked for, in order; last message ids of damaged rows."""


def ranged(
    asked: Range[Any], send: Callable[[int, int], Request[Part[Item]]], density: Density
) -> Steps[tuple[list[Item], int, tuple[int, ...]]]:
    """Read a range. Return the items, the tombstones crossed, and the last message ids of damaged rows.

    One request is nearly always enough. If the rows hold fewer messages than estimated, the range is read on,
    each time with at least twice as many rows. Later requests show a later moment, like reads of further
    ranges.

    Args:
        asked: the operation.
        send: sends a request for rows above an id, up to a number of rows.
        density: the density of this store's queues.

    Raises:
        NotDone: a request failed, or the call's time was over before the end of the range.
    """
    queue, limit, upto = asked.wide_row.queue, asked.limit, asked.upto
    begin = packs.lowest(asked.after)
    # The first row is read again for its remaining messages only, so it does not count fully.
    rows = _next_rows(asked, density, limit) + (begin != asked.after)
    request = send(begin, rows)
    yield
    items, damaged, crossed = list[Item](), list[int](), 0
    while True:
        try:
            row_ids, found, broken = request.result()
        except CqueueError:
            density.forget(queue)
            raise
        density.saw(queue, row_ids)
        items += islice(found, limit - len(items))
        damaged += broken
        crossed += tombstones(request.warnings)
        if len(items) == limit or is_complete(row_ids, rows, upto):
            return items, crossed, tuple(damaged)
        if waiting.is_over():
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


def joined_items(jobs: Sequence[Job[list[Item]]], in_flight: int, limit: int) -> Steps[list[Item]]:
    """Join the items of several reads into one list, at most `limit` items (0: all).

    With a limit the reads are sent one after the other, until there are enough items.
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


# ── tombstones ──


def tombstones(warnings: Iterable[str] | None) -> int:
    """Return the largest number of tombstones in an answer's warnings, or 0."""
    found = (_WARNING.search(warning) for warning in warnings or ())
    return max((int(match[1] or match[2]) for match in found if match), default=0)


def silence_warnings() -> None:
    """Keep the warnings of tombstones, and no others, out of the driver's log."""
    logging.getLogger("cassandra.protocol").addFilter(_is_other)  # adding it again does nothing


def _is_other(record: logging.LogRecord) -> bool:
    return _WARNING.search(record.getMessage()) is None
