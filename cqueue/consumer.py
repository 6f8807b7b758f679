"""Receiving messages from one queue."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock, RLock
from types import TracebackType
from typing import Self, TypeVar

from cqueue import ids
from cqueue.bell import Bell
from cqueue.catalog import PAUSED, Catalog, Entry
from cqueue.config import to_ms
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import (
    AckUnknown,
    BadInput,
    BatchTooLarge,
    Closed,
    CqueueError,
    LeaseLost,
    NotDone,
    OutcomeUnknown,
)
from cqueue.message import MAX_RECEIVE, MessageId, check_duration, delay_us, to_datetime
from cqueue.protocol import ack as acks
from cqueue.protocol.claim import claim
from cqueue.protocol.dead import bury
from cqueue.protocol.draft import Claim
from cqueue.protocol.lock import unlock
from cqueue.protocol.probe import probe
from cqueue.protocol.registry import Registry, refresh
from cqueue.protocol.spec import DEAD_SUFFIX, Lease, QueueSpec, SuspectGate, Taken
from cqueue.protocol.view import RowView
from cqueue.store.operations import ReadBodies, WideRow

T = TypeVar("T")

MAX_WAIT = timedelta(days=1)
PROBED_AT_ONCE = 16
ENOUGH_FOUND = 8
SEARCH_EVERY_S = 0.5
FREE_AFTER_S = 0.2
"""How long a slot whose messages are all acked waits for the next claim to free it on the way."""
STAY_IF_BACK_S = 0.1
"""A consumer that handles its messages quicker than this keeps the lock of a wide row that has more."""
STRIPES = 16
MAX_LEASES = 10_000


class SharedGate(SuspectGate):
    """The gate of a process: several threads may ask."""

    def __init__(self) -> None:
        super().__init__()
        self._mutex = RLock()

    def busy(self, now_ms: int) -> bool:
        """Whether a suspect is held, or is just being claimed."""
        with self._mutex:
            return super().busy(now_ms)

    def reserve(self, now_ms: int) -> bool:
        """Take the right to claim one suspect."""
        with self._mutex:
            return super().reserve(now_ms)

    def hold(self, lease: Lease) -> None:
        """A claim has granted a suspect."""
        with self._mutex:
            super().hold(lease)


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """How long a consumer waits between polls that found nothing, in seconds: doubled up to `longest`."""

    shortest: float = 0.005
    longest: float = 1.0


class ReceivedMessage:
    """A message, held until its visibility timeout passes or it is acked, nacked, or dead.

    Attributes:
        body: bytes.
    """

    __slots__ = ("_consumer", "_taken", "body")

    def __init__(self, consumer: Consumer, taken: Taken, body: bytes) -> None:
        self._consumer = consumer
        self._taken = taken
        self.body = body

    @property
    def id(self) -> MessageId:
        """Names the message; the same at every delivery."""
        return MessageId.of(self._taken.lease.wide_row, self._taken.row.priority, self._taken.row.id)

    @property
    def headers(self) -> dict[str, str]:
        """Text by name; empty if there are none."""
        return dict(self._taken.row.headers or {})

    @property
    def priority(self) -> int:
        """0, the most urgent, to 9."""
        return self._taken.row.priority

    @property
    def due(self) -> datetime:
        """When it was due first, in UTC."""
        return to_datetime(ids.time_us(self._taken.row.id) // 1000)

    @property
    def sent_at(self) -> datetime:
        """When it was sent, in UTC, by the cluster's clock."""
        return to_datetime(self._taken.row.sent_at)

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1. A claim whose consumer died before it began counts as well."""
        return self._taken.lease.attempt

    @property
    def fence(self) -> int:
        """A fencing token: of two claims on one wide row, the later has the higher one."""
        return self._taken.lease.fence

    @property
    def visible_again(self) -> datetime:
        """When the visibility timeout passes, in UTC; moved by `extend`."""
        return to_datetime(self._taken.lease.due_ms)

    def ack(self) -> None:
        """See `Consumer.ack`."""
        self._consumer.ack(self)

    def nack(self, delay: timedelta = timedelta()) -> None:
        """See `Consumer.nack`."""
        self._consumer.nack(self, delay)

    def snooze(self, delay: timedelta) -> None:
        """See `Consumer.snooze`."""
        self._consumer.snooze(self, delay)

    def extend(self, duration: timedelta) -> None:
        """See `Consumer.extend`."""
        self._consumer.extend(self, duration)

    def dead(self, reason: str) -> None:
        """See `Consumer.dead`."""
        self._consumer.dead(self, reason)

    def __repr__(self) -> str:
        return f"<message {self.id} attempt={self.attempt} bytes={len(self.body)}>"


Messages = ReceivedMessage | Iterable[ReceivedMessage]


class Consumer:
    """Receives from one queue; a context manager.

    One thread receives at a time; ack, nack and the like may come from any thread.
    """

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        driver: BlockingDriver,
        bell: Bell,
        *,
        gate: SuspectGate,
        executor: Executor,
        intervals: PollIntervals,
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._driver = driver
        self._bell = bell
        self._gate = gate
        self._executor = executor
        self._intervals = intervals
        self._pause_s = intervals.shortest
        self._left_at_s: float | None = None
        self._away_s = STAY_IF_BACK_S
        self._receiving = RLock()
        self._stripes = [Lock() for _ in range(STRIPES)]
        self._sleeper = bell.join()
        self._registry: Registry | None = None
        self._incarnation = ""
        self._held: RowView | None = None
        self._promising: dict[WideRow, RowView] = {}  # we were told of
        self._found: deque[RowView] = deque()  # by the last search, not claimed from yet
        self._searched_s = float("-inf")
        self._finished: deque[Lease] = deque()
        self._unfreed_since: float | None = None
        self._leases: set[Lease] = set()
        self._shared = acks.Shared()
        self._closed = self._left = False

    # ── receive ──

    def receive(self, max_messages: int = 10, wait: timedelta = timedelta()) -> list[ReceivedMessage]:
        """Up to `max_messages` (1 to 1,000) messages that are due, the most urgent first.

        Waits up to `wait` (0 to 1 day) for the first one. A message whose last holder let its timeout
        expire comes alone, and no other such one until it is settled: it may be what killed that
        holder. A paused queue gives nothing.

        Raises:
            QueueNotFound: there is no such queue.
            NotDone, OutcomeUnknown: Cassandra did not answer, to the end of `wait`; nothing is lost.
            Closed: the consumer has been closed.
        """
        if type(max_messages) is not int or not 1 <= max_messages <= MAX_RECEIVE:
            raise BatchTooLarge(f"max_messages is {max_messages!r}; it goes from 1 to {MAX_RECEIVE:,}")
        deadline_s = time.monotonic() + check_duration("wait", wait, timedelta(), MAX_WAIT)
        with self._receiving:
            self._returned()
            while True:
                failure: CqueueError | None = None
                try:
                    messages = self._round(max_messages)
                except Closed:
                    raise
                except (NotDone, OutcomeUnknown) as exc:
                    failure, messages = exc, []
                left_s = deadline_s - time.monotonic()
                if messages or left_s <= 0:
                    break
                self._wait(left_s)
            if messages:
                self._pause_s = self._intervals.shortest
                self._left_at_s = time.monotonic()
        if failure is not None:
            raise failure
        return messages

    def _returned(self) -> None:
        """Learn how long messages are handled before the next receive: a slow one keeps no lock meanwhile."""
        if self._left_at_s is not None:
            away_s = time.monotonic() - self._left_at_s
            self._away_s = (self._away_s + away_s) / 2
            self._left_at_s = None

    def _wait(self, left_s: float) -> None:
        """Wait until told of a message or for the next poll; each wait in vain is twice as long."""
        told = self._sleeper.sleep(min(self._pause_s, left_s))
        longer_s = min(self._pause_s * 2, self._intervals.longest)
        self._pause_s = self._intervals.shortest if told else longer_s

    def _round(self, want: int) -> list[ReceivedMessage]:
        """One look at everything that may have work, until something is found."""
        if self._closed:
            raise Closed(f"the consumer of {self.name!r} has been closed")
        entry = self._catalog.entry(self.name)
        registry = self._know(entry)
        self._sort_finished(registry)
        if entry.row.state == PAUSED:
            self._let_go()
            return []
        self._hear(registry, entry.spec)
        overdue = time.monotonic() - self._searched_s >= SEARCH_EVERY_S
        if overdue:
            self._search(registry, entry.spec)
        messages = self._claim_first(entry.spec, want)
        if not messages and not overdue:
            self._search(registry, entry.spec)
            messages = self._claim_first(entry.spec, want)
        if not messages:
            self._free_finished(registry)
        return messages

    def _claim_first(self, spec: QueueSpec, want: int) -> list[ReceivedMessage]:
        """Claim from one promising wide row after the other, until one has messages.

        Raises:
            NotDone, OutcomeUnknown: of the first that failed, if no other had messages.
        """
        failure: CqueueError | None = None
        while (view := self._next_promising()) is not None:
            try:
                messages = self._claim(view, spec, want)
            except (NotDone, OutcomeUnknown) as exc:
                self._let_go()
                failure = failure or exc
            else:
                if messages:
                    return messages
        if failure is not None:
            raise failure
        return []

    def _know(self, entry: Entry) -> Registry:
        """The registry of the queue's present incarnation."""
        if self._registry is None or self._incarnation != entry.row.incarnation:
            row = entry.row
            self._incarnation, self._held = row.incarnation, None
            self._promising.clear()
            self._found.clear()
            self._registry = Registry(
                row.oldest_epoch, row.oldest_open_epoch, read_open=entry.spec.has_open_rows
            )
        return self._registry

    def _hear(self, registry: Registry, spec: QueueSpec) -> None:
        """Note the wide rows that this process has sent to: they need no probe."""
        now_us = self._driver.clock.now_us()
        while self._sleeper.told:
            wide_row, priorities = self._sleeper.told.popleft()
            if wide_row.queue == spec.partition:
                view = registry.add(spec, wide_row, priorities)
                if wide_row.time_shard * 1000 <= now_us:
                    self._promising[wide_row] = view

    def _next_promising(self) -> RowView | None:
        """What a search found, oldest first; then the wide row whose lock we hold; then what we were told of.

        A search comes round twice a second, so neither a lock nor what this process sends itself can keep
        messages of others waiting for long.
        """
        if self._found:
            return self._found.popleft()
        if self._held is not None:
            self._promising.pop(self._held.wide_row, None)
            return self._held
        return self._promising.pop(next(iter(self._promising)), None) if self._promising else None

    def _search(self, registry: Registry, spec: QueueSpec) -> None:
        """Bring the registry up to date and probe all wide rows: the oldest first, equals in any order."""
        self._searched_s = time.monotonic()
        self._driver.run(refresh(registry, spec))
        due = registry.due(self._driver.clock.now_us())
        random.shuffle(due)
        due.sort(key=lambda view: view.wide_row.time_shard)
        self._found.clear()
        for start in range(0, len(due), PROBED_AT_ONCE):
            part = [view for view in due[start : start + PROBED_AT_ONCE] if view is not self._held]
            self._found += self._driver.run(probe(part, spec, self._gate))
            if len(self._found) >= ENOUGH_FOUND:
                return

    def _claim(self, view: RowView, spec: QueueSpec, want: int) -> list[ReceivedMessage]:
        self._let_go(but=view)
        try:
            stay = self._away_s < STAY_IF_BACK_S
            claimed = self._driver.run(claim(view, spec, self._gate, want, stay=stay))
        finally:
            self._held = view if view.fence is not None else None
        return self._accept(claimed, spec)

    def _let_go(self, but: RowView | None = None) -> None:
        """Unlock the wide row that is held, if it is another one."""
        held, self._held = self._held, None
        if held is not None and held is not but:
            try:
                self._driver.run(unlock(held))
            except (NotDone, OutcomeUnknown):
                held.fence = None  # its lease ends by itself

    # ── what a claim gave ──

    def _accept(self, claimed: Claim, spec: QueueSpec) -> list[ReceivedMessage]:
        """Load large bodies; settle what is not to be delivered."""
        everything = [*claimed.taken, *claimed.dead, *claimed.expired]
        if len(self._leases) > MAX_LEASES:
            self._leases = {lease for lease in self._leases if lease.outstanding and not lease.lost}
        self._leases.update({taken.lease for taken in everything})
        self._drop(claimed.expired)
        for taken in claimed.dead:
            self._bury(taken, spec)
        if not any(taken.row.body is None for taken in claimed.taken):
            return [ReceivedMessage(self, taken, taken.row.body or b"") for taken in claimed.taken]
        try:
            return self._with_bodies(claimed.taken)
        except (NotDone, OutcomeUnknown):
            for lease in {taken.lease for taken in claimed.taken}:
                self._release(lease)
            raise

    def _drop(self, expired: Sequence[Taken]) -> None:
        """Delete messages whose own time to live is over; should that fail, the next taker does it."""
        if not expired:
            return
        try:
            self._finished.extend(self._driver.run(acks.ack(expired)))
        except (NotDone, OutcomeUnknown):
            return

    def _release(self, lease: Lease) -> None:
        """Give back messages that nobody saw: no attempt used. Should that fail, their timeout does it."""
        try:
            with self._stripe(lease):
                self._driver.run(acks.release(lease))
        except (NotDone, OutcomeUnknown, LeaseLost):
            return

    def _with_bodies(self, taken: Sequence[Taken]) -> list[ReceivedMessage]:
        """Messages with their bodies; one whose body is gone was acked by somebody, and is left out."""
        large: dict[WideRow, list[int]] = {}
        for one in taken:
            if one.row.body is None:
                large.setdefault(one.lease.wide_row, []).append(one.row.id)
        bodies: dict[int, bytes] = {}
        for wide_row, ids_ in large.items():
            found: dict[int, bytes] = self._driver.ask(ReadBodies(wide_row, tuple(ids_)))
            bodies.update(found)
        return [
            ReceivedMessage(self, one, bodies[one.row.id] if one.row.body is None else one.row.body)
            for one in taken
            if one.row.body is not None or one.row.id in bodies
        ]

    def _bury(self, taken: Taken, spec: QueueSpec) -> None:
        """Dead-letter what has no attempt left; should that fail, the next taker does it.

        Whatever the reason, messages claimed beside it are delivered all the same.
        """
        with suppress(CqueueError):
            self._run_bury(taken, spec, f"not acked in {taken.lease.attempt} attempts")

    def _run_bury(self, taken: Taken, spec: QueueSpec, reason: str) -> None:
        dead = self._catalog.entry(spec.name + DEAD_SUFFIX).spec
        id_ = MessageId.of(taken.lease.wide_row, taken.row.priority, taken.row.id)
        self._finished.extend(self._driver.run(bury(spec, dead, taken, reason, id_)))

    # ── finished leases ──

    def _sort_finished(self, registry: Registry) -> None:
        """Hand finished leases to their wide rows, whose next claim frees their slots on the way."""
        while self._finished:
            lease = self._finished.popleft()
            self._leases.discard(lease)
            view = registry.views.get(lease.wide_row)
            if view is not None:
                view.finished.append(lease)
                self._unfreed_since = self._unfreed_since or time.monotonic()

    def _free_finished(self, registry: Registry) -> None:
        """Free slots that no claim has freed for a while, in a mutation of their own."""
        if self._unfreed_since is None or time.monotonic() - self._unfreed_since < FREE_AFTER_S:
            return
        self._unfreed_since = None
        for view in registry.views.values():
            if view.finished and not view.retired:
                self._free(view)

    def _free(self, view: RowView) -> None:
        """Free slots; those that somebody else has changed are not ours to free any more."""
        finished, view.finished = view.finished, []
        try:
            if not self._driver.run(acks.free(finished)) and len(finished) > 1:
                for lease in finished:
                    self._driver.run(acks.free([lease]))
        except (NotDone, OutcomeUnknown):
            view.finished = finished  # the next head read tells which are still ours
            self._unfreed_since = time.monotonic()

    # ── what a holder says ──

    def ack(self, messages: Messages) -> None:
        """Delete messages; returns when that is stored. Acking again, or too late, does no harm.

        Raises:
            NotDone: nothing was deleted.
            AckUnknown: it may be; what is not comes again after its timeout.
        """
        taken = [message._taken for message in _listed(messages)]  # noqa: SLF001
        if not taken:
            return
        try:
            self._finished.extend(self._driver.run(acks.ack(taken)))
        except OutcomeUnknown as exc:
            raise AckUnknown(f"it is not known whether {len(taken)} ack(s) are stored: {exc}") from exc

    def ack_async(self, messages: Messages) -> Future[None]:
        """As `ack`, on a thread of the client; the future gives its error.

        Raises:
            Closed: the client has been closed.
        """
        try:
            return self._executor.submit(self.ack, list(_listed(messages)))
        except RuntimeError as exc:
            raise Closed("the client has been closed") from exc

    def nack(self, messages: Messages, delay: timedelta = timedelta()) -> None:
        """Give messages back, to be delivered again after `delay`; this attempt counts.

        With no attempt left the message goes to the dead-letter queue when it is due.

        Raises:
            LeaseLost: the timeout passed; the message belongs to somebody else. Of several messages all
                are tried, and the first error is raised.
            NotDone, OutcomeUnknown: the message stays, or may stay, held until its timeout.
        """
        self._give_back(messages, delay, count=True)

    def snooze(self, messages: Messages, delay: timedelta) -> None:
        """As `nack`, but this attempt does not count."""
        self._give_back(messages, delay, count=False)

    def _give_back(self, messages: Messages, delay: timedelta, *, count: bool) -> None:
        delay_ms = -(-delay_us(delay) // 1000)
        by_lease: dict[Lease, list[int]] = {}
        for message in _listed(messages):
            by_lease.setdefault(message._taken.lease, []).append(message._taken.row.id)  # noqa: SLF001

        def give_back(lease: Lease) -> None:
            with self._stripe(lease):
                self._driver.run(acks.nack(lease, by_lease[lease], delay_ms, self._shared, count=count))
                if lease.given:
                    self._leases.discard(lease)

        _each(by_lease, give_back)

    def extend(self, messages: Messages, duration: timedelta) -> None:
        """Keep messages invisible until `duration` from now (2 s to 12 h); never shortens.

        Messages that were received together share a timeout, which is extended for all of them.

        Raises:
            LeaseLost: the timeout passed; the message belongs to somebody else.
        """
        check_duration("duration", duration, timedelta(seconds=2), timedelta(hours=12))

        def extend(lease: Lease) -> None:
            with self._stripe(lease):
                self._driver.run(acks.extend(lease, to_ms(duration)))

        _each({message._taken.lease for message in _listed(messages)}, extend)  # noqa: SLF001

    def dead(self, messages: Messages, reason: str) -> None:
        """Move messages to the dead-letter queue, with the reason in a header.

        Raises:
            LeaseLost: the timeout passed; the message belongs to somebody else.
            NotDone, OutcomeUnknown: the message is still in its queue, and is dead-lettered by
                whoever takes it over.
        """
        spec = self._catalog.entry(self.name).spec
        if spec.has_open_rows:
            raise BadInput(f"{self.name!r} is a dead-letter queue itself; ack the message instead")
        if not isinstance(reason, str):
            raise BadInput(f"reason is {reason!r}; it takes text")

        def bury_one(taken: Taken) -> None:
            with self._stripe(taken.lease):
                self._run_bury(taken, spec, reason)

        _each([message._taken for message in _listed(messages)], bury_one)  # noqa: SLF001

    def _stripe(self, lease: Lease) -> Lock:
        """Changes of one lease come one after the other, so that its revision is known."""
        return self._stripes[hash(lease) % STRIPES]

    # ── close ──

    def close(self, *, give_back: bool = True) -> None:
        """Give back what is not settled (this attempt counts), and receive no more. Never raises.

        give_back: False leaves messages to their timeout, to be settled until then.
        """
        self._closed = True
        self._sleeper.event.set()  # a receive that waits in another thread ends at once
        with self._receiving:
            if self._left:
                return
            self._left = True
            self._bell.leave(self._sleeper)
            self._let_go()
            now_ms = self._now_ms()
            for lease in list(self._leases) if give_back else ():
                if lease.outstanding and not lease.lost and lease.due_ms > now_ms:
                    self._abandon(lease)
            self._free_at_close()

    def _abandon(self, lease: Lease) -> None:
        try:
            with self._stripe(lease):
                self._driver.run(acks.nack(lease, lease.outstanding, 0, self._shared))
        except (NotDone, OutcomeUnknown, LeaseLost):
            return  # its timeout gives it back

    def _free_at_close(self) -> None:
        if self._registry is None:
            return
        self._sort_finished(self._registry)
        self._unfreed_since = float("-inf")
        self._free_finished(self._registry)

    def _now_ms(self) -> int:
        try:
            return self._driver.clock.now_us() // 1000
        except NotDone:
            return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _listed(messages: Messages) -> list[ReceivedMessage]:
    """One message or several, as a list.

    Raises:
        BadInput: something in it is no received message.
    """
    listed = [messages] if isinstance(messages, ReceivedMessage) else messages
    if not isinstance(listed, Iterable):
        raise BadInput(f"{messages!r} is neither a received message nor several of them")
    listed = list(listed)
    for message in listed:
        if not isinstance(message, ReceivedMessage):
            raise BadInput(f"{message!r} is no received message")
    return listed


def _each(items: Iterable[T], call: Callable[[T], None]) -> None:
    """Call for all of them; then raise the first error, if there was one."""
    failure: CqueueError | None = None
    for item in items:
        try:
            call(item)
        except CqueueError as exc:
            failure = failure or exc
    if failure is not None:
        raise failure
