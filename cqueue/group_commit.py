"""Sends of several threads at the same time, stored together: a group commit.

A few threads may send at a time, each its own message. What comes while all of them are at it gathers, and
the first one to come back lets the eldest of those that wait lead: it sends what has gathered, and gives
each thread its own result. There is no thread of its own, so nothing is sent after its caller has gone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from itertools import islice
from threading import Condition, Event, Lock, get_ident
from typing import Final, Protocol

from cqueue.errors import CqueueError, NotDone, SendUnknown
from cqueue.message import Message, MessageId
from cqueue.producer import SendResult

MAX_LINGER: Final = timedelta(seconds=1)
MOST: Final = 500
"""Messages sent together."""
AT_A_TIME: Final = 4
"""Sends under way beside each other, beyond which they gather; one if they are to linger."""


class Sending(Protocol):
    """What is needed of a `Producer`."""

    def send(self, message: Message) -> MessageId:
        """Store one."""
        ...

    def send_many(self, messages: list[Message]) -> SendResult:
        """Store them; entries fail one by one."""
        ...

    def check_open(self) -> None:
        """Raise `Closed` if nothing can be sent any more."""
        ...

    def limited(self, limit_s: float) -> AbstractContextManager[None]:
        """Let what is inside end within that time."""
        ...


class _Entry:
    """One thread's message, and what became of it."""

    __slots__ = ("error", "id", "leads", "message", "since_s", "thread", "woken")

    def __init__(self, message: Message, since_s: float) -> None:
        self.message = message
        self.since_s = since_s
        self.thread = get_ident()
        self.woken = Event()
        self.leads = False
        self.id: MessageId | None = None
        self.error: BaseException | None = None

    def settled(self) -> MessageId:
        """Its id, or its error."""
        if self.error is not None:
            raise self.error
        if self.id is None:
            raise AssertionError("a send without error has an id")
        return self.id


class GroupCommit:
    """Single sends of many threads. Thread-safe.

    Args:
        producer: stores them.
        limit_s: what a send may take. One that has waited for all of it is not sent; what is sent has half
            of it at least, whatever it waited.
        linger: how long the first one waits for others, one batch at a time. None: it does not wait, and
            only what comes while `AT_A_TIME` sends are under way goes together.
    """

    def __init__(
        self,
        producer: Sending,
        limit_s: float,
        linger: timedelta | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer = producer
        self._limit_s = limit_s
        self._lingers = linger is not None
        self._linger_s = linger.total_seconds() if linger is not None else 0.0
        self._clock = clock
        self._mutex = Lock()
        self._full = Condition(self._mutex)
        self._waiting: deque[_Entry] = deque()
        self._most = 1 if self._lingers else AT_A_TIME
        self._sending: set[int] = set()  # threads: so that one that Ctrl-C took away is none for long
        self._gathering = False  # one that waits was told to lead, and has not taken the others yet

    def send(self, message: Message) -> MessageId:
        """Store one message; its id once it is acknowledged.

        Raises:
            BadInput, NotDone, SendUnknown: as `Producer.send`, of this message alone.
        """
        self._producer.check_open()  # after a fork the mutex may be locked for good
        mine: _Entry | None = None
        with self._mutex:
            self._sending.discard(get_ident())
            if self._lingers or len(self._sending) == self._most:
                mine = self._enter(message)
            else:
                self._sending.add(get_ident())
        return self._alone(message) if mine is None else self._with_others(mine)

    def _alone(self, message: Message) -> MessageId:
        try:
            return self._producer.send(message)
        finally:
            with self._mutex:
                self._pass_on()

    def _enter(self, message: Message) -> _Entry:
        """Take a place among those that wait. The mutex is held."""
        mine = _Entry(message, self._clock())
        self._waiting.append(mine)
        if len(self._waiting) >= MOST:
            self._full.notify()
        self._choose()
        return mine

    def _with_others(self, mine: _Entry) -> MessageId:
        if not mine.leads:
            self._await(mine)
        if mine.leads:
            self._lead(mine)
        return mine.settled()

    def _await(self, mine: _Entry) -> None:
        """Wait to be sent, or to lead."""
        try:
            if not mine.woken.wait(self._limit_s) and not self._leave(mine):
                mine.woken.wait()  # it is being sent, which ends
        except BaseException:  # Ctrl-C: nobody may wait for this thread to lead
            with self._mutex:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                if mine.leads:
                    self._gathering = False
                    self._pass_on()
            raise

    def _leave(self, mine: _Entry) -> bool:
        """Its time is over: wait no more. False if it leads, or is being sent."""
        with self._mutex:
            if mine.leads or mine not in self._waiting:
                return False
            self._waiting.remove(mine)
        mine.error = NotDone("it was not sent: sends before it took all of its time")
        return True

    def _lead(self, mine: _Entry) -> None:
        batch: list[_Entry] = []
        try:
            self._gather(batch)
            waited_s = self._clock() - batch[0].since_s
            with self._producer.limited(max(self._limit_s - waited_s, self._limit_s / 2)):
                _settle(batch, self._producer.send_many([entry.message for entry in batch]))
        except CqueueError as exc:
            for entry in batch:
                entry.error = exc
        except BaseException as exc:
            for entry in batch:
                if entry is not mine:
                    entry.error = SendUnknown(f"the thread that was sending the message was stopped: {exc!r}")
            raise
        finally:
            with self._mutex:
                if mine in self._waiting:  # stopped before it had gathered, or in the middle of that
                    gone = {mine, *batch}
                    self._waiting = deque(entry for entry in self._waiting if entry not in gone)
                    self._gathering = False
                self._pass_on()
            for entry in batch:
                entry.woken.set()

    def _gather(self, batch: list[_Entry]) -> None:
        until_s = self._clock() + self._linger_s
        with self._mutex:
            while len(self._waiting) < MOST and (left_s := until_s - self._clock()) > 0:
                self._full.wait(left_s)
            batch += islice(self._waiting, MOST)
            # Both or, should Ctrl-C come before, neither: then `_lead` sees that its own entry still waits.
            self._waiting, self._gathering = deque(islice(self._waiting, MOST, None)), False
            self._choose()  # more may have come than go together

    def _pass_on(self) -> None:
        """The calling thread sends no more: another one may. The mutex is held."""
        self._sending.discard(get_ident())
        self._choose()

    def _choose(self) -> None:
        """Let the eldest of those that wait lead, if one may send. The mutex is held."""
        if self._waiting and len(self._sending) < self._most and not self._gathering:
            eldest = self._waiting[0]
            self._sending.add(eldest.thread)
            self._gathering = eldest.leads = True
            eldest.woken.set()


def _settle(batch: list[_Entry], result: SendResult) -> None:
    for entry, id_ in zip(batch, result.ids, strict=True):
        entry.id = id_
    for index, error in result.failed:
        batch[index].error = error
