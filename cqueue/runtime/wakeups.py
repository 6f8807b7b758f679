"""Wake consumers when a message is sent to their queue, in this process or (by the doorbell) in another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Lock, RLock

from cqueue import ids
from cqueue.doorbell import Doorbell, HintCounts, Ring, Target
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.poll import Share
from cqueue.protocol.row_memory import Hint
from cqueue.runtime import waiting
from cqueue.runtime.logs import describe, logger
from cqueue.runtime.sequences import parts
from cqueue.store.decode import LAST_MS, MOST_OPEN_SHARDS, MOST_SHARDS
from cqueue.store.operations import WideRow

ID_BYTES = 16
"""Bytes of a message's id in a datagram."""


class HintInbox:
    """One consumer's mailbox: the hints since its last poll, and a wait that a hint ends.

    wake: called at each hint as well, on the sending thread, for a caller that waits for many consumers.
    share: the wide rows that this consumer looks at first; None for all.
    """

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        # No `Event`: a Ctrl-C could leave an Event locked, and senders would hang.
        self._signal = waiting.lock()
        self._signal.acquire()
        self.wake = wake
        self.share: Share | None = None
        self.hints: deque[Hint] = deque(maxlen=1000)
        self.waiting = False

    def sleep(self, seconds: float) -> bool:
        """Wait for a hint, at most `seconds`. Return True if there was one."""
        self.waiting = True
        try:
            return self._signal.acquire(timeout=seconds)
        finally:
            self.waiting = False

    def wake_up(self) -> None:
        """End the consumer's present sleep, or its next one."""
        with suppress(RuntimeError):  # already roused
            self._signal.release()


class Wakeups:
    """The consumers of one queue in this process. Thread-safe.

    doorbell: exchanges hints with other processes. None: hints stay in this process.
    gate: admits one suspect at a time, a message that may have killed its holder, to all of them.
    """

    def __init__(self, doorbell: Doorbell | None = None, gate: SuspectGate | None = None) -> None:
        self.gate = gate or SuspectGate(RLock())
        self._doorbell = doorbell
        self._mutex = Lock()
        self._inboxes: list[HintInbox] = []
        self._partition: str | None = None  # for which the doorbell takes hints from other processes
        self.deletions = 0  # purges and cancels so far: after each, messages read ahead may be gone

    def join(self, inbox: HintInbox, partition: str) -> None:
        """Tell a consumer that polls of messages from now on, also of those that other processes send.

        partition: the queue's partition name.
        """
        with self._mutex:
            if inbox not in self._inboxes:
                self._inboxes.append(inbox)
            self._serve(partition)

    def leave(self, inbox: HintInbox) -> None:
        """Remove a consumer that has been closed, if it had joined."""
        with self._mutex:
            if inbox in self._inboxes:
                self._inboxes.remove(inbox)
            if not self._inboxes:
                self._serve(None)

    def _serve(self, partition: str | None) -> None:
        before = self._partition
        if partition == before:
            return
        if self._doorbell is not None and before is not None:
            self._doorbell.forget(before, self._heard)
        if self._doorbell is not None and partition is not None:
            self._doorbell.listen(partition, self._heard)
        self._partition = partition  # the last step: what a Ctrl-C ends is done again

    def _heard(self, ring: Ring) -> None:
        partition = self._partition
        hint = None if partition is None else hint_of(partition, ring)
        if hint is not None:
            self._tell(hint)

    def ring(self, hint: Hint, due_us: int = 0) -> None:
        """Tell one consumer, here or in another process, that messages were stored.

        due_us: due time of the last of them in µs since 1970, by a clock that may be ahead of others.
        """
        if self._doorbell is not None:
            target = target_of(hint, here=bool(self._inboxes))
            if not self._doorbell.ring(target, _flags(hint), due_us, _details(hint)):
                return
        self._tell(hint)

    def _tell(self, hint: Hint) -> None:
        """Tell one consumer."""
        with self._mutex:
            if not self._inboxes:
                return
            chosen = self._chosen(hint.wide_row)
            chosen.hints.append(hint)
            chosen.wake_up()
        if chosen.wake is not None:
            try:
                chosen.wake()
            except Exception as exc:  # noqa: BLE001 - it is the application's, and the send has succeeded
                logger("cqueue.consumer").error("wake_failed", error=describe(exc))

    def pass_on(self) -> None:
        """Send the hints that consumers of this process have not used yet to other processes."""
        if self._doorbell is None:
            return
        for inbox in self._inboxes:
            with suppress(IndexError):  # no hint is left, or a poll took the last one
                while True:
                    hint = inbox.hints.popleft()
                    target = target_of(hint, here=False)._replace(passed=True)
                    self._doorbell.ring(target, _flags(hint), details=_details(hint))

    def _chosen(self, wide_row: WideRow) -> HintInbox:
        """Choose a consumer that waits; else, of those that poll on being woken, one that looks there first.

        Consumers of one dispatcher divide the wide rows: each claims while another one claims elsewhere.
        """
        for inbox in self._inboxes:
            if inbox.waiting:
                return inbox
        polling = [inbox for inbox in self._inboxes if inbox.wake is not None] or self._inboxes
        return next((one for one in polling if one.share and one.share(wide_row)), polling[0])

    @property
    def has_doorbell(self) -> bool:
        """Whether hints are exchanged with other processes."""
        return self._doorbell is not None

    @property
    def counts(self) -> HintCounts:
        """Count the datagrams that this client has sent and received so far, for all its queues."""
        return HintCounts() if self._doorbell is None else replace(self._doorbell.counts)

    def deleted(self) -> None:
        """Make consumers check that messages they have read ahead still exist: some may have been deleted."""
        self.deletions += 1


def target_of(hint: Hint, *, here: bool) -> Target:
    """Return the doorbell's target of a hint. here: consumers of this process may get the hint as well."""
    queue, time_shard, shard = hint.wide_row
    return Target(queue, b"%d\0%d" % (time_shard, shard), here=here)


def _flags(hint: Hint) -> int:
    return sum(1 << priority for priority in hint.priorities)


def _details(hint: Hint) -> bytes:
    return b"".join(map(ids.to_bytes, hint.named))


def _named(details: bytes) -> tuple[int, ...]:
    """Return the ids in details, without repetitions; none if they are not what `_details` makes."""
    if len(details) % ID_BYTES:
        return ()
    named = tuple(sorted(set(map(ids.from_bytes, parts(details, ID_BYTES)))))
    return named if named == ids.lengthened(named) else ()  # no id beyond its pack


def hint_of(partition: str, ring: Ring) -> Hint | None:
    """Decode a hint from the doorbell; None if no sender of a queue can have written it."""
    try:
        time_shard, shard = map(int, ring.place.split(b"\0"))
    except ValueError:
        return None
    priorities = frozenset(priority for priority in range(10) if ring.flags >> priority & 1)
    if not priorities or not 0 <= time_shard <= LAST_MS or not -MOST_OPEN_SHARDS <= shard < MOST_SHARDS:
        return None
    named = _named(ring.details) if len(priorities) == 1 else ()
    return Hint(WideRow(partition, time_shard, shard), priorities, named)
