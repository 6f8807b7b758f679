"""`DelayQueue`: the calls of Netflix's dyno-queues, on top of `Queue` and `Consumer`.

dyno-queues acknowledges a message by its id. `Consumer` settles the message that it returned, which needs no
look-up. So this layer keeps what it has popped by id, and adds nothing else.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple, Self

from cqueue.client import Client, check_client, inside
from cqueue.consumer import HOLD_DIVISOR, MAX_WAIT, Consumer
from cqueue.errors import BadInput, CqueueError, LeaseLost, MessageHeld, NotDone, OutcomeUnknown
from cqueue.message import (
    MAX_DELAY,
    MAX_EXTENSION,
    MAX_RECEIVE,
    MIN_EXTENSION,
    Message,
    MessageId,
    check_duration,
    check_limit,
    check_message,
)
from cqueue.quarantine import look_at_queue
from cqueue.queue import MAX_PEEK, StoredMessage
from cqueue.received import ReceivedMessage
from cqueue.runtime.sequences import grouped, parts
from cqueue.store.quarantine import Damage
from cqueue.unique import Unique
from cqueue.where import Where

READY, CLAIMED = Where(state="ready"), Where(state="claimed")


class ShardSize(NamedTuple):
    """Messages of a shard. size: those that no consumer holds, delayed ones included. unacked: the others."""

    size: int
    unacked: int


class DelayQueue:
    """A queue whose messages are popped, and acknowledged by id, as in dyno-queues. Thread-safe.

    A message that is not acknowledged comes again after the queue's visibility timeout, here called the unack
    time; after `max_attempts` deliveries it is a dead letter. Messages are popped in the order of the queue:
    there is no pop by id or predicate. `close`, or the end of a `with` block, gives popped messages back.

    Args:
        client: the client of the queue.
        name: the queue's name.

    Raises:
        QueueNotFound: there is no such queue.
        BadInput: `client` is no client, or `name` no name.

    Example:
        with DelayQueue(client, "reminders") as reminders:
            (id_,) = reminders.push([Message(b"call back", delay=timedelta(minutes=5))])
            for message in reminders.pop(10, wait=timedelta(minutes=6)):
                reminders.ack(message.id)
    """

    def __init__(self, client: Client, name: str) -> None:
        check_client("a DelayQueue", client)
        self.name = name
        self._client = client
        self._queue = client.queue(name)
        self._consumers: list[Consumer] = []
        self._free: list[Consumer] = []  # those that no `pop` has
        self._closed = False
        self._popped: dict[str, ReceivedMessage] = {}
        self._process_at_s = time.monotonic() + self.unack_time.total_seconds()
        self._until: dict[str, datetime] = {}  # unack times that `set_unack_timeout` gave

    def __repr__(self) -> str:
        return f"<delay queue {self.name}>"

    @property
    def unack_time(self) -> timedelta:
        """How long a popped message may wait for its `ack`: the visibility timeout of the queue."""
        return self._queue.config.visibility

    # ── send and receive ──

    def push(self, messages: Iterable[Message]) -> list[MessageId]:
        """Store up to 10,000 messages, and return their ids in order.

        Raises:
            BadInput, NotDone, SendUnknown: of the first message that was not, or may not be, stored. Others
                may be stored; `Queue.send_many` says which ones.
        """
        sent = self._queue.send_many(messages)
        for _, error in sent.failed:
            raise error
        return [id_ for id_ in sent.ids if id_ is not None]

    def ensure(self, message: Message) -> bool:
        """Store the message, unless one with the same `key` waits or is popped. Return whether it was stored.

        Raises:
            BadInput: the message has no key, or a limit is exceeded.
            NotDone, SendUnknown: as `Queue.send`; the call can be repeated.
        """
        check_message(message)
        unique = Unique(key=message.key, on_conflict="skip")
        (id_,) = self.push([replace(message, unique=unique)])
        return not id_.skipped

    def pop(self, count: int = 1, wait: timedelta = timedelta()) -> list[ReceivedMessage]:
        """Return up to `count` (1 to 1,000) due messages, the most urgent first.

        Unlike `Consumer.receive`, this waits up to `wait` (0 to 1 day) for all of them, not for the first.
        The unack time of those that are there runs meanwhile, so after the first it waits for a quarter of
        the unack time at most.

        Raises:
            BatchTooLarge, BadInput: an argument is out of range.
            NotDone, OutcomeUnknown: as `Consumer.receive`; only if nothing was popped.
        """
        deadline_s = time.monotonic() + check_duration("wait", wait, timedelta(), MAX_WAIT)
        if time.monotonic() >= self._process_at_s:
            with suppress(NotDone, OutcomeUnknown):
                self.process_unacks()
        with self._consumer() as consumer:
            return self._pop(consumer, count, deadline_s)

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        """Lend the consumer that came back last, or a new one: a consumer is busy while its `pop` waits."""
        try:
            consumer = self._free.pop()
        except IndexError:
            consumer = self._new_consumer()
        try:
            yield consumer
        finally:
            self._free.append(consumer)

    def _new_consumer(self) -> Consumer:
        consumer = self._queue.consumer()
        self._consumers.append(consumer)
        if self._closed:  # `close` may have been too early to see this one
            consumer.close()
        return consumer

    def _pop(self, consumer: Consumer, count: int, deadline_s: float) -> list[ReceivedMessage]:
        popped: list[ReceivedMessage] = []
        wanted = count
        while wanted or not popped:
            left = timedelta(seconds=max(0.0, deadline_s - time.monotonic()))
            try:
                some = consumer.receive(wanted, wait=left)
            except (NotDone, OutcomeUnknown):
                if not popped:
                    raise
                break
            if not some:
                break
            if not popped:  # what the lease says: the configuration may be gone, and these are held
                hold_s = (some[0].visible_again - self._queue.now).total_seconds() / HOLD_DIVISOR
                deadline_s = min(deadline_s, time.monotonic() + hold_s)
            popped += some
            wanted = count - len(popped)
            self._forget(message.id for message in some)  # what was said of an earlier delivery
            self._popped |= {message.id: message for message in some}
        return popped

    def peek(self, count: int = 10) -> list[StoredMessage]:
        """Return the first `count` (1 to 10,000) messages that could be popped now, without popping them.

        Raises:
            BadInput, NotDone: as `Queue.list`.
        """
        return self.matching(READY, count)

    def matching(self, where: Where | Mapping[str, Any], count: int = 10) -> list[StoredMessage]:
        """Return the first `count` (1 to 10,000) messages that fit, popped or not.

        This may read the whole queue.

        Raises:
            BadInput, NotDone: as `Queue.list`.
        """
        return list(islice(self._matching(where), check_limit(count, MAX_PEEK, "count")))

    def contains(self, where: Where | Mapping[str, Any]) -> bool:
        """Return whether a message fits; see `Queue.exists`."""
        return self._queue.exists(where)

    def _matching(self, where: Where | Mapping[str, Any]) -> Iterator[StoredMessage]:
        page = self._queue.list(where)
        yield from page.messages
        while page.token is not None:
            page = self._queue.list(where, token=page.token)
            yield from page.messages

    # ── one message ──

    def ack(self, message_id: str) -> bool:
        """Delete a popped message. Return False if the message is not popped, or not any more.

        What another process has popped is looked up first, which takes two requests more.

        Raises:
            InvalidMessageId, BadInput, DamagedRow: as `Queue.find`.
            NotDone: the message was not deleted.
            OutcomeUnknown: the message may be deleted; the call can be repeated.
        """
        held = self._held(message_id)
        if held is None:
            found = self.get(message_id)
            return found is not None and found.state == "claimed" and self.remove(message_id)
        held.ack()
        self._until.pop(message_id, None)
        return self._popped.pop(message_id, None) is not None

    def set_unack_timeout(self, message_id: str, timeout: timedelta) -> bool:
        """Let a popped message wait `timeout` (0 to 12 h) from now for its `ack`. False: it is not popped.

        A shorter timeout than before takes effect at `process_unacks`, and only for what this object popped.

        Raises:
            BadInput: the timeout is out of range, or the id is none of this queue.
            NotDone, OutcomeUnknown: the timeout is, or may be, as it was.
        """
        check_duration("timeout", timeout, timedelta(), MAX_EXTENSION)
        held, until = self._held(message_id), self._queue.now + timeout
        with suppress(LeaseLost):
            if held is None:
                return self._queue.extend(message_id, max(timeout, MIN_EXTENSION))
            if until > held.visible_again:
                held.extend(max(timeout, MIN_EXTENSION))
            self._until[message_id] = until
            return True
        return False

    def set_timeout(self, message_id: str, timeout: timedelta) -> MessageId | None:
        """Make a message that is not popped due `timeout` from now; see `Queue.reschedule`.

        Returns:
            The id that the message has now, mostly the same. None: there is no such message, or it is popped.

        Raises:
            BadInput: the timeout is not from 0 to 10 years, or the id is none of this queue.
            NotDone, OutcomeUnknown: as `Queue.reschedule`.
        """
        check_duration("timeout", timeout, timedelta(), MAX_DELAY)
        with suppress(MessageHeld):
            return self._queue.reschedule(message_id, timeout)
        return None

    def get(self, message_id: str) -> StoredMessage | None:
        """Return the message with this id, popped or not; see `Queue.find`."""
        return self._queue.find(message_id)

    def remove(self, message_id: str) -> bool:
        """Delete the message with this id, popped or not; see `Queue.cancel`."""
        removed = self._queue.cancel(message_id)
        self._forget([message_id])
        return removed

    def _held(self, message_id: str) -> ReceivedMessage | None:
        """Return what this object popped under this id, if it is neither settled nor lost."""
        held = self._popped.get(MessageId(message_id))
        return held if held is not None and held.is_held else None

    # ── the whole queue ──

    def size(self) -> int:
        """Count the messages that no consumer holds, delayed ones included. This reads every id."""
        stats = self._queue.stats(exact=True)
        return stats.live - stats.claimed

    def shard_sizes(self) -> dict[int, ShardSize]:
        """Count the messages of each shard that has some. This reads every id, and all popped messages."""
        every = Counter(id_.locate().wide_row.shard for id_ in self._queue.ids())
        popped = Counter(one.id.locate().wide_row.shard for one in self._matching(CLAIMED))
        return {shard: ShardSize(max(0, every[shard] - popped[shard]), popped[shard]) for shard in every}

    def find_stale(self) -> list[Damage]:
        """Return the rows of the queue that nobody can read, and no consumer gets. This reads every message.

        `cqueue quarantine` shows and drops them.
        """
        return look_at_queue(self._client, self.name)

    def clear(self) -> int:
        """Delete all messages, popped ones included; return their number. See `Queue.purge`."""
        try:
            return self._queue.purge()
        finally:
            self._popped.clear()
            self._until.clear()

    def process_unacks(self) -> None:
        """Give back what this object has popped, and nobody acknowledged in time. `pop` does it now and then.

        Other consumers receive such messages without this call, too, but one at a time: each may have killed
        its consumer. This consumer lives, so this call gives back all of them at once. Messages whose timeout
        another process has extended stay popped. While nobody answers, the call gives up after one deadline.

        Raises:
            NotDone, OutcomeUnknown: they come back by themselves.
        """
        self._process_at_s = time.monotonic() + self.unack_time.total_seconds()
        now = self._queue.now
        popped = list(self._popped.items())
        late = {id_: one for id_, one in popped if self._until.get(id_, one.visible_again) <= now}
        held = {id_: one for id_, one in late.items() if one.is_held}
        self._forget(late.keys() - held.keys())
        by_row = grouped(
            ((one._settler, one.lease.wide_row), one)  # noqa: SLF001 - of its own consumer
            for one in held.values()
        )
        batches = [
            (settler, some) for (settler, _), those in by_row.items() for some in parts(those, MAX_RECEIVE)
        ]
        failure: CqueueError | None = None
        deadline_s = inside(self._client).driver.deadline_s
        until_s = time.monotonic() + deadline_s
        for settler, some in batches:
            try:
                over = self._over(some, now)
                self._forget(one.id for one in over)
                settler.nack(over)
            except LeaseLost:
                continue  # another consumer has received a message already
            except CqueueError as exc:
                failure = failure or exc
                if time.monotonic() >= until_s:  # each wide row more would take as long
                    break
            else:
                until_s = time.monotonic() + deadline_s
        if failure is not None:
            raise failure

    def _over(self, late: list[ReceivedMessage], now: datetime) -> list[ReceivedMessage]:
        """Return those of these messages whose timeouts nobody has extended, as they are stored."""
        try:
            stored = self._queue.find_many(one.id for one in late)
        except BadInput:  # the queue has been deleted and made again, and these are of the old one
            return late
        # Later than now if this object shortened the timeout.
        own = {one.id: one.visible_again for one in late}
        extended = {id_ for id_, one in stored.items() if one.next_at > max(now, own[id_])}
        return [one for one in late if one.id not in extended]

    def _forget(self, ids: Iterable[str]) -> None:
        for id_ in ids:
            self._popped.pop(id_, None)
            self._until.pop(id_, None)

    # ── close ──

    def close(self) -> None:
        """Give popped messages back (the attempt counts), and pop no more. Never raises."""
        self._closed = True
        for consumer in list(self._consumers):
            consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
