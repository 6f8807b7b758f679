"""Define the hint: what a consumer is told of a send, where to look and perhaps for which messages."""

from __future__ import annotations

from typing import NamedTuple

from cqueue.store.operations import WideRow

MAX_NAMED = 8
"""Messages that a hint names at most: a datagram stays small, and a claim of more reads the wide row."""


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
