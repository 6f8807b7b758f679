"""Messages as applications see them: what they send, the ids they get, what is checked before."""

from __future__ import annotations

import base64
import re
import struct
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cqueue import ids
from cqueue.durations import given, show_duration
from cqueue.errors import (
    BadInput,
    BodyTooLarge,
    DelayOutOfRange,
    HeadersTooLarge,
    InvalidMessageId,
    InvalidQueueName,
    PriorityOutOfRange,
)
from cqueue.protocol.flush import Outgoing
from cqueue.store.operations import WideRow

MAX_BODY = 1 << 20
MAX_HEADERS = 64
MAX_HEADERS_BYTES = 16 << 10
MAX_DELAY = timedelta(days=3650)
MAX_PRIORITY = 9
MAX_BATCH = 10_000
"""Entries of one `send_many`."""
MAX_TEXT = 1000
"""Characters of a task's name, a key, a source and the like."""
MAX_RECEIVE = 1000
"""Messages of one `receive`."""
MAX_PREFETCH = 4000
"""Messages claimed at once, and ahead."""

_OPTIONS = ("delay", "due", "priority", "headers", "ttl", "task", "key", "codec", "trigger", "source")
_NO_OPTIONS = (None, None, 0, *(None,) * 7)
_NO_TEXTS = (None, None, None, None)
_PLAIN = (0, None, None, None, *_NO_TEXTS, None)  # all of an Outgoing but its body
_new_tuple = tuple.__new__
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_AFTER_ALL_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""A time of sending that no due time is ahead of."""


@dataclass(frozen=True, init=False)
class Message:
    """A message to send.

    body: bytes, at most 1 MiB. delay: from now, 0 to 10 years, or due: an aware datetime (one of
    them). priority: 0, the most urgent, to 9. headers: at most 64 strings by name, 16 KiB together.
    ttl: how long after sending the message may still be delivered; None for ever.

    task, key, codec, trigger: at most 1,000 characters each, handed on as they are: the task's name, a key
    of the application's own, how the body is encoded, which firing of a schedule this is.

    source: makes the send idempotent: messages of one queue with the same `source` (1 to 1,000 characters
    or bytes), `due` (which it needs, in the past if you like, but not before the deployment's gc_grace)
    and priority are one message, however often and by whomever they are sent, until gc_grace after it
    was acked. The queue must have been made, or altered, to have `derived_sends`.
    """

    body: bytes
    delay: timedelta | None = None
    due: datetime | None = None
    priority: int = 0
    headers: Mapping[str, str] | None = None
    ttl: timedelta | None = None
    task: str | None = None
    key: str | None = None
    codec: str | None = None
    trigger: str | None = None
    source: str | bytes | None = None

    def __init__(  # noqa: PLR0917 - the fields
        self,
        body: bytes,
        delay: timedelta | None = None,
        due: datetime | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        ttl: timedelta | None = None,
        task: str | None = None,
        key: str | None = None,
        codec: str | None = None,
        trigger: str | None = None,
        source: str | bytes | None = None,
    ) -> None:
        # Only the body where nothing else is given, since the class has the defaults: a fifth of the time of
        # the usual way, and senders make many. `outgoing` tells by it what there is to check.
        given = self.__dict__
        given["body"] = body
        options = (delay, due, priority, headers, ttl, task, key, codec, trigger, source)
        if options != _NO_OPTIONS or type(priority) is not int:
            given.update(zip(_OPTIONS, options, strict=True))


class Location(NamedTuple):
    """Where a message stands."""

    wide_row: WideRow
    priority: int
    id: int


class MessageId(str):
    """An opaque, URL-safe string that names one message of one queue. Keep it whole; do not parse it."""

    __slots__ = ()

    @classmethod
    def of(cls, wide_row: WideRow, priority: int, id_: int) -> MessageId:
        """The id of the message at this place."""
        head = struct.pack(">BqiB", 1, wide_row.time_shard, wide_row.shard, priority)
        packed = head + ids.to_bytes(id_) + wide_row.queue.encode()
        return cls(b2a_base64(packed, newline=False).translate(_URL_SAFE).rstrip(b"=").decode())

    def locate(self) -> Location:
        """Where the message stands.

        Raises:
            InvalidMessageId: the text was not made by this library.
        """
        try:
            packed = base64.urlsafe_b64decode(self + "=" * (-len(self) % 4))
            version, time_shard, shard, priority = struct.unpack_from(">BqiB", packed)
            id_, queue = ids.from_bytes(packed[14:30]), packed[30:].decode("ascii")
        except (ValueError, struct.error) as exc:
            raise InvalidMessageId(f"{str(self)!r} is not a message id") from exc
        if (
            version != 1
            or priority > MAX_PRIORITY
            or "@" not in queue
            or self.of(WideRow(queue, time_shard, shard), priority, id_) != str(self)
        ):
            raise InvalidMessageId(f"{str(self)!r} is not a message id")
        return Location(WideRow(queue, time_shard, shard), priority, id_)


def check_queue_name(name: str) -> str:
    """The name, if it is one.

    Raises:
        InvalidQueueName: it is not 1 to 200 of the characters `A-Z a-z 0-9 . _ -`.
    """
    if not isinstance(name, str) or not _QUEUE_NAME.match(name):
        raise InvalidQueueName(f"{name!r} is not a queue name; use 1 to 200 characters of A-Z a-z 0-9 . _ -")
    return name


def outgoing(message: Message, now_us: int) -> Outgoing:
    """The message as the protocol takes it, all limits checked.

    Raises:
        BadInput: one of its kinds, for what is wrong.
    """
    if type(message) is Message and len(message.__dict__) == 1:
        only = message.body
        if type(only) is bytes and len(only) <= MAX_BODY:
            return _new_tuple(Outgoing, (only, *_PLAIN))
    if not isinstance(message, Message):
        raise BadInput(f"an entry is a Message, not {type(message).__name__}: Message(body, ...)")
    body, headers = message.body, message.headers
    if type(body) is not bytes:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise BadInput(f"a body is bytes, not {type(body).__name__}; encode it first")
        body = bytes(body)
    if len(body) > MAX_BODY:
        raise BodyTooLarge(f"the body has {len(body):,} bytes; at most {MAX_BODY:,} are allowed")
    if headers:
        headers = check_headers(headers)
    priority = message.priority
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise PriorityOutOfRange(f"priority is {priority!r}; it goes from 0 (most urgent) to {MAX_PRIORITY}")
    ttl_ms = None if message.ttl is None else _ttl_ms(message.ttl)
    headers = dict(headers) if headers else None
    if message.source is not None:
        source, due_us = _source(message.source), _derived_due_us(message, now_us)
        return Outgoing(body, priority, due_us, headers, ttl_ms, *_texts(message), source)
    at_us = None if message.delay is None and message.due is None else due_at_us(message, now_us)
    return Outgoing(body, priority, at_us, headers, ttl_ms, *_texts(message))


def check_options(message: Message) -> None:
    """Refuse what `outgoing` would refuse at any time.

    How far ahead a due time may be depends on the time of sending, and a source may still get its due time.

    Raises:
        BadInput: as `outgoing`.
    """
    outgoing(replace(message, source=None), _AFTER_ALL_US)
    if message.source is not None:
        _source(message.source)


def _texts(message: Message) -> tuple[str | None, str | None, str | None, str | None]:
    """Codec, task, key and trigger."""
    texts = (message.codec, message.task, message.key, message.trigger)
    if texts == _NO_TEXTS:
        return texts
    for name, text in zip(("codec", "task", "key", "trigger"), texts, strict=True):
        if text is not None and (not isinstance(text, str) or not 1 <= len(text) <= MAX_TEXT):
            raise BadInput(f"{name} is {text!r}; it takes 1 to {MAX_TEXT:,} characters")
    return texts


def _source(source: str | bytes) -> bytes:
    if not isinstance(source, str | bytes) or not 1 <= len(source) <= MAX_TEXT:
        raise BadInput(f"source is {source!r}; it takes 1 to {MAX_TEXT:,} characters or bytes")
    return b"s" + source.encode() if isinstance(source, str) else b"b" + source


def _derived_due_us(message: Message, now_us: int) -> int:
    """The due time of a derived id: as given, be it past, so that a repeat derives the same."""
    if message.due is None or message.delay is not None:
        raise BadInput("a message with a source takes due, which every repeat gives again, and no delay")
    due_at_us(message, now_us)
    return (message.due - _EPOCH) // _MICROSECOND


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers, if they fit.

    Raises:
        BadInput: a name or value is no text.
        HeadersTooLarge: more than 64, or more than 16 KiB together.
    """
    total = 0
    if not isinstance(headers, Mapping):
        raise BadInput(f"headers is a {type(headers).__name__}; it takes a mapping of text to text")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadInput(f"header {name!r} is {value!r}; names and values are text")
        try:
            total += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError as exc:
            raise BadInput(f"header {name!r} is {value!r}, which is not valid text") from exc
    if len(headers) > MAX_HEADERS or total > MAX_HEADERS_BYTES:
        raise HeadersTooLarge(
            f"{len(headers)} headers with {total:,} bytes; at most {MAX_HEADERS} with {MAX_HEADERS_BYTES:,}"
        )
    return headers


def due_at_us(message: Message, now_us: int) -> int:
    """When a delayed message is due, in µs since 1970.

    Raises:
        BadInput: both delay and due are given, or due has no time zone.
        DelayOutOfRange: more than 10 years ahead, or a negative delay.
    """
    if message.due is None:
        return now_us + delay_us(message.delay or timedelta())
    if message.delay is not None:
        raise BadInput("give delay or due, not both")
    if not isinstance(message.due, datetime):
        raise BadInput(f"due is {message.due!r}; it takes an aware datetime")
    if message.due.tzinfo is None:
        raise BadInput(f"due is {message.due}, without a time zone; give an aware datetime")
    due_us = (message.due - _EPOCH) // _MICROSECOND
    if due_us - now_us > MAX_DELAY // _MICROSECOND:
        raise DelayOutOfRange(f"due is {message.due}, more than 10 years ahead")
    return max(due_us, now_us)


def delay_us(delay: timedelta) -> int:
    """A delay in µs.

    Raises:
        DelayOutOfRange: below 0 or above 10 years.
    """
    if not isinstance(delay, timedelta):
        raise BadInput(f"delay is {given(delay)}; it takes a timedelta")
    if not timedelta() <= delay <= MAX_DELAY:
        raise DelayOutOfRange(f"delay is {given(delay)}; it goes from 0 to 10 years")
    return delay // _MICROSECOND


def check_duration(name: str, value: timedelta, low: timedelta, high: timedelta) -> float:
    """The duration in seconds.

    Raises:
        BadInput: it is no timedelta, or out of its range.
    """
    if not isinstance(value, timedelta) or not low <= value <= high:
        raise BadInput(
            f"{name} is {given(value)}; "
            f"it takes a timedelta from {show_duration(low)} to {show_duration(high)}"
        )
    return value.total_seconds()


def _ttl_ms(ttl: timedelta) -> int:
    if not isinstance(ttl, timedelta) or not timedelta(milliseconds=1) <= ttl <= MAX_DELAY:
        raise BadInput(f"ttl is {given(ttl)}; it takes a timedelta from 1 ms to 10 years")
    return ttl // timedelta(milliseconds=1)


def to_datetime(ms: int) -> datetime:
    """An aware datetime from ms since 1970."""
    return _EPOCH + timedelta(milliseconds=ms)
