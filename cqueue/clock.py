"""Cluster time: what ids, due times and leases come from.

It is the median of several coordinators' clocks at the last synchronisation, carried on by this
machine's boot-time clock. Stepping the wall clock here changes nothing. What it cannot see is a
virtual machine that was paused with all its clocks; so a send is acknowledged only after a
synchronisation that is not too old.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from threading import Lock

from cqueue.errors import NotDone, Unavailable

STALE_US = 30_000_000
"""After so long the clock is synchronised again before a send is acknowledged."""
RETRY_US = 5_000_000
SAMPLES = 10
ENOUGH_US = 2_000_000
"""Nobody is asked again after so long: whoever wants to know the time is waiting."""
LONGEST_TRIP_US = 200_000
"""An answer that took longer says too little: half of it is the error, and ε has room for little more."""
JUMP_US = 250_000
"""A change between wall and boot-time clock that betrays a pause or a step: synchronise again."""
AGREE_US = 500_000
"""Of two that differ by more one is wrong, and nobody knows which."""
MANY = 3
"""The median of so many answers is right though one of them is wrong."""


_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_us() -> int:
    """µs since boot, suspended time included where the system counts it."""
    return time.clock_gettime_ns(_BOOT_TIME) // 1000


def wall_us() -> int:
    """The wall clock in µs since 1970; only ever compared with its own past."""
    return time.time_ns() // 1000


class ClusterClock:
    """The cluster's time in µs since 1970. Thread-safe.

    Args:
        sample: asks several coordinators; gives (server time, round trip) of each answer, in µs.
        local_us: a clock that only runs forward.
        wall_us: the wall clock, to notice pauses.
    """

    def __init__(
        self,
        sample: Callable[[], list[tuple[int, int]]],
        *,
        local_us: Callable[[], int] = boot_us,
        wall_us: Callable[[], int] = wall_us,
    ) -> None:
        self._sample = sample
        self._local_us = local_us
        self._wall_us = wall_us
        self._mutex = Lock()
        self._offset_us: int | None = None
        self._synced_us = 0
        self._tried_us = 0
        self._wall_gap_us = 0
        self.spread_us = 0

    def now_us(self, *, checked: bool = False) -> int:
        """The cluster's time. checked: never from a synchronisation older than 30 s.

        Raises:
            NotDone: no coordinator answers, and there was no synchronisation yet, or `checked` needs one.
        """
        local_us = self._local_us()
        if self._offset_us is None or (checked and self._is_stale(local_us)):
            return self.sync()
        if local_us - self._synced_us > STALE_US and local_us - self._tried_us > RETRY_US:
            try:
                return self.sync()
            except NotDone:
                local_us = self._local_us()
        return local_us + self._offset_us

    def guess_us(self) -> int:
        """The cluster's time as last known, or this machine's if it never was; asks nobody."""
        return self._wall_us() if self._offset_us is None else self._local_us() + self._offset_us

    def _is_stale(self, local_us: int) -> bool:
        return local_us - self._synced_us > STALE_US or self._has_jumped(local_us)

    def _has_jumped(self, local_us: int) -> bool:
        return abs(self._wall_us() - local_us - self._wall_gap_us) > JUMP_US

    def sync(self) -> int:
        """Synchronise now; the cluster's time.

        Raises:
            NotDone: no coordinator answers, or none in time to be of use.
        """
        asked_us = self._local_us()
        with self._mutex:
            if self._offset_us is not None and self._synced_us > asked_us:
                return self._local_us() + self._offset_us  # another thread did, while this one waited
            self._tried_us = self._local_us()
            for tries_left in reversed(range(SAMPLES)):
                began_us = self._local_us()
                times = [server_us for server_us, trip_us in self._sample() if trip_us <= LONGEST_TRIP_US]
                local_us = self._local_us()
                insist = bool(tries_left) and local_us - self._tried_us < ENOUGH_US
                if times and local_us - began_us <= LONGEST_TRIP_US:
                    judged_us = self._judge(times, local_us, insist=insist)
                    if judged_us is not None:
                        self.spread_us = max(times) - min(times)
                        return self._set(judged_us, local_us)
                if not insist:
                    break
            raise Unavailable(
                f"no coordinator tells its time within {LONGEST_TRIP_US // 1000} ms, or two disagree about it"
            )

    def _judge(self, times: list[int], local_us: int, *, insist: bool) -> int | None:
        """The median of the answers. Of fewer than three it counts only what most voices agree on.

        Our own time is a voice then, unless this machine was paused. insist: ask again rather than take a
        single answer that contradicts it; if that stays so, the clock of a cluster of one node was set.
        """
        if len(times) >= MANY:
            return int(statistics.median(times))
        trusted = self._offset_us is not None and not self._has_jumped(local_us)
        voices = [*times, local_us + (self._offset_us or 0)] if trusted else times
        middle_us = statistics.median_low(voices)
        if sum(abs(voice - middle_us) <= AGREE_US for voice in voices) * 2 > len(voices):
            near = [time_us for time_us in times if abs(time_us - middle_us) <= AGREE_US]
            return int(statistics.median(near))
        return times[0] if len(times) == 1 and not insist else None

    def _set(self, cluster_us: int, local_us: int) -> int:
        self._offset_us = cluster_us - local_us
        self._synced_us = local_us
        self._wall_gap_us = self._wall_us() - local_us
        return cluster_us
