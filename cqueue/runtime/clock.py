"""Cluster time: the clock behind ids, due times and leases.

Cluster time is the median of several coordinators' clocks at the last synchronisation, carried on by this
machine's boot-time clock. So a step of this machine's wall clock changes nothing. A pause of a virtual
machine with all its clocks cannot be seen this way. Therefore a send is acknowledged only after a recent
synchronisation.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial

from cqueue.errors import NotDone, Unavailable
from cqueue.runtime import waiting

STALE_US = 30_000_000
"""Age of a synchronisation in µs (30 s) after which the clock is synchronised again before a send is
acknowledged."""
RETRY_US = 5_000_000
"""µs between two tries while synchronising fails: unchecked reads of the clock go on with the old offset."""
MAX_ROUNDS = 10
"""Rounds whose answers contradict each other in one synchronisation, at most."""
GIVE_UP_S = 2.0
"""Seconds after which one synchronisation asks no further round, because a caller is waiting for the time."""
FIRST_S = 10.0
"""The same for the first one, as long as a call takes by default: without it the call can do nothing. Where
dozens of processes start at once, answers are too slow for seconds."""
MAX_ROUND_TRIP_US = 200_000
"""Round trip in µs above which an answer is dropped: its error may be half of the trip, and ε (by default
500 ms) has to cover it."""
JUMP_US = 250_000
"""Change in µs of the gap between wall clock and boot-time clock that shows a pause or a step of this
machine. Half of the default ε, so that a jump too small to be noticed stays within ε."""
MAX_DIFFERENCE_US = 500_000
"""Difference in µs (the default ε) above which two clocks contradict each other."""
MEDIAN_ANSWERS = 3
"""Number of answers whose median is right although one of them is wrong."""


_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_us() -> int:
    """Return the µs since boot, including suspended time where the system counts it."""
    return time.clock_gettime_ns(_BOOT_TIME) // 1000


def wall_us() -> int:
    """Return the wall clock in µs since 1970. It is compared only with its own past."""
    return time.time_ns() // 1000


_STARTED_US = wall_us() - boot_us()


def steady_us() -> int:
    """Return the µs since 1970 as this process counts them: the wall clock at its start, never set since."""
    return _STARTED_US + boot_us()


class ClusterClock:
    """The cluster's time in µs since 1970. Thread-safe.

    Args:
        sample: asks several coordinators, and returns (server time, round trip) of each answer, in µs.
        local_us: a clock in µs that only runs forward.
        wall_us: the wall clock in µs, which shows pauses of this machine.
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
        self._mutex = waiting.lock()  # one caller asks; the others wait, and hold no thread of a loop's few
        self._pid = os.getpid()
        self._offset_us: int | None = None
        self._synced_us = 0
        self._tried_us = 0
        self._wall_gap_us = 0

    def now_us(self, *, checked: bool = False) -> int:
        """Return the cluster's time in µs since 1970.

        checked: synchronise first if the last synchronisation is older than 30 s or a clock has jumped.

        Raises:
            NotDone: no coordinator answers, and the clock was never synchronised, or `checked` requires it.
        """
        local_us = self._local_us()
        is_old = local_us - self._synced_us > STALE_US
        if self._offset_us is None or (checked and (is_old or self._has_jumped(local_us))):
            return self.sync()
        if is_old and local_us - self._tried_us > RETRY_US:
            try:
                return self.sync()
            except NotDone:
                local_us = self._local_us()
        return local_us + self._offset_us

    def guess_us(self) -> int:
        """Return the cluster's time as last known, else this machine's. Asks no coordinator."""
        return self._wall_us() if self._offset_us is None else self._local_us() + self._offset_us

    def _has_jumped(self, local_us: int) -> bool:
        return abs(self._wall_us() - local_us - self._wall_gap_us) > JUMP_US

    def sync(self) -> int:
        """Synchronise now. Return the cluster's time in µs since 1970.

        Raises:
            NotDone: no coordinator answers, or none within 200 ms, or two contradict each other. The first
                time they are asked for 10 s, later for 2 s, and for no longer than the call has.
            Closed: this process is a fork.
        """
        waiting.check_fork(self._pid)
        asked_us = self._local_us()
        limit_s = waiting.left_s(FIRST_S if self._offset_us is None else GIVE_UP_S)
        with self._mutex:
            if self._offset_us is not None and self._synced_us > asked_us:
                return self._local_us() + self._offset_us  # another caller synchronised meanwhile
            self._tried_us = self._local_us()
            shortest_us = self._tried_us + round(waiting.SHORTEST_S * 1e6)  # others may have used up the time
            until_us = max(asked_us + round(limit_s * 1e6), shortest_us)
            return waiting.in_thread(partial(self._ask, until_us))

    def _ask(self, until_us: int) -> int:
        rounds, insist = 0, True
        while insist:
            began_us = self._local_us()
            times = [server_us for server_us, trip_us in self._sample() if trip_us <= MAX_ROUND_TRIP_US]
            local_us = self._local_us()
            is_timely = bool(times) and local_us - began_us <= MAX_ROUND_TRIP_US
            rounds += is_timely
            insist = local_us < until_us and rounds < MAX_ROUNDS
            if is_timely:
                judged_us = self._judge(times, local_us, insist=insist)
                if judged_us is not None:
                    return self._set(judged_us, local_us)
        raise Unavailable(
            "the nodes' clocks disagree, so nobody knows the time; `cqueue doctor` compares them"
            if is_timely
            else f"no node told its time within {MAX_ROUND_TRIP_US // 1000} ms: the nodes, or this "
            "machine, are overloaded; try again"
        )

    def _judge(self, times: list[int], local_us: int, *, insist: bool) -> int | None:
        """Return the median of the answers, or None if they contradict each other.

        With fewer than three answers only those count that a majority agrees on; this machine's own cluster
        time votes too, unless the machine was paused. insist: with one answer that contradicts it, return
        None so that the node is asked again. If the node keeps its answer, its clock was set, and the answer
        counts.
        """
        if len(times) >= MEDIAN_ANSWERS:
            return int(statistics.median(times))
        trusted = self._offset_us is not None and not self._has_jumped(local_us)
        voices = [*times, local_us + (self._offset_us or 0)] if trusted else times
        middle_us = statistics.median_low(voices)
        if sum(abs(voice - middle_us) <= MAX_DIFFERENCE_US for voice in voices) * 2 > len(voices):
            near = [time_us for time_us in times if abs(time_us - middle_us) <= MAX_DIFFERENCE_US]
            return int(statistics.median(near))
        return times[0] if len(times) == 1 and not insist else None

    def _set(self, cluster_us: int, local_us: int) -> int:
        self._offset_us = cluster_us - local_us
        self._synced_us = local_us
        self._wall_gap_us = self._wall_us() - local_us
        return cluster_us


class LocalClock(ClusterClock):
    """The clock of a store in this process, which each client reads directly. Thread-safe.

    A client that kept an offset would be behind by as long as its thread stood still while it took it, and
    would not receive what another client has just sent.

    read_us: the store's clock in µs since 1970.
    """

    def __init__(self, read_us: Callable[[], int]) -> None:
        super().__init__(lambda: [(read_us(), 0)], local_us=read_us)
        self._offset_us = 0

    def sync(self) -> int:
        """Return the time: there is nothing to synchronise."""
        return self._local_us()
