"""How often a member of a subscription reads, and writes its positions down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cqueue.errors import BadInput
from cqueue.log.protocol.spec import LogSpec
from cqueue.message import check_duration

QUIET_CHECKPOINT_S: Final = 60.0
"""A partition without records moves on so often, or sooner where records do not live long: its position
must not become older than what the log remembers."""
MAX_BUFFER: Final = 100_000

_SHORTEST, _LONGEST = timedelta(milliseconds=1), timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often to look and to check in."""

    shortest_poll_s: float = 0.1
    longest_poll_s: float = 2.0
    checkpoint_s: float = 1.0
    checkpoint_records: int = 1000
    buffer: int = 1000


def pace_of(
    poll_interval: timedelta,
    max_poll_interval: timedelta,
    checkpoint_interval: timedelta,
    checkpoint_records: int,
    buffer: int,
) -> Pace:
    """How often to look and to check in.

    Raises:
        BadInput: out of range.
    """
    for name, value in (("checkpoint_records", checkpoint_records), ("buffer", buffer)):
        if type(value) is not int or not 1 <= value <= MAX_BUFFER:
            raise BadInput(f"{name} is {value!r}; it goes from 1 to {MAX_BUFFER:,}")
    return Pace(
        check_duration("poll_interval", poll_interval, _SHORTEST, _LONGEST),
        check_duration("max_poll_interval", max_poll_interval, poll_interval, _LONGEST),
        check_duration("checkpoint_interval", checkpoint_interval, timedelta(), _LONGEST),
        checkpoint_records,
        buffer,
    )


class Polls:
    """When to read all partitions: where nothing new is found, after longer and longer pauses."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._pause_s = pace.shortest_poll_s
        self._next_s = 0.0

    def rest_s(self, now_s: float) -> float:
        """How long until the next one."""
        return self._next_s - now_s

    def found_some(self) -> None:
        """There was something."""
        self._pause_s = self._pace.shortest_poll_s

    def done(self, now_s: float) -> None:
        """One that began then has read all there was."""
        self._next_s = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, self._pace.longest_poll_s)


class Checkpoints:
    """When to write positions down. since: records done since the last time."""

    def __init__(self, pace: Pace, spec: Callable[[], LogSpec], now_s: float) -> None:
        self.since = 0
        self._pace = pace
        self._spec = spec
        self._last_s = now_s
        self._quiet_s = now_s + self._quiet_for_s()

    def _quiet_for_s(self) -> float:
        ttl_s = self._spec().ttl_s
        return min(QUIET_CHECKPOINT_S, ttl_s / 3) if ttl_s else QUIET_CHECKPOINT_S

    def is_due(self, now_s: float) -> bool:
        """Whether to write something down."""
        late = now_s - self._last_s >= self._pace.checkpoint_s
        some = bool(self.since) and (late or self.since >= self._pace.checkpoint_records)
        return some or self.is_quiet_due(now_s)

    def is_quiet_due(self, now_s: float) -> bool:
        """Whether partitions without records are to move on as well."""
        return now_s >= self._quiet_s

    def begun(self, now_s: float, left: int) -> None:
        """One is being made. left: how many partitions cannot be written down to where they are done."""
        self._last_s, self.since = now_s, left
        if self.is_quiet_due(now_s):
            self._quiet_s = now_s + self._quiet_for_s()
