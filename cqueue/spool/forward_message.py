"""Messages through a spool: checked and framed at the send, stored in Cassandra by the forwarder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cqueue import ids
from cqueue.errors import BadInput, DelayOutOfRange, SpoolTooOld
from cqueue.message import Message, MessageId, datetime_at, outgoing, to_datetime
from cqueue.producer import Producer
from cqueue.protocol import registry
from cqueue.protocol.send import Outgoing
from cqueue.protocol.spec import QueueSpec
from cqueue.runtime.catalog import Catalog
from cqueue.runtime.clock import JUMP_US
from cqueue.runtime.driver import BlockingDriver
from cqueue.sending.redriving import due_us as moved_on
from cqueue.spool.forward_frame import Frame, new_source, unpacked
from cqueue.spool.forward_known import look_up, recall, remember
from cqueue.spool.forwarder import Stored

if TYPE_CHECKING:
    from cqueue.spool import SpoolRecord

_TEXTS: Final = ("codec", "task", "key", "trigger")
_PREFIX: Final = b"b"  # as `outgoing` marks a source of bytes; another one marks a text


class Spooled(NamedTuple):
    """A message ready for the spool: its payload, and the id that it will have in Cassandra."""

    payload: bytes
    id: MessageId


def topic_of(queue: str) -> str:
    """Return the topic of a queue in a spool."""
    return f"queue.{queue}"


class QueueTarget:
    """A queue that is fed from a spool. Thread-safe.

    Args:
        name: the queue's name.
        root: the spool's directory, which keeps the queue's definition.
        again: send messages older than gc_grace as well, under a new time.
    """

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        driver: BlockingDriver,
        producer: Producer,
        *,
        root: Path,
        again: bool = False,
    ) -> None:
        """Look the queue up.

        Raises:
            QueueNotFound: there is no queue of that name.
            Unavailable: Cassandra does not answer, and the queue was never opened with this spool before.
        """
        self.name = name
        self._catalog = catalog
        self._driver = driver
        self._producer = producer
        self._root = root
        self._again = again
        self._mutex = Lock()
        self._last_us = 0
        self.spec = look_up(f"queue {name!r}", _recalled(root, name), self._looked_up, driver)

    def _looked_up(self) -> QueueSpec:
        """Return the queue's definition in Cassandra, altered to take derived ids."""
        entry = self._catalog.entry(self.name)
        if not entry.spec.has_open_rows:
            entry = self._catalog.alter(self.name, {"derived_sends": True})
        remember(self._root, topic_of(self.name), asdict(entry.spec))
        return entry.spec

    # ── at the send ──

    def spooled(self, message: Message) -> Spooled:
        """Return the payload and the id of a message, all limits checked.

        Raises:
            BadInput: as `Queue.send`.
        """
        spec, at_us = self.spec, self._next_us()
        one = outgoing(message, at_us)
        if message.unique is not None:
            raise BadInput("a spool takes no unique message: only Cassandra knows what is in the way")
        if one.source is None:
            source, due_us = new_source(), at_us if one.due_us is None else one.due_us
        else:
            source, due_us = one.source[len(_PREFIX) :], one.due_us or 0
            if _may_be_forgotten(spec, due_us, at_us):
                raise DelayOutOfRange(
                    "due is longer past than the deployment's gc_grace; such an id may be forgotten"
                )
        frame = Frame(at_us, due_us, one.priority, source, _more(one), one.body)
        derived = one.source or _PREFIX + source
        row = registry.open_row(spec, due_us, derived)
        return Spooled(frame.pack(), MessageId.of(row, one.priority, ids.derived(due_us, derived)))

    def _next_us(self) -> int:
        """Return the time of a message: later than that of the message before, so that they stay in order.

        Unless the clock was ahead then: what is sent now does not wait for that.
        """
        now_us = self._driver.clock.guess_us()
        with self._mutex:
            next_us = self._last_us + 1
            self._last_us = next_us if now_us <= next_us <= now_us + JUMP_US else now_us
            return self._last_us

    # ── in the forwarder ──

    def store(self, records: Sequence[SpoolRecord]) -> Stored:
        """Store records; those that are stored already stay as they are.

        Raises:
            NotDone, OutcomeUnknown, BadInput: the error of all records.
        """
        self.spec = spec = self._looked_up()
        now_us = self._driver.clock.now_us()
        messages: list[Message] = []
        places: list[int] = []
        too_old: SpoolTooOld | None = None
        frames, unreadable = unpacked(records)
        for place, record in enumerate(records[: len(frames)]):
            frame = frames[place]
            if _may_be_forgotten(spec, min(frame.at_us, frame.due_us), now_us):
                if not self._again:
                    too_old = _refusal(self.name, record.offset, frame)
                    frames = frames[:place]
                    break
                # A new due time, the same for each try within half of gc_grace.
                frame = frame._replace(due_us=moved_on(frame.due_us, now_us, spec.gc_grace_us // 2))
            message = message_of(frame, now_us)
            if message is not None:
                messages.append(message)
                places.append(place)
        result = self._producer.send_many(messages)
        for place, error in result.failed:
            return Stored(places[place], error)
        return Stored(len(frames), too_old or unreadable)


def message_of(frame: Frame, now_us: int) -> Message | None:
    """Return the message of a record, to be sent at `now_us`; None if its time to live is over."""
    more = dict(frame.more)
    ttl, ttl_ms = None, more.pop("ttl_ms", None)
    if ttl_ms is not None:
        left_us = frame.at_us + ttl_ms * 1000 - now_us
        if left_us < 1000:
            return None
        ttl = timedelta(microseconds=left_us)
    source: str | bytes = frame.source
    if more.pop("text", False):
        source = frame.source.decode()
    due = datetime_at(frame.due_us)
    return Message(frame.body, due=due, priority=frame.priority, ttl=ttl, source=source, **more)


def _more(one: Outgoing) -> dict[str, Any]:
    """Return the optional fields that a message has."""
    found: dict[str, Any] = {name: text for name in _TEXTS if (text := getattr(one, name)) is not None}
    if one.headers:
        found["headers"] = one.headers
    if one.ttl_ms is not None:
        found["ttl_ms"] = one.ttl_ms
    if one.source is not None and one.source[:1] != _PREFIX:
        found["text"] = True
    return found


def _recalled(root: Path, name: str) -> QueueSpec | None:
    """Return the queue's definition as an earlier process has found it; None if there is none."""
    mine = {field.name for field in fields(QueueSpec)}
    return recall(
        root,
        topic_of(name),
        lambda found: QueueSpec(**{key: value for key, value in found.items() if key in mine}),
    )


def _may_be_forgotten(spec: QueueSpec, us: int, now_us: int) -> bool:
    """Return whether Cassandra may have forgotten a send of that time: acked, and its tombstone gone."""
    return now_us > us + spec.gc_grace_us - 2 * spec.settle_us


def _refusal(queue: str, offset: int, frame: Frame) -> SpoolTooOld:
    at = to_datetime(frame.at_us // 1000)
    return SpoolTooOld(
        f"message {offset} of queue {queue!r} was spooled at {at:%Y-%m-%d %H:%M} UTC, longer ago than "
        "gc_grace: whether it was sent and acked cannot be told any more. "
        "`cqueue spool forward --again` sends it nevertheless"
    )
