"""Sends of several threads at the same time, stored together: a group commit.

Two threads send at a time, each its own message: a few threads have nothing to wait for. What others want to
send meanwhile goes together, in up to two batches at a time. With `linger` all goes together, one batch at a
time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from threading import get_ident
from typing import Final, NamedTuple

from cqueue.batcher import Batcher, Bounds
from cqueue.errors import CqueueError
from cqueue.message import Message, MessageId
from cqueue.producer import Producer

MAX_LINGER: Final = timedelta(seconds=1)
MOST: Final = 500
"""Messages sent together."""
ALONE: Final = 2
"""Threads that send their own messages at a time. None where they linger."""
TOGETHER: Final = 2
"""Batches of the others at a time. One where they linger."""


class _Send(NamedTuple):
    message: Message
    since_s: float


class GroupCommit:
    """Single sends of many threads. Thread-safe.

    Args:
        producer: stores them.
        limit_s: what a send may take. One that has waited for all of it is not sent; what is sent has half
            of it at least, whatever it waited.
        linger: how long the first one waits for others, one batch at a time. None: it does not wait, and
            only what comes while `ALONE` threads are sending goes together.
    """

    def __init__(
        self,
        producer: Producer,
        limit_s: float,
        linger: timedelta | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._producer = producer
        self._limit_s = limit_s
        self._clock = clock
        self._most_alone = ALONE if linger is None else 0
        self._alone: set[int] = set()  # threads that send their own messages
        bounds = Bounds(MOST, TOGETHER) if linger is None else Bounds(MOST, 1, linger.total_seconds())
        self._together: Batcher[_Send, MessageId] = Batcher(
            self._store, bounds, name="cqueue-group", daemon=True
        )

    def send(self, message: Message) -> MessageId:
        """Store one message; its id once it is acknowledged.

        Raises:
            BadInput, NotDone, SendUnknown: as `Producer.send`, of this message alone.
        """
        self._producer.check_open()
        me = get_ident()
        try:  # before the place is taken, so that Ctrl-C can keep none
            self._alone.add(me)
            if len(self._alone) <= self._most_alone and not self._together.is_gathering:
                return self._producer.send(message)
        finally:
            self._alone.discard(me)
        return self._together.call(_Send(message, self._clock()), self._limit_s)

    def _store(self, sends: list[_Send]) -> list[MessageId | CqueueError]:
        waited_s = self._clock() - sends[0].since_s
        with self._producer.limited(max(self._limit_s - waited_s, self._limit_s / 2)):
            result = self._producer.send_many([send.message for send in sends])
        errors = dict(result.failed)
        return [id_ if id_ is not None else errors[place] for place, id_ in enumerate(result.ids)]
