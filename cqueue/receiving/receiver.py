"""A consumer's polls: choose the wide rows to claim from, and keep state between two claims."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from cqueue.errors import CqueueError, NotDone
from cqueue.protocol.claim import claim
from cqueue.protocol.hint import Hint
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.lock import unlock
from cqueue.protocol.poll import Poll
from cqueue.protocol.work import Reason
from cqueue.received import ReceivedMessage
from cqueue.receiving.claimed import ClaimedMessages
from cqueue.receiving.interface import Found
from cqueue.receiving.settler import Settler
from cqueue.runtime.catalog import PAUSED, Catalog, QueueEntry
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.wakeups import Wakeups
from cqueue.store.operations import WideRow

NO_SUSPECTS = SuspectGate(shut=True)
"""The gate of prefetches, which lets no suspect through: a suspect has to be handled at once."""


class Receiver:
    """Claims messages of one queue. One thread at a time may use it.

    gate: lets one suspect at a time through, a message that may have killed its holder.
    wake: called as well when a hint reaches this consumer.
    """

    def __init__(
        self,
        catalog: Catalog,
        driver: BlockingDriver,
        wakeups: Wakeups,
        *,
        settler: Settler,
        gate: SuspectGate,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._entry: Callable[[], QueueEntry] = partial(catalog.entry, settler.name)
        self._driver = driver
        self._wakeups = wakeups
        self._settler = settler
        self._claimed = ClaimedMessages(driver, settler)
        self._gate = gate
        self.inbox = wakeups.join(wake)
        self._poll: Poll | None = None
        self._deletions = 0  # their count at the last poll
        self._sought_suspect = False  # the last receive looked for a suspect
        self._closed = False
        self.last = Found()
        self.visibility_s = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self._entry().row.state == PAUSED

    def look(self, want: int, *, stay: bool, ahead: bool = False) -> list[ReceivedMessage]:
        """Poll once as `_look`, measured if somebody asks."""
        meter = self._driver.meter
        if meter is None:
            return self._look(want, stay=stay, ahead=ahead)
        since_s, name = meter.now_s(), self._settler.name
        try:
            messages = self._look(want, stay=stay, ahead=ahead)
        except CqueueError as exc:
            meter.failed("claim", name, [exc])
            raise
        if messages:
            meter.took("claim", name, since_s)
        return messages

    def _look(self, want: int, *, stay: bool, ahead: bool) -> list[ReceivedMessage]:
        """Poll once: claim from the wide rows that may have work, until one gives messages.

        Args:
            want: messages to return, at most.
            stay: keep the lock of a wide row that has more messages.
            ahead: the messages are prefetched, so no suspect is claimed.
        """
        entry = self._entry()
        poll, run = self._polling(entry), self._driver.run
        poll.gate, self.visibility_s = NO_SUSPECTS if ahead else self._gate, entry.spec.visibility_ms / 1000
        if entry.row.state == PAUSED:
            run(poll.let_go())
            return []
        self.last = self.last._replace(told=False)
        run(poll.begin(entry.spec, self._hints(poll), self.inbox.share))
        while (claimed := run(poll.next_claim(entry.spec, want, stay=stay))) is not None:
            if messages := self._claimed.accept(claimed, entry.spec):
                self.last = Found(told=claimed.reason is Reason.HINT, more=poll.has_work)
                return messages
        run(poll.tidy())
        return []

    def look_at(self, wide_row: WideRow, priorities: frozenset[int], want: int) -> list[ReceivedMessage]:
        """Claim from one wide row that is known to have messages, without a search."""
        entry = self._entry()
        if entry.row.state == PAUSED:
            return []
        view = self._polling(entry).registry.add(entry.spec, wide_row, priorities)
        try:
            claimed = self._driver.run(claim(view, entry.spec, self._gate, want, stay=False))
        finally:
            with suppress(CqueueError):  # the claim may have failed
                self._driver.run(unlock(view))
        return self._claimed.accept(claimed, entry.spec)

    # ── suspects ──

    def is_suspects_turn(self) -> bool:
        """Decide whether to look for a suspect now: one is known, none is held, and the last look was for
        others.

        So suspects and other messages take turns.
        """
        poll = self._poll
        self._sought_suspect = not self._sought_suspect and poll is not None and poll.has_left_suspects
        return self._sought_suspect and not self._gate.busy(self._now_ms())

    def look_for_suspect(self, want: int) -> list[ReceivedMessage]:
        """Claim a suspect, which comes alone. If it is gone, claim up to `want` other messages."""
        entry, poll = self._entry(), self._poll
        if poll is None or not poll.is_of(entry.row, entry.spec) or entry.row.state == PAUSED:
            return []
        claimed = self._driver.run(poll.claim_suspect(entry.spec, want))
        return self._claimed.accept(claimed, entry.spec)

    # ── inside ──

    def _hints(self, poll: Poll) -> list[Hint]:
        """Return the hints since the last poll."""
        hints, deletions = self.inbox.hints, self._wakeups.deletions
        if deletions != self._deletions:
            self._deletions = deletions
            poll.forget_read_ahead()
        return [hints.popleft() for _ in range(len(hints))]

    def _polling(self, entry: QueueEntry) -> Poll:
        """Return the poll of the queue's present incarnation; a new one if the queue was made again."""
        if self._poll is None or not self._poll.is_of(entry.row, entry.spec):
            self._poll = Poll(entry.row, entry.spec, self._gate)
            self._poll.finished = self._settler.finished
            self._wakeups.serve(entry.spec.partition)
        return self._poll

    def _now_ms(self) -> int:
        try:
            return self._driver.clock.now_us() // 1000
        except NotDone:
            return 0

    def close(self, *, give_back: bool) -> None:
        """Release locks, give back held messages (or leave them to their timeout), and free slots."""
        if self._closed:
            return
        self._closed = True
        self._wakeups.leave(self.inbox)
        poll = self._poll
        with suppress(CqueueError):
            if poll is not None:
                self._driver.run(poll.let_go())
        if give_back:
            self._settler.give_back_all(self._now_ms())
        with suppress(CqueueError):
            if poll is not None:
                self._driver.run(poll.tidy(at_once=True))
