"""A consumer's looks at its queue: from which wide rows it claims, and what it keeps between two claims."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from cqueue.bell import Bell
from cqueue.catalog import PAUSED, Catalog, Entry
from cqueue.claimed import ClaimedBatch
from cqueue.consuming import Found
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import CqueueError, NotDone
from cqueue.protocol.claim import claim
from cqueue.protocol.draft import Claim
from cqueue.protocol.hint import Hint
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.lock import unlock
from cqueue.protocol.poll import Poll
from cqueue.protocol.spec import QueueSpec
from cqueue.protocol.work import Reason
from cqueue.received import ReceivedMessage
from cqueue.settler import Settler
from cqueue.store.operations import WideRow

SHUT = SuspectGate(shut=True)
"""One that may have killed its holder is never claimed ahead, as it is to be started at once."""


class Receiver:
    """Claims messages of one queue; one thread at a time.

    gate: lets one message at a time through that may have killed its holder.
    wake: called as well when this consumer is told of a message.
    """

    def __init__(
        self,
        catalog: Catalog,
        driver: BlockingDriver,
        bell: Bell,
        *,
        settler: Settler,
        gate: SuspectGate,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._entry: Callable[[], Entry] = partial(catalog.entry, settler.name)
        self._driver = driver
        self._bell = bell
        self._settler = settler
        self._gate = gate
        self.sleeper = bell.join(wake)
        self._poll: Poll | None = None
        self._deletions = 0  # purges that are known of
        self._alone = False  # the last receive looked for what is never claimed ahead
        self._left = False
        self.last = Found()
        self.visibility_s = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether the queue gives nothing."""
        return self._entry().row.state == PAUSED

    def look(self, want: int, *, stay: bool, ahead: bool = False) -> list[ReceivedMessage]:
        """One look at everything that may have work, until something is found.

        stay: keep the lock of a wide row that has more. ahead: what is found is handled later, so it takes no
        suspects.
        """
        entry = self._entry()
        poll, run = self._polling(entry), self._driver.run
        poll.gate, self.visibility_s = SHUT if ahead else self._gate, entry.spec.visibility_ms / 1000
        if entry.row.state == PAUSED:
            run(poll.let_go())
            return []
        self.last = self.last._replace(told=False)
        run(poll.begin(entry.spec, self._hints(poll), self.sleeper.share))
        while (claimed := run(poll.next_claim(entry.spec, want, stay=stay))) is not None:
            if messages := self._accept(claimed, entry.spec):
                self.last = Found(told=claimed.reason is Reason.HINT, more=poll.has_work)
                return messages
        run(poll.tidy())
        return []

    def look_at(self, wide_row: WideRow, priorities: frozenset[int], want: int) -> list[ReceivedMessage]:
        """Messages of one wide row that is known to have some; nothing is searched for."""
        entry = self._entry()
        if entry.row.state == PAUSED:
            return []
        view = self._polling(entry).registry.add(entry.spec, wide_row, priorities)
        try:
            claimed = self._driver.run(claim(view, entry.spec, self._gate, want, stay=False))
        finally:
            with suppress(CqueueError):  # of a claim that has failed
                self._driver.run(unlock(view))
        return self._accept(claimed, entry.spec)

    # ── what is never claimed ahead ──

    def is_suspects_turn(self) -> bool:
        """Whether to look for a suspect now: one is known, none is held, and the last look was for others.

        So a suspect does not wait until nothing else comes, and others come as well.
        """
        poll = self._poll
        self._alone = not self._alone and poll is not None and poll.knows_suspects
        return self._alone and not self._gate.busy(self._now_ms())

    def look_for_suspect(self, want: int) -> list[ReceivedMessage]:
        """A suspect, which comes alone; where it is gone, up to `want` others."""
        entry, poll = self._entry(), self._poll
        if poll is None or not poll.is_of(entry.row, entry.spec) or entry.row.state == PAUSED:
            return []
        return self._accept(self._driver.run(poll.claim_suspect(entry.spec, want)), entry.spec)

    # ── inside ──

    def _hints(self, poll: Poll) -> list[Hint]:
        """Where this consumer was told to look since it was last asked."""
        told, deletions = self.sleeper.told, self._bell.deletions
        if deletions != self._deletions:
            self._deletions = deletions
            poll.distrust()
        return [told.popleft() for _ in range(len(told))]

    def _polling(self, entry: Entry) -> Poll:
        """The search in the queue's present incarnation."""
        if self._poll is None or not self._poll.is_of(entry.row, entry.spec):
            self._poll = Poll(entry.row, entry.spec, self._gate)
            self._poll.finished = self._settler.finished
            self._bell.serve(entry.spec.partition)
        return self._poll

    def _accept(self, claimed: Claim, spec: QueueSpec) -> list[ReceivedMessage]:
        """The messages that a claim gave; what is not to be delivered is settled."""
        return ClaimedBatch(claimed, spec, self._driver, self._settler).accept()

    def _now_ms(self) -> int:
        try:
            return self._driver.clock.now_us() // 1000
        except NotDone:
            return 0

    def close(self, *, give_back: bool) -> None:
        """Let go of wide rows, give back what is held (or leave it to its timeout), and free slots."""
        if self._left:
            return
        self._left = True
        self._bell.leave(self.sleeper)
        poll = self._poll
        with suppress(CqueueError):
            if poll is not None:
                self._driver.run(poll.let_go())
        if give_back:
            self._settler.give_back_all(self._now_ms())
        with suppress(CqueueError):
            if poll is not None:
                self._driver.run(poll.tidy(at_once=True))
