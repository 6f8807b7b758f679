"""Messages as applications see them: `Message` and `MessageId`, and the checks before a send."""

from __future__ import annotations

import base64
import re
import struct
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import ClassVar, NamedTuple

from cqueue import ids
from cqueue.errors import (
    BadInput,
    BodyTooLarge,
    DelayOutOfRange,
    HeadersTooLarge,
    InvalidMessageId,
    InvalidQueueName,
    PriorityOutOfRange,
)
from cqueue.protocol.send import Outgoing
from cqueue.protocol.unique import Rule
from cqueue.runtime.durations import given, show_duration
from cqueue.runtime.texts import MAX_TEXT, check_text, quoted, storable
from cqueue.store.operations import WideRow
from cqueue.unique import Unique, rule_of

MAX_BODY = 1 << 20
"""Bytes of a body, at most; larger cells slow Cassandra down. Store larger data elsewhere, and send its
address."""
MAX_HEADERS = 64
"""Headers of a message, at most."""
MAX_HEADERS_BYTES = 16 << 10
"""Bytes of all names and values of a message's headers, at most: they are read with each message."""
MAX_DELAY = timedelta(days=3650)
"""How far ahead a message may be due, and the longest ttl: ten years."""
MAX_PRIORITY = 9
"""The least urgent priority; 0 is the most urgent one."""
MAX_BATCH = 10_000
"""Entries of one `send_many`, at most; all of them are held in memory."""
MAX_RECEIVE = 1000
"""Messages of one `receive`, at most: as many as one claim lists in a slot."""
MIN_EXTENSION, MAX_EXTENSION = timedelta(seconds=2), timedelta(hours=12)
"""Range of what a visibility timeout may be extended by."""
MAX_PREFETCH = 4000
"""Upper bound of a consumer's `prefetch`: all of these messages are held in memory."""
SHORT_ID = re.compile(r"[a-z2-7]{4,8}")
"""A short form of an id, or the beginning of one: see `short`."""

_NO_OPTIONS = (None, None, 0, *(None,) * 8)
_NO_TEXTS = (None, None, None, None)
_PLAIN = (0, None, None, None, *_NO_TEXTS, None)  # the fields of an Outgoing after its body
_new_tuple = tuple.__new__
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_AFTER_ALL_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""A time of sending, in µs since 1970, after every possible due time."""


@dataclass(frozen=True, init=False)
class Message:
    """A message to send.

    Attributes:
        body: bytes, at most 1 MiB.
        delay: time from the send until the message is due, 0 to 10 years.
        due: when the message is due, as an aware datetime, instead of `delay`.
        priority: 0 (most urgent) to 9.
        headers: at most 64 texts by name, 16 KiB together.
        ttl: how long after the send the message may be delivered, 1 ms to 10 years. None: for ever.
        task: name of the task that handles the message. Like `key`, `codec` and `trigger` it has at most
            1,000 characters, and is handed on unchanged.
        key: the application's own key. If the queue is `keyed`, the message can be looked up by it.
        codec: how the body is encoded.
        trigger: which firing of a schedule the message is, as JSON.
        source: makes the send idempotent (1 to 1,000 characters or bytes). All messages of a queue with the
            same `source`, `due` and priority are one message, however often they are sent, until gc_grace
            after the message was acked. It needs `due`, which may lie in the past, but by less than gc_grace;
            and the queue needs `derived_sends`.
        unique: sends the message only if no other one of its unique key is in the way. Not with `source`.

    Example:
        queue.send_many([Message(b"now"), Message(b"later", delay=timedelta(hours=1), priority=5)])
    """

    body: bytes = field(repr=False)  # neither it nor headers stand in a log that has the repr
    delay: timedelta | None = None
    due: datetime | None = None
    priority: int = 0
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    ttl: timedelta | None = None
    task: str | None = None
    key: str | None = None
    codec: str | None = None
    trigger: str | None = None
    source: str | bytes | None = None
    unique: Unique | None = None

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
        unique: Unique | None = None,
    ) -> None:
        # With only a body, only the body is set, as the class has the defaults. This takes a fifth of the
        # usual time, and senders make many messages. `outgoing` sees from it that only the body has to be
        # checked.
        given = self.__dict__
        given["body"] = body
        options = (delay, due, priority, headers, ttl, task, key, codec, trigger, source, unique)
        if options != _NO_OPTIONS or type(priority) is not int:
            given.update(zip(_OPTIONS, options, strict=True))


_OPTIONS = [one.name for one in fields(Message) if one.name != "body"]


class Location(NamedTuple):
    """The place of a message: its wide row, priority and id."""

    wide_row: WideRow
    priority: int
    id: int


class MessageId(str):
    """An opaque, URL-safe string that names one message of one queue. Store it whole; do not parse it."""

    __slots__ = ()
    skipped: ClassVar[bool] = False
    """True for the result of a send that was skipped: the id is that of the message in the way."""

    @classmethod
    def of(cls, wide_row: WideRow, priority: int, id_: int) -> MessageId:
        """Make the id of the message at this place."""
        head = struct.pack(">BqiB", 1, wide_row.time_shard, wide_row.shard, priority)
        packed = head + ids.to_bytes(id_) + wide_row.queue.encode()
        return cls(b2a_base64(packed, newline=False).translate(_URL_SAFE).rstrip(b"=").decode())

    def locate(self) -> Location:
        """Return the place of the message.

        Raises:
            InvalidMessageId: the text is no message id of this library.
        """
        try:
            packed = base64.urlsafe_b64decode(self + "=" * (-len(self) % 4))
            _, time_shard, shard, priority = struct.unpack_from(">BqiB", packed)
            id_, queue = ids.from_bytes(packed[14:30]), packed[30:].decode("ascii")
        except (ValueError, struct.error) as exc:
            raise InvalidMessageId(self._refusal()) from exc
        wide_row = WideRow(queue, time_shard, shard)
        if priority > MAX_PRIORITY or "@" not in queue or self.of(wide_row, priority, id_) != self:
            raise InvalidMessageId(self._refusal())
        return Location(wide_row, priority, id_)

    def _refusal(self) -> str:
        is_short = SHORT_ID.fullmatch(self) is not None
        hint = "; give a whole id: only the command line takes short ones" if is_short else ""
        return f"{quoted(str(self))} is not a message id{hint}"


class SkippedId(MessageId):
    """The result of a send that was skipped: the id of the message in the way."""

    __slots__ = ()
    skipped = True


def short(id_: str) -> str:
    """Return the short form of an id, for people: eight characters that the id's digest begins with."""
    return base64.b32encode(blake2b(id_.encode(), digest_size=5).digest()).decode().lower()


def queue_of(id_: str) -> str:
    """Return the name of the queue whose message has this id.

    Raises:
        InvalidMessageId: the text is no message id.
    """
    return MessageId(id_).locate().wide_row.queue.partition("@")[0]


def is_queue_name(name: object) -> bool:
    """Return whether a queue or log may have this name."""
    return isinstance(name, str) and bool(_QUEUE_NAME.match(name)) and name not in {".", ".."}


def check_queue_name(name: str, kind: str = "queue") -> str:
    """Return the name of a queue or log unchanged, if it is valid. kind: what it is of, for the error.

    Raises:
        InvalidQueueName: the name is not 1 to 200 of the characters `A-Z a-z 0-9 . _ -`, or is `.` or `..`,
            which browsers and file systems do not take for names.
    """
    if not is_queue_name(name):
        raise InvalidQueueName(
            f"{quoted(name)} is not a {kind} name; "
            "use 1 to 200 characters of A-Z a-z 0-9 . _ -, but not . or .."
        )
    return name


def outgoing(message: Message, now_us: int) -> Outgoing:
    """Check a message against all limits, and turn it into the protocol's form.

    now_us: cluster time in µs since 1970.

    Raises:
        BadInput: a limit is exceeded; the subclass says which one.
    """
    if type(message) is Message and len(message.__dict__) == 1:
        only = message.body
        if type(only) is bytes and len(only) <= MAX_BODY:
            return _new_tuple(Outgoing, (only, *_PLAIN))
    check_message(message)
    body, priority = check_body(message.body), message.priority
    headers = dict(check_headers(message.headers)) if message.headers else None
    check_priority(priority)
    ttl_ms = None if message.ttl is None else _ttl_ms(message.ttl)
    if message.source is not None:
        source, due_us = _source(message.source), _derived_due_us(message, now_us)
        return Outgoing(body, priority, due_us, headers, ttl_ms, *_texts(message), source)
    at_us = None if message.delay is None and message.due is None else due_at_us(message, now_us)
    return Outgoing(body, priority, at_us, headers, ttl_ms, *_texts(message))


def check_message(entry: object) -> None:
    """Raise `BadInput` unless the entry is a `Message`."""
    if not isinstance(entry, Message):
        raise BadInput(f"an entry is a Message, not {type(entry).__name__}: Message(body, ...)")


def check_body(body: bytes | bytearray | memoryview) -> bytes:
    """Return the body of a message or record as bytes.

    Raises:
        BadInput: it is no bytes.
        BodyTooLarge: it has more than 1 MiB.
    """
    if type(body) is not bytes:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise BadInput(f"a body is bytes, not {type(body).__name__}; encode it first")
        body = bytes(body)
    if len(body) > MAX_BODY:
        raise BodyTooLarge(f"the body has {len(body):,} bytes; at most {MAX_BODY:,} are allowed")
    return body


def check_priority(priority: int) -> None:
    """Raise `PriorityOutOfRange` unless the priority is a whole number from 0 to 9."""
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise PriorityOutOfRange(f"priority is {priority!r}; it goes from 0 (most urgent) to {MAX_PRIORITY}")


def check_limit(limit: int, most: int, name: str = "limit") -> int:
    """Return a number that has an upper bound. name: the argument's name, for the error.

    Raises:
        BadInput: it is not a whole number from 1 to `most`.
    """
    if type(limit) is not int or not 1 <= limit <= most:
        raise BadInput(f"{name} is {limit!r}; it goes from 1 to {most:,}")
    return limit


def check_options(message: Message) -> None:
    """Check a message as far as possible before the time of sending is known.

    The limit of a due time depends on the time of sending, and a message with a source may get its due time
    later.

    Raises:
        BadInput: as `outgoing`.
    """
    outgoing(replace(message, source=None), _AFTER_ALL_US)
    if message.unique is not None:
        unique_rule(message)
    if message.source is not None:
        _source(message.source)


def unique_rule(message: Message) -> Rule:
    """Return the rule of a message with `unique`.

    Raises:
        BadInput: it has no key, or a source as well.
    """
    unique = message.unique
    if not isinstance(unique, Unique):
        raise BadInput(f"unique is {unique!r}; it takes a Unique(...)")
    if message.source is not None:
        raise BadInput("give source or unique, not both: a message with a source is one already")
    key = message.key if unique.key is None else unique.key
    if key is None:
        raise BadInput("a unique message takes a key: Unique(key=...), or a key of its own")
    return rule_of(unique, key)


def _texts(message: Message) -> tuple[str | None, str | None, str | None, str | None]:
    """Return codec, task, key and trigger, checked."""
    texts = (message.codec, message.task, message.key, message.trigger)
    if texts == _NO_TEXTS:
        return texts
    for name, text in zip(("codec", "task", "key", "trigger"), texts, strict=True):
        if text is not None:
            check_text(name, text)
    return texts


def _source(source: str | bytes) -> bytes:
    if isinstance(source, str):
        return b"s" + check_text("source", source).encode()
    if not isinstance(source, bytes) or not 1 <= len(source) <= MAX_TEXT:
        raise BadInput(f"source is {source!r}; it takes 1 to {MAX_TEXT:,} characters or bytes")
    return b"b" + source


def _derived_due_us(message: Message, now_us: int) -> int:
    """Return the due time of a derived id: exactly as given, even in the past, so that repeats agree."""
    if message.due is None or message.delay is not None:
        raise BadInput("a message with a source takes due, which every repeat gives again, and no delay")
    due_at_us(message, now_us)
    return datetime_us(message.due)


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers unchanged, if they are within the limits.

    Raises:
        BadInput: a name or value is no text.
        HeadersTooLarge: there are more than 64 headers, or more than 16 KiB of them together.
    """
    total = 0
    if not isinstance(headers, Mapping):
        raise BadInput(f"headers is a {type(headers).__name__}; it takes a mapping of text to text")
    for name, value in headers.items():
        if not isinstance(name, str):  # neither is quoted: headers are the application's
            raise BadInput(f"the name of a header is text, not {type(name).__name__}")
        if not isinstance(value, str):
            raise BadInput(f"the value of a header is text, not {type(value).__name__}")
        try:
            total += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError as exc:
            raise BadInput("a header is not valid text: it has half a surrogate pair") from exc
    if len(headers) > MAX_HEADERS or total > MAX_HEADERS_BYTES:
        raise HeadersTooLarge(
            f"{len(headers)} headers with {total:,} bytes; at most {MAX_HEADERS} with {MAX_HEADERS_BYTES:,}"
        )
    return headers


def headers_size(headers: Mapping[str, str]) -> int:
    """Return the bytes of all names and values."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())


def fitting(own: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return as much of `more` as fits beside `own` into the limits of headers. Long texts keep their end."""
    left = MAX_HEADERS_BYTES - headers_size(own)
    fits: dict[str, str] = {}
    for raw, text in list(more.items())[: max(0, MAX_HEADERS - len(own))]:
        name = storable(raw)
        left -= len(name.encode())
        if left <= 0:
            break
        encoded = text.encode(errors="replace")[-left:]
        fits[name] = encoded.decode(errors="ignore")
        left -= len(encoded)
    return fits


def due_at_us(message: Message, now_us: int) -> int:
    """Return the due time of a delayed message in µs since 1970; a time in the past becomes `now_us`.

    Raises:
        BadInput: both delay and due are given, or due has no time zone.
        DelayOutOfRange: the due time is more than 10 years ahead, or the delay is negative.
    """
    if message.due is None:
        return now_us + delay_us(timedelta() if message.delay is None else message.delay)
    if message.delay is not None:
        raise BadInput("give delay or due, not both")
    return moment_us(message.due, now_us)


def moment_us(due: datetime, now_us: int) -> int:
    """Return a due time in µs since 1970; a time in the past becomes `now_us`. Raises as `due_at_us`."""
    if not isinstance(due, datetime):
        raise BadInput(f"due is {due!r}; it takes an aware datetime")
    if due.tzinfo is None:
        raise BadInput(f"due is {due}, without a time zone; give an aware datetime")
    due_us = datetime_us(due)
    if due_us - now_us > MAX_DELAY // _MICROSECOND:
        raise DelayOutOfRange(f"due is {due}, more than 10 years ahead")
    return max(due_us, now_us)


def due_us(due: datetime | timedelta, now_us: int) -> int:
    """Return in µs since 1970 when a message is to be due: at a time, or a delay from now.

    Raises:
        BadInput, DelayOutOfRange: as `due_at_us`.
    """
    if isinstance(due, timedelta):
        return now_us + delay_us(due, "due")
    if not isinstance(due, datetime):
        raise BadInput(f"due is {due!r}; it takes an aware datetime, or a timedelta from now")
    return moment_us(due, now_us)


def delay_us(delay: timedelta, name: str = "delay") -> int:
    """Return a delay in µs. name: the argument's name, for the error.

    Raises:
        BadInput: the delay is no timedelta.
        DelayOutOfRange: the delay is below 0 or above 10 years.
    """
    if not isinstance(delay, timedelta):
        raise BadInput(f"{name} is {given(delay)}")
    if not timedelta() <= delay <= MAX_DELAY:
        raise DelayOutOfRange(f"{name} is {given(delay)}; it goes from 0 to 10 years")
    return delay // _MICROSECOND


def check_duration(name: str, value: timedelta, low: timedelta, high: timedelta) -> float:
    """Return a duration in seconds. name: the argument's name, for the error.

    Raises:
        BadInput: the value is no timedelta, or not from `low` to `high`.
    """
    if not isinstance(value, timedelta) or not low <= value <= high:
        raise BadInput(
            f"{name} is {given(value)}; it goes from {show_duration(low)} to {show_duration(high)}"
        )
    return value.total_seconds()


def _ttl_ms(ttl: timedelta) -> int:
    if not isinstance(ttl, timedelta) or not timedelta(milliseconds=1) <= ttl <= MAX_DELAY:
        raise BadInput(f"ttl is {given(ttl)}; it goes from 1 ms to 10 years")
    return ttl // timedelta(milliseconds=1)


def check_extension(duration: timedelta) -> None:
    """Raise `BadInput` unless a visibility timeout may be extended by this: 2 s to 12 h."""
    check_duration("duration", duration, MIN_EXTENSION, MAX_EXTENSION)


def to_datetime(ms: int) -> datetime:
    """Return ms since 1970 as an aware datetime in UTC."""
    return datetime_at(ms * 1000)


def datetime_at(us: int) -> datetime:
    """Return µs since 1970 as an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=us)


def datetime_us(moment: datetime) -> int:
    """Return an aware datetime in µs since 1970."""
    return (moment - _EPOCH) // _MICROSECOND
