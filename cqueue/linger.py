"""Sends of several threads at the same time, stored together: a group commit.

One of the threads leads: it waits a moment for others if it was told to, sends what has come, and gives each
thread its own result. While it waits for Cassandra others gather, and the next of them leads. There is no
thread of its own, so nothing is sent after its caller has gone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from threading import Condition, Event, Lock
from typing import Final, Protocol

from cqueue.errors import CqueueError, SendUnknown
from cqueue.message import Message, MessageId
from cqueue.producer import SendResult

MAX_LINGER: Final = timedelta(seconds=1)
MOST: Final = 500
"""Messages sent together."""


class SendMany(Protocol):
    """`Producer.send_many`."""

    def __call__(self, messages: list[Message], /) -> SendResult:
        """Store them; entries fail one by one."""


class _Entry:
    """One thread's message, and what became of it."""

    __slots__ = ("error", "id", "leads", "message", "woken")

    def __init__(self, message: Message) -> None:
        self.message = message
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


class Lingering:
    """Single sends of many threads. Thread-safe.

    Args:
        send_many: stores several messages.
        linger_s: how long the first one waits for others; 0: only what gathers while a send is under way
            goes together.
    """

    def __init__(
        self, send_many: SendMany, linger_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send_many = send_many
        self._linger_s = linger_s
        self._clock = clock
        self._mutex = Lock()
        self._full = Condition(self._mutex)
        self._waiting: deque[_Entry] = deque()
        self._led = False  # somebody gathers or sends

    def send(self, message: Message) -> MessageId:
        """Store one message; its id once it is acknowledged.

        Raises:
            BadInput, NotDone, SendUnknown: as `Producer.send`, of this message alone.
        """
        mine = _Entry(message)
        with self._mutex:
            self._waiting.append(mine)
            if len(self._waiting) >= MOST:
                self._full.notify()
            if not self._led:
                self._led = mine.leads = True
        if not mine.leads:
            self._await(mine)
        if mine.leads:
            self._lead(mine)
        return mine.settled()

    def _await(self, mine: _Entry) -> None:
        try:
            mine.woken.wait()
        except BaseException:  # Ctrl-C: nobody may wait for this thread to lead
            with self._mutex:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                if mine.leads:
                    self._pass_on()
            raise

    def _lead(self, mine: _Entry) -> None:
        batch: list[_Entry] = []
        try:
            batch = self._gather()
            _settle(batch, self._send_many([entry.message for entry in batch]))
        except CqueueError as exc:
            for entry in batch:
                entry.error = exc
        except BaseException as exc:
            for entry in batch[1:]:  # the first one's thread is this one
                entry.error = SendUnknown(f"the thread that was sending the message was stopped: {exc!r}")
            raise
        finally:
            with self._mutex:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                self._pass_on()
            for entry in batch:
                entry.woken.set()

    def _gather(self) -> list[_Entry]:
        until_s = self._clock() + self._linger_s
        with self._mutex:
            while len(self._waiting) < MOST and (left_s := until_s - self._clock()) > 0:
                self._full.wait(left_s)
            return [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]

    def _pass_on(self) -> None:
        """Let the next one lead. The mutex is held."""
        self._led = bool(self._waiting)
        if self._waiting:
            self._waiting[0].leads = True
            self._waiting[0].woken.set()


def _settle(batch: list[_Entry], result: SendResult) -> None:
    for entry, id_ in zip(batch, result.ids, strict=True):
        entry.id = id_
    for index, error in result.failed:
        batch[index].error = error
