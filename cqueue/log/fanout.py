"""Feed queues from a log: each record becomes a message whose id is derived from the record's id.

A record that is handed out again, by any member, becomes the same message again, and sending that changes
nothing. So no record becomes two messages, although members may repeat records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from cqueue.errors import LASTING, BadInput, RecordRejected
from cqueue.log.records import LogRecord, check_topics
from cqueue.message import Message
from cqueue.queue import Queue

FEED_BATCH: Final = 500
"""Records that a feed sends at once: as many as one flush of a queue."""
HEADER_TOPIC: Final = "cqueue-topic"
"""Header of a message that holds its record's topic."""

ToMessage = Callable[[LogRecord], Message]


class Feed:
    """A listener that sends records to queues; `feed` makes it."""

    batch_size = FEED_BATCH

    def __init__(
        self, queues: Iterable[Queue], topics: Iterable[str] | None, message: ToMessage | None
    ) -> None:
        self._queues = tuple(queues)
        self._topics = check_topics(topics)
        if message is not None and not callable(message):
            raise BadInput(f"message is {message!r}; it takes a function of a record")
        self._message = message or plain_message

    def __call__(self, records: list[LogRecord]) -> None:
        """Send records; sending them again changes nothing.

        Raises:
            RecordRejected: a queue refuses a record that is too large, or older than gc_grace.
            NotDone, SendUnknown: some records may be sent and others not.
        """
        wanted = [one for one in records if self._topics is None or one.topic in self._topics]
        messages = [_derived(self._message(one), one) for one in wanted]
        for queue in self._queues if messages else ():
            for _, error in queue.send_many(messages).failed:
                if isinstance(error, BadInput) and not isinstance(error, LASTING):
                    raise RecordRejected(f"queue {queue.name!r}: {error}") from error
                raise error


def feed(*queues: Queue, topics: Iterable[str] | None = None, message: ToMessage | None = None) -> Feed:
    """Return a listener that sends each record to these queues exactly once, however often it is handed out.

    The queues are altered to have `derived_sends`. topics: send only records of these topics. message: makes
    the message (its `source`, `due` and `delay` are replaced); by default the message has the record's body,
    key and headers, and its topic in the header `cqueue-topic`.

    The message is due at the record's time. A record older than the deployment's gc_grace is rejected,
    because nobody could tell any more whether it was sent before.

    Raises:
        BadInput: no queue is given; or topics are no texts, or message cannot be called.
    """
    if not queues or not all(isinstance(each, Queue) for each in queues):
        raise BadInput("feed takes one or more queues")
    made = Feed(queues, topics, message)  # before a queue is altered: an argument may be wrong
    for queue in queues:
        if not queue.config.derived_sends:
            queue.alter(derived_sends=True)
    return made


def plain_message(record: LogRecord) -> Message:
    """Return the record as a message, with its topic in a header."""
    return Message(record.body, key=record.key, headers={**record.headers, HEADER_TOPIC: record.topic})


def _derived(message: Message, record: LogRecord) -> Message:
    """Return the message with the record's time and an id derived from the record's id."""
    return replace(message, due=record.time, delay=None, unique=None, source=f"log {record.id}")
