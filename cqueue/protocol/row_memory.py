"""What one consumer knows of a wide row: what a sender's hint tells, and what it remembers of its own reads.

That may be out of date, so only speed depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cqueue import ids
from cqueue.protocol import policy
from cqueue.protocol.budget import TARGET_TOMBSTONES, TombstoneBudget
from cqueue.protocol.lease import Lease
from cqueue.protocol.spec import QueueSpec
from cqueue.store.operations import Head, LockState, MessageRow, SlotChange, WideRow

HEAD_REMEMBERED_US = 250_000
"""µs for which a head need not be read: messages that others give back or let expire wait no longer."""

RIVAL_WINDOW_US = 1_000_000
"""µs after another consumer's claim for which more of its claims are expected, unless the lock is held."""

BOUNDARY_CURRENT_US = 50_000
"""µs for which a boundary counts as current: in that time others acknowledge too little for a read to cross
too many tombstones."""

MAX_NAMED = 8
"""Messages that a hint names at most: a datagram stays small, and a claim of more reads the wide row."""
MAX_NAMED_ABOVE = 200
"""Messages that claims by name leave above a boundary at most: reads from there cross their tombstones."""

MAX_UNSEEN_US = 2_500_000
"""µs for which a lone consumer claims by name without reading the head: just above the idle pause of 2 s.
After a longer time nothing shows whether another consumer has claimed."""

UNKNOWN_SIZE = 8 << 10
"""Bytes that a message is assumed to have before any was read: half of the largest inline body."""
LARGE_SIZE = 256 << 10
"""Bytes that a message is assumed to have at most where reads keep failing: 16 messages for 4 MiB."""

MIN_SAMPLE = 50
"""Messages smaller than expected that replace the estimate; fewer only lower it in proportion."""

NEVER_US = 1 << 62
"""A time that never comes, in µs."""

FIRST_PASS_GAP_US = 1_000_000
"""µs between the first two passes over an open wide row: a late message waits a second."""
PASS_GAP_US = 60_000_000
"""µs between passes of a young row, and of one of which a hint came that named nothing: gaps double up to
this."""
LONGEST_PASS_GAP_US = 300_000_000
"""µs between passes of an old row: at most what a late message waits of which no hint came, such as one that
was redriven."""
PASSES_AN_AGE = 4
"""Passes in the time that has passed since a row's end. Each pass crosses all tombstones of the row, and a
day of rows is kept: with a pass a minute, a hundred messages a second would take 300 reads a second."""


class Hint(NamedTuple):
    """A wide row in which messages of these priorities may be due.

    named: the ids of all these messages in order, if they are few and of one priority; else empty.

    A hint may be late, repeated or wrong, so a consumer delivers only messages that it has read.
    """

    wide_row: WideRow
    priorities: frozenset[int]
    named: tuple[int, ...] = ()

    def __or__(self, other: Hint) -> Hint:
        """Merge two hints of one wide row."""
        both = tuple(sorted({*self.named, *other.named}))
        is_named = self.named and other.named and self.priorities == other.priorities
        named = both if is_named and len(both) <= MAX_NAMED else ()
        return Hint(self.wide_row, self.priorities | other.priorities, named)


class ReadAhead(NamedTuple):
    """Messages of one priority above `after` that were read, from `began_us` on, before their claim.

    whole: no other messages stood above `after`, up to `upto`, or up to the present if that is 0.
    damaged_to: the last id of the last unreadable row among them; 0 if there is none.
    tombstones: how many the read crossed, as far as the store noticed.
    """

    priority: int
    after: int
    rows: list[MessageRow]
    began_us: int
    whole: bool = False
    damaged_to: int = 0
    upto: int = 0
    tombstones: int = 0


def fence_of(head: Head) -> int | None:
    """Return a head's fence; None if no claim was made in the wide row yet."""
    return head.lock.fence if head.lock is not None else None


@dataclass(slots=True)
class MessageSizes:
    """Estimated mean size of a queue's messages by priority, which bounds reads by bytes."""

    means: dict[int, float] = field(default_factory=dict)

    def note_read(self, priority: int, size: int, messages: int) -> None:
        """Update the estimate from a read. Large messages raise it at once, small ones lower it by number."""
        mean = self.means.get(priority, UNKNOWN_SIZE)
        weight = 1.0 if size > mean else min(1.0, messages / MIN_SAMPLE)
        self.means[priority] = mean + (size - mean) * weight

    def assume_larger(self, priorities: Iterable[int]) -> None:
        """Double the estimates of these priorities, because a failed read may have been too large."""
        for priority in priorities:
            mean = self.means.get(priority, UNKNOWN_SIZE)
            self.means[priority] = max(mean, min(2 * mean, LARGE_SIZE), UNKNOWN_SIZE)

    def count_within(self, priority: int, budget: int) -> int:
        """Return how many messages of a priority have about `budget` bytes."""
        return int(budget / self.means.get(priority, UNKNOWN_SIZE))


@dataclass(slots=True)
class RetirementPass:
    """How far the pass before retirement has found nothing alive, by priority."""

    upto: dict[int, int] = field(default_factory=dict)
    quarantine: bool = False  # the pass has met rows in quarantine

    def restart(self) -> None:
        """Begin the pass again from the start."""
        self.upto.clear()
        self.quarantine = False


@dataclass(slots=True)
class ReadFloors:
    """Where reads of an open wide row begin, by priority; whole passes come at growing intervals.

    What a hint names below its floor is read by its id, so that a late message need not wait for a pass.
    """

    by_priority: dict[int, int] = field(default_factory=dict)
    named: dict[int, set[int]] = field(default_factory=dict)  # by hints, since the last read from the floor
    pass_at_us: int = 0  # when the next whole pass is due
    _passed_us: int = 0  # when the last one began
    _gap_us: int = FIRST_PASS_GAP_US

    def start_pass(self, now_us: int, end_us: int) -> None:
        """Begin a pass from the start of the row, and schedule the next one. end_us: of the row."""
        self.by_priority.clear()
        self._passed_us, self.pass_at_us = now_us, now_us + self._gap_us
        longest_us = min(LONGEST_PASS_GAP_US, (now_us - end_us) // PASSES_AN_AGE)
        self._gap_us = min(max(PASS_GAP_US, longest_us), self._gap_us * 2)

    def note_hint(self, priority: int, named: Sequence[int]) -> None:
        """Note what a hint names; if that is nothing, or much, have the next pass find all soon."""
        known = self.named.setdefault(priority, set())
        if named and len(known) < TARGET_TOMBSTONES:
            known.update(named)
        else:
            self.pass_at_us = min(self.pass_at_us, self._passed_us + PASS_GAP_US)

    def note_read(self, floors: Mapping[int, int]) -> None:
        """Note where the next reads begin: these went to their end, and so did those by name before."""
        self.by_priority.update(floors)
        for priority in floors:
            self.named.pop(priority, None)


@dataclass(slots=True)
class RememberedHead:
    """The head of a wide row as this consumer remembers it, and messages read ahead under its fence."""

    head: Head | None = None  # as last read, or as this consumer's last claim or lock left it
    fence: int | None = None  # the next claim's condition: no claim was made while it stands
    locked: bool = False  # this consumer holds the lock
    read_ahead: ReadAhead | None = None  # messages read ahead of the next claim
    read_us: int = 0  # when the head was last read; 0: it has to be read
    rival_us: int = 0  # when another consumer claimed here, as far as is known

    def note_read(self, head: Head, now_us: int) -> None:
        """Note a head that was read. An unexpected fence is the time of another consumer's claim."""
        if fence_of(head) != self.fence:
            self.rival_us = max(self.rival_us, fence_of(head) or 0)
            self.fence, self.read_ahead, self.locked = None, None, False
        self.head, self.read_us = head, now_us

    def forget(self) -> None:
        """Forget the head, which may have changed; the next claim reads it."""
        self.head, self.fence, self.locked, self.read_ahead = None, None, False, None

    def note_write(self, head: Head) -> None:
        """Note the head that an applied mutation left.

        A claim that took nothing leaves a lock that has run out as it was, which then counts as this
        consumer's. The fence still keeps claims apart, and the next claim here frees that lock.
        """
        self.head, self.fence = head, fence_of(head)
        self.locked = head.lock is not None and bool(head.lock.until_ms)

    def note_freed(self, changes: Iterable[SlotChange]) -> None:
        """Note slots that this consumer has freed without a claim.

        Their tallies did not change. A slot that changed since the head was read stays as it was read, with
        the tally that fits the rest of the head.
        """
        if self.head is None:
            return
        freed = {(row.priority, row.number, before): row for before, row in changes}
        slots = [freed.get((slot.priority, slot.number, slot.rev), slot) for slot in self.head.slots]
        self.head = replace(self.head, slots=tuple(slots))

    def expects_no_rival(self, now_us: int) -> bool:
        """Return whether no other consumer is likely to claim here: none has for a second."""
        return self.locked or now_us - self.rival_us >= RIVAL_WINDOW_US


@dataclass(slots=True)
class ReadMemory:
    """What one consumer remembers of reading the messages of a wide row."""

    budget: TombstoneBudget
    sizes: MessageSizes = field(default_factory=MessageSizes)  # shared by all wide rows of a queue
    looked_back_us: dict[int, int] = field(default_factory=dict)  # by priority: when it last looked back
    swept_us: dict[int, int] = field(default_factory=dict)  # by priority: when a sweep last reached its end
    retirement_pass: RetirementPass = field(default_factory=RetirementPass)
    floors: ReadFloors = field(default_factory=ReadFloors)  # of an open wide row
    named: dict[int, list[int]] = field(default_factory=dict)  # by priority: above the boundary, by name

    def note_taken(self, priority: int, after: int, passed: Sequence[int]) -> None:
        """Note the messages, in order, that a claim passed above a boundary, and what was named there."""
        named, last = self.named.pop(priority, []), passed[-1]
        if above := [id_ for id_ in named if id_ > last]:
            self.named[priority] = above
        between = [id_ for id_ in named if after < id_ < last]
        self.budget.note_taken(priority, after, sorted({*passed, *between}) if between else passed)


@dataclass(slots=True, eq=False)
class RowMemory:
    """One wide row in a consumer's memory: its key, what is known of it, and when to probe it again."""

    wide_row: WideRow
    end_us: int
    priorities: set[int]
    reads: ReadMemory
    remembered: RememberedHead = field(default_factory=RememberedHead)
    finished: list[Lease] = field(default_factory=list)  # leases with only acked messages: slots to free
    claims: int = 0
    left_until_ms: int = 0  # until then a claim of unknown outcome may hold messages
    assigned_elsewhere: bool = False  # another worker looks at this wide row first
    retired: bool = False
    probed_us: int = 0  # when a search last probed it
    emptied_us: int = 0  # when the head of the last claim was read, if that claim left nothing; else 0
    rest_until_us: int = 0  # there is nothing to do before this time

    @property
    def open(self) -> bool:
        """Return whether this is an open wide row."""
        return policy.has_no_cursor(self.wide_row)

    def note_hint(self, hint: Hint) -> None:
        """Note a hint: messages of an open wide row may stand below the floor."""
        if self.open:
            for priority in hint.priorities & self.priorities:
                self.reads.floors.note_hint(priority, hint.named)

    def known_head(self, spec: QueueSpec, now_us: int) -> Head | None:
        """Return the remembered head if a claim may go by it without a read.

        Nothing is known to lie unclaimed in the wide row, nobody seems to claim there, and the fence shows
        whether somebody did. A head that was not read for as long as a poll may rest is read again: only a
        read shows messages that no hint has named, and those that others have given back.
        """
        head = self.remembered.head
        if head is None or head.lock is None or head.lock.state is not LockState.FREE:
            return None
        is_alone = bool(self.emptied_us) and self.remembered.expects_no_rival(now_us)
        is_old = now_us - self.remembered.read_us >= MAX_UNSEEN_US or now_us >= self.retire_at_us(spec)
        return head if is_alone and not is_old and not self.open and policy.is_whole(head) else None

    def may_hold(self, priority: int, named: tuple[int, ...], now_us: int) -> bool:
        """Return whether these messages may be due here, and a claim may leave them above the boundary."""
        first, last = self.wide_row.time_shard * 1000, min(now_us, self.end_us)
        is_time = ids.lowest_at(first) <= named[0] and named[-1] <= ids.highest_at(last)
        few = len(self.reads.named.get(priority, ())) + len(named) <= MAX_NAMED_ABOVE
        return priority in self.priorities and is_time and few

    def has_current_head(self, now_us: int) -> bool:
        """Return whether a claim may go by the remembered head: it was read a moment ago, and in one piece.

        Its boundary has to be near the stored one, too. Otherwise a read from there might cross the
        tombstones of all that others have claimed and acked since.
        """
        remembered, unseen_us = self.remembered, now_us - self.remembered.read_us
        if remembered.head is None or unseen_us >= HEAD_REMEMBERED_US or not policy.is_whole(remembered.head):
            return False
        first_here = bool(self.emptied_us) and not self.assigned_elsewhere
        is_near = first_here or unseen_us < BOUNDARY_CURRENT_US
        return remembered.locked or (is_near and remembered.expects_no_rival(now_us))

    def retire_at_us(self, spec: QueueSpec) -> int:
        """Return when the wide row may be retired, because nothing acknowledged can land in it any more.

        That is never while another data centre may bring back messages that it acknowledged.
        """
        if not policy.rows_may_go(spec):
            return NEVER_US
        return policy.nothing_lands_from_us(spec, self.end_us, open_=self.open)
