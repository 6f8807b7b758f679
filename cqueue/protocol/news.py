"""What a process tells its own consumers of what it has sent, so that they need not look for it.

A message whose first write began after a claim had our fence, and was about to read the head, cannot have
been claimed by anybody else for as long as that fence stands; and what we have claimed since then ourselves
is remembered. So it can be claimed without being read. The boundary stays where it is meanwhile, so what
others send is found by the next claim that reads.

It can be claimed even while it is being written: a slot that lists what is not there (yet) does no harm, as
whoever takes it over looks what is. It is delivered once it is known to be stored, else given back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cqueue import ids
from cqueue.store.operations import MessageRow, WideRow

FEW = 100
"""Messages of one send whose ids are told as well."""
FEWER = 16
"""Of which the rows are, too."""

MOST_UNREAD = 100
"""Messages of a wide row that are claimed unread before one is read again."""

STRANGERS_US = 1_000_000
"""For so long after somebody else sent to a wide row everything there is read."""

moments = itertools.count(1)
"""What happens in this process, in order: a moment that was taken later is a higher number."""


class Underway:
    """A send under way, and afterwards what came of it.

    stored: the ids that are acknowledged; None for as long as that is not known.
    """

    __slots__ = ("stored",)

    def __init__(self) -> None:
        self.stored: frozenset[int] | None = None

    def has_stored(self, id_: int) -> bool:
        """Whether this message is acknowledged."""
        return self.stored is not None and id_ in self.stored

    def failed(self, id_: int) -> bool:
        """Whether it is over, and this message is not known to be stored."""
        return self.stored is not None and id_ not in self.stored


class News(NamedTuple):
    """Messages that were stored: where, of which priorities, and which ones, if they are few.

    rows: they themselves, if they are very few, and small. began: the moment before they were first written.
    received: whoever hears of them has received them meanwhile.
    sending: they are only about to be written, and told of again once they are stored.
    """

    wide_row: WideRow
    priorities: frozenset[int]
    ids: frozenset[int] = frozenset()
    rows: tuple[MessageRow, ...] = ()
    began: int = 0
    received: bool = False
    sending: Underway | None = None


def news_of(wide_row: WideRow, rows: Sequence[MessageRow], began: int) -> News:
    """The news of one flush that is acknowledged."""
    named = frozenset([row.id for row in rows]) if len(rows) <= FEW else frozenset[int]()
    told = tuple(rows) if len(rows) <= FEWER and None not in [row.body for row in rows] else ()
    return News(wide_row, frozenset([row.priority for row in rows]), named, told, began)


@dataclass(slots=True)
class Heard:
    """What this process has sent to one wide row since a claim was about to read its head."""

    since: int = 0  # that moment
    rows: dict[int, MessageRow] = field(default_factory=dict)
    sending: dict[int, Underway] = field(default_factory=dict)  # by id: of rows that we heard of too early
    whole: bool = False  # the rows are all that was sent and is not claimed
    granted: set[int] = field(default_factory=set)  # ids that claims have given
    unread: dict[int, set[int]] = field(default_factory=dict)  # by priority: given unread, above the boundary
    ids: set[int] = field(default_factory=set)  # of what was sent
    ids_before: set[int] = field(default_factory=set)  # and between the two head reads before
    strange: set[int] = field(default_factory=set)  # ids that were read, and we have not heard of
    stranger_us: int = 0  # when it was last clear that somebody else sends here

    def begin(self, now_us: int) -> None:
        """The head is about to be read, and the fence is ours; or if it is not, nothing is claimed unread."""
        if self.strange:
            self.stranger_us = now_us
        self.since = next(moments)
        self.ids_before, self.ids, self.strange = self.ids, set(), set()
        self.granted.clear()
        self.rows.clear()
        self.sending.clear()
        self.whole = True

    def hear(self, news: News) -> None:
        """This process has sent something."""
        if len(self.ids) < MOST_UNREAD:
            self.ids |= news.ids
        self.strange -= news.ids
        if news.received:
            return
        if not news.rows or news.began <= self.since or len(self.rows) >= MOST_UNREAD:
            self.whole = False
        else:
            self.rows |= {row.id: row for row in news.rows}
            if news.sending is not None:
                self.sending |= dict.fromkeys(news.ids, news.sending)

    def distrust(self) -> None:
        """What was sent until now may be deleted again: it has to be read."""
        self.rows.clear()
        self.sending.clear()
        self.whole = False

    def found(self, read: Iterable[int]) -> None:
        """A claim has read these: if we do not hear of them soon, somebody else sent them."""
        if len(self.strange) < MOST_UNREAD:
            self.strange.update(set(read) - self.ids - self.ids_before)

    def took(self, priority: int, taken: Sequence[int], *, read: bool) -> None:
        """A claim has given these."""
        self.granted.update(taken)
        if not read:
            self.unread.setdefault(priority, set()).update(taken)

    def passed(self, priority: int, boundary: int) -> None:
        """The boundary has moved, perhaps past what was given unread."""
        if self.unread.get(priority):
            self.unread[priority] = {id_ for id_ in self.unread[priority] if id_ > boundary}

    def knows_all(self, now_us: int) -> bool:
        """Whether nothing has to be read: all that is here is known, and others send nothing at present."""
        return self.whole and now_us - self.stranger_us >= STRANGERS_US

    def claimable(self, now_us: int) -> list[MessageRow]:
        """What can be claimed unread; empty where not all is known."""
        if not self.knows_all(now_us):
            return []
        due = ids.highest_at(now_us)
        return [
            row
            for id_, row in self.rows.items()
            if id_ <= due and id_ not in self.granted
            if id_ not in self.sending or not self.sending[id_].failed(id_)
        ]
