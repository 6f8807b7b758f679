"""The doorbell: a process that has sent something notifies a process that waits for it, by one datagram.

A datagram is only a hint. Consumers find every message by polling as well, so a datagram that is lost, late,
repeated, forged or misdirected costs at most a poll.
"""

from cqueue.doorbell.datagram import HintCounts, Ring
from cqueue.doorbell.directory import Target
from cqueue.doorbell.doorbell import Doorbell
from cqueue.doorbell.listener import Address

__all__ = ["Address", "Doorbell", "HintCounts", "Ring", "Target"]
