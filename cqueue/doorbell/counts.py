"""Count what a client's doorbell does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(slots=True)
class HintCounts:
    """Counts of a client's datagrams since it was made; each count only grows.

    Attributes:
        sent: datagrams handed to the network; nobody knows how many arrived.
        unsent: datagrams that the network refused.
        received: datagrams from senders of this keyspace.
        deferred: of those received, datagrams that caused no poll at once, and perhaps one together: they
            came too often, or from a sender whose clock is ahead.
        misdirected: of those received, datagrams of a queue or log that nobody here waits for any more.
        forged: datagrams not made by a sender of this keyspace, or damaged on the way.
    """

    sent: int = 0
    unsent: int = 0
    received: int = 0
    deferred: int = 0
    misdirected: int = 0
    forged: int = 0


def added(counts: Iterable[HintCounts]) -> HintCounts:
    """Return the sum of several clients' counts."""
    total = HintCounts()
    for one in counts:
        for each in fields(HintCounts):
            setattr(total, each.name, getattr(total, each.name) + getattr(one, each.name))
    return total
