"""A queue: sending, receiving, looking inside, and changing its configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from cqueue import ids
from cqueue.config import QueueConfig, to_ms
from cqueue.consumer import Consumer
from cqueue.dead_letters import DeadLetters
from cqueue.doorbell import HintCounts
from cqueue.errors import (
    BadInput,
    DamagedRow,
    NotDone,
    NotKeyed,
    QueueNotFound,
)
from cqueue.history import STATES, HistoryEvent, QueueHistory, Wanted
from cqueue.message import (
    MAX_PREFETCH,
    Message,
    MessageId,
    check_duration,
    check_extension,
    check_limit,
    check_priority,
    due_us,
    to_datetime,
)
from cqueue.pages import DEFAULT_PAGE, MAX_PAGE, MAX_ROWS, Page, place_of, token_of
from cqueue.producer import Producer, SendResult, SendStatement
from cqueue.protocol import inspection, key_lookup
from cqueue.protocol.estimate import estimate
from cqueue.protocol.inspection import Found, is_expired
from cqueue.protocol.spec import DEAD_SUFFIX, QueueSpec
from cqueue.runtime import listing
from cqueue.runtime.batcher import Calls
from cqueue.runtime.catalog import ACTIVE, PAUSED, Catalog
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.texts import check_text
from cqueue.sending.changes import ChangeResult, Changes, merged, only
from cqueue.sending.group_commit import GroupCommit
from cqueue.sending.results import listed
from cqueue.sending.spans import sent
from cqueue.store.control import ReadResult
from cqueue.store.operations import ReadBodies
from cqueue.unique import Unique
from cqueue.where import Where, as_where, checked_states, fits_at, priorities_of

if TYPE_CHECKING:
    from cqueue.dispatcher.schedules.schedules import Schedules

MAX_PEEK = 10_000
"""Messages that one `peek` returns, at most; all of them are held in memory."""
LEAST_ROWS = 10
"""Messages that a look-up by key reads at once, at least: some may turn out to be gone."""
DEAD = "dead"
"""State of a dead letter among the messages of a key."""
DEFAULT_MAX_POLL = timedelta(seconds=2)
"""Longest pause between polls of an idle consumer that gets hints from other processes."""
NO_NOTIFY_MAX_POLL = timedelta(seconds=1)
"""Longest pause between polls of an idle consumer with `notify=off`: shorter, as nothing else tells it."""
MIN_POLL, MAX_POLL = timedelta(milliseconds=1), timedelta(minutes=1)
"""Range of a consumer's poll intervals."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message that was looked at, but not received.

    Attributes:
        due: when the message is due, in UTC.
        sent_at: when the message was sent, in UTC, by cluster time.
        state: ready, claimed, waiting, delayed or expired; quarantined if a damaged slot lists the message;
            dead if it was found by its key among the dead letters: then the id is the letter's.
        attempts: deliveries so far, including the present one; snoozed deliveries do not count.
        next_at: when the message may be delivered next, in UTC. For a claimed message this is its timeout.
    """

    id: MessageId
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
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
class TaskResult:
    """What became of a message whose task has a `result_ttl`.

    Attributes:
        id: the message's id.
        state: succeeded, failed (the message is dead), or cancelled by the task.
        at: when that was decided, in UTC, by the cluster's clock.
        codec: how the value is encoded: json or msgpack; None without a value.
        value: what the task returned, encoded as arguments are; None if it could not be encoded.
        error: name of the exception's class, if the task raised one.
        reason: why the task failed or was cancelled, or why there is no value.
    """

    id: MessageId
    state: str
    at: datetime
    codec: str | None = None
    value: bytes | None = field(default=None, repr=False)
    error: str | None = None
    reason: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Numbers of messages in a queue: counted exactly, or estimated with a bounded number of reads.

    An estimate counts about 10,000 messages, the oldest ones; `at_least` names the figures that may be
    higher. It misses messages that landed late, until a consumer has found them.

    Attributes:
        wide_rows: Cassandra partitions of the queue.
        future_wide_rows: those of them that lie in the future.
        claimed: messages that consumers hold, or held when they died, until another one claims them. An
            estimate includes acked ones whose slot is not yet freed.
        waiting: messages that were nacked, snoozed or given back, until a consumer claims them again.
        ready: messages that are due and unclaimed. Expired ones are included until a consumer claims them.
        delayed: messages that are due later.
        live: all messages.
        oldest: since when the oldest message that a consumer may claim has been due, in UTC: a retry since
            its delay is over, a message of a dead consumer since its visibility timeout is. None if there
            is none.
        quarantined: stored rows that cannot be read. An estimate counts only timeout slots. An exact count
            also counts rows of messages, but not those whose damage shows only in the body, unless this
            client has met them. `cqueue quarantine list` finds all of them.
        dead: letters in the dead-letter queue; None for a dead-letter queue.
        exact: True for an exact count.
        at_least: names of the figures of an estimate that may be higher.
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
    """One queue of a client. Thread-safe; opening it is cheap.

    Example:
        queue = client.queue("mails")
        queue.send(b"hello", delay=timedelta(minutes=5))
    """

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        driver: BlockingDriver,
        producer: Producer,
        *,
        acks: Calls,
        sends: Calls,
        history: QueueHistory,
        linger: timedelta | None = None,
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._driver = driver
        self._producer = producer
        self._send = GroupCommit(producer, driver.deadline_s, linger).send
        self._acks = acks
        self._changes = Changes(driver, producer, lambda: catalog.entry(name).spec)
        self._sends = sends
        self._history = history  # the dispatcher appends to it

    def __repr__(self) -> str:
        return f"<queue {self.name}>"

    @property
    def config(self) -> QueueConfig:
        """The configuration, at most two seconds old."""
        return self._catalog.entry(self.name).config

    @property
    def paused(self) -> bool:
        """Whether the queue is paused, so that consumers receive nothing."""
        return self._catalog.entry(self.name).row.state == PAUSED

    @property
    def now(self) -> datetime:
        """Cluster time in UTC: the clock of due times and timeouts.

        Raises:
            NotDone: no coordinator has told its time yet.
        """
        return to_datetime(self._driver.clock.now_us() // 1000)

    @property
    def default_max_poll(self) -> timedelta:
        """The default of `max_poll_interval`: 2 s, or 1 s with `notify=off`."""
        return DEFAULT_MAX_POLL if self._producer.wakeups.has_doorbell else NO_NOTIFY_MAX_POLL

    @property
    def hints(self) -> HintCounts:
        """Counts of the datagrams with hints that the client has sent and received, for all its queues."""
        return self._producer.wakeups.counts

    def _pass_hints_on(self) -> None:
        """Used inside: pass unused hints of this process's consumers, which are busy, to other processes."""
        self._producer.wakeups.pass_on()

    @property
    def dead_letter_name(self) -> str:
        """The name of the queue's dead-letter queue, which `client.queue(…)` opens like any other."""
        return self.name + DEAD_SUFFIX

    @property
    def dead_letters(self) -> DeadLetters:
        """The queue's dead letters: list them, redrive them, drop them.

        Raises:
            BadInput: the queue is a dead-letter queue itself.
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
        key: str | None = None,
        unique: Unique | None = None,
    ) -> MessageId:
        """Store one message (see `Message` for ranges). Return its id once the message is acknowledged.

        With `unique` the send may be skipped. Then the id is that of the message in the way, and its
        `skipped` is True.

        Raises:
            BadInput: a limit is exceeded; nothing was sent.
            NotDone: the message was not stored; sending again is safe.
            Duplicate: a message of the same unique key is in the way; nothing was sent.
            SendUnknown: the message may be stored; sending again may make a second copy.
        """
        message = Message(body, delay, due, priority, headers, ttl, key=key, unique=unique)
        send = self._send if unique is None else self._producer.send  # it may wait, so it holds up no others
        return sent(self._driver.tracing, "send", self.name, [message], lambda entries: send(entries[0]))

    def send_many(self, messages: Iterable[Message]) -> SendResult:
        """Store up to 10,000 messages. The result says which entries failed; the others are stored.

        Raises:
            BatchTooLarge: there are more than 10,000 entries.
            QueueNotFound: there is no such queue.
            NotDone: the queue's configuration cannot be read, at the first call; nothing is stored.
            Closed: the client has been closed; nothing is stored.
        """
        entries = listed(messages, Message, "send_many")
        return sent(self._driver.tracing, "send", self.name, entries, self._producer.send_many)

    def send_many_async(self, messages: Iterable[Message]) -> Future[SendResult]:
        """As `send_many`, on a thread of the client. The future gives the result or raises the error.

        So the caller can make the next batch while this one is stored. Two batches are stored at a time, in
        no certain order. Six more may be queued; then the call blocks.

        Raises:
            Closed: the client has been closed.
        """
        several = isinstance(messages, Iterable) and not isinstance(messages, Message)
        entries = list(messages) if several else messages
        self._driver.check_open()
        call = partial(self.send_many, entries)
        return self._sends.submit(call if self._driver.tracing is None else partial(copy_context().run, call))

    def send_statement(self, message: Message) -> SendStatement:
        """Return the INSERT of a message, for a logged batch with writes of your own: all are stored or none.

        Execute the batch at once, by a session of your own in the same data centre, at LOCAL_QUORUM, or
        QUORUM if the keyspace's serial consistency is `serial`. Repeat it if its outcome is unknown: the
        message stays one. The queue needs `derived_sends`. A body above 16 KiB is stored by this call. A
        batch that is never executed leaves no message.

        Args:
            message: without `unique`; and without a key, if the queue is keyed. Tasks have `Task.statement`.

        Raises:
            BadInput: a limit is exceeded, the queue has no `derived_sends`, or the client is of `memory://`.
            NotDone: try again; there is no message.

        Example:
            paid = queue.send_statement(cqueue.Message(b"order 17 is paid"))
            batch = BatchStatement(consistency_level=ConsistencyLevel.LOCAL_QUORUM)
            batch.add(session.prepare("UPDATE orders SET state = 'paid' WHERE id = ?"), [17])
            batch.add(session.prepare(paid.cql), paid.values)
            session.execute(batch)
            paid.notify()
        """
        store = self._producer.statement
        return sent(self._driver.tracing, "send", self.name, [message], lambda entries: store(entries[0]))

    def consumer(
        self,
        *,
        poll_interval: timedelta = timedelta(milliseconds=5),
        max_poll_interval: timedelta | None = None,
        prefetch: int = 0,
        wake: Callable[[], None] | None = None,
    ) -> Consumer:
        """Make a consumer, to be used in a `with` block.

        A send wakes the consumer at once, in the same process, or through the doorbell from another one.

        Args:
            poll_interval: the pause after a poll that found nothing (1 ms to 1 min). Each further pause is
                doubled.
            max_poll_interval: the longest such pause (`poll_interval` to 1 min). None: 2 s, or 1 s with
                `notify=off`; or `poll_interval` if that is longer.
            prefetch: messages (0 to 4,000) that a thread claims ahead, while others are handled. The next
                receive returns them. Their visibility timeout runs meanwhile; a message that waits for a
                quarter of it is given back, without using an attempt. 0: a receive claims the messages that
                it returns.
            wake: called whenever a hint reaches this consumer, for a caller that waits for several consumers.
                It runs on the sending thread or on the doorbell's, and must return at once. What it raises is
                logged.

        Raises:
            QueueNotFound: there is no such queue.
            BadInput: an argument is out of range.

        Example:
            with queue.consumer(prefetch=100) as consumer:
                messages = consumer.receive(10, wait=timedelta(seconds=20))
        """
        shortest_s = check_duration("poll_interval", poll_interval, MIN_POLL, MAX_POLL)
        if max_poll_interval is None:
            max_poll_interval = max(poll_interval, self.default_max_poll)
        longest_s = check_duration("max_poll_interval", max_poll_interval, poll_interval, MAX_POLL)
        if type(prefetch) is not int or not 0 <= prefetch <= MAX_PREFETCH:
            raise BadInput(f"prefetch is {prefetch!r}; it goes from 0 (none) to {MAX_PREFETCH:,}")
        if wake is not None and not callable(wake):
            raise BadInput(f"wake is {wake!r}; it takes a function")
        self._catalog.entry(self.name)
        return Consumer(
            self.name,
            self._catalog,
            self._driver,
            self._producer.wakeups,
            executor=self._acks,
            pauses_s=(shortest_s, longest_s),
            prefetch=prefetch,
            wake=wake,
        )

    @property
    def schedules(self) -> Schedules:
        """The queue's schedules: create, list and change them."""
        from cqueue.dispatcher.schedules.schedules import Schedules  # noqa: PLC0415 - only where there are some

        return Schedules(self.name, self._catalog, self._driver, self._producer)

    # ── look ──

    def find(self, message_id: str) -> StoredMessage | None:
        """Return the message with this id; None once the message is acked, dead or expired.

        A message that a consumer holds when its `ttl` ends is there until it is acked or comes back.

        Raises:
            InvalidMessageId: the text is no message id.
            BadInput: the id is that of another queue's message.
            DamagedRow: the message cannot be read.
        """
        place = self._changes.locate(message_id)
        found = listing.still_at(self._driver, [place])
        if not found:
            self._driver.store.quarantine.check_message(*place)
        return self._stored(found[0]) if found and not self._is_expired(found[0]) else None

    def find_many(self, message_ids: Iterable[str]) -> dict[MessageId, StoredMessage]:
        """Return those of up to 10,000 messages that there are, by id. All of them are held in memory.

        Raises:
            InvalidMessageId: one text is no message id.
            BadInput: one id is that of another queue's message.
            BatchTooLarge: there are more than 10,000 ids.
        """
        found = listing.still_at(self._driver, self._changes.places(message_ids).values())
        stored = [self._stored(one) for one in found if not self._is_expired(one)]
        return {one.id: one for one in stored}

    def result(self, message_id: str) -> TaskResult | None:
        """Return what became of a message whose task keeps results; None if there is none, or none any more.

        `TaskHandle.result` waits for it, and decodes the value.

        Raises:
            InvalidMessageId: the text is no message id.
            BadInput: the id is that of another queue's message.
            DamagedRow: the result cannot be read.
        """
        self._changes.locate(message_id)
        row = self._driver.ask(ReadResult(str(message_id)))
        if row is None:
            return None
        return TaskResult(
            MessageId(row.message),
            row.state,
            to_datetime(row.at),
            row.codec,
            row.value,
            row.error,
            row.reason,
        )

    def history(
        self,
        message_id: str | None = None,
        *,
        key: str | None = None,
        worker: str | None = None,
        schedule: str | None = None,
        state: str | Collection[str] | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> list[HistoryEvent]:
        """Return what workers told of messages, in the order of time: the last `limit` events.

        The queue keeps a history while its configuration has `history`, the time for which events are kept.
        Dispatchers tell, of messages whose handlers they ran; what consumers do without one is not told.
        Events of the last 4 seconds or so may be missing; those of a worker that was killed, or that could
        not append them, are missing for good.

        Args:
            message_id: only events of this message. Reads an eighth of the history since about when the
                message was to be due; any other filter reads all of it since `since`, backwards, until
                `limit` events are found.
            key: only of messages with this key.
            worker: only of this worker.
            schedule: only of firings of the schedule with this key.
            state: only of one or several of the states of a `HistoryEvent`.
            since: only events from then on, with a time zone; None: all that are kept.
            limit: 1 to 10,000.

        Raises:
            BadInput: an argument is out of range, or the id is that of another queue's message.
            InvalidMessageId: the text is no message id.
            NotDone: Cassandra does not answer.
        """
        if message_id is not None:
            self._changes.locate(message_id)
        wanted = Wanted(message_id, key, worker, schedule, checked_states(state, STATES))
        return self._history.read(wanted, since, limit)

    def peek(self, limit: int = 10) -> list[StoredMessage]:
        """Return the first `limit` (1 to 10,000) messages, without receiving them.

        They come about in order of due times: partition after partition, 30 s each by default. Those of one
        partition come shard by shard, and those of a shard by priority and due time.

        Raises:
            BadInput: the limit is out of range.
        """
        check_limit(limit, MAX_PEEK)
        found = self._driver.run(inspection.peek(self._catalog.entry(self.name).spec, limit))
        return [self._stored(one) for one in found]

    def ids(self) -> Iterator[MessageId]:
        """Yield the ids of all messages in order of time shard and priority, reading a page at a time."""
        return listing.message_ids(self._driver, self._catalog.entry(self.name).spec)

    # ── by key ──

    def get_by_key(self, key: str) -> StoredMessage | None:
        """Return the first message with this key. If there is none, return its oldest dead letter.

        The result is None if all messages with this key are acked, cancelled or expired, or were sent before
        the queue became `keyed`. A dead letter has the state "dead" and its own id, which `dead_letters`
        takes, and `cancel` and its like refuse: look at `state` before you pass the id on.

        Raises:
            NotKeyed: the queue is not `keyed`.
            BadInput: the key is not a text of 1 to 1,000 characters.
            NotDone: it is not known.

        Example:
            queue.send(b"remind", key="order-17", delay=timedelta(days=3))
            queue.get_by_key("order-17").due
        """
        for _ in range(2):  # a redrive, or a new priority, may move a message between the reads of one look
            if found := self.list_by_key(key, limit=1):
                return found[0]
        return None

    def list_by_key(
        self, key: str, *, limit: int = 100, after: MessageId | None = None
    ) -> list[StoredMessage]:
        """Return messages with this key as they were first due, then its dead letters, oldest first.

        A message that was rescheduled keeps its place among the others. Messages that cannot be read are left
        out. A message that dies meanwhile may be listed twice. One that is redriven meanwhile, or gets
        another priority, may be missing.

        Args:
            key: as of the messages.
            limit: 1 to 10,000; fewer messages than that are the last ones.
            after: the id of the last message of the page before.

        Raises:
            NotKeyed, BadInput, NotDone: as `get_by_key`.
            InvalidMessageId: `after` is no message id.
        """
        check_limit(limit, MAX_PEEK)
        specs = self._keyed_specs(key)
        start = key_lookup.START
        if after is not None:
            place = MessageId(after).locate()
            start = place.id, place.priority
            while specs and specs[0].partition != place.wide_row.queue:
                del specs[0]
            if not specs:
                raise BadInput(f"the message is not one of queue {self.name!r}")
        rows = max(LEAST_ROWS, min(limit, listing.ROWS_A_PAGE))
        found = list[Found]()
        for spec in specs:
            live = (
                one._replace(state=DEAD) if spec.name != self.name else one
                for one in listing.of_key(self._driver, spec, key, start, rows)
                if not self._is_expired(one)
            )
            found += islice(live, limit - len(found))
            start = key_lookup.START
        return [self._stored(one) for one in found]

    def delete_by_key(self, key: str) -> ChangeResult:
        """Cancel all messages with this key, as `cancel` does; dead letters stay. The call can be repeated.

        The result says what became of each message, and is held in memory.

        Raises:
            NotKeyed, BadInput: as `get_by_key`; nothing was cancelled.
            NotDone: the messages are not known; some may be cancelled.
        """
        changes = self._changes  # not `cancel_many`: these ids are known, and so in no spool
        return merged([changes.cancel(changes.places(some)) for some in self._ids_of_key(key)])

    def reschedule_by_key(self, key: str, due: datetime | timedelta) -> ChangeResult:
        """Reschedule all messages with this key, as `reschedule` does; dead letters stay.

        The result says what became of each message, and is held in memory.

        Raises:
            NotKeyed, BadInput: as `get_by_key`; nothing was changed.
            DelayOutOfRange: as `reschedule`; nothing was changed.
            NotDone: the messages are not known; some may be changed.
        """
        at_us = due_us(due, self._driver.clock.now_us())
        results, moved = list[ChangeResult](), set[MessageId]()
        for some in self._ids_of_key(key):
            mine = set(some) - moved  # without copies that were made just now
            results.append(self._changes.reschedule(self._changes.places(mine), at_us))
            moved.update(results[-1].done.values())
        return merged(results)

    def _ids_of_key(self, key: str) -> Iterator[list[MessageId]]:
        """Check a key at once. Yield the ids of the queue's messages with it, a page at a time."""
        spec = self._keyed_specs(key)[0]
        found = listing.of_key(self._driver, spec, key, key_lookup.START, listing.ROWS_A_PAGE)
        ids_ = (MessageId.of(one.wide_row, one.row.priority, one.row.id) for one in found)
        while page := list(islice(ids_, listing.ROWS_A_PAGE)):
            yield page

    def _keyed_specs(self, key: str) -> list[QueueSpec]:
        """Check a key. Return the specs of the queue and of its dead-letter queue, if it has one."""
        check_text("key", key)
        spec = self._catalog.entry(self.name).spec
        if not spec.keyed:
            raise NotKeyed(
                f"queue {self.name!r} keeps no keys; alter it with keyed=True (--keyed), "
                "for messages sent from then on"
            )
        if spec.is_dead_letter:
            return [spec]
        return [spec, self._catalog.entry(self.dead_letter_name).spec]

    def _is_expired(self, found: Found) -> bool:
        return is_expired(found.row, found.slot, self._driver.clock.now_us())

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
        """Count the queue's messages. exact: read every id; otherwise estimate with a bounded number of
        reads.
        """
        look = inspection.count if exact else estimate
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

    def alter(self, /, **changes: Any) -> QueueConfig:
        """Change settings of `QueueConfig` by name, while the queue runs. All clients follow within 2 s.

        Raises:
            ConfigError: a setting is unknown, out of range, or fixed (time_shard, max_shards, open_shards).
            NotDone: nothing is changed.
            OutcomeUnknown: it may be changed, with or without its history; the call can be repeated.

        Example:
            queue.alter(visibility=timedelta(minutes=5), shards=8)
        """
        self._history.check(changes.get("history"))
        config = self._catalog.alter(self.name, changes).config
        if "history" in changes:
            self._history.keep(config.history)
        return config

    def pause(self) -> None:
        """Make consumers receive nothing until `resume`, within 2 s. Sends go on."""
        self._catalog.set_state(self.name, PAUSED)

    def resume(self) -> None:
        """Let consumers receive again, within 2 s."""
        self._catalog.set_state(self.name, ACTIVE)

    def cancel(self, message_id: str) -> bool:
        """Delete the message with this id. Return False if it was acked, dead, expired or cancelled before.

        No consumer claims the message after this call. One that holds it is not interrupted: it learns of the
        cancelling with its next `extend`, `nack` or `snooze`, which raise `LeaseLost`, and a dispatcher sets
        `context.lost` then. An ack changes nothing. A handler that gives the message up in time makes a dead
        letter of it.

        Raises:
            InvalidMessageId, BadInput, DamagedRow: as `find`.
            NotDone: the message was not deleted, e.g. because it is being buried.
            OutcomeUnknown: the message may be deleted, or delivered once more; the call can be repeated.
        """
        return only(self.cancel_many([message_id])) is not None

    def reschedule(self, message_id: str, due: datetime | timedelta) -> MessageId | None:
        """Make a message due at another time: at `due`; a timedelta counts from now. None: no such message.

        A message that was delivered before keeps its attempts. The id stays the same, unless `due` lies
        before the time shard in which the message stands (`QueueConfig.time_shard`): then the message is
        copied, with attempts at 0, and the copy's id returned. If the process dies between copy and delete,
        both are delivered, each at its time. If somebody else settles or copies the original meanwhile, the
        copy is deleted again.

        Raises:
            InvalidMessageId, BadInput, DamagedRow: as `find`.
            BadInput: the message is a firing of a schedule, and would have to be copied.
            DelayOutOfRange: `due` is more than 10 years ahead, or below 0 from now.
            MessageHeld: a consumer holds the message, or let its visibility timeout pass.
            NotDone: the message is due as before, or up to 10 s later.
            OutcomeUnknown: the message may be due at either time, or at both if it was copied.

        Example:
            queue.reschedule(id, timedelta())  # now
        """
        return only(self.reschedule_many([message_id], due))

    def set_priority(self, message_id: str, priority: int) -> MessageId | None:
        """Give a message another priority (0 to 9). Return its new id. None: there is no such message.

        The message is copied, with attempts at 0, and its original deleted. If the process dies between the
        two, both are delivered.

        Raises:
            InvalidMessageId, BadInput, DamagedRow, MessageHeld, NotDone, OutcomeUnknown: as `reschedule`.
            BadInput: the message is a firing of a schedule, which gives it its priority.
            PriorityOutOfRange: the priority is not from 0 to 9.
        """
        return only(self.set_priority_many([message_id], priority))

    def extend(self, message_id: str, duration: timedelta) -> bool:
        """Keep a message that a consumer holds invisible until `duration` from now (2 s to 12 h); never less.

        Messages that were claimed together have one timeout, which moves for all. The consumer's own
        `visible_again` shows it from its next `extend` on. Return False if there is no such message.

        Raises:
            InvalidMessageId, BadInput, DamagedRow: as `find`.
            LeaseLost: no consumer holds the message, or its visibility timeout has passed.
            NotDone, OutcomeUnknown: the timeout is, or may be, as before.
        """
        return only(self.extend_many([message_id], duration)) is not None

    def cancel_many(self, message_ids: Iterable[str]) -> ChangeResult:
        """Cancel up to 10,000 messages; the result says what became of each.

        Raises:
            InvalidMessageId, BadInput, BatchTooLarge: as `find_many`; nothing was cancelled.
        """
        return self._changes.cancel(self._changes.places(message_ids))

    def reschedule_many(self, message_ids: Iterable[str], due: datetime | timedelta) -> ChangeResult:
        """Reschedule up to 10,000 messages; the result says what became of each.

        Raises:
            InvalidMessageId, BadInput, DelayOutOfRange: as `find_many` and `reschedule`; nothing was changed.
        """
        at_us = due_us(due, self._driver.clock.now_us())
        return self._changes.reschedule(self._changes.places(message_ids), at_us)

    def set_priority_many(self, message_ids: Iterable[str], priority: int) -> ChangeResult:
        """Give up to 10,000 messages a priority; the result says what became of each.

        Raises:
            InvalidMessageId, BadInput, PriorityOutOfRange: as `find_many` and `set_priority`; nothing was
                changed.
        """
        check_priority(priority)
        return self._changes.set_priority(self._changes.places(message_ids), priority)

    def extend_many(self, message_ids: Iterable[str], duration: timedelta) -> ChangeResult:
        """Extend up to 10,000 held messages; the result says what became of each.

        Raises:
            InvalidMessageId, BadInput: as `find_many` and `extend`; nothing was extended.
        """
        check_extension(duration)
        return self._changes.extend(self._changes.places(message_ids), to_ms(duration))

    def purge(self) -> int:
        """Delete all messages, including delayed ones. Return their number. Messages sent meanwhile may
        stay.

        Raises:
            NotDone: nothing was deleted.
            OutcomeUnknown: some messages are, or may be, deleted; the call can be repeated.
        """
        try:
            return self._driver.run(inspection.purge(self._catalog.entry(self.name).spec))
        finally:
            self._producer.wakeups.deleted()

    # ── list: below all that names the built-in type ──

    def exists(self, where: Where | Mapping[str, Any] | None = None, *, max_rows: int = MAX_ROWS) -> bool:
        """Return whether the queue has a message that is like this; without `where`, any message.

        Reads messages until one fits. max_rows: how many it reads at most, about; 1 and up.

        Raises:
            BadInput: as `list`.
            NotDone: after `max_rows` messages none fitted, and there are more; or they cannot be read.

        Example:
            if not queue.exists(Where(task="shop:report", headers={"tenant": "7"})):
                report.enqueue(tenant=7)
        """
        asked, spec = as_where(where), self._catalog.entry(self.name).spec
        if type(max_rows) is not int or max_rows < 1:
            raise BadInput(f"max_rows is {max_rows!r}; it takes a whole number from 1 on")
        fits, priorities = fits_at(asked, self._driver.clock.now_us()), priorities_of(asked)
        place, rows = None, 0
        while True:
            read = listing.some(self._driver, spec, fits, limit=1, priorities=priorities, place=place)
            place, rows = read.place, rows + read.rows
            if read.found or place is None:
                return bool(read.found)
            if rows >= max_rows:
                raise NotDone(f"none of the first {rows:,} messages fits, and there are more; raise max_rows")

    def list(
        self,
        where: Where | Mapping[str, Any] | None = None,
        *,
        limit: int = DEFAULT_PAGE,
        token: str | None = None,
    ) -> Page:
        """Return messages that are like this, a page at a time, without receiving them.

        The order is about that of due times. A call reads 1,000 messages at most, about, and makes 200 reads
        in ten seconds: a page may have few messages, or none, and a token still. A message that stays where
        it is comes on one page; one that is sent, acked or buried meanwhile may or may not come.

        where: a `Where`, or a mapping of its fields; None: all messages.
        limit: messages of the page, 1 to 1,000.
        token: of the last page, with the same `where`. None: from the beginning.

        Raises:
            BadInput: an argument is wrong.
            InvalidToken: the token is damaged, or of another queue, or of one that was deleted.
            NotDone: the messages cannot be read.

        Example:
            token = None
            while True:
                page = queue.list(Where(task="shop:pay", state="delayed"), token=token)
                print([message.id for message in page.messages])
                token = page.token
                if token is None:
                    break
        """
        asked, spec = as_where(where), self._catalog.entry(self.name).spec
        check_limit(limit, MAX_PAGE)
        read = listing.some(
            self._driver,
            spec,
            fits_at(asked, self._driver.clock.now_us()),
            limit=limit,
            priorities=priorities_of(asked),
            place=None if token is None else place_of(spec.partition, token),
        )
        return Page(
            messages=tuple(map(self._stored, read.found)),
            token=None if read.place is None else token_of(spec.partition, read.place),
            rows_read=read.rows,
        )
