"""Receiving messages from one queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Self

from cqueue.errors import LASTING, BatchTooLarge, Closed, CqueueError, NotDone, OutcomeUnknown
from cqueue.message import MAX_RECEIVE, check_duration
from cqueue.protocol.poll import Share
from cqueue.received import Messages, ReceivedMessage
from cqueue.receiving.interface import Found
from cqueue.receiving.prefetch import Prefetch
from cqueue.receiving.receiver import Receiver
from cqueue.receiving.settler import Settler
from cqueue.runtime import logs, waiting
from cqueue.runtime.batcher import Calls
from cqueue.runtime.catalog import Catalog
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.wakeups import Wakeups
from cqueue.store.operations import WideRow

__all__ = ["Consumer", "ReceivedMessage"]

LOGGER = "cqueue.consumer"
MAX_WAIT = timedelta(days=1)
KEEP_LOCK_BELOW_S = 0.1
"""Seconds. A consumer that comes back sooner on average keeps the lock of a wide row that has more messages;
a slower one would keep other consumers out."""
SUSPECT_WAIT_S = 0.1
"""Seconds that a receive waits for a claim under way before it looks for a suspect. Afterwards prefetched
messages come first."""
HOLD_DIVISOR = 4
"""Claimed messages wait for at most 1/4 of the visibility timeout, so that 3/4 is left for handling them."""


class Consumer:
    """Receives messages of one queue. A context manager.

    One thread receives at a time. Any thread may ack, nack, snooze, extend or bury messages.

    Example:
        with queue.consumer() as consumer:
            for message in consumer.receive(10, wait=timedelta(seconds=20)):
                handle(message.body)
                message.ack()
    """

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        driver: BlockingDriver,
        wakeups: Wakeups,
        *,
        executor: Calls,
        pauses_s: tuple[float, float],
        prefetch: int = 0,
        wake: Callable[[], None] | None = None,
    ) -> None:
        """pauses_s: seconds between polls that find nothing, at first and at most; each is doubled."""
        self.name = name
        self._driver = driver
        self._settler = Settler(name, catalog, driver, executor=executor)
        self._receiver = Receiver(catalog, driver, wakeups, settler=self._settler, wake=wake)
        self._first_pause_s, self._longest_pause_s = pauses_s
        self._pause_s = self._first_pause_s
        self._returned_at_s: float | None = None
        self._mean_gap_s = KEEP_LOCK_BELOW_S
        self._receiving = waiting.rlock()
        self._prefetch: Prefetch[ReceivedMessage] | None = None
        self._told = False  # that giving back failed
        if prefetch:
            self._prefetch = Prefetch(prefetch, self._fetch, self._give_back_unseen, self._hold_s)
        self._closed = self._gives_back = False
        self._is_pulled = wake is None  # who waits for several consumers hands the messages on

    def __repr__(self) -> str:
        return f"<consumer of {self.name}>"

    @property
    def driver(self) -> BlockingDriver:
        """Used inside: the client's driver."""
        return self._driver

    @property
    def settles_with(self) -> BlockingDriver:
        """Used inside: equal for consumers that may settle each other's messages."""
        return self._driver

    # ── receive ──

    def receive(self, max_messages: int = 10, wait: timedelta = timedelta()) -> list[ReceivedMessage]:
        """Return up to `max_messages` (1 to 1,000) due messages, the most urgent first.

        Waits up to `wait` (0 to 1 day) for the first message. A paused queue gives nothing. A message whose
        last holder let its timeout expire may have killed that holder. It comes alone, and until it is
        settled the client receives no other such message of the queue.

        Raises:
            QueueNotFound: there is no such queue.
            NotDone, OutcomeUnknown: Cassandra did not answer until the end of `wait`; nothing is lost.
            Refused, DamagedRow: raised at once, because waiting does not help.
            BadInput: an argument is out of range.
            Closed: the consumer has been closed.
        """
        tracing = self._driver.tracing
        if tracing is None or not self._is_pulled:
            return self._receive_some(max_messages, wait)
        since_ns = time.time_ns()
        try:
            messages = self._receive_some(max_messages, wait)
        except CqueueError as exc:
            tracing.end(tracing.start("receive", self.name, (), since_ns=since_ns)[0], exc)
            raise
        if messages:  # idle consumers would make a span for each poll
            tracing.end(tracing.start("receive", self.name, messages, since_ns=since_ns)[0])
        return messages

    def _receive_some(self, max_messages: int, wait: timedelta) -> list[ReceivedMessage]:
        if type(max_messages) is not int or not 1 <= max_messages <= MAX_RECEIVE:
            raise BatchTooLarge(f"max_messages is {max_messages!r}; it goes from 1 to {MAX_RECEIVE:,}")
        deadline_s = time.monotonic() + check_duration("wait", wait, timedelta(), MAX_WAIT)
        self._driver.check_open()  # in a fork, a thread of the parent may receive for good
        if self._prefetch is None:
            return self._receive(max_messages, deadline_s)
        self._note_gap()
        if self._receiver.is_paused:
            self._prefetch.drop()
            messages = []  # nor what a claim under way finds
        else:
            messages = self._receive_suspect(max_messages)
            messages = messages or self._check_open(self._prefetch.take(max_messages))
        if not messages:
            with self._receiving:  # so that a close finds the rest
                messages = self._receive(max(max_messages, self._prefetch.size), deadline_s)
                messages, rest = messages[:max_messages], messages[max_messages:]
                self._prefetch.put(rest, len(messages) + len(rest), more=self._receiver.last.more)
        self._returned_at_s = time.monotonic() if messages else None
        return messages

    def _receive(self, want: int, deadline_s: float) -> list[ReceivedMessage]:
        """Poll until messages are found or the deadline has passed."""
        with self._receiving:
            self._note_gap()
            while True:
                failure: CqueueError | None = None
                try:
                    messages = self._look(want)
                except (NotDone, OutcomeUnknown) as exc:
                    failure, messages = exc, []
                left_s = deadline_s - time.monotonic()
                if messages or left_s <= 0 or isinstance(failure, (Closed, *LASTING)):
                    break
                self._wait(left_s)
            if messages:
                self._check_open(messages)
                if not self._receiver.last.told:  # while hints arrive, polls may stay rare
                    self._pause_s = self._first_pause_s
                self._returned_at_s = time.monotonic()
        if failure is not None:
            raise failure
        return messages

    def fetch(self, max_messages: int, share: Share | None) -> Found:
        """Used inside: as `receive` without a wait, in `share` of the wide rows first; say how that went."""
        self._receiver.inbox.share = share
        messages = self.receive(max_messages)
        how = self._receiver.last if messages else Found()
        return how._replace(messages=messages, left_until_ms=self._receiver.left_until_ms)

    def receive_from(
        self, wide_row: WideRow, priorities: frozenset[int], max_messages: int = 1
    ) -> list[ReceivedMessage]:
        """Used inside: receive from one wide row that is known to have messages, without a search."""
        with self._receiving, self._driver.limited():
            return self._check_open(self._receiver.look_at(wide_row, priorities, max_messages))

    def _check_open(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return messages just claimed; give them back if another thread has closed the consumer meanwhile.

        Raises:
            Closed: it has.
        """
        if self._closed and self._gives_back:
            self._give_back_unseen(messages)
            raise Closed(f"the consumer of {self.name!r} has been closed")
        return messages

    def _look(self, want: int, *, ahead: bool = False) -> list[ReceivedMessage]:
        """Poll once: claim from the wide rows that may have work."""
        if self._closed:
            raise Closed(f"the consumer of {self.name!r} has been closed")
        with self._driver.limited():
            return self._receiver.look(want, stay=self._mean_gap_s < KEEP_LOCK_BELOW_S, ahead=ahead)

    def _note_gap(self) -> None:
        """Update the mean time between receives, which decides whether a lock is kept."""
        if self._returned_at_s is not None:
            away_s = time.monotonic() - self._returned_at_s
            self._mean_gap_s = (self._mean_gap_s + away_s) / 2
            self._returned_at_s = None

    def _wait(self, left_s: float) -> None:
        """Wait for a hint or for the next poll. Double the pause after a wait without a hint."""
        if not self._receiver.inbox.sleep(min(self._pause_s, left_s)):
            self._pause_s = min(self._pause_s * 2, self._longest_pause_s)

    # ── claimed ahead ──

    def _receive_suspect(self, want: int) -> list[ReceivedMessage]:
        """Look for a suspect: a message that may have killed its holder, which is never prefetched.

        At most every other receive does this, so a suspect waits neither behind all other messages nor they
        behind suspects. If the suspect is gone, other messages are claimed instead.
        """
        if self._closed or not self._receiver.is_suspects_turn():
            return []
        try:
            if not self._receiving.acquire(timeout=SUSPECT_WAIT_S):
                return []
            with suppress(NotDone, OutcomeUnknown), self._driver.limited():
                return self._check_open(self._receiver.look_for_suspect(want))
        finally:
            with suppress(RuntimeError):  # the lock was not taken, or Ctrl-C came in between
                self._receiving.release()
        return []

    def _fetch(self, want: int) -> tuple[list[ReceivedMessage], bool]:
        """Claim messages for later receives. Return them, and whether the queue has more."""
        with self._receiving:
            try:
                return self._look(want, ahead=True), self._receiver.last.more
            except Exception:  # noqa: BLE001 - the next receive meets it as well, and can raise it
                return [], False

    def _give_back_unseen(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Give back messages that no receive has returned. Return those to try again: still held, in time."""
        try:
            self.snooze(messages, timedelta())
        except CqueueError as exc:  # of several leases, the others were given back
            now_ms = self._driver.clock.guess_us() // 1000
            left = [one for one in messages if one.is_held and one.lease.due_ms > now_ms]
            if left and not self._told:
                logs.logger(LOGGER).warning(
                    "give_back_failed", queue=self.name, messages=len(left), error=logs.describe(exc)
                )
            self._told = bool(left)
            return left
        self._told = False
        return []

    def _hold_s(self) -> float:
        """Return the seconds that messages claimed now may wait for a receive."""
        return self._receiver.visibility_s / HOLD_DIVISOR

    # ── settle ──

    def ack(self, messages: Messages) -> None:
        """Delete messages, and return when the deletion is stored. A repeated or late ack does no harm.

        The messages may belong to several consumers and queues of the same client.

        Raises:
            NotDone: nothing was deleted.
            AckUnknown: messages may have been deleted; the others come again after their timeout.
        """
        self._settler.ack(messages)

    def ack_async(self, messages: Messages) -> Future[None]:
        """As `ack`, on a thread of the client. The future raises the error of `ack`.

        Raises:
            Closed: the client has been closed.
        """
        return self._settler.ack_async(messages)

    def nack(self, messages: Messages, delay: timedelta = timedelta()) -> None:
        """Give messages back, to be delivered again after `delay` (0 to 10 years). The attempt counts.

        A message without an attempt left goes to the dead-letter queue when it is due.

        Raises:
            LeaseLost: the timeout passed, and the message belongs to another consumer. With several messages
                all are tried, and the first error is raised.
            NotDone, OutcomeUnknown: the message stays, or may stay, held until its timeout.
        """
        self._settler.nack(messages, delay)

    def snooze(self, messages: Messages, delay: timedelta) -> None:
        """As `nack`, but the attempt does not count."""
        self._settler.snooze(messages, delay)

    def extend(self, messages: Messages, duration: timedelta) -> None:
        """Keep messages invisible until `duration` (2 s to 12 h) from now. Never shortens a timeout.

        Messages that were received together mostly share one timeout, which is extended for all of them.

        Raises:
            LeaseLost: the timeout passed, and the message belongs to another consumer.
        """
        self._settler.extend(messages, duration)

    def dead(self, messages: Messages, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """Move messages to the dead-letter queue, with the reason in a header.

        headers: additional headers for the dead letters. If they do not fit beside the message's own headers,
            their texts keep only their ends, and the last headers are left out.

        Raises:
            LeaseLost: the timeout passed, and the message belongs to another consumer.
            NotDone, OutcomeUnknown: the message is still in its queue. The next consumer that claims it
                buries it, if the burial had begun.
            BadInput: the queue is a dead-letter queue itself.
        """
        self._settler.dead(messages, reason, headers)

    # ── close ──

    def close(self, *, give_back: bool = True) -> None:
        """Give back unsettled messages (the attempt counts), and receive no more. Never raises.

        In a fork of the process that made the client, this does nothing.

        give_back: False leaves messages held until their timeout, so that they can still be settled.
        """
        if self._driver.is_forked:
            return  # other threads of the parent may hold locks for good
        self._gives_back = give_back  # before `_closed`: a receive of another thread looks at both
        self._closed = True
        self._receiver.inbox.wake_up()  # a receive that waits in another thread ends at once
        if self._prefetch is not None:
            self._prefetch.close()
        with self._receiving:
            if self._prefetch is not None:
                self._prefetch.drop()  # the rest of a receive that ended meanwhile
            self._receiver.close(give_back=give_back)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
