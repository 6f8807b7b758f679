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
from cqueue.catalog import Catalog
from cqueue.consuming import Found
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import LASTING, BatchTooLarge, Closed, CqueueError, NotDone, OutcomeUnknown
from cqueue.message import MAX_RECEIVE, check_duration
from cqueue.prefetch import Prefetch
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.poll import Share
from cqueue.received import Messages, ReceivedMessage
from cqueue.receiver import Receiver
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


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """How long a consumer waits between polls that found nothing, in seconds: doubled up to `longest`."""

    shortest: float = 0.005
    longest: float = 1.0


class Consumer:
    """Receives from one queue; a context manager.

    One thread receives at a time; ack, nack and the like may come from any thread.
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
        self._driver = driver
        self._settler = Settler(name, catalog, driver, executor=executor)
        self._receiver = Receiver(catalog, driver, bell, settler=self._settler, gate=gate, wake=wake)
        self._intervals = intervals
        self._pause_s = intervals.shortest
        self._left_at_s: float | None = None
        self._away_s = STAY_IF_BACK_S
        self._receiving = RLock()
        self._ahead: Prefetch[ReceivedMessage] | None = None
        if prefetch:
            self._ahead = Prefetch(prefetch, self._fetch, self._give_back_unseen, self._hold_s)
        self._closed = False

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

    @property
    def last(self) -> Found:
        """Used inside: how the last messages were found."""
        return self._receiver.last

    @property
    def share(self) -> Share | None:
        """Used inside: the wide rows that this consumer looks at first; None for all."""
        return self._receiver.sleeper.share

    @share.setter
    def share(self, share: Share | None) -> None:
        self._receiver.sleeper.share = share

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
        if self._receiver.is_paused:
            self._ahead.drop()
        self._returned()
        messages = self._suspect(max_messages) or self._ahead.take(max_messages)
        if not messages:
            messages = self._receive(max(max_messages, self._ahead.size), deadline_s)
            messages, rest = messages[:max_messages], messages[max_messages:]
            self._ahead.put(rest, len(messages) + len(rest), more=self.last.more)
        self._left_at_s = time.monotonic() if messages else None
        return messages

    def _receive(self, want: int, deadline_s: float) -> list[ReceivedMessage]:
        """Look for messages until some are found or it is time to give up."""
        with self._receiving:
            self._returned()
            while True:
                failure: CqueueError | None = None
                try:
                    messages = self._look(want)
                except Closed:
                    raise
                except (NotDone, OutcomeUnknown) as exc:
                    failure, messages = exc, []
                left_s = deadline_s - time.monotonic()
                if messages or left_s <= 0 or isinstance(failure, LASTING):
                    break
                self._wait(left_s)
            if messages:
                if not self.last.told:  # where hints come, polls need not be frequent
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
            return self._receiver.look_at(wide_row, priorities, max_messages)

    def _look(self, want: int, *, ahead: bool = False) -> list[ReceivedMessage]:
        """One look at everything that may have work."""
        if self._closed:
            raise Closed(f"the consumer of {self.name!r} has been closed")
        with self._driver.limited():
            return self._receiver.look(want, stay=self._away_s < STAY_IF_BACK_S, ahead=ahead)

    def _returned(self) -> None:
        """Learn how long messages are handled before the next receive: a slow one keeps no lock meanwhile."""
        if self._left_at_s is not None:
            away_s = time.monotonic() - self._left_at_s
            self._away_s = (self._away_s + away_s) / 2
            self._left_at_s = None

    def _wait(self, left_s: float) -> None:
        """Wait until told of a message or for the next poll; each wait in vain is twice as long."""
        if not self._receiver.sleeper.sleep(min(self._pause_s, left_s)):
            self._pause_s = min(self._pause_s * 2, self._intervals.longest)

    # ── claimed ahead ──

    def _suspect(self, want: int) -> list[ReceivedMessage]:
        """What may have killed its holder: never claimed ahead, and not to wait until nothing else comes.

        Every other receive at most looks for one, and where it is gone takes what it finds.
        """
        if self._closed or not self._receiver.is_suspects_turn():
            return []
        try:
            if not self._receiving.acquire(timeout=PATIENCE_S):
                return []
            with suppress(NotDone, OutcomeUnknown), self._driver.limited():
                return self._receiver.look_for_suspect(want)
        finally:
            with suppress(RuntimeError):  # it was not taken, be it that Ctrl-C came between
                self._receiving.release()
        return []

    def _fetch(self, want: int) -> tuple[list[ReceivedMessage], bool]:
        """Messages for the receives to come, and whether there are more of them."""
        with self._receiving:
            try:
                return self._look(want, ahead=True), self.last.more
            except Exception:  # noqa: BLE001 - the next receive meets it as well, and can raise it
                return [], False

    def _give_back_unseen(self, messages: list[ReceivedMessage]) -> None:
        """Make messages available again that nobody has seen; should that fail, their timeout does it."""
        with suppress(CqueueError):
            self.snooze(messages, timedelta())

    def _hold_s(self) -> float:
        """How long messages claimed just now may wait for a receive."""
        return self._receiver.visibility_s / HELD_AHEAD

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
        self._receiver.sleeper.rouse()  # a receive that waits in another thread ends at once
        if self._ahead is not None:
            self._ahead.close()
        with self._receiving:
            self._receiver.close(give_back=give_back)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
