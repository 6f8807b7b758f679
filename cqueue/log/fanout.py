"""Feeding queues from a log: each record becomes a message whose id follows from the record's place.

So a record that is handed out again, by whichever member, is the same message again, and is not delivered
twice: between a log and a queue nothing is repeated, although both of them repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cqueue.errors import BadInput, RecordRejected
from cqueue.log.records import LogRecord, check_text
from cqueue.message import Message
from cqueue.queue import Queue

FEED_BATCH: Final = 500
HEADER_TOPIC: Final = "cqueue-topic"

ToMessage = Callable[[LogRecord], Message]


class Feed:
    """A listener that sends records to queues; made by `feed`."""

    batch_size = FEED_BATCH

    def __init__(
        self, queues: Iterable[Queue], topics: Iterable[str] | None, message: ToMessage | None
    ) -> None:
        self._queues = tuple(queues)
        self._topics = None if topics is None else frozenset(check_text("topic", each) for each in topics)
        self._message = message or plain_message

    def __call__(self, records: list[LogRecord]) -> None:
        """Send them; sending them again changes nothing.

        Raises:
            RecordRejected: a queue does not take one of them: too large, or older than gc_grace.
            NotDone, SendUnknown: some are sent and others not.
        """
        wanted = [one for one in records if self._topics is None or one.topic in self._topics]
        messages = [_derived(self._message(one), one) for one in wanted]
        for queue in self._queues if messages else ():
            for _, error in queue.send_many(messages).failed:
                if isinstance(error, BadInput):
                    raise RecordRejected(f"queue {queue.name!r}: {error}") from error
                raise error


def feed(*queues: Queue, topics: Iterable[str] | None = None, message: ToMessage | None = None) -> Feed:
    """A listener that sends each record to these queues, exactly once however often it is handed out.

    The queues are altered to have `derived_sends`. topics: leave out others. message: makes the message
    (its `source`, `due` and `delay` are replaced); by default body, key and headers are the record's, and
    the header `cqueue-topic` says its topic.

    The message is due at the record's time. A record older than the deployment's gc_grace is rejected, since
    it could not be told any more whether it was sent before.

    Raises:
        BadInput: no queue is given.
    """
    if not queues or not all(isinstance(each, Queue) for each in queues):
        raise BadInput("feed takes one or more queues")
    for queue in queues:
        if not queue.config.derived_sends:
            queue.alter(derived_sends=True)
    return Feed(queues, topics, message)


def plain_message(record: LogRecord) -> Message:
    """The record as a message."""
    return Message(record.body, key=record.key, headers={**record.headers, HEADER_TOPIC: record.topic})


def _derived(message: Message, record: LogRecord) -> Message:
    """The message under the one id that the record's place gives it."""
    return Message(
        message.body,
        due=record.time,
        priority=message.priority,
        headers=message.headers,
        ttl=message.ttl,
        task=message.task,
        key=message.key,
        codec=message.codec,
        trigger=message.trigger,
        source=f"log {record.id}",
    )
