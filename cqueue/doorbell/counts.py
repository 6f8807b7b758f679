"""What a client counts of its doorbell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(slots=True)
class HintCounts:
    """Datagrams by which processes tell each other of messages, of one client since it was made.

    Each count only grows.

    Attributes:
        sent: handed to the network; nobody knows how many arrived.
        unsent: refused by the network.
        received: made by senders of this keyspace.
        deferred: of those received, how many caused no look at once, and perhaps one together: they came too
            often, or from a sender whose clock is ahead.
        misdirected: of those received, how many were of a queue that nobody here waits for any more.
        forged: received, and not made by a sender of this keyspace, or damaged on the way.
    """

    sent: int = 0
    unsent: int = 0
    received: int = 0
    deferred: int = 0
    misdirected: int = 0
    forged: int = 0


def added(counts: Iterable[HintCounts]) -> HintCounts:
    """The counts of several clients together."""
    total = HintCounts()
    for one in counts:
        for each in fields(HintCounts):
            setattr(total, each.name, getattr(total, each.name) + getattr(one, each.name))
    return total
