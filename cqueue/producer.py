"""Send messages to one queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from cqueue import ids
from cqueue.errors import (
    BadInput,
    Closed,
    DelayOutOfRange,
    Duplicate,
    NotDone,
    SendUnknown,
    WrongDataCentre,
)
from cqueue.message import Message, MessageId, SkippedId, outgoing, unique_rule
from cqueue.protocol.row_memory import MAX_NAMED, Hint
from cqueue.protocol.send import Flush, Outgoing, ProducerState, prepare, send
from cqueue.protocol.spec import QueueSpec
from cqueue.protocol.unique import send_unique
from cqueue.runtime.catalog import Catalog
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.wakeups import Wakeups
from cqueue.sending.results import Failed, Result, States, checked, failures, listed
from cqueue.store.operations import MessageRow, ShowInsert

REFUSED: Final = (Closed, WrongDataCentre)
"""Errors of a run that has not begun. A call raises them as long as nothing is stored; once something is, its
result has to say so."""


class SendResult(Result[Flush, MessageId]):
    """The result of one `send_many`.

    Attributes:
        ids: the id of each entry, in order; None for an entry that failed.
        failed: (index, error) of each entry that was not stored (`NotDone`, `BadInput`) or may not be stored
            (`SendUnknown`), in order.
        remade: number of entries that were stored a second time, under a new id, because the first answer
            came too late to count. Both copies are delivered if the deletion of the first one failed, or if a
            consumer received it before.
    """

    def __init__(self, size: int, flushes: list[Flush], failed: Failed) -> None:
        super().__init__(size, flushes, failed, _ids_of)

    def __repr__(self) -> str:
        return f"<sent: messages={self._size} failed={len(self.failed)}>"

    @property
    def skipped(self) -> list[int]:
        """The index of each entry that was not sent, as a message of its unique key is in the way, in order.

        Its id is that of the message in the way.
        """
        return sorted(index for part in self._parts if part.skipped for index in part.indexes)


@dataclass(frozen=True, slots=True)
class SendStatement:
    """The INSERT of one message, for a batch of the application's own; see `Queue.send_statement`.

    Attributes:
        id: the message's id.
        cql: the statement, with a `?` for each value.
        values: as Cassandra's driver binds them to the prepared statement.
    """

    id: MessageId
    cql: str
    values: tuple[Any, ...] = field(repr=False)
    _ring: Callable[[], None] = field(repr=False)

    def notify(self) -> None:
        """Tell a consumer, once the batch is done. Without it, one that waits usually looks within 2 s."""
        self._ring()


class Producer:
    """Sends to one queue, and tells its consumers through `wakeups`. Thread-safe."""

    def __init__(self, name: str, catalog: Catalog, driver: BlockingDriver, wakeups: Wakeups) -> None:
        self.name = name
        self._catalog = catalog
        self._driver = driver
        self.wakeups = wakeups
        self._states = States(ProducerState)

    def send(self, message: Message) -> MessageId:
        """Store one message. Return its id once the message is acknowledged.

        Raises:
            BadInput: a limit is exceeded, or the queue does not exist.
            NotDone: the message was not stored; sending again is safe.
            Duplicate: a message of the same unique key is in the way; nothing was sent.
            SendUnknown: the message may be stored; sending again may make a second copy.
        """
        with self._driver.limited():
            flushes, failed = self._send([message])
        for _, error in failed:
            raise error
        (flush,) = flushes
        (id_,) = _ids_of(flush)
        return id_

    def send_many(self, messages: Iterable[Message]) -> SendResult:
        """Store up to 10,000 messages. The result says which entries failed; the others are stored.

        Messages of one time shard are written together. An entry that exceeds a limit fails alone.

        Raises:
            BatchTooLarge: more than 10,000 entries.
            QueueNotFound: there is no such queue.
            Closed: the client has been closed; nothing is stored.
        """
        entries = listed(messages, Message, "send_many")
        with self._driver.limited():
            return SendResult(len(entries), *self._send(entries))

    def statement(self, message: Message) -> SendStatement:
        """Return the INSERT of one message, as `Queue.send_statement`."""
        with self._driver.limited():
            spec = self._catalog.entry(self.name).spec
            one = _outgoing(message, self._driver.clock.now_us(), spec)
            _check_open_rows(spec, "statements of sends")
            if message.unique is not None or (spec.keyed and one.key is not None):
                what = "unique" if message.unique is not None else "a key, as the queue is keyed"
                raise BadInput(
                    f"a statement of a send takes no message with {what}: that takes another write"
                )
            flush = self._states.run(lambda state: self._driver.run(prepare(spec, state, one)))
            cql, values = self._driver.ask(ShowInsert(flush.wide_row, flush.rows[0]))
        (id_,) = _ids_of(flush)
        return SendStatement(id_, cql, values, partial(self._ring, flush))

    def check_open(self) -> None:
        """Raise `Closed` if the client has been closed, or was made before this process was forked."""
        self._driver.check_open()

    def limited(self, limit_s: float) -> AbstractContextManager[None]:
        """Bound the sends inside the block by `limit_s` seconds, if they have no earlier deadline."""
        return self._driver.limited(limit_s)

    def _send(self, entries: list[Message]) -> tuple[list[Flush], Failed]:
        """Store entries as `_store`, measured if somebody asks."""
        meter = self._driver.meter
        if meter is None:
            return self._store(entries)
        since_s = time.monotonic()
        flushes, failed = self._store(entries)
        meter.took("send", self.name, since_s)
        skipped = sum(flush.skipped for flush in flushes)
        meter.count("sent", self.name, len(entries) - len(failed) - skipped)
        meter.failed("send", self.name, (error for _, error in failed))
        return flushes, failed

    def _store(self, entries: list[Message]) -> tuple[list[Flush], Failed]:
        """Store entries. Return their flushes, and (index, error) of each entry that is not known to be
        stored.
        """
        spec = self._catalog.entry(self.name).spec
        try:
            now_us = self._driver.clock.now_us()
        except NotDone as exc:
            return [], [(place, exc) for place in range(len(entries))]
        good, places, failed = checked(entries, lambda message: _outgoing(message, now_us, spec))
        flushes: list[Flush] = []
        for some, store in self._steps(spec, entries, dict(zip(places, good, strict=True))):
            try:
                flushes += store()
            except (NotDone, WrongDataCentre) as exc:
                if not flushes and isinstance(exc, REFUSED):
                    raise
                failed += [(place, exc) for place in some]
        for flush in flushes:
            if flush.error is None:
                self._ring(flush)
            else:
                failed += failures(flush, _ids_of, SendUnknown, "message")
        return flushes, failed

    def _steps(
        self, spec: QueueSpec, entries: list[Message], good: dict[int, Outgoing]
    ) -> Iterator[tuple[Sequence[int], Callable[[], list[Flush]]]]:
        """Yield the calls that store messages: of each one with `unique`, then of all others together.

        good: by their indexes among the entries, in order. Each call comes with the indexes of its messages.
        """
        for place in [place for place in good if entries[place].unique is not None]:
            yield [place], partial(self._store_unique, spec, good.pop(place), entries[place], place)
        if good:
            yield [*good], partial(self._store_together, spec, [*good], [*good.values()])

    def _store_together(self, spec: QueueSpec, places: list[int], good: list[Outgoing]) -> list[Flush]:
        """Store messages, of which there are some. places: their indexes among the entries, in order."""
        flushes: list[Flush] = self._states.run(lambda state: self._driver.run(send(spec, state, good)))
        if places[-1] >= len(places):  # entries in between are left out
            for flush in flushes:
                flush.indexes = [places[index] for index in flush.indexes]
        return flushes

    def _store_unique(self, spec: QueueSpec, one: Outgoing, message: Message, place: int) -> list[Flush]:
        """Store a message with `unique`. Return its flush, or raise why it was not stored."""
        rule = unique_rule(message)
        try:
            found = self._states.run(lambda state: self._driver.run(send_unique(spec, state, one, rule)))
        finally:
            if rule.replace:
                self.wakeups.deleted()
        if isinstance(found, Flush):
            found.indexes = [place]
            return [found]
        wide_row = found.row_in(spec.partition)
        if message.unique is not None and message.unique.on_conflict == "raise":
            id_ = MessageId.of(wide_row, found.priority, found.id)
            raise Duplicate(f"not sent: message {id_} of the unique key {rule.key!r} is in the way", id_)
        flush = Flush(wide_row=wide_row, indexes=[place], skipped=True)
        flush.rows.append(MessageRow(found.priority, found.id, *(None,) * 7, 0, None, 0))
        return [flush]

    def _ring(self, flush: Flush) -> None:
        """Send a hint about the messages that are due already; polls find the others when they are due."""
        last = ids.START if flush.skipped else ids.highest_at(self._driver.clock.now_us())
        if due := {row.id: row.priority for row in flush.rows if row.id <= last}:
            priorities = frozenset(due.values())
            named = tuple(sorted(due)) if len(due) <= MAX_NAMED and len(priorities) == 1 else ()
            self.wakeups.ring(Hint(flush.wide_row, priorities, named), ids.time_us(max(due)))


def _ids_of(flush: Flush) -> list[MessageId]:
    kind = SkippedId if flush.skipped else MessageId
    return [kind.of(flush.wide_row, row.priority, row.id) for row in flush.rows]


def _outgoing(message: Message, now_us: int, spec: QueueSpec) -> Outgoing:
    """Check a message, and turn it into the protocol's form, as `message.outgoing`."""
    one = outgoing(message, now_us)
    if one.source is not None:
        _check_derived(spec, one.due_us or 0, now_us)
    if message.unique is not None:
        unique_rule(message)
    return one


def _check_derived(spec: QueueSpec, due_us: int, now_us: int) -> None:
    """Refuse a derived id if the queue's consumers do not read open wide rows, or if it is older than
    gc_grace.
    """
    _check_open_rows(spec, "messages with a source")
    if now_us + spec.settle_us > due_us + spec.gc_grace_us - spec.settle_us:
        raise DelayOutOfRange(
            "due is longer past than the deployment's gc_grace; such an id may be forgotten"
        )


def _check_open_rows(spec: QueueSpec, what: str) -> None:
    if not spec.has_open_rows:
        raise BadInput(
            f"queue {spec.name!r} takes no {what}; alter it first: queue.alter(derived_sends=True), or "
            f"cqueue queue alter {spec.name} --derived-sends"
        )
