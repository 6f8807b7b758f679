"""Decide when a member of a subscription reads, and when it writes its positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cqueue.log.protocol.spec import LogSpec
from cqueue.message import check_duration, check_limit

QUIET_CHECKPOINT_S: Final = 60.0
"""Seconds after which the position of a partition without records moves on; a third of the ttl if that is
less. A position must not become older than what the log remembers."""
MAX_BUFFER: Final = 100_000
"""Records that a buffer, or the records between checkpoints, may be set to: bounds memory and repeats."""

_SHORTEST, _LONGEST = timedelta(milliseconds=1), timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """How often a member reads and writes positions, and how many records it buffers."""

    shortest_poll_s: float = 0.1
    longest_poll_s: float = 2.0
    checkpoint_s: float = 1.0
    checkpoint_records: int = 1000
    buffer: int = 1000


def member_options_of(
    poll_interval: timedelta,
    max_poll_interval: timedelta,
    checkpoint_interval: timedelta,
    checkpoint_records: int,
    buffer: int,
) -> MemberOptions:
    """Check the options of a subscription that set its pace.

    Raises:
        BadInput: an option is out of range.
    """
    return MemberOptions(
        check_duration("poll_interval", poll_interval, _SHORTEST, _LONGEST),
        check_duration("max_poll_interval", max_poll_interval, poll_interval, _LONGEST),
        check_duration("checkpoint_interval", checkpoint_interval, timedelta(), _LONGEST),
        check_limit(checkpoint_records, MAX_BUFFER, "checkpoint_records"),
        check_limit(buffer, MAX_BUFFER, "buffer"),
    )


class PollTimer:
    """Decides when to read all partitions: pauses double while reads find nothing."""

    def __init__(self, options: MemberOptions) -> None:
        self._options = options
        self._pause_s = options.shortest_poll_s
        self._next_s = 0.0

    def rest_s(self, now_s: float) -> float:
        """Return the seconds until the next read is due."""
        return self._next_s - now_s

    def found_some(self) -> None:
        """Note that a read found records: the next pause is the shortest."""
        self._pause_s = self._options.shortest_poll_s

    def done(self, now_s: float) -> None:
        """Note that a read begun at `now_s` reached the end of all partitions."""
        self._next_s = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, self._options.longest_poll_s)


class CheckpointTimer:
    """Decides when to write positions. since: records done since the last checkpoint."""

    def __init__(self, options: MemberOptions, spec: Callable[[], LogSpec], now_s: float) -> None:
        self.since = 0
        self._options = options
        self._spec = spec
        self._last_s = now_s
        self._quiet_s = now_s + self._quiet_for_s()

    def _quiet_for_s(self) -> float:
        ttl_s = self._spec().ttl_s
        return min(QUIET_CHECKPOINT_S, ttl_s / 3) if ttl_s else QUIET_CHECKPOINT_S

    def is_due(self, now_s: float) -> bool:
        """Return whether a checkpoint is due."""
        late = now_s - self._last_s >= self._options.checkpoint_s
        some = bool(self.since) and (late or self.since >= self._options.checkpoint_records)
        return some or self.is_quiet_due(now_s)

    def is_quiet_due(self, now_s: float) -> bool:
        """Return whether positions of partitions without records are due as well."""
        return now_s >= self._quiet_s

    def begun(self, now_s: float, left: int) -> None:
        """Note that a checkpoint begins. left: partitions with done records above their position."""
        self._last_s, self.since = now_s, left
        if self.is_quiet_due(now_s):
            self._quiet_s = now_s + self._quiet_for_s()
