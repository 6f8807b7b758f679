"""Wakes consumers when something is sent to their queue, in this process or through the doorbell."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Lock

from cqueue.doorbell import Doorbell, HintCounts, Target
from cqueue.protocol.hint import Hint
from cqueue.protocol.poll import Share
from cqueue.store.decode import LAST_MS, MOST_OPEN_SHARDS, MOST_SHARDS
from cqueue.store.operations import WideRow


class Sleeper:
    """One consumer's side: what it was told since it last looked, and how it waits to be told.

    wake: called as well, on the telling thread, for a caller that waits for many consumers at once.
    share: which wide rows this consumer looks at first; None for all.
    """

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self._rung = Lock()  # no `Event`: a Ctrl-C could leave that locked, and senders would wait for it
        self._rung.acquire()
        self.wake = wake
        self.share: Share | None = None
        self.told: deque[Hint] = deque(maxlen=1000)
        self.waiting = False

    def sleep(self, seconds: float) -> bool:
        """Wait until told something, or so many seconds; True if told."""
        self.waiting = True
        try:
            return self._rung.acquire(timeout=seconds)
        finally:
            self.waiting = False

    def rouse(self) -> None:
        """End its sleep, or the next one."""
        with suppress(RuntimeError):  # it was roused before
            self._rung.release()


class Bell:
    """All consumers of one queue in this process. Thread-safe.

    doorbell: by which other processes are told, and tell this one; None: there is only this one.
    """

    def __init__(self, doorbell: Doorbell | None = None) -> None:
        self._doorbell = doorbell
        self._mutex = Lock()
        self._sleepers: list[Sleeper] = []
        self._partition: str | None = None  # that others may ring at
        self.deletions = 0  # how often messages were deleted that may have been read ahead

    def join(self, wake: Callable[[], None] | None = None) -> Sleeper:
        """A new consumer."""
        sleeper = Sleeper(wake)
        with self._mutex:
            self._sleepers.append(sleeper)
        return sleeper

    def leave(self, sleeper: Sleeper) -> None:
        """A consumer has been closed."""
        with self._mutex:
            self._sleepers.remove(sleeper)
            if not self._sleepers:
                self._serve(None)

    def serve(self, partition: str) -> None:
        """A consumer looks for messages in the queue's wide rows of this partition name from now on."""
        with self._mutex:
            self._serve(partition)

    def _serve(self, partition: str | None) -> None:
        before, self._partition = self._partition, partition
        if self._doorbell is None or partition == before:
            return
        if before is not None:
            self._doorbell.forget(before, self._heard)
        if partition is not None:
            self._doorbell.listen(partition, self._heard)

    def _heard(self, place: bytes, flags: int) -> None:
        partition = self._partition
        hint = None if partition is None else hint_of(partition, place, flags)
        if hint is not None:
            self._tell(hint)

    def ring(self, hint: Hint, due_us: int = 0) -> None:
        """Messages were stored: tell one consumer, here or in another process.

        due_us: when the last of them is due, by a clock that may be ahead of others.
        """
        if self._doorbell is not None:
            target, flags = target_of(hint, here=bool(self._sleepers))
            if not self._doorbell.ring(target, flags, due_us):
                return
        self._tell(hint)

    def _tell(self, hint: Hint) -> None:
        """Tell one consumer."""
        with self._mutex:
            if not self._sleepers:
                return
            chosen = self._chosen(hint.wide_row)
            chosen.told.append(hint)
            chosen.rouse()
        if chosen.wake is not None:
            chosen.wake()

    def pass_on(self) -> None:
        """Have other processes told of what consumers of this one were told of, and cannot look at."""
        if self._doorbell is None:
            return
        for sleeper in self._sleepers:
            with suppress(IndexError):  # nothing is left, or a poll has taken it
                while True:
                    target, flags = target_of(sleeper.told.popleft(), here=False)
                    self._doorbell.ring(target._replace(passed=True), flags)

    def _chosen(self, wide_row: WideRow) -> Sleeper:
        """Choose a consumer that waits; else, of those that poll on being woken, one that looks there first.

        Consumers of one dispatcher divide the wide rows: each claims while another one claims elsewhere.
        """
        for sleeper in self._sleepers:
            if sleeper.waiting:
                return sleeper
        polling = [sleeper for sleeper in self._sleepers if sleeper.wake is not None] or self._sleepers
        return next((one for one in polling if one.share and one.share(wide_row)), polling[0])

    @property
    def has_doorbell(self) -> bool:
        """Whether other processes are told, and tell this one."""
        return self._doorbell is not None

    @property
    def counts(self) -> HintCounts:
        """Datagrams of this client so far, of all its queues."""
        return HintCounts() if self._doorbell is None else replace(self._doorbell.counts)

    def deleted(self) -> None:
        """All that was sent until now may have been deleted: it has to be looked for."""
        self.deletions += 1


def target_of(hint: Hint, *, here: bool) -> tuple[Target, int]:
    """A hint as the doorbell carries it. here: consumers of this process may be told as well."""
    queue, time_shard, shard = hint.wide_row
    target = Target(queue, b"%d\0%d" % (time_shard, shard), here=here)
    return target, sum(1 << priority for priority in hint.priorities)


def hint_of(partition: str, place: bytes, flags: int) -> Hint | None:
    """What a ring says; None if it is nothing that a sender of a queue would say."""
    try:
        time_shard, shard = map(int, place.split(b"\0"))
    except ValueError:
        return None
    priorities = frozenset(priority for priority in range(10) if flags >> priority & 1)
    if not priorities or not 0 <= time_shard <= LAST_MS or not -MOST_OPEN_SHARDS <= shard < MOST_SHARDS:
        return None
    return Hint(WideRow(partition, time_shard, shard), priorities)
