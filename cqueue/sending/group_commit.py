"""Group commit: store messages that several threads send at the same time in common batches.

Two threads at a time send their own messages directly, so that a few threads need not wait. Messages that
other threads send meanwhile go in batches, up to two at a time. With `linger` all messages go in batches, one
at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, NamedTuple

from cqueue.errors import CqueueError
from cqueue.message import Message, MessageId
from cqueue.producer import Producer
from cqueue.runtime import waiting
from cqueue.runtime.batcher import Batcher, Bounds

MAX_LINGER: Final = timedelta(seconds=1)
"""Upper bound of `linger`: each send waits for that long."""
BATCH_MESSAGES: Final = 500
"""Messages in one batch, at most: as many as one flush writes."""
DIRECT_SENDERS: Final = 2
"""Threads that send their own messages directly at a time; with `linger`, none."""
BATCHES_AT_ONCE: Final = 2
"""Batches of other threads' messages under way at a time; with `linger`, one."""


class _Send(NamedTuple):
    message: Message
    since_s: float


class GroupCommit:
    """Single sends of many threads. Thread-safe.

    Args:
        producer: stores the messages.
        limit_s: seconds that a send may take. A message that is still queued after that is not sent. A batch
            gets at least half of it, however long its messages were queued.
        linger: how long the first message of a batch waits for others, one batch at a time. None: messages do
            not wait, and only those that come while `DIRECT_SENDERS` threads are sending go in batches.
        clock: seconds of a clock that never steps back.
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
        self._most_direct = DIRECT_SENDERS if linger is None else 0
        self._direct: set[int] = set()  # callers that send their own messages
        bounds = (
            Bounds(BATCH_MESSAGES, BATCHES_AT_ONCE)
            if linger is None
            else Bounds(BATCH_MESSAGES, 1, linger.total_seconds())
        )
        self._batcher: Batcher[_Send, MessageId] = Batcher(
            self._store, bounds, name="cqueue-group", daemon=True
        )

    def send(self, message: Message) -> MessageId:
        """Store one message. Return its id once the message is acknowledged.

        Raises:
            BadInput, NotDone, SendUnknown: as `Producer.send`, of this message alone.
        """
        self._producer.check_open()
        me = waiting.caller()
        try:  # `try` before `add`, so that Ctrl-C cannot leave the thread in the set
            self._direct.add(me)
            if len(self._direct) <= self._most_direct and not self._batcher.queued:
                return self._producer.send(message)
        finally:
            self._direct.discard(me)
        return self._batcher.call(_Send(message, self._clock()), self._limit_s)

    def _store(self, sends: list[_Send]) -> list[MessageId | CqueueError]:
        waited_s = self._clock() - sends[0].since_s
        with self._producer.limited(max(self._limit_s - waited_s, self._limit_s / 2)):
            result = self._producer.send_many([send.message for send in sends])
        errors = dict(result.failed)
        return [id_ if id_ is not None else errors[place] for place, id_ in enumerate(result.ids)]
