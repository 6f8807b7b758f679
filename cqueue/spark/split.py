"""Estimate with few small reads how rows are distributed, so that tasks get about as much each.

Cassandra cannot say how many rows a partition has. A read of a few ids from a place on says how dense rows
lie there; a stretch that seems to hold more than a task should is halved, and each half is asked again. So a
burst in an otherwise empty hour is found, and a wide row with a dozen messages costs one read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa

from cqueue import ids
from cqueue.errors import LASTING, NotDone

Probe = Callable[[int, int, int], list[int]]
"""Reads the first ids with after < id <= upto, up to a limit."""

PROBED: Final = 5000
"""Ids of one read: several of the batches of 500 that a sender stores within microseconds."""
MOST_PROBED: Final = 512
"""Of more pieces than this only `SAMPLES` are probed; the others are taken to hold the mean."""
SAMPLES: Final = 128
SHORTEST_US: Final = 1_000
PROBES_AT_ONCE: Final = 8

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """A range of ids of one place, after < id <= upto, with an estimate of its rows."""

    place: T
    after: int
    upto: int
    rows: float


def tasks(
    whole: Sequence[Piece[T]], probe_of: Callable[[T], Probe], target: int, limit: int | None
) -> list[tuple[Piece[T], ...]]:
    """Return the pieces of each task in order, about `target` rows each; with a limit there is one task."""
    if limit is not None:  # in one task, or each would read as many
        return [tuple(whole)] if whole else []
    return _grouped(_split(whole, probe_of, target), target)


def _split(whole: Sequence[Piece[T]], probe_of: Callable[[T], Probe], target: int) -> list[Piece[T]]:
    """Return the pieces in order, with estimates; cut those that hold more than `target` rows."""
    if len(whole) > MOST_PROBED:
        return _sampled(whole, probe_of)
    with ThreadPoolExecutor(PROBES_AT_ONCE, thread_name_prefix="cqueue-split") as pool:
        parts = pool.map(lambda piece: _halved(piece, probe_of(piece.place), target), whole)
        return [piece for part in parts for piece in part if piece.rows > 0]


def _halved(piece: Piece[T], probe: Probe, target: int) -> list[Piece[T]]:
    found = _estimated(piece, probe)
    start_us, end_us = ids.time_us(max(piece.after, 0)), ids.time_us(piece.upto)
    if found.rows <= target or end_us - start_us < 2 * SHORTEST_US:
        return [found]
    middle = ids.lowest_at((start_us + end_us) // 2) - 1
    halves = (Piece(piece.place, piece.after, middle, 0.0), Piece(piece.place, middle, piece.upto, 0.0))
    return [part for half in halves for part in _halved(half, probe, target)]


def _estimated(piece: Piece[T], probe: Probe) -> Piece[T]:
    """Return the piece from its first row on, with an estimate from the density of its first rows."""
    try:
        found = probe(piece.after, piece.upto, PROBED)
    except LASTING:
        raise
    except NotDone:  # too many tombstones, perhaps: reading it goes in small steps
        return Piece(piece.place, piece.after, piece.upto, float(PROBED))
    if len(found) < PROBED:
        return Piece(piece.place, piece.after, piece.upto, float(len(found)))
    first_us, span_us = ids.time_us(found[0]), ids.time_us(found[-1]) - ids.time_us(found[0]) + 1
    rows = len(found) * max(1.0, (ids.time_us(piece.upto) - first_us) / span_us)
    return Piece(piece.place, max(piece.after, found[0] - 1), piece.upto, rows)


def _sampled(whole: Sequence[Piece[T]], probe_of: Callable[[T], Probe]) -> list[Piece[T]]:
    # By chance: pieces stand in turns of all partitions, and every nth may be of one partition.
    asked = random.sample(whole, SAMPLES)
    with ThreadPoolExecutor(PROBES_AT_ONCE, thread_name_prefix="cqueue-split") as pool:
        rows = list(pool.map(lambda piece: _estimated(piece, probe_of(piece.place)).rows, asked))
    mean = max(1.0, sum(rows) / len(rows))
    return [Piece(piece.place, piece.after, piece.upto, mean) for piece in whole]


def _grouped(pieces: Iterable[Piece[T]], target: int) -> list[tuple[Piece[T], ...]]:
    """Return the pieces in order, in groups of about `target` rows, at least one piece each."""
    groups: list[tuple[Piece[T], ...]] = []
    group: list[Piece[T]] = []
    rows = 0.0
    for piece in pieces:
        if group and rows + piece.rows > target:
            groups.append(tuple(group))
            group, rows = [], 0.0
        group.append(piece)
        rows += piece.rows
    return [*groups, tuple(group)] if group else groups


def ahead(pages: Iterable[Any]) -> Iterable[Any]:
    """Yield the pages; read the next one on a thread while one is used."""
    iterator, end = iter(pages), object()
    reads = ThreadPoolExecutor(1, thread_name_prefix="cqueue-read")
    try:
        coming = reads.submit(next, iterator, end)
        while (page := coming.result()) is not end:
            coming = reads.submit(next, iterator, end)
            yield page
    finally:
        reads.shutdown(wait=False)  # a reader that has enough pages does not wait for one more


def limited(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield batches that have rows, of `limit` rows together at most."""
    left = limit
    for batch in batches:
        wanted = batch if left is None else batch.slice(0, left)
        if wanted.num_rows:
            yield wanted
        if left is not None:
            left -= wanted.num_rows
        if left == 0:
            return
