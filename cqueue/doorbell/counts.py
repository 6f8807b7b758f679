"""What a process counts of its doorbell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Datagrams of one client since it was made. Each one only grows.

    Attributes:
        sent: handed to the network; nobody knows how many arrived.
        unsent: that the network would not take.
        received: of senders of this keyspace.
        merged: of those received, how many came too often to be told at once.
        misdirected: of those received, how many were for a queue that nobody here waits for any more.
        forged: received, and not made by a sender of this keyspace, or damaged on the way.
    """

    sent: int = 0
    unsent: int = 0
    received: int = 0
    merged: int = 0
    misdirected: int = 0
    forged: int = 0
