"""What one consumer remembers of a wide row. It may be out of date: only speed hangs on it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from cqueue import ids
from cqueue.protocol import policy, shards
from cqueue.protocol.spec import Lease, QueueSpec
from cqueue.store.operations import Head, MessageRow, WideRow

REMEMBERED_US = 250_000
"""A head is read again at least this often, for the sake of what others gave back, or let expire."""

RIVALS_US = 1_000_000
"""For so long after somebody else claimed, only a lock that is held makes sure that nobody will."""

CURRENT_US = 50_000
"""How far others can get in a wide row without crossing too much, in the time that we have not seen it."""

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

MOST_PIECES = 1000
"""Where messages lay densest decides how long pieces get, until a pass would take more of them than this."""

SMALLER = 20
"""By how much pieces get shorter after a pass that failed."""

FEW_MESSAGES = 100
"""What a look-back may cross without a second thought."""

UNKNOWN_SIZE = 8 << 10
"""Bytes that a message is taken for before any was read."""
LARGE_SIZE = 256 << 10
"""Bytes that one is taken for at most where reads keep failing."""

TELLING_MESSAGES = 50
"""So many messages that are smaller than expected make for a new expectation."""

NEVER_US = 1 << 62

FIRST_PASS_GAP_US = 1_000_000
LONGEST_PASS_GAP_US = 60_000_000


class Stretch(NamedTuple):
    """Where one slice was read and taken: after < id <= upto, with so many messages in so many rows."""

    after: int
    upto: int
    messages: int
    rows: int


class Ahead(NamedTuple):
    """Messages of one priority behind `after` that were read ahead of their claim, by a read of that time.

    whole: there are no more of them.
    damaged_to: the end of the last row among them that cannot be read; 0 if there is none.
    """

    priority: int
    after: int
    rows: list[MessageRow]
    began_us: int
    whole: bool = False
    damaged_to: int = 0


def fence_of(head: Head) -> int | None:
    """The fence that stands; None where nobody has claimed yet."""
    return head.lock.fence if head.lock is not None else None


@dataclass(slots=True)
class Sizes:
    """How large the messages of a queue are, about, by priority: to bound reads by bytes."""

    means: dict[int, float] = field(default_factory=dict)

    def saw(self, priority: int, size: int, messages: int) -> None:
        """So many were read, and are so large on average. A few small ones say little, a large one much."""
        mean = self.means.get(priority, UNKNOWN_SIZE)
        weight = 1.0 if size > mean else min(1.0, messages / TELLING_MESSAGES)
        self.means[priority] = mean + (size - mean) * weight

    def doubt(self, priorities: Iterable[int]) -> None:
        """A read of some of these failed: perhaps it was too large."""
        for priority in priorities:
            mean = self.means.get(priority, UNKNOWN_SIZE)
            self.means[priority] = max(mean, min(2 * mean, LARGE_SIZE), UNKNOWN_SIZE)

    def within(self, priority: int, budget: int) -> int:
        """How many messages that is, about."""
        return int(budget / self.means.get(priority, UNKNOWN_SIZE))


@dataclass(slots=True, eq=False)
class RowView:
    """One wide row in a consumer's memory."""

    wide_row: WideRow
    end_us: int
    priorities: set[int]
    fence: int | None = None  # of the head that we know: while it stands, nobody has claimed since
    locked: bool = False  # and we keep the lock
    foreign: bool = False  # another worker looks at it first
    head: Head | None = None  # as last read, or left by our last claim
    ahead: Ahead | None = None  # good for as long as our fence stands
    head_us: int = 0  # when it was read last; 0: it may be another one by now
    rival_us: int = 0  # when somebody else claimed here, as far as we have seen
    probed_us: int = 0  # when a search looked for work here
    seen_us: int = 0  # when a claim of ours read the head that left nothing behind
    retired: bool = False
    rest_until_us: int = 0  # nothing to do before
    finished: list[Lease] = field(default_factory=list)  # all acked: slots to be freed
    claims: int = 0
    looked_us: int = 0  # when the last look-back was made
    swept_us: dict[int, int] = field(default_factory=dict)  # by priority: when a sweep last came to its end
    pace_us: int = FIRST_PACE_US  # length of the next piece of a sweep or pass
    densest_us: int = LONGEST_PACE_US  # length of a piece where messages lay densest
    good_pieces: int = 0
    cautious: bool = False  # a pass has failed: take small pieces where nothing is expected as well
    sizes: Sizes = field(default_factory=Sizes)  # a registry's views share them
    taken: dict[int, deque[Stretch]] = field(default_factory=dict)  # by priority: what we took last, joined
    passed: dict[int, list[Stretch]] = field(default_factory=dict)  # by priority: all that we took, no gap
    pass_to: dict[int, int] = field(default_factory=dict)  # by priority: so far has a pass found nothing
    passed_quarantine: bool = False  # the pass has passed over rows in quarantine
    floors: dict[int, int] = field(default_factory=dict)  # open wide rows: read from here on
    pass_at_us: int = 0  # open wide rows: when the next whole pass is due
    pass_gap_us: int = FIRST_PASS_GAP_US

    @property
    def open(self) -> bool:
        """Whether this is an open wide row."""
        return policy.has_no_cursor(self.wide_row)

    def remembers_head(self, now_us: int) -> bool:
        """Whether the head need not be read: we keep the lock, and have read it a moment ago."""
        return self.locked and now_us - self.head_us < REMEMBERED_US

    def expects_no_rival(self, now_us: int) -> bool:
        """Whether nobody else is likely to claim here: nobody has done so for a while."""
        return self.locked or now_us - self.rival_us >= RIVALS_US

    def is_current(self, now_us: int) -> bool:
        """Whether the boundary that we know is likely to be where it is now, or not far away.

        Else a read from there might cross all that others have taken, and acked, since then: of what our
        last claim left there, or what was sent since.
        """
        if self.locked or now_us - self.head_us < CURRENT_US:
            return True
        return bool(self.seen_us) and not self.foreign and self.expects_no_rival(now_us)

    def saw(self, head: Head, now_us: int) -> None:
        """A head was read. A fence that is not the one that we know says when somebody else claimed."""
        if fence_of(head) != self.fence:
            self.rival_us = max(self.rival_us, fence_of(head) or 0)
            self.fence, self.ahead, self.locked = None, None, False
        self.head, self.head_us = head, now_us

    def retire_at_us(self, spec: QueueSpec) -> int:
        """From when on the wide row may be retired: nothing acknowledged can land in it any more.

        Not as long as a data centre that was given up in a hurry may bring back what it acknowledged.
        """
        if not policy.rows_may_go(spec):
            return NEVER_US
        return policy.nothing_lands_from_us(spec, self.end_us, open_=self.open)

    def set_out(self) -> None:
        """A sweep or pass begins: as if messages lay as densely there as anywhere in this wide row."""
        self.pace_us = min(self.pace_us, self.densest_us)
        self.good_pieces = 0

    def keep_pace(self, tombstones: int) -> None:
        """Shorten the next piece after too many tombstones; lengthen it after a few good ones."""
        if tombstones > GENTLE_TOMBSTONES:
            self._at_most(self.pace_us * GENTLE_TOMBSTONES // tombstones)
            return
        self.good_pieces += 1
        if self.good_pieces % GOOD_PIECES == 0:
            self.pace_us = min(self._longest_us(), self.pace_us * 2)

    def be_cautious(self) -> None:
        """A pass has failed, perhaps because it crossed too much at once: the next one takes small pieces."""
        self.cautious = True
        self._at_most(self.pace_us // SMALLER)

    def expect_density(self, messages: int, rows: int, span_us: int) -> None:
        """Messages stood in so many rows in `span_us`: tombstones will lie as close, and closer in places."""
        if messages >= 50:
            self._at_most(GENTLE_TOMBSTONES * span_us // (CLOSER * rows))

    def _longest_us(self) -> int:
        width_us = self.end_us - self.wide_row.time_shard * 1000
        return min(LONGEST_PACE_US, max(self.densest_us, width_us // MOST_PIECES))

    def _at_most(self, dense_us: int) -> None:
        dense_us = max(SHORTEST_PACE_US, dense_us)
        self.densest_us = min(self.densest_us, dense_us)
        self.pace_us = min(self.pace_us, dense_us)
        self.good_pieces = 0

    def took(self, priority: int, stretch: Stretch) -> None:
        """Remember what we took last, without a gap, and no more than a look-back may cross.

        How densely messages lie shows between two boundaries: inside one batch they lie closer than anywhere.
        """
        taken = self.taken.setdefault(priority, deque())
        if taken and taken[-1].upto != stretch.after:
            taken.clear()
        taken.append(stretch)
        while len(taken) > 1 and sum(one.messages for one in taken) > GENTLE_TOMBSTONES:
            taken.popleft()
        messages, taken_us = self._density(priority)
        self.expect_density(messages, sum(one.rows for one in taken), taken_us)

    def note_passed(self, priority: int, stretch: Stretch) -> None:
        """Remember all that we took, without a gap, in stretches that a read may cross."""
        passed = self.passed.setdefault(priority, [])
        if passed and passed[-1].upto != stretch.after:
            passed.clear()
        if passed and passed[-1].rows + stretch.rows <= KNOWN_TOMBSTONES:
            after, _, messages, rows = passed.pop()
            stretch = Stretch(after, stretch.upto, messages + stretch.messages, rows + stretch.rows)
        passed.append(stretch)

    def gentle_end(self, priority: int, after: int, last: int) -> int | None:
        """Up to where, at most `last`, a read from `after` on crosses few tombstones; None: not known.

        It is known as far as this consumer took everything itself: what it took are the tombstones of now.
        """
        passed = self.passed.get(priority, [])
        if not passed or not passed[0].after <= after < passed[-1].upto:
            return None
        end, rows = after, 0
        for stretch in passed[bisect_right(passed, after, key=lambda one: one.upto) :]:
            rows += stretch.rows
            if rows > KNOWN_TOMBSTONES and end > after:
                return min(end, last)
            end = stretch.upto
        return min(end, last)

    def is_sparse(self, priority: int, span_us: int) -> bool:
        """Whether `span_us` of this wide row hold few messages, going by what we took last."""
        messages, taken_us = self._density(priority)
        return messages <= FEW_MESSAGES and messages * span_us <= FEW_MESSAGES * taken_us

    def _density(self, priority: int) -> tuple[int, int]:
        """(Messages, µs) of what we took last."""
        taken = self.taken[priority]
        start_us = max(ids.time_us(taken[0].after), self.wide_row.time_shard * 1000)
        return sum(one.messages for one in taken), ids.time_us(taken[-1].upto) - start_us


def view_of(spec: QueueSpec, wide_row: WideRow, priorities: frozenset[int]) -> RowView:
    """A fresh view."""
    return RowView(wide_row, shards.end_us(spec, wide_row), set(priorities))
