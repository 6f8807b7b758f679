"""A consumer's polls: choose the wide rows to claim from, and turn claims into messages to deliver."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from cqueue.errors import CqueueError, NotDone, OutcomeUnknown
from cqueue.protocol import bodies, policy
from cqueue.protocol.claim import claim
from cqueue.protocol.claim_draft import Claim
from cqueue.protocol.dead import BODY_LOST, spent
from cqueue.protocol.lease import SuspectGate, Taken
from cqueue.protocol.lock import unlock
from cqueue.protocol.policy import Disposition
from cqueue.protocol.poll import Poll
from cqueue.protocol.row_memory import Hint
from cqueue.protocol.spec import QueueSpec
from cqueue.received import ReceivedMessage
from cqueue.receiving.interface import Found
from cqueue.receiving.settler import Settler
from cqueue.runtime import logs
from cqueue.runtime.catalog import PAUSED, Catalog, QueueEntry
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.wakeups import HintInbox, Wakeups
from cqueue.store.operations import WideRow

LOGGER: Final = "cqueue.consumer"
REPEAT_S: Final = 30.0
"""Seconds after which claims that are still answered too late are logged again."""
NO_SUSPECTS = SuspectGate(shut=True)
"""The gate of prefetches, which lets no suspect through: a suspect has to be handled at once."""


class Receiver:
    """Claims messages of one queue. One thread at a time may use it.

    wake: called as well when a hint reaches this consumer.
    """

    def __init__(
        self,
        catalog: Catalog,
        driver: BlockingDriver,
        wakeups: Wakeups,
        *,
        settler: Settler,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._entry: Callable[[], QueueEntry] = partial(catalog.entry, settler.name)
        self._driver = driver
        self._wakeups = wakeups
        self._settler = settler
        self._claimed = ClaimedMessages(driver, settler)
        self._gate = wakeups.gate
        self.inbox = HintInbox(wake)  # joins at the first poll: who never polls takes no hints from others
        self._poll: Poll | None = None
        self._deletions = 0  # their count at the last poll
        self._sought_suspect = False  # the last receive looked for a suspect
        self._closed = False
        self.last = Found()
        self.visibility_s = 0.0

    @property
    def left_until_ms(self) -> int:
        """Cluster time until which claims may hold messages that were not delivered, or 0."""
        return max(self._settler.left_until_ms, 0 if self._poll is None else self._poll.left_until_ms)

    @property
    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self._entry().row.state == PAUSED

    def look(self, want: int, *, stay: bool, ahead: bool = False) -> list[ReceivedMessage]:
        """Poll once as `_look`, measured if somebody asks."""
        meter = self._driver.meter
        if meter is None:
            return self._look(want, stay=stay, ahead=ahead)
        since_s, name = time.monotonic(), self._settler.name
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
            run(poll.tidy())  # an operator who has paused it sees that nothing is held any more
            return []
        hints = partial(self._hints, poll)
        run(poll.begin(entry.spec, hints(), self.inbox.share))
        while (claimed := run(poll.next_claim(entry.spec, want, stay=stay, hints=hints))) is not None:
            if messages := self._claimed.accept(claimed, entry.spec):
                left = bool(poll.work) or poll.work.held is not None
                self.last = Found(told=claimed.told, more=poll.has_work, left=left)
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
            self._wakeups.join(self.inbox, entry.spec.partition)
            poll = Poll(entry.row, entry.spec, self._gate)
            poll.finished = self._settler.finished
            self._poll = poll
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
        self._wakeups.leave(self.inbox)
        self._closed = True
        poll = self._poll
        with self._driver.limited():  # for all of it: in an outage, many leases would take as many deadlines
            with suppress(CqueueError):
                if poll is not None:
                    self._driver.run(poll.let_go())
            if give_back:
                self._settler.give_back_all(self._now_ms())
            with suppress(CqueueError):
                if poll is not None:
                    self._driver.run(poll.tidy(at_once=True))


class ClaimedMessages:
    """The messages of one consumer's claims, on their way to the consumer."""

    def __init__(self, driver: BlockingDriver, settler: Settler) -> None:
        self._driver = driver
        self._settler = settler
        self._told_s = float("-inf")  # when it was logged that claims are answered too late
        self._untold = 0  # messages of late claims since then

    def accept(self, claimed: Claim, spec: QueueSpec) -> list[ReceivedMessage]:
        """Return the messages to deliver, with their bodies. Delete expired ones, and bury spent ones."""
        settler = self._settler
        settler.hold([*claimed.taken, *claimed.dead, *claimed.expired])
        settler.drop(claimed.expired)
        self._bury_spent(claimed.dead, spec)
        some = self._still_held(claimed.taken, spec)
        if None not in [taken.row.body for taken in some]:  # mostly; the other way takes twice as long
            messages = [ReceivedMessage(settler, one.row, one.lease, one.row.body or b"") for one in some]
        else:
            try:
                messages = self._with_bodies(some, spec)
            except (NotDone, OutcomeUnknown):
                settler.release({taken.lease for taken in some}, spec)
                raise
        if self._driver.meter is not None:
            self._driver.meter.count("claimed", settler.name, len(messages))
        return messages

    def _still_held(self, taken: Sequence[Taken], spec: QueueSpec) -> Sequence[Taken]:
        """Return the messages without those whose visibility timeout is over already; give these back.

        Cassandra may answer late. Another consumer could claim them while a handler begins with them here.
        """
        now_ms = self._driver.clock.now_us() // 1000
        late = {lease for lease in {one.lease for one in taken} if lease.due_ms <= now_ms}
        if not late:
            return taken
        held = [one for one in taken if one.lease not in late]
        self._tell_late(len(taken) - len(held))
        self._settler.release(late, spec)
        return held

    def _tell_late(self, messages: int) -> None:
        """Log that claims are answered too late: at once, and again after a while.

        Where all claims are, the queue delivers nothing, and no other line says why.
        """
        self._untold += messages
        now_s = time.monotonic()
        if now_s - self._told_s >= REPEAT_S:
            logs.logger(LOGGER).warning("claim_too_late", queue=self._settler.name, messages=self._untold)
            self._told_s, self._untold = now_s, 0

    def _bury_spent(self, dead: Sequence[Taken], spec: QueueSpec) -> None:
        """Bury messages that have no attempt left.

        After one failure, messages of the same kind (small, or with a separate body) are not tried: they
        would fail as well, for lack of a replica say, and the messages claimed beside them would wait each
        time.
        """
        failed: set[bool] = set()
        for taken in dead:
            is_large = taken.row.size is not None
            if is_large in failed:
                continue
            if not self._settler.bury(taken, spec, spent(taken.lease.attempt)):
                failed.add(is_large)

    def _with_bodies(self, taken: Sequence[Taken], spec: QueueSpec) -> list[ReceivedMessage]:
        """Return messages with their bodies, without those that were acked meanwhile."""
        found: dict[int, bytes] = {}
        # All messages of a claim stand in one wide row.
        for read in bodies.reads((one.lease.wide_row, one.row) for one in taken):
            found = self._driver.ask(read)
        messages: list[ReceivedMessage] = []
        missing: list[Taken] = []
        for one in taken:
            body = found.get(one.row.id) if one.row.body is None else one.row.body
            if body is None:
                missing.append(one)
            else:
                messages.append(ReceivedMessage(self._settler, one.row, one.lease, body))
        return messages + (self._found(missing, spec) if missing else [])

    def _found(self, missing: Sequence[Taken], spec: QueueSpec) -> list[ReceivedMessage]:
        """Ask all replicas for bodies that a quorum does not have. Bury messages whose body is lost.

        A dead letter cannot be buried again, so it is received without its body. While a replica does not
        answer, the messages are snoozed: no consumer has seen them, so no attempt is used.
        """
        settler = self._settler
        try:
            everywhere = self._driver.run(bodies.look_everywhere(missing))
        except (NotDone, OutcomeUnknown):
            settler.snooze_unread(missing, spec)
            return []
        found: list[ReceivedMessage] = []
        for one in missing:
            if one.row.id not in everywhere:
                continue  # acked meanwhile
            body = everywhere[one.row.id]
            bare = bodies.without_body(one.row)
            if body is not None:
                found.append(ReceivedMessage(settler, one.row, one.lease, body))
            elif policy.disposition(spec, body_lost=True) is Disposition.BURY:
                settler.bury(Taken(bare, one.lease), spec, BODY_LOST)
            else:
                found.append(ReceivedMessage(settler, bare, one.lease, b""))
        return found
