"""Sending messages to one queue."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

from cqueue import ids
from cqueue.bell import Bell
from cqueue.catalog import Catalog
from cqueue.doorbell import HintCounts
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import BadInput, DelayOutOfRange, NotDone, SendUnknown
from cqueue.message import Message, MessageId, outgoing
from cqueue.protocol.flush import Flush, Outgoing, ProducerState
from cqueue.protocol.hint import Hint
from cqueue.protocol.send import send
from cqueue.protocol.spec import QueueSpec
from cqueue.storing import Failed, Result, States, checked, failures, listed


class SendResult(Result[Flush, MessageId]):
    """What became of the entries of one `send_many`.

    Attributes:
        failed: (index, error) of each entry that was not stored (`NotDone`, `BadInput`) or may not have
            been (`SendUnknown`), in order.
        remade: how many entries were stored a second time, under a new id, because the first answer came
            too late to count; both copies are delivered if deleting the first one failed, or if a consumer
            was quicker.
    """

    def __init__(self, size: int, flushes: list[Flush], failed: Failed) -> None:
        super().__init__(size, flushes, failed, _ids_of)

    def __repr__(self) -> str:
        return f"<sent: messages={self._size} failed={len(self.failed)}>"


class Producer:
    """Sends to one queue. Thread-safe."""

    def __init__(self, name: str, catalog: Catalog, driver: BlockingDriver, bell: Bell) -> None:
        self.name = name
        self._catalog = catalog
        self._driver = driver
        self._bell = bell
        self._states = States(ProducerState)

    def send(self, message: Message) -> MessageId:
        """Store one message; its id once it is acknowledged.

        Raises:
            BadInput: a limit is passed, or the queue does not exist.
            NotDone: it was not stored; sending again is safe.
            SendUnknown: it may be stored; sending again may make a second copy.
        """
        with self._driver.limited():
            flushes, failed = self._send([message])
        for _, error in failed:
            raise error
        (flush,) = flushes
        (row,) = flush.rows
        return MessageId.of(flush.wide_row, row.priority, row.id)

    def send_many(self, messages: Iterable[Message]) -> SendResult:
        """Store up to 10,000 messages; entries fail one by one, and the result says which.

        Messages of one time shard are written together. An entry that passes a limit fails alone.

        Raises:
            BatchTooLarge: more than 10,000 entries.
            QueueNotFound: there is no such queue.
            Closed: the client has been closed.
        """
        entries = listed(messages, Message, "send_many")
        with self._driver.limited():
            return SendResult(len(entries), *self._send(entries))

    def check_open(self) -> None:
        """Raise `Closed` if the client has been closed, or was made before this process was forked."""
        self._driver.check_open()

    @property
    def is_heard(self) -> bool:
        """Whether consumers of other processes are told of what is sent, and the other way round."""
        return self._bell.has_doorbell

    @property
    def hints(self) -> HintCounts:
        """Datagrams of the client so far."""
        return self._bell.counts

    def pass_hints_on(self) -> None:
        """Have other processes told of what consumers of this one have no time to look at."""
        self._bell.pass_on()

    def purged(self) -> None:
        """Consumers of this process must look for what was sent until now: it may have been deleted."""
        self._bell.deleted()

    def limited(self, limit_s: float) -> AbstractContextManager[None]:
        """Let sends inside end in `limit_s`, if that is less than they have."""
        return self._driver.limited(limit_s)

    def _send(self, entries: list[Message]) -> tuple[list[Flush], Failed]:
        """What was written, and (place, error) of what was not, or may not have been."""
        spec = self._catalog.entry(self.name).spec
        try:
            now_us = self._driver.clock.now_us()
        except NotDone as exc:
            return [], [(place, exc) for place in range(len(entries))]
        good, places, failed = checked(entries, lambda message: _outgoing(message, now_us, spec))
        if not good:
            return [], failed
        flushes = self._states.run(lambda state: self._driver.run(send(spec, state, good)))
        for flush in flushes:
            if len(places) < len(entries):
                flush.indexes = [places[index] for index in flush.indexes]
            if flush.error is None:
                self._ring(flush)
            else:
                failed += failures(flush, _ids_of(flush), SendUnknown, "message")
        return flushes, failed

    def _ring(self, flush: Flush) -> None:
        """Tell a consumer of what is due; who polls finds the rest when it is."""
        last = ids.highest_at(self._driver.clock.now_us())
        if due := {row.id: row.priority for row in flush.rows if row.id <= last}:
            self._bell.ring(Hint(flush.wide_row, frozenset(due.values())), ids.time_us(max(due)))


def _ids_of(flush: Flush) -> list[MessageId]:
    return [MessageId.of(flush.wide_row, row.priority, row.id) for row in flush.rows]


def _outgoing(message: Message, now_us: int, spec: QueueSpec) -> Outgoing:
    """The message as the protocol takes it, all limits checked."""
    one = outgoing(message, now_us)
    if one.source is not None:
        _check_derived(spec, one.due_us or 0, now_us)
    return one


def _check_derived(spec: QueueSpec, due_us: int, now_us: int) -> None:
    """A derived id is for queues whose consumers look for such, and not for times long past."""
    if not spec.has_open_rows:
        raise BadInput(
            f"queue {spec.name!r} takes no messages with a source; alter it first: derived_sends=True"
        )
    if now_us + spec.settle_us > due_us + spec.gc_grace_us - spec.settle_us:
        raise DelayOutOfRange(
            "due is longer past than the deployment's gc_grace; such an id may be forgotten"
        )
