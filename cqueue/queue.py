"""A queue: sending, receiving, looking inside, and changing its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from cqueue import ids, listing
from cqueue.batcher import Calls
from cqueue.catalog import ACTIVE, PAUSED, Catalog
from cqueue.config import QueueConfig
from cqueue.consumer import Consumer, PollIntervals
from cqueue.dead_letters import DeadLetters
from cqueue.doorbell import HintCounts
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import BadInput, DamagedRow, QueueNotFound
from cqueue.group_commit import GroupCommit
from cqueue.message import MAX_PREFETCH, Location, Message, MessageId, check_duration, to_datetime
from cqueue.producer import Producer, SendResult
from cqueue.protocol import survey
from cqueue.protocol.estimate import estimate
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.protocol.survey import Found
from cqueue.store.operations import MessageRow, ReadBodies

if TYPE_CHECKING:
    from cqueue.dispatcher.schedules import Schedules

MAX_PEEK = 10_000
DEFAULT_MAX_POLL = timedelta(seconds=2)
DEAF_MAX_POLL = timedelta(seconds=1)
"""Where no other process can tell this one of messages."""
MIN_POLL, MAX_POLL = timedelta(milliseconds=1), timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message looked at, not received.

    Attributes:
        state: ready, claimed, waiting, delayed or expired; quarantined if a damaged slot lists it.
        attempts: how often it was delivered, the present delivery included; snoozed ones do not count.
        next_at: when it may be delivered next: of a message that a consumer holds, should it not be acked.
    """

    id: MessageId
    body: bytes
    headers: Mapping[str, str]
    priority: int
    due: datetime
    sent_at: datetime
    state: str
    task: str | None
    key: str | None
    codec: str | None
    attempts: int
    next_at: datetime


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What a queue holds: counted exactly, or estimated by a bounded number of reads.

    An estimate misses messages that landed late, until a consumer has found them, and counts the oldest
    10,000 messages or so; `at_least` says of which figures there may be more.

    Attributes:
        wide_rows: partitions that exist, and how many of those lie in the future.
        claimed: messages that consumers hold; in an estimate, acked ones whose slot is not yet freed are in
            it.
        waiting: nacked, snoozed or given back, to be delivered again when due.
        ready: due and unclaimed; messages whose time to live is over are in it until somebody claims them.
        delayed: due later.
        live: all of them.
        oldest: due time of the oldest that is ready.
        dead: letters in its dead-letter queue; None of a dead-letter queue.
        quarantined: stored rows that cannot be read. Without `exact` only rows that say which messages are
            held; with it also rows of messages, but not those of which only the body is damaged, unless this
            client has met them. `cqueue quarantine list` finds all of them.
        exact: whether all of it was counted.
        at_least: names of figures of an estimate of which there may be more.
    """

    wide_rows: int
    future_wide_rows: int
    claimed: int
    waiting: int
    ready: int
    delayed: int
    live: int
    oldest: datetime | None
    quarantined: int = 0
    dead: int | None = None
    exact: bool = True
    at_least: frozenset[str] = frozenset()


class Queue:
    """One queue of a client. Cheap to make; thread-safe."""

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        driver: BlockingDriver,
        producer: Producer,
        make_consumer: Callable[[str, PollIntervals, int, Callable[[], None] | None], Consumer],
        *,
        sends: Calls,
        linger: timedelta | None = None,
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._driver = driver
        self._producer = producer
        self._send = GroupCommit(producer, driver.deadline_s, linger).send
        self._make_consumer = make_consumer
        self._sends = sends

    def __repr__(self) -> str:
        return f"<queue {self.name}>"

    @property
    def config(self) -> QueueConfig:
        """The configuration, at most two seconds old."""
        return self._catalog.entry(self.name).config

    @property
    def paused(self) -> bool:
        """Whether consumers are told to wait."""
        return self._catalog.entry(self.name).row.state == PAUSED

    @property
    def now(self) -> datetime:
        """The cluster's time, which due times and timeouts are measured by, in UTC.

        Raises:
            NotDone: no coordinator has told it yet.
        """
        return to_datetime(self._driver.clock.now_us() // 1000)

    @property
    def default_max_poll(self) -> timedelta:
        """How long a consumer waits between two polls at most, if it is not said."""
        return DEFAULT_MAX_POLL if self._producer.is_heard else DEAF_MAX_POLL

    @property
    def hints(self) -> HintCounts:
        """Datagrams by which the client of this queue was told, and has told others, of messages so far.

        They are those of all queues that the client has opened.
        """
        return self._producer.hints

    def _pass_hints_on(self) -> None:
        """Used inside: what consumers of this process were told of is told to the next one; they are busy."""
        self._producer.pass_hints_on()

    @property
    def dead_letter_name(self) -> str:
        """The name of its dead-letter queue, a queue like any other: `client.queue(…)` opens it."""
        return self.name + DEAD_SUFFIX

    @property
    def dead_letters(self) -> DeadLetters:
        """Its dead letters: look at them, send them back, drop them.

        Raises:
            BadInput: it is a dead-letter queue itself.
        """
        if self.name.endswith(DEAD_SUFFIX):
            raise BadInput(
                f"{self.name!r} is a dead-letter queue; ask {self.name.removesuffix(DEAD_SUFFIX)!r}"
            )
        return DeadLetters(self.name, self._catalog, self._driver, self._producer)

    # ── send and receive ──

    def send(
        self,
        body: bytes,
        *,
        delay: timedelta | None = None,
        due: datetime | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        ttl: timedelta | None = None,
    ) -> MessageId:
        """Store one message (see `Message` for ranges); its id once it is acknowledged.

        Raises:
            BadInput: a limit is passed; nothing was sent.
            NotDone: it was not stored; sending again is safe.
            SendUnknown: it may be stored; sending again may make a second copy.
        """
        return self._send(Message(body, delay, due, priority, headers, ttl))

    def send_many(self, messages: Iterable[Message]) -> SendResult:
        """Store up to 10,000 messages; entries fail one by one, and the result says which."""
        return self._producer.send_many(messages)

    def send_many_async(self, messages: Iterable[Message]) -> Future[SendResult]:
        """As `send_many`, on a thread of the client; the future gives its result, or raises its error.

        So the next batch can be made while this one is stored. Two are under way at a time, in no certain
        order; six more wait, and then the call waits.

        Raises:
            Closed: the client has been closed.
        """
        several = isinstance(messages, Iterable) and not isinstance(messages, Message)
        entries = list(messages) if several else messages
        self._producer.check_open()
        return self._sends.submit(partial(self._producer.send_many, entries))

    def consumer(
        self,
        *,
        poll_interval: timedelta = timedelta(milliseconds=5),
        max_poll_interval: timedelta | None = None,
        prefetch: int = 0,
        wake: Callable[[], None] | None = None,
    ) -> Consumer:
        """A consumer, to be used in a `with` block.

        After a poll that found nothing it waits `poll_interval` (1 ms to 1 min), then twice as long each
        time up to `max_poll_interval` (by default 2 s, 1 s with `notify=off`, or `poll_interval` if that is
        longer). A send wakes it at once: in the same process, or through the doorbell in another one.

        prefetch: how many messages (up to 4,000) to claim at once, and ahead: while some are handled, a
            thread claims the next ones, which the next receive gives. Their visibility timeout runs
            meanwhile; what waits for a quarter of it is given back, with no attempt used. 0: a receive
            claims what it gives.
        wake: called whenever this consumer is told of a message, on a sending thread or that of the doorbell,
            for a caller that waits for several consumers at once; it must return at once.
        """
        shortest = check_duration("poll_interval", poll_interval, MIN_POLL, MAX_POLL)
        if max_poll_interval is None:
            max_poll_interval = max(poll_interval, self.default_max_poll)
        longest = check_duration("max_poll_interval", max_poll_interval, poll_interval, MAX_POLL)
        if type(prefetch) is not int or not 0 <= prefetch <= MAX_PREFETCH:
            raise BadInput(f"prefetch is {prefetch!r}; it goes from 0 (none) to {MAX_PREFETCH:,}")
        self._catalog.entry(self.name)
        return self._make_consumer(self.name, PollIntervals(shortest, longest), prefetch, wake)

    @property
    def schedules(self) -> Schedules:
        """Its schedules: make, look at, and change them."""
        from cqueue.dispatcher.schedules import Schedules  # noqa: PLC0415 - only where there are some

        return Schedules(self.name, self._catalog, self._driver, self._producer)

    # ── look ──

    def find(self, message_id: str) -> StoredMessage | None:
        """The message of this id, wherever it stands; None once it is acked, dead, or expired.

        Raises:
            InvalidMessageId: the text is no message id.
            BadInput: it is the id of another queue's message.
            DamagedRow: it cannot be read.
        """
        wide_row, priority, id_ = self._locate(message_id)
        found = self._driver.run(survey.look(wide_row, priority, (id_,)))
        if not found:
            self._driver.store.quarantine.check_message(wide_row, priority, id_)
        return self._stored(found[0]) if found and not self._is_expired(found[0].row) else None

    def peek(self, limit: int = 10) -> list[StoredMessage]:
        """The first messages in order of time and priority, without receiving them.

        limit: 1 to 10,000.
        """
        if not isinstance(limit, int) or not 1 <= limit <= MAX_PEEK:
            raise BadInput(f"limit is {limit!r}; it goes from 1 to {MAX_PEEK:,}")
        found = self._driver.run(survey.peek(self._catalog.entry(self.name).spec, limit))
        return [self._stored(one) for one in found]

    def ids(self) -> Iterator[MessageId]:
        """The ids of all messages in order of time shard and priority, read a page at a time."""
        return listing.message_ids(self._driver, self._catalog.entry(self.name).spec)

    def _locate(self, message_id: str) -> Location:
        place = MessageId(message_id).locate()
        if place.wide_row.queue != self._catalog.entry(self.name).spec.partition:
            raise BadInput(f"the message is not one of queue {self.name!r}")
        return place

    def _is_expired(self, row: MessageRow) -> bool:
        return row.expires is not None and row.expires * 1000 <= self._driver.clock.now_us()

    def _stored(self, found: Found) -> StoredMessage:
        wide_row, row, state, slot = found
        body, due = row.body, to_datetime(ids.time_us(row.id) // 1000)
        if body is None:
            body = self._driver.ask(ReadBodies(wide_row, (row.id,))).get(row.id, b"")
        return StoredMessage(
            id=MessageId.of(wide_row, row.priority, row.id),
            body=body,
            headers=dict(row.headers or {}),
            priority=row.priority,
            due=due,
            sent_at=to_datetime(row.sent_at),
            state=state,
            task=row.task,
            key=row.key,
            codec=row.codec,
            attempts=slot.attempt if slot is not None else 0,
            next_at=to_datetime(slot.due_ms) if slot is not None else due,
        )

    def stats(self, *, exact: bool = False) -> QueueStats:
        """What the queue holds: an estimate, or exact, which reads every id."""
        look = survey.count if exact else estimate
        counts = self._driver.run(look(self._catalog.entry(self.name).spec))
        at_least, dead = counts.at_least, None
        if not self.name.endswith(DEAD_SUFFIX):
            with suppress(QueueNotFound, DamagedRow):
                letters = self._driver.run(look(self._catalog.entry(self.dead_letter_name).spec))
                dead = letters.live
                at_least |= {"dead"} if letters.at_least else set()
        return QueueStats(
            wide_rows=counts.wide_rows,
            future_wide_rows=counts.future_wide_rows,
            claimed=counts.claimed,
            waiting=counts.waiting,
            ready=counts.ready,
            delayed=counts.delayed,
            live=counts.live,
            oldest=None if counts.oldest_us is None else to_datetime(counts.oldest_us // 1000),
            quarantined=counts.quarantined,
            dead=dead,
            exact=exact,
            at_least=frozenset(at_least),
        )

    # ── change ──

    def alter(self, **changes: Any) -> QueueConfig:
        """Change settings of `QueueConfig` by name, while the queue runs; all clients follow in 2 s.

        Raises:
            ConfigError: out of range, unknown, or fixed (time_shard, max_shards, open_shards).
        """
        return self._catalog.alter(self.name, changes).config

    def pause(self) -> None:
        """Consumers receive nothing until `resume`; sends go on. Obeyed within 2 s."""
        self._catalog.set_state(self.name, PAUSED)

    def resume(self) -> None:
        """Undo `pause`."""
        self._catalog.set_state(self.name, ACTIVE)

    def cancel(self, message_id: str) -> bool:
        """Delete the message of this id; False if it is gone already: acked, dead, expired or cancelled.

        A handler that has the message is not interrupted; the message does not come again after it. It may
        still be delivered once to another process that had read it, in the half second before, and a
        handler that gives it up makes a dead letter of it.

        Raises:
            InvalidMessageId, BadInput, DamagedRow: as `find`.
            NotDone: it was not deleted.
            OutcomeUnknown: it may be; the call can be repeated.
        """
        wide_row, priority, id_ = self._locate(message_id)
        found = self._driver.run(survey.look(wide_row, priority, (id_,)))
        if not found:
            self._driver.store.quarantine.check_message(wide_row, priority, id_)
            return False
        try:
            self._driver.run(survey.discard(wide_row, priority, [found[0].row]))
        finally:
            self._producer.purged()
        return not self._is_expired(found[0].row)

    def purge(self) -> int:
        """Delete all messages, delayed ones as well; how many. What is sent meanwhile may stay."""
        try:
            return self._driver.run(survey.purge(self._catalog.entry(self.name).spec))
        finally:
            self._producer.purged()
