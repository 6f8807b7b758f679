"""The doorbell: a process that has sent something tells another one that waits for it, by one datagram.

A datagram is a hint and nothing else. Polling stays the truth: a datagram that is lost, late, repeated,
forged or misdirected costs at most a poll.
"""

from cqueue.doorbell.counts import HintCounts
from cqueue.doorbell.datagram import Ring
from cqueue.doorbell.directory import Target
from cqueue.doorbell.doorbell import Doorbell
from cqueue.doorbell.listener import Address

__all__ = ["Address", "Doorbell", "HintCounts", "Ring", "Target"]
