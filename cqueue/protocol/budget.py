"""Bound each read so that it crosses no more than about a thousand tombstones.

Messages that this consumer took are tombstones now, and it counted them: there it cuts reads by count.
Elsewhere it does not know what other consumers took, so it cuts reads by time. A piece gets shorter at once
after a read that crossed too many tombstones, longer after several that crossed few, and never longer than
the densest part of the wide row allows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from cqueue import ids
from cqueue.runtime.sequences import parts
from cqueue.store.operations import CursorRow

FIRST_PIECE_US = 250_000
"""µs of a wide row that the first read covers: 1,000 tombstones at 4,000 messages a second."""
LONGEST_PIECE_US = 60_000_000
"""µs that one read covers at most: longer reads of an almost empty row save nothing."""
SHORTEST_PIECE_US = 1_000
"""µs that one read covers at least, so that a pass always gets on."""
TARGET_TOMBSTONES = 500
"""Tombstones that one read aims at: half of the 1,000 that it must not exceed by much."""

MAX_COUNTED_TOMBSTONES = 750
"""Tombstones that one read may cross where this consumer took every message. The rest of the 1,000 is for
late messages there."""

STRETCH_MESSAGES = 150
"""Messages noted as one stretch: five make `MAX_COUNTED_TOMBSTONES`, so reads come close to it."""

PIECES_TO_DOUBLE = 3
"""Pieces in a row with few tombstones after which pieces get twice as long; fewer may be chance."""

DENSITY_SAFETY_FACTOR = 3
"""Safety factor: local density may exceed the row's average threefold."""

MIN_SAMPLE = 50
"""Messages from which density is estimated; fewer say little."""

MAX_PIECES = 1000
"""Pieces of one pass at most. The densest part of the row bounds the length of pieces, until a pass would
need more pieces than this."""

FAILURE_DIVISOR = 20
"""Divisor of the piece length after a failed pass: Cassandra refuses a read across 100,000 tombstones."""

REACH_GROWTH = 4
"""Factor by which reads above the boundary get longer while they cross few tombstones: the row may be empty
for hours before those that Cassandra refused to cross."""

FEW_MESSAGES = 100
"""Messages that a look-back may cross at any time: a tenth of what one read may cross."""


class Stretch(NamedTuple):
    """Messages that this consumer took in one stretch of ids: after < id <= upto."""

    after: int
    upto: int
    messages: int
    rows: int


class _TakenMessages:
    """What this consumer took of one priority without a gap: the last few hundred messages and all before."""

    def __init__(self) -> None:
        self.recent: deque[Stretch] = deque()
        self._older: list[Stretch] = []  # older stretches, joined up to what one read may cross

    def add(self, stretch: Stretch) -> None:
        self.recent.append(stretch)
        while len(self.recent) > 1 and self.messages > TARGET_TOMBSTONES:
            self._join(self.recent.popleft())

    def _join(self, stretch: Stretch) -> None:
        last = self._older[-1] if self._older else None
        if last is not None and last.rows + stretch.rows <= MAX_COUNTED_TOMBSTONES:
            messages, rows = last.messages + stretch.messages, last.rows + stretch.rows
            self._older[-1] = Stretch(last.after, stretch.upto, messages, rows)
        else:
            self._older.append(stretch)

    @property
    def messages(self) -> int:
        """Return how many messages the recent stretches hold."""
        return sum(stretch.messages for stretch in self.recent)

    @property
    def rows(self) -> int:
        """Return in how many Cassandra rows those messages stood."""
        return sum(stretch.rows for stretch in self.recent)

    def rows_upto(self, boundary: int) -> int | None:
        """Return in how many rows all messages up to `boundary` stood; None if others took some of them."""
        stretches = [*self._older, *self.recent]
        if stretches[0].after > ids.START or stretches[-1].upto < boundary:
            return None
        return sum(stretch.rows for stretch in stretches)

    def end(self, after: int, last: int) -> int | None:
        """Return how far, up to `last`, a read behind `after` crosses few tombstones; None if unknown."""
        first = self._older[0] if self._older else self.recent[0]
        if not first.after <= after < self.recent[-1].upto:
            return None
        end, rows = after, 0
        start = bisect_right(self._older, after, key=lambda one: one.upto)
        for stretch in chain((self._older[at] for at in range(start, len(self._older))), self.recent):
            if stretch.upto > after:
                rows += stretch.rows
                if rows > MAX_COUNTED_TOMBSTONES and end > after:
                    break
                end = stretch.upto
        return min(end, last)


class TombstoneBudget:
    """What one consumer knows of the tombstones of one wide row, which spans `begin_us` to `end_us`."""

    def __init__(self, begin_us: int, end_us: int) -> None:
        self._begin_us = begin_us
        self._width_us = end_us - begin_us
        self.piece_us = FIRST_PIECE_US  # length of the next read where tombstones are not counted
        self._densest_us = LONGEST_PIECE_US  # length of a read that suits the densest part of the row
        self._cheap_reads = 0  # reads in a row that crossed few tombstones
        self.cautious = False  # a pass failed: use short pieces also where no tombstones are expected
        self._reach_us: dict[int, int] = {}  # by priority: most that a read covers after a refused one
        self._taken: dict[int, _TakenMessages] = {}  # by priority

    def piece_end(self, priority: int, after: int, last: int, piece_us: int | None = None) -> int:
        """Return where the next read behind `after` ends, at most at `last`.

        piece_us: the read's length where tombstones are not counted; by default as the last reads suggest.
        """
        known = self.counted_end(priority, after, last)
        if known is not None:
            return known
        start_us = max(ids.time_us(after), self._begin_us)
        return min(last, ids.highest_at(start_us + (piece_us or self.piece_us)))

    # ── where tombstones are not counted ──

    def restart(self) -> None:
        """Begin a sweep or pass: assume the density of the densest part of this wide row."""
        self.piece_us = min(self.piece_us, self._densest_us)
        self._cheap_reads = 0

    def note_tombstones(self, tombstones: int) -> None:
        """Note the tombstones that a read crossed: shorten the next read, or lengthen it after good ones."""
        if tombstones > TARGET_TOMBSTONES:
            self._at_most(self.piece_us * TARGET_TOMBSTONES // tombstones)
            return
        self._cheap_reads += 1
        if self._cheap_reads % PIECES_TO_DOUBLE == 0:
            longest_us = min(LONGEST_PIECE_US, max(self._densest_us, self._width_us // MAX_PIECES))
            self.piece_us = min(longest_us, self.piece_us * 2)

    def note_failure(self) -> None:
        """Note that a pass failed, perhaps because of tombstones: the next pass uses short pieces."""
        self.cautious = True
        self._at_most(self.piece_us // FAILURE_DIVISOR)

    def note_density(self, messages: int, rows: int, span_us: int) -> None:
        """Note the density of messages: their tombstones will lie as densely, and denser in places."""
        if messages >= MIN_SAMPLE:
            self._at_most(TARGET_TOMBSTONES * span_us // (DENSITY_SAFETY_FACTOR * rows))

    def _at_most(self, dense_us: int) -> None:
        dense_us = max(SHORTEST_PIECE_US, dense_us)
        self._densest_us = min(self._densest_us, dense_us)
        self.piece_us = min(self.piece_us, dense_us)
        self._cheap_reads = 0

    # ── above the boundary ──

    @property
    def is_refused(self) -> bool:
        """Return whether Cassandra gave a read up, and reads above some boundary have not reached the present
        since.
        """
        return bool(self._reach_us)

    def reach(self, priority: int, boundary: int, present: int) -> int:
        """Return how far to read above a boundary: to the present, or by one piece after a refused read."""
        if priority not in self._reach_us:
            return present
        return self.piece_end(priority, boundary, present, self._reach_us[priority])

    def note_refusal(self, priority: int) -> None:
        """Note that Cassandra gave a read of this priority up because of tombstones.

        A purge leaves them anywhere, also between messages that this consumer has counted. The refused read
        may have been far longer than a piece, so it says nothing of the densest part of the row.
        """
        reach_us = self._reach_us.get(priority, self.piece_us)
        self._reach_us[priority] = max(SHORTEST_PIECE_US, reach_us // FAILURE_DIVISOR)
        self._taken.clear()
        self.piece_us = max(SHORTEST_PIECE_US, self.piece_us // FAILURE_DIVISOR)
        self._cheap_reads = 0

    def note_reached(self, priority: int, tombstones: int, *, present: bool) -> None:
        """Note a read above the boundary after a refused one. present: it reached the present."""
        reach_us = self._reach_us.pop(priority, None)
        if present or reach_us is None:
            return
        if tombstones > TARGET_TOMBSTONES:
            self._reach_us[priority] = max(SHORTEST_PIECE_US, reach_us * TARGET_TOMBSTONES // tombstones)
        else:
            self._reach_us[priority] = reach_us * REACH_GROWTH

    # ── where this consumer counted them ──

    def note_taken(self, priority: int, after: int, taken: Sequence[int]) -> None:
        """Note the messages `taken`, in order: all that stood between `after` and the last of them."""
        known = self._taken.get(priority)
        if known is None or known.recent[-1].upto != after:
            known = _TakenMessages()
        for stretch in _stretches(after, taken):
            known.add(stretch)
        self._taken[priority] = known  # only now: a Ctrl-C must leave none that is empty
        self.note_density(known.messages, known.rows, self._span_us(known))

    def _span_us(self, taken: _TakenMessages) -> int:
        start_us = max(ids.time_us(taken.recent[0].after), self._begin_us)
        return ids.time_us(taken.recent[-1].upto) - start_us

    def counted_end(self, priority: int, after: int, last: int) -> int | None:
        """Return how far, up to `last`, a read behind `after` may go; None where others took messages."""
        taken = self._taken.get(priority)
        return taken.end(after, last) if taken is not None else None

    def crosses_few(self, cursors: Iterable[CursorRow], *, named: int) -> bool:
        """Return whether one read of the whole row crosses few tombstones: this consumer took all up to the
        boundaries.

        Above them lie those that the last slice has crossed as well, and those of `named` messages.
        """
        rows = [self._rows_upto(at) for at in cursors]
        known = sum(row for row in rows if row is not None) + named
        return None not in rows and known <= MAX_COUNTED_TOMBSTONES and not self.cautious

    def _rows_upto(self, at: CursorRow) -> int | None:
        taken = self._taken.get(at.priority)
        if taken is None:
            return 0 if at.boundary <= ids.START else None
        return taken.rows_upto(at.boundary)

    def recent(self, priority: int) -> tuple[int, int] | None:
        """Return the ids (after, upto) around the last few hundred messages taken; None if there are none."""
        taken = self._taken.get(priority)
        return (taken.recent[0].after, taken.recent[-1].upto) if taken is not None else None

    def is_sparse(self, priority: int, span_us: int) -> bool:
        """Return whether `span_us` of this wide row hold few messages, at the density of the recent ones."""
        taken = self._taken[priority]
        few = taken.messages <= FEW_MESSAGES
        return few and taken.messages * span_us <= FEW_MESSAGES * self._span_us(taken)


def _stretches(after: int, taken: Sequence[int]) -> Iterator[Stretch]:
    for some in parts(taken, STRETCH_MESSAGES):
        yield Stretch(after, some[-1], len(some), ids.rows_of(some))
        after = some[-1]
