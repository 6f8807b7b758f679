"""Records what one process asks of a queue, and what it is told.

A line is one write to a file opened for appending, so after SIGKILL every line but perhaps the last is whole.
A file belongs to one process; the checker reads any number of files.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

from cqueue.consumer import Consumer
from cqueue.errors import BadInput, CqueueError, OutcomeUnknown, SendUnknown
from cqueue.message import Message, MessageId, to_datetime, unique_rule
from cqueue.producer import SendResult
from cqueue.protocol.dead import HEADER_ID
from cqueue.protocol.poll import Share
from cqueue.queue import MAX_PEEK, Queue, StoredMessage
from cqueue.received import Messages, Received, ReceivedMessage, listed
from cqueue.receiving.interface import Found
from cqueue.runtime.driver import BlockingDriver
from cqueue.store.operations import WideRow
from cqueue.testing.clock import ManualClock
from cqueue.testing.events import FAIL, INVOKE, OK, SKIPPED, UNKNOWN, HistoryLine

MS: Final = timedelta(milliseconds=1)

T = TypeVar("T")
Answer = tuple[list[dict[str, Any]], dict[str, Any]]
"""What a call that was done is told: notes on its messages, and remarks."""


def digest(body: bytes) -> str:
    """Return a name for a body. Bodies of messages that must be told apart must differ."""
    return blake2b(body, digest_size=8).hexdigest()


def recording(
    queue: Queue, path: Path, *, key: Callable[[bytes], str] = digest
) -> AbstractContextManager[Recorder]:
    """Make a recorder for a `with` block, which writes everything that is done through it to `path`.

    Args:
        queue: the queue.
        path: file of the history; lines are appended.
        key: return a name for a message's body.

    Example:
        with recording(queue, Path("history.jsonl")) as recorded, recorded.consumer() as consumer:
            recorded.send(b"hello")
            consumer.ack(consumer.receive())
        print(check(Path("history.jsonl")))
    """
    return closing(Recorder(queue, path, key=key))


class Recorder:
    """Sends to a queue, makes consumers of it, and records both. Thread-safe."""

    def __init__(self, queue: Queue, path: Path, *, key: Callable[[bytes], str] = digest) -> None:
        self.queue = queue
        self._key = key
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._process = f"{os.getpid()}-{secrets.token_hex(3)}"
        self._numbers = itertools.count(1)
        self._consumers = itertools.count(1)

    def close(self) -> None:
        """Close the file. The queue stays open."""
        file, self._file = self._file, -1
        os.close(file)

    def send(self, message: bytes | Message) -> MessageId:
        """Send one message; as `Producer.send`."""
        result = self.send_many([Message(message) if isinstance(message, bytes) else message])
        for _, error in result.failed:
            raise error
        return cast("MessageId", result.ids[0])

    def send_many(self, messages: Iterable[Message]) -> SendResult:
        """Send messages; as `Queue.send_many`."""
        entries = list(messages)
        asked = [self._sent(message) for message in entries]
        send = partial(self.queue.send_many, entries)
        return self.call("send", threading.current_thread().name, asked, send, answer=_outcomes)

    def consumer(self, **options: Any) -> RecordedConsumer:
        """Return a consumer; as `Queue.consumer`. Its messages are settled through it, and recorded too."""
        return RecordedConsumer(self, self.queue.consumer(**options), f"consumer-{next(self._consumers)}")

    def left(self, dead: Queue | None = None) -> int:
        """Record what is in the queue now, and in its dead-letter queue; return how many messages that is.

        Call it when all clients have finished: the checker does not count these messages as lost.

        Raises:
            BadInput: there are more messages than a peek returns.
        """
        found = self.queue.peek(MAX_PEEK) + (dead.peek(MAX_PEEK) if dead is not None else [])
        if len(found) >= MAX_PEEK:
            raise BadInput(f"{len(found):,} messages or more are left; a history takes fewer")
        notes = [self._noted(stored) for stored in found]
        self.call("left", "", [], lambda: None, answer=lambda _: (notes, {}))
        return len(found)

    def _noted(self, message: Received | StoredMessage) -> dict[str, Any]:
        origin = message.headers.get(HEADER_ID)
        note = {"id": str(message.id), "key": self._key(message.body)}
        return note if origin is None else {**note, "origin": origin}

    def _sent(self, message: Message) -> dict[str, Any]:
        note: dict[str, Any] = {"key": self._key(message.body)}
        if message.priority:
            note["priority"] = message.priority
        if message.due is not None:
            now_us = self._cluster_us()
            now = datetime.now(UTC) if now_us is None else to_datetime(now_us // 1000)
            note["delay_ms"] = max(timedelta(), message.due - now) // MS
        elif message.delay:
            note["delay_ms"] = message.delay // MS
        if message.ttl is not None:
            note["ttl_ms"] = message.ttl // MS
        if message.unique is not None:
            note |= _unique(message)
        return note

    def received(self, message: ReceivedMessage) -> dict[str, Any]:
        """Return the note about a delivered message."""
        lease = message.lease
        return self._noted(message) | {"fence": lease.fence, "attempt": lease.attempt, "due_ms": lease.due_ms}

    def call(  # all lines are made here
        self,
        operation: str,
        holder: str,
        asked: list[dict[str, Any]],
        function: Callable[[], T],
        *,
        answer: Callable[[T], Answer] = lambda _: ([], {}),
        note: Mapping[str, Any] | None = None,
    ) -> T:
        """Run a call between its two lines. `answer`: return what the second one says of a result."""
        number = next(self._numbers)

        def write(phase: str, messages: list[dict[str, Any]], note: Mapping[str, Any]) -> None:
            event = HistoryLine(
                operation=operation,
                phase=phase,
                call=number,
                process=self._process,
                holder=holder,
                queue=self.queue.name,
                mono_ns=self._mono_ns(),
                wall_ns=time.time_ns(),
                cluster_us=None if phase == INVOKE else self._cluster_us(),
                messages=tuple(messages),
                note=note,
            )
            line = event.line()
            if os.write(self._file, line) != len(line):
                raise OSError("the history cannot be written: is the disk full?")

        write(INVOKE, asked, note or {})
        try:
            result = function()
        except CqueueError as exc:
            outcome = UNKNOWN if isinstance(exc, OutcomeUnknown) else FAIL
            write(outcome, [], {"error": type(exc).__name__})
            raise
        write(OK, *answer(result))
        return result

    def _mono_ns(self) -> int:
        """Return monotonic time; leases end by the client's clock, so where a test moves that one, both."""
        clock = self.queue._driver.clock  # noqa: SLF001 - as in _cluster_us
        return time.monotonic_ns() + (clock.now_us() * 1000 if isinstance(clock, ManualClock) else 0)

    def _cluster_us(self) -> int | None:
        try:
            return self.queue._driver.clock.now_us()  # noqa: SLF001 - a history needs the client's own clock
        except CqueueError:
            return None


def _unique(message: Message) -> dict[str, Any]:
    try:
        rule = unique_rule(message)
    except BadInput:
        return {}  # the send refuses the message
    within_ms = None if rule.within_us is None else rule.within_us / 1000
    return {"unique": rule.key, "replaces": rule.replace, "within_ms": within_ms}


def _outcomes(result: SendResult) -> Answer:
    entries: list[dict[str, Any]] = [{"ids": [id_] if id_ else []} for id_ in result.ids]
    for place in result.skipped:
        entries[place]["outcome"] = SKIPPED
    for place, error in result.failed:
        unknown = isinstance(error, OutcomeUnknown)
        entries[place]["outcome"] = UNKNOWN if unknown else FAIL
        entries[place]["error"] = type(error).__name__
        if isinstance(error, SendUnknown):
            entries[place]["ids"] = list(error.ids)
    return entries, {"remade": result.remade} if result.remade else {}


class RecordedConsumer:
    """A `Consumer` that records every call."""

    def __init__(self, recorder: Recorder, consumer: Consumer, name: str) -> None:
        self.name = name
        self._recorder = recorder
        self._consumer = consumer

    @property
    def driver(self) -> BlockingDriver:
        """As `Consumer.driver`."""
        return self._consumer.driver

    @property
    def settles_with(self) -> RecordedConsumer:
        """This consumer: the history says which consumer settled a message."""
        return self

    def receive(self, max_messages: int = 10, wait: timedelta = timedelta()) -> list[ReceivedMessage]:
        """As `Consumer.receive`."""
        return self._receive(partial(self._consumer.receive, max_messages, wait))

    def fetch(self, max_messages: int, share: Share | None) -> Found:
        """As `Consumer.fetch`."""
        found = Found()

        def receive() -> list[ReceivedMessage]:
            nonlocal found
            found = self._consumer.fetch(max_messages, share)
            return list(found.messages)

        self._receive(receive)
        return found

    def receive_from(
        self, wide_row: WideRow, priorities: frozenset[int], max_messages: int = 1
    ) -> list[ReceivedMessage]:
        """As `Consumer.receive_from`."""
        return self._receive(partial(self._consumer.receive_from, wide_row, priorities, max_messages))

    def _receive(self, receive: Callable[[], list[ReceivedMessage]]) -> list[ReceivedMessage]:
        messages = self._recorder.call("receive", self.name, [], receive, answer=self._received)
        for message in messages:
            message._consumer = self  # noqa: SLF001 - message.ack() is recorded too
        return messages

    def _received(self, messages: list[ReceivedMessage]) -> Answer:
        return [self._recorder.received(message) for message in messages], {}

    def ack(self, messages: Messages) -> None:
        """As `Consumer.ack`."""
        self._settle("ack", messages, self._consumer.ack)

    def ack_async(self, messages: Messages) -> Future[None]:
        """As `Consumer.ack_async`; recorded when a thread of the client runs it."""
        return self._consumer._settler._executor.submit(partial(self.ack, listed(messages)))  # noqa: SLF001

    def nack(self, messages: Messages, delay: timedelta = timedelta()) -> None:
        """As `Consumer.nack`."""
        self._settle("nack", messages, lambda some: self._consumer.nack(some, delay))

    def snooze(self, messages: Messages, delay: timedelta) -> None:
        """As `Consumer.snooze`."""
        self._settle("snooze", messages, lambda some: self._consumer.snooze(some, delay))

    def extend(self, messages: Messages, duration: timedelta) -> None:
        """As `Consumer.extend`."""
        self._settle("extend", messages, lambda some: self._consumer.extend(some, duration))

    def dead(self, messages: Messages, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """As `Consumer.dead`."""
        self._settle("dead", messages, lambda some: self._consumer.dead(some, reason, headers))

    def close(self, *, give_back: bool = True) -> None:
        """As `Consumer.close`."""
        close = partial(self._consumer.close, give_back=give_back)
        self._recorder.call("close", self.name, [], close, note={"give_back": give_back})

    def _settle(self, operation: str, messages: Messages, settle: Callable[[list[Received]], None]) -> None:
        some = listed(messages)

        def answer(_: None) -> Answer:
            if operation != "extend":
                return [], {}
            return [{"id": str(message.id), "due_ms": message.lease.due_ms} for message in some], {}

        asked = [{"id": str(message.id)} for message in some]
        self._recorder.call(operation, self.name, asked, partial(settle, some), answer=answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
