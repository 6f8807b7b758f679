"""Receiving messages from one queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import RLock
from types import TracebackType
from typing import Self

from cqueue.batcher import Calls
from cqueue.bell import Bell
from cqueue.catalog import PAUSED, Catalog, Entry
from cqueue.claimed import ClaimedBatch
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import LASTING, BatchTooLarge, Closed, CqueueError, NotDone, OutcomeUnknown
from cqueue.message import MAX_RECEIVE, check_duration
from cqueue.prefetch import Prefetch
from cqueue.protocol.claim import claim
from cqueue.protocol.draft import Claim
from cqueue.protocol.hint import Hint
from cqueue.protocol.lease import Lease, SuspectGate
from cqueue.protocol.lock import unlock
from cqueue.protocol.poll import Poll, Share
from cqueue.protocol.spec import QueueSpec
from cqueue.protocol.work import Reason
from cqueue.received import Messages, ReceivedMessage
from cqueue.settler import Settler
from cqueue.store.operations import WideRow

__all__ = ["Consumer", "PollIntervals", "ReceivedMessage"]

MAX_WAIT = timedelta(days=1)
STAY_IF_BACK_S = 0.1
"""A consumer that handles its messages quicker than this keeps the lock of a wide row that has more."""
PATIENCE_S = 0.1
"""How long a receive waits for a claim under way, to look for what is never claimed ahead."""
HELD_AHEAD = 4
"""What was claimed ahead waits for one part in so many of the visibility timeout, and is then given back."""


_SHUT = SuspectGate(shut=True)
"""One that may have killed its holder is never claimed ahead, as it is to be started at once."""


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """How long a consumer waits between polls that found nothing, in seconds: doubled up to `longest`."""

    shortest: float = 0.005
    longest: float = 1.0


class Consumer:
    """Receives from one queue; a context manager.

    One thread receives at a time; ack, nack and the like may come from any thread.

    share: which wide rows this consumer looks at at each poll, where a fleet of workers divides them;
        None for all.
    """

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        driver: BlockingDriver,
        bell: Bell,
        *,
        gate: SuspectGate,
        executor: Calls,
        intervals: PollIntervals,
        prefetch: int = 0,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._driver = driver
        self._bell = bell
        self._gate = gate
        self._settler = Settler(name, catalog, driver, executor=executor, finished=self._finished)
        self._intervals = intervals
        self.share: Share | None = None
        self._pause_s = intervals.shortest
        self._left_at_s: float | None = None
        self._away_s = STAY_IF_BACK_S
        self._receiving = RLock()
        self._visibility_s = 0.0
        self._ahead: Prefetch[ReceivedMessage] | None = None
        if prefetch:
            self._ahead = Prefetch(prefetch, self._fetch, self._give_back_unseen, self._hold_s)
        self._sleeper = bell.join(wake)
        self._poll: Poll | None = None
        self._deletions = 0  # purges that are known of
        self.was_told = False  # the last messages were found where a hint said
        self._alone = False  # the last receive looked for what is never claimed ahead
        self.has_more = False  # the last claim did, in its wide row or in others that are known
        self._closed = self._left = False

    def __repr__(self) -> str:
        return f"<consumer of {self.name}>"

    @property
    def driver(self) -> BlockingDriver:
        """Used inside: its client's."""
        return self._driver

    @property
    def settles_with(self) -> BlockingDriver:
        """Used inside: the same for consumers that may settle each other's messages."""
        return self._driver

    # ── receive ──

    def receive(self, max_messages: int = 10, wait: timedelta = timedelta()) -> list[ReceivedMessage]:
        """Up to `max_messages` (1 to 1,000) messages that are due, the most urgent first.

        Waits up to `wait` (0 to 1 day) for the first one. A message whose last holder let its timeout
        expire comes alone, and no other such one until it is settled: it may be what killed that
        holder. A paused queue gives nothing.

        Raises:
            QueueNotFound: there is no such queue.
            NotDone, OutcomeUnknown: Cassandra did not answer, to the end of `wait`; nothing is lost.
            Refused, DamagedRow: at once, as waiting mends nothing.
            Closed: the consumer has been closed.
        """
        if type(max_messages) is not int or not 1 <= max_messages <= MAX_RECEIVE:
            raise BatchTooLarge(f"max_messages is {max_messages!r}; it goes from 1 to {MAX_RECEIVE:,}")
        deadline_s = time.monotonic() + check_duration("wait", wait, timedelta(), MAX_WAIT)
        if self._ahead is None:
            return self._receive(max_messages, deadline_s)
        self._driver.check_open()
        if self._catalog.entry(self.name).row.state == PAUSED:
            self._ahead.drop()
        self._returned()
        messages = self._suspect(max_messages) or self._ahead.take(max_messages)
        if not messages:
            messages = self._receive(max(max_messages, self._ahead.size), deadline_s)
            messages, rest = messages[:max_messages], messages[max_messages:]
            self._ahead.put(rest, len(messages) + len(rest), more=self.has_more)
        self._left_at_s = time.monotonic() if messages else None
        return messages

    def _receive(self, want: int, deadline_s: float) -> list[ReceivedMessage]:
        """Look for messages until some are found or it is time to give up."""
        with self._receiving:
            self._returned()
            while True:
                failure: CqueueError | None = None
                try:
                    with self._driver.limited():
                        messages = self._round(want, self._gate)
                except Closed:
                    raise
                except (NotDone, OutcomeUnknown) as exc:
                    failure, messages = exc, []
                left_s = deadline_s - time.monotonic()
                if messages or left_s <= 0 or isinstance(failure, LASTING):
                    break
                self._wait(left_s)
            if messages:
                if not self.was_told:  # where hints come, polls need not be frequent
                    self._pause_s = self._intervals.shortest
                self._left_at_s = time.monotonic()
        if failure is not None:
            raise failure
        return messages

    def receive_from(
        self, wide_row: WideRow, priorities: frozenset[int], max_messages: int = 1
    ) -> list[ReceivedMessage]:
        """Used inside: messages of one wide row that is known to have some; nothing is searched for."""
        with self._receiving, self._driver.limited():
            entry = self._catalog.entry(self.name)
            if entry.row.state == PAUSED:
                return []
            view = self._polling(entry).registry.add(entry.spec, wide_row, priorities)
            try:
                claimed = self._driver.run(claim(view, entry.spec, self._gate, max_messages, stay=False))
            finally:
                with suppress(CqueueError):  # of a claim that has failed
                    self._driver.run(unlock(view))
            return self._accept(claimed, entry.spec)

    # ── claimed ahead ──

    def _suspect(self, want: int) -> list[ReceivedMessage]:
        """What may have killed its holder: never claimed ahead, and not to wait until nothing else comes.

        Every other receive at most looks for one, and where it is gone takes what it finds.
        """
        poll = self._poll
        self._alone = not self._alone and poll is not None and poll.knows_suspects
        if poll is None or not self._alone or self._closed or self._gate.busy(self._now_ms()):
            return []
        if not self._receiving.acquire(timeout=PATIENCE_S):
            return []
        try:
            with suppress(NotDone, OutcomeUnknown), self._driver.limited():
                entry = self._catalog.entry(self.name)
                if poll is self._poll and poll.is_of(entry.row, entry.spec) and entry.row.state != PAUSED:
                    return self._accept(self._driver.run(poll.claim_suspect(entry.spec, want)), entry.spec)
        finally:
            self._receiving.release()
        return []

    def _fetch(self, want: int) -> tuple[list[ReceivedMessage], bool]:
        """Messages for the receives to come, and whether there are more of them."""
        with self._receiving:
            try:
                with self._driver.limited():
                    return self._round(want, _SHUT), self.has_more
            except Exception:  # noqa: BLE001 - the next receive meets it as well, and can raise it
                return [], False

    def _give_back_unseen(self, messages: list[ReceivedMessage]) -> None:
        """Make messages available again that nobody has seen; should that fail, their timeout does it."""
        with suppress(CqueueError):
            self.snooze(messages, timedelta())

    def _hold_s(self) -> float:
        """How long messages claimed just now may wait for a receive."""
        return self._visibility_s / HELD_AHEAD

    # ── one look ──

    def _returned(self) -> None:
        """Learn how long messages are handled before the next receive: a slow one keeps no lock meanwhile."""
        if self._left_at_s is not None:
            away_s = time.monotonic() - self._left_at_s
            self._away_s = (self._away_s + away_s) / 2
            self._left_at_s = None

    def _wait(self, left_s: float) -> None:
        """Wait until told of a message or for the next poll; each wait in vain is twice as long."""
        if not self._sleeper.sleep(min(self._pause_s, left_s)):
            self._pause_s = min(self._pause_s * 2, self._intervals.longest)

    def _round(self, want: int, gate: SuspectGate) -> list[ReceivedMessage]:
        """One look at everything that may have work, until something is found."""
        if self._closed:
            raise Closed(f"the consumer of {self.name!r} has been closed")
        entry = self._catalog.entry(self.name)
        poll, run = self._polling(entry), self._driver.run
        poll.gate, self._visibility_s = gate, entry.spec.visibility_ms / 1000
        if entry.row.state == PAUSED:
            run(poll.let_go())
            return []
        self.was_told = False
        run(poll.begin(entry.spec, self._hints(poll), self.share))
        stay = self._away_s < STAY_IF_BACK_S
        while (claimed := run(poll.next_claim(entry.spec, want, stay=stay))) is not None:
            messages = self._accept(claimed, entry.spec)
            if messages:
                self.has_more, self.was_told = poll.has_work, claimed.reason is Reason.HINT
                return messages
        run(poll.tidy())
        return []

    def _hints(self, poll: Poll) -> list[Hint]:
        """Where this consumer was told to look since it was last asked."""
        told, deletions = self._sleeper.told, self._bell.deletions
        if deletions != self._deletions:
            self._deletions = deletions
            poll.distrust()
        return [told.popleft() for _ in range(len(told))]

    def _polling(self, entry: Entry) -> Poll:
        """The search in the queue's present incarnation."""
        if self._poll is None or not self._poll.is_of(entry.row, entry.spec):
            self._poll = Poll(entry.row, entry.spec, self._gate)
            self._bell.serve(entry.spec.partition)
        return self._poll

    # ── what a claim gave ──

    def _accept(self, claimed: Claim, spec: QueueSpec) -> list[ReceivedMessage]:
        """The messages that a claim gave; what is not to be delivered is settled."""
        return ClaimedBatch(claimed, spec, self._driver, self._settler).accept()

    def _finished(self, lease: Lease) -> None:
        """All of its messages are acked: a later claim frees its slot."""
        if (poll := self._poll) is not None:  # another thread may forget it meanwhile
            poll.finished.append(lease)

    # ── settle ──

    def ack(self, messages: Messages) -> None:
        """Delete messages; returns when that is stored. Acking again, or too late, does no harm.

        Messages of other consumers of the same client may be among them, whatever their queues.

        Raises:
            NotDone: nothing was deleted.
            AckUnknown: it may be; what is not comes again after its timeout.
        """
        self._settler.ack(messages)

    def ack_async(self, messages: Messages) -> Future[None]:
        """As `ack`, on a thread of the client; the future gives its error.

        Raises:
            Closed: the client has been closed.
        """
        return self._settler.ack_async(messages)

    def nack(self, messages: Messages, delay: timedelta = timedelta()) -> None:
        """Give messages back, to be delivered again after `delay`; this attempt counts.

        With no attempt left the message goes to the dead-letter queue when it is due.

        Raises:
            LeaseLost: the timeout passed; the message belongs to somebody else. Of several messages all
                are tried, and the first error is raised.
            NotDone, OutcomeUnknown: the message stays, or may stay, held until its timeout.
        """
        self._settler.nack(messages, delay)

    def snooze(self, messages: Messages, delay: timedelta) -> None:
        """As `nack`, but this attempt does not count."""
        self._settler.snooze(messages, delay)

    def extend(self, messages: Messages, duration: timedelta) -> None:
        """Keep messages invisible until `duration` from now (2 s to 12 h); never shortens.

        Most messages that were received together share a timeout, which is extended for all that share it.

        Raises:
            LeaseLost: the timeout passed; the message belongs to somebody else.
        """
        self._settler.extend(messages, duration)

    def dead(self, messages: Messages, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """Move messages to the dead-letter queue, with the reason in a header.

        headers: more of them for the dead letters. Where they and the message's own are too long
            together, they keep their ends; where they are too many, the last are left out.

        Raises:
            LeaseLost: the timeout passed; the message belongs to somebody else.
            NotDone, OutcomeUnknown: the message is still in its queue, and is dead-lettered by
                whoever takes it over.
        """
        self._settler.dead(messages, reason, headers)

    # ── close ──

    def close(self, *, give_back: bool = True) -> None:
        """Give back what is not settled (this attempt counts), and receive no more. Never raises.

        give_back: False leaves messages to their timeout, to be settled until then.
        """
        self._closed = True
        self._sleeper.event.set()  # a receive that waits in another thread ends at once
        if self._ahead is not None:
            self._ahead.close()
        with self._receiving:
            if self._left:
                return
            self._left = True
            self._bell.leave(self._sleeper)
            self._let_go()
            if give_back:
                self._settler.give_back_all(self._now_ms())
            self._free_at_close()

    def _let_go(self) -> None:
        if self._poll is not None:
            with suppress(CqueueError):
                self._driver.run(self._poll.let_go())

    def _free_at_close(self) -> None:
        if self._poll is not None:
            with suppress(CqueueError):
                self._driver.run(self._poll.tidy(at_once=True))

    def _now_ms(self) -> int:
        try:
            return self._driver.clock.now_us() // 1000
        except NotDone:
            return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
