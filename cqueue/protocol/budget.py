"""How far one read may go, so that it crosses no more than about a thousand tombstones.

What this consumer took itself are the tombstones of now: there reads are cut by count. Elsewhere nobody knows
what others took, so reads are cut by time: shorter at once after one that crossed too much, longer after
several that crossed little, and never longer than where messages lay densest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from cqueue import ids

FIRST_PACE_US = 250_000
LONGEST_PACE_US = 60_000_000
SHORTEST_PACE_US = 1_000
GENTLE_TOMBSTONES = 500
"""What a read in pieces aims at; 1,000 is the bound."""

KNOWN_TOMBSTONES = 750
"""What one may cross where we took everything ourselves, and know; late rows lie there besides."""

STRETCH = 150
"""Messages noted as one stretch, so that some of them come close to what a read may cross."""

GOOD_PIECES = 3
"""After so many pieces in a row that crossed few tombstones the next ones are twice as long."""

CLOSER = 3
"""In places messages lie so many times closer than on the whole."""

TELLING_MESSAGES = 50
"""So many tell how densely messages lie."""

MOST_PIECES = 1000
"""Where messages lay densest decides how long pieces get, until a pass would take more of them than this."""

SMALLER = 20
"""By how much pieces get shorter after a pass that failed."""

FEW_MESSAGES = 100
"""What a look-back may cross without a second thought."""


class Stretch(NamedTuple):
    """What we took in one place: after < id <= upto, so many messages in so many rows."""

    after: int
    upto: int
    messages: int
    rows: int


class _Taken:
    """All that we took of one priority, without a gap: the last few hundred messages, and what is before."""

    def __init__(self) -> None:
        self.recent: deque[Stretch] = deque()
        self._before: list[Stretch] = []  # joined as far as a read may cross at once

    def add(self, stretch: Stretch) -> None:
        self.recent.append(stretch)
        while len(self.recent) > 1 and self.messages > GENTLE_TOMBSTONES:
            self._join(self.recent.popleft())

    def _join(self, stretch: Stretch) -> None:
        last = self._before[-1] if self._before else None
        if last is not None and last.rows + stretch.rows <= KNOWN_TOMBSTONES:
            messages, rows = last.messages + stretch.messages, last.rows + stretch.rows
            self._before[-1] = Stretch(last.after, stretch.upto, messages, rows)
        else:
            self._before.append(stretch)

    @property
    def messages(self) -> int:
        """How many of the last ones are noted one by one."""
        return sum(stretch.messages for stretch in self.recent)

    @property
    def rows(self) -> int:
        """In how many rows they stood."""
        return sum(stretch.rows for stretch in self.recent)

    def end(self, after: int, last: int) -> int | None:
        """Up to where, at most `last`, a read from `after` on crosses few tombstones; None: not known."""
        first = self._before[0] if self._before else self.recent[0]
        if not first.after <= after < self.recent[-1].upto:
            return None
        end, rows = after, 0
        start = bisect_right(self._before, after, key=lambda one: one.upto)
        for stretch in chain((self._before[at] for at in range(start, len(self._before))), self.recent):
            if stretch.upto > after:
                rows += stretch.rows
                if rows > KNOWN_TOMBSTONES and end > after:
                    break
                end = stretch.upto
        return min(end, last)


class TombstoneBudget:
    """What one consumer knows of the tombstones of one wide row, which begins and ends at those times."""

    def __init__(self, begin_us: int, end_us: int) -> None:
        self._begin_us = begin_us
        self._width_us = end_us - begin_us
        self.pace_us = FIRST_PACE_US  # length of the next read where nothing is known
        self._densest_us = LONGEST_PACE_US  # length of one where messages lay densest
        self._good = 0  # reads in a row that crossed few
        self.cautious = False  # a pass has failed: take short pieces where nothing is expected as well
        self._taken: dict[int, _Taken] = {}  # by priority

    def piece_end(self, priority: int, after: int, last: int, pace_us: int | None = None) -> int:
        """Up to where, at most `last`, the next read goes that begins behind `after`.

        pace_us: how far it goes where nobody knows, if that is not as far as the last reads suggest.
        """
        known = self.known_end(priority, after, last)
        if known is not None:
            return known
        start_us = max(ids.time_us(after), self._begin_us)
        return min(last, ids.highest_at(start_us + (pace_us or self.pace_us)))

    # ── where nobody knows ──

    def restart(self) -> None:
        """A sweep or pass begins: as if messages lay as densely there as anywhere in this wide row."""
        self.pace_us = min(self.pace_us, self._densest_us)
        self._good = 0

    def crossed(self, tombstones: int) -> None:
        """A read has crossed so many: shorten the next one, or lengthen it after a few good ones."""
        if tombstones > GENTLE_TOMBSTONES:
            self._at_most(self.pace_us * GENTLE_TOMBSTONES // tombstones)
            return
        self._good += 1
        if self._good % GOOD_PIECES == 0:
            longest_us = min(LONGEST_PACE_US, max(self._densest_us, self._width_us // MOST_PIECES))
            self.pace_us = min(longest_us, self.pace_us * 2)

    def failed(self) -> None:
        """A pass has failed, perhaps because it crossed too much at once: the next one takes short pieces."""
        self.cautious = True
        self._at_most(self.pace_us // SMALLER)

    def saw(self, messages: int, rows: int, span_us: int) -> None:
        """Messages stood in so many rows in `span_us`: tombstones will lie as close, and closer in places."""
        if messages >= TELLING_MESSAGES:
            self._at_most(GENTLE_TOMBSTONES * span_us // (CLOSER * rows))

    def _at_most(self, dense_us: int) -> None:
        dense_us = max(SHORTEST_PACE_US, dense_us)
        self._densest_us = min(self._densest_us, dense_us)
        self.pace_us = min(self.pace_us, dense_us)
        self._good = 0

    # ── what we took ──

    def took(self, priority: int, after: int, taken: Sequence[int]) -> None:
        """These, in order, were all that lay behind `after`; how densely shows between two boundaries."""
        known = self._taken.get(priority)
        if known is None or known.recent[-1].upto != after:
            known = self._taken[priority] = _Taken()
        for stretch in _stretches(after, taken):
            known.add(stretch)
        self.saw(known.messages, known.rows, self._span_us(known))

    def _span_us(self, taken: _Taken) -> int:
        start_us = max(ids.time_us(taken.recent[0].after), self._begin_us)
        return ids.time_us(taken.recent[-1].upto) - start_us

    def known_end(self, priority: int, after: int, last: int) -> int | None:
        """Up to where, at most `last`, a read from `after` on may go; None: we did not take what is there."""
        taken = self._taken.get(priority)
        return taken.end(after, last) if taken is not None else None

    def recent(self, priority: int) -> tuple[int, int] | None:
        """After and up to which ids we took the last few hundred messages; None: we took none."""
        taken = self._taken.get(priority)
        return (taken.recent[0].after, taken.recent[-1].upto) if taken is not None else None

    def is_sparse(self, priority: int, span_us: int) -> bool:
        """Whether `span_us` of this wide row hold few messages, going by what we took last."""
        taken = self._taken[priority]
        few = taken.messages <= FEW_MESSAGES
        return few and taken.messages * span_us <= FEW_MESSAGES * self._span_us(taken)


def _stretches(after: int, taken: Sequence[int]) -> Iterator[Stretch]:
    for start in range(0, len(taken), STRETCH):
        some = taken[start : start + STRETCH]
        yield Stretch(after, some[-1], len(some), ids.rows_of(some))
        after = some[-1]
