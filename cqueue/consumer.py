"""Receiving messages from one queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    LASTING,
    AckUnknown,
    BadInput,
    BatchTooLarge,
    Closed,
    CqueueError,
    LeaseLost,
    NotDone,
    OutcomeUnknown,
)
from cqueue.message import (
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    MAX_RECEIVE,
    MessageId,
    check_duration,
    delay_us,
    to_datetime,
)
from cqueue.prefetch import Prefetch
from cqueue.protocol import ack as acks
from cqueue.protocol.claim import claim
from cqueue.protocol.dead import bury, dead_headers, look_everywhere, without_body
from cqueue.protocol.draft import Claim
from cqueue.protocol.hint import Hint
from cqueue.protocol.poll import Poll, Share
from cqueue.protocol.spec import DEAD_SUFFIX, Lease, QueueSpec, SuspectGate, Taken
from cqueue.protocol.work import Reason
from cqueue.store.operations import ReadBodies, WideRow

T = TypeVar("T")

MAX_WAIT = timedelta(days=1)
STAY_IF_BACK_S = 0.1
"""A consumer that handles its messages quicker than this keeps the lock of a wide row that has more."""
STRIPES = 16
MAX_LEASES = 10_000
PATIENCE_S = 0.1
"""How long a receive waits for a claim under way, to look for what is never claimed ahead."""
FORGET_S = 60.0
HELD_AHEAD = 4
"""What was claimed ahead waits for one part in so many of the visibility timeout, and is then given back."""


class ShutGate(SuspectGate):
    """Lets no suspect through: one is never claimed ahead, as it is to be started at once."""

    def busy(self, now_ms: int) -> bool:  # noqa: D102
        return True


_SHUT = ShutGate()


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

    __slots__ = ("_consumer", "_owner", "_taken", "body")

    def __init__(self, consumer: Consumer, taken: Taken, body: bytes) -> None:
        self._consumer = consumer  # whom its own methods call: a recorder puts itself there
        self._owner = consumer
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
    def task(self) -> str | None:
        """The task's name, if it was sent with one."""
        return self._taken.row.task

    @property
    def key(self) -> str | None:
        """The key that it was sent with."""
        return self._taken.row.key

    @property
    def codec(self) -> str | None:
        """How the body is encoded, if it was said."""
        return self._taken.row.codec

    @property
    def trigger(self) -> str | None:
        """Which firing of a schedule it is, as JSON; None for other messages."""
        return self._taken.row.trigger

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
    def suspect(self) -> bool:
        """Whether its last holder let it expire, and may have been killed by it: it comes alone."""
        return self._taken.lease.suspect

    @property
    def lease(self) -> Lease:
        """Used inside: what it is held by, together with those that it was received with."""
        return self._taken.lease

    @property
    def is_held(self) -> bool:
        """Whether, as far as this process knows, it is still held: neither settled nor lost."""
        lease = self._taken.lease
        return not lease.lost and self._taken.row.id in lease.outstanding

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

    def dead(self, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """See `Consumer.dead`."""
        self._consumer.dead(self, reason, headers)

    def __repr__(self) -> str:
        return f"<message {self.id} attempt={self.attempt} bytes={len(self.body)}>"


Messages = ReceivedMessage | Iterable[ReceivedMessage]


class Consumer:
    """Receives from one queue; a context manager.

    One thread receives at a time; ack, nack and the like may come from any thread.

    share: which wide rows this consumer looks at at each poll, where a fleet of workers divides them;
        None for all.
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
        prefetch: int = 0,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._driver = driver
        self._bell = bell
        self._gate = gate
        self._executor = executor
        self._intervals = intervals
        self.share: Share | None = None
        self._pause_s = intervals.shortest
        self._left_at_s: float | None = None
        self._away_s = STAY_IF_BACK_S
        self._receiving = RLock()
        self._visibility_s = 0.0
        self._ahead: Prefetch[ReceivedMessage] | None = None
        if prefetch:
            self._ahead = Prefetch(prefetch, self._fetch, self._give_back_unseen, self._hold_s)
        self._stripes = [Lock() for _ in range(STRIPES)]
        self._sleeper = bell.join(wake)
        self._poll: Poll | None = None
        self._deletions = 0  # purges that are known of
        self._looked_s = 0.0
        self.was_told = False  # the last messages were found where a hint said
        self._alone = False  # the last receive looked for what is never claimed ahead
        self.has_more = False  # the last claim did, in its wide row or in others that are known
        self._leases: set[Lease] = set()
        self._shared = acks.Shared()
        self._closed = self._left = False

    def __repr__(self) -> str:
        return f"<consumer of {self.name}>"

    # ── receive ──

    def receive(self, max_messages: int = 10, wait: timedelta = timedelta()) -> list[ReceivedMessage]:
        """Up to `max_messages` (1 to 1,000) messages that are due, the most urgent first.

        Waits up to `wait` (0 to 1 day) for the first one. A message whose last holder let its timeout
        expire comes alone, and no other such one until it is settled: it may be what killed that
        holder. A paused queue gives nothing.

        Raises:
            QueueNotFound: there is no such queue.
            NotDone, OutcomeUnknown: Cassandra did not answer, to the end of `wait`; nothing is lost.
            Refused, DamagedRow: at once, as waiting mends nothing.
            Closed: the consumer has been closed.
        """
        if type(max_messages) is not int or not 1 <= max_messages <= MAX_RECEIVE:
            raise BatchTooLarge(f"max_messages is {max_messages!r}; it goes from 1 to {MAX_RECEIVE:,}")
        deadline_s = time.monotonic() + check_duration("wait", wait, timedelta(), MAX_WAIT)
        if self._ahead is None:
            return self._receive(max_messages, deadline_s)
        self._driver.check_open()
        if self._catalog.entry(self.name).row.state == PAUSED:
            self._ahead.drop()
        self._returned()
        messages = self._suspect(max_messages) or self._ahead.take(max_messages)
        if not messages:
            messages = self._receive(max(max_messages, self._ahead.size), deadline_s)
            messages, rest = messages[:max_messages], messages[max_messages:]
            self._ahead.put(rest, len(messages) + len(rest), more=self.has_more)
        self._left_at_s = time.monotonic() if messages else None
        return messages

    def _receive(self, want: int, deadline_s: float) -> list[ReceivedMessage]:
        """Look for messages until some are found or it is time to give up."""
        with self._receiving:
            self._returned()
            while True:
                failure: CqueueError | None = None
                try:
                    with self._driver.limited():
                        messages = self._round(want, self._gate)
                except Closed:
                    raise
                except (NotDone, OutcomeUnknown) as exc:
                    failure, messages = exc, []
                left_s = deadline_s - time.monotonic()
                if messages or left_s <= 0 or isinstance(failure, LASTING):
                    break
                self._wait(left_s)
            if messages:
                self._pause_s = self._intervals.shortest
                self._left_at_s = time.monotonic()
        if failure is not None:
            raise failure
        return messages

    def receive_from(
        self, wide_row: WideRow, priorities: frozenset[int], max_messages: int = 1
    ) -> list[ReceivedMessage]:
        """Used inside: messages of one wide row that is known to have some; nothing is searched for."""
        with self._receiving, self._driver.limited():
            entry = self._catalog.entry(self.name)
            if entry.row.state == PAUSED:
                return []
            view = self._polling(entry).registry.add(entry.spec, wide_row, priorities)
            claimed = self._driver.run(claim(view, entry.spec, self._gate, max_messages, stay=False))
            return self._accept(claimed, entry.spec)

    # ── claimed ahead ──

    def _suspect(self, want: int) -> list[ReceivedMessage]:
        """What may have killed its holder: never claimed ahead, and not to wait until nothing else comes.

        Every other receive at most looks for one, and where it is gone takes what it finds.
        """
        poll = self._poll
        self._alone = not self._alone and poll is not None and poll.knows_suspects
        if poll is None or not self._alone or self._closed or self._gate.busy(self._now_ms()):
            return []
        if not self._receiving.acquire(timeout=PATIENCE_S):
            return []
        try:
            with suppress(NotDone, OutcomeUnknown), self._driver.limited():
                entry = self._catalog.entry(self.name)
                if poll is self._poll and poll.is_of(entry.row, entry.spec) and entry.row.state != PAUSED:
                    return self._accept(self._driver.run(poll.claim_suspect(entry.spec, want)), entry.spec)
        finally:
            self._receiving.release()
        return []

    def _fetch(self, want: int) -> tuple[list[ReceivedMessage], bool]:
        """Messages for the receives to come, and whether there are more of them."""
        with self._receiving:
            try:
                with self._driver.limited():
                    return self._round(want, _SHUT), self.has_more
            except Exception:  # noqa: BLE001 - the next receive meets it as well, and can raise it
                return [], False

    def _give_back_unseen(self, messages: list[ReceivedMessage]) -> None:
        """Make messages available again that nobody has seen; should that fail, their timeout does it."""
        with suppress(CqueueError):
            self.snooze(messages, timedelta())

    def _hold_s(self) -> float:
        """How long messages claimed just now may wait for a receive."""
        return self._visibility_s / HELD_AHEAD

    # ── one look ──

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

    def _round(self, want: int, gate: SuspectGate) -> list[ReceivedMessage]:
        """One look at everything that may have work, until something is found."""
        if self._closed:
            raise Closed(f"the consumer of {self.name!r} has been closed")
        entry = self._catalog.entry(self.name)
        poll, run = self._polling(entry), self._driver.run
        poll.gate, self._visibility_s = gate, entry.spec.visibility_ms / 1000
        if entry.row.state == PAUSED:
            run(poll.let_go())
            return []
        self._looked_s, self.was_told = time.monotonic(), False
        run(poll.begin(entry.spec, self._hints(poll), self.share))
        stay = self._away_s < STAY_IF_BACK_S
        while (claimed := run(poll.next_claim(entry.spec, want, stay=stay))) is not None:
            messages = self._accept(claimed, entry.spec)
            if messages:
                self.has_more, self.was_told = poll.has_work, claimed.reason is Reason.HINT
                return messages
        run(poll.tidy())
        return []

    def tidy(self) -> bool:
        """Used inside: do what a receive does besides looking for messages; whether anything is held still.

        Who looks for nothing for a while forgets where he has looked: wide rows come and go meanwhile.
        """
        with self._receiving, self._driver.limited():
            poll = self._poll
            if poll is None or self._closed:
                return False
            self._driver.run(poll.let_go())
            self._driver.run(poll.tidy())
            holds = poll.has_finished or any(one.outstanding and not one.lost for one in list(self._leases))
            if not holds and time.monotonic() - self._looked_s > FORGET_S:
                self._poll = None
            return holds

    def _hints(self, poll: Poll) -> list[Hint]:
        """Where this consumer was told to look since it was last asked."""
        told, deletions = self._sleeper.told, self._bell.deletions
        if deletions != self._deletions:
            self._deletions = deletions
            poll.distrust()
        return [told.popleft() for _ in range(len(told))]

    def _polling(self, entry: Entry) -> Poll:
        """The search in the queue's present incarnation."""
        if self._poll is None or not self._poll.is_of(entry.row, entry.spec):
            self._poll = Poll(entry.row, entry.spec, self._gate)
            self._bell.serve(entry.spec.partition)
        return self._poll

    # ── what a claim gave ──

    def _accept(self, claimed: Claim, spec: QueueSpec) -> list[ReceivedMessage]:
        """Load large bodies; settle what is not to be delivered."""
        everything = [*claimed.taken, *claimed.dead, *claimed.expired]
        if len(self._leases) > MAX_LEASES:
            self._leases = {lease for lease in list(self._leases) if lease.outstanding and not lease.lost}
        self._leases.update({taken.lease for taken in everything})
        self._drop(claimed.expired)
        self._bury_spent(claimed.dead, spec)
        if None not in [taken.row.body for taken in claimed.taken]:
            return [ReceivedMessage(self, taken, taken.row.body or b"") for taken in claimed.taken]
        try:
            return self._with_bodies(claimed.taken, spec)
        except (NotDone, OutcomeUnknown):
            for lease in {taken.lease for taken in claimed.taken}:
                self._release(lease)
            raise

    def _drop(self, expired: Sequence[Taken]) -> None:
        """Delete messages whose own time to live is over; should that fail, the next taker does it."""
        if not expired:
            return
        try:
            self._settled(self._driver.run(acks.ack(expired)))
        except (NotDone, OutcomeUnknown):
            return

    def _release(self, lease: Lease) -> None:
        """Give back messages that nobody saw: no attempt used. Should that fail, their timeout does it."""
        try:
            with self._stripe(lease):
                self._driver.run(acks.release(lease))
        except (NotDone, OutcomeUnknown, LeaseLost):
            return

    def _with_bodies(self, taken: Sequence[Taken], spec: QueueSpec) -> list[ReceivedMessage]:
        """Messages with their bodies; one that somebody has acked meanwhile is left out."""
        large: dict[WideRow, list[Taken]] = {}
        for one in taken:
            if one.row.body is None:
                large.setdefault(one.lease.wide_row, []).append(one)
        bodies: dict[int, bytes] = {}
        for wide_row, some in large.items():
            sizes = {one.row.id: one.row.size or 0 for one in some}
            read = self._driver.ask(ReadBodies(wide_row, tuple(sizes), tuple(sizes.values())))
            bodies.update(read)
        messages = [
            ReceivedMessage(self, one, bodies[one.row.id] if one.row.body is None else one.row.body)
            for one in taken
            if one.row.body is not None or one.row.id in bodies
        ]
        for some in large.values():
            missing = [one for one in some if one.row.id not in bodies]
            if missing:
                messages += self._found(missing, spec)
        return messages

    def _found(self, missing: Sequence[Taken], spec: QueueSpec) -> list[ReceivedMessage]:
        """Messages whose bodies a quorum does not have, with those of other replicas; if none has them, dead.

        A dead letter cannot die; it is received without its body. What cannot be looked for now is put off,
        and uses no attempt: nobody has seen it.
        """
        try:
            bodies = self._driver.run(look_everywhere(missing))
        except (NotDone, OutcomeUnknown):
            with suppress(NotDone, OutcomeUnknown, LeaseLost):  # its timeout does it
                unseen = [ReceivedMessage(self, one, b"") for one in missing]
                self.snooze(unseen, timedelta(milliseconds=spec.visibility_ms))
            return []
        found: list[ReceivedMessage] = []
        for one in missing:
            body = bodies.get(one.row.id)
            bare = Taken(without_body(one.row), one.lease)
            if body is not None:
                found.append(ReceivedMessage(self, one, body))
            elif one.row.id in bodies and spec.is_dead_letter:
                found.append(ReceivedMessage(self, bare, b""))
            elif one.row.id in bodies:
                self._bury(bare, spec, "its body is lost: no replica has it")
        return found

    def _bury_spent(self, spent: Sequence[Taken], spec: QueueSpec) -> None:
        """Dead-letter what has no attempt left.

        Where that fails for a large message, for want of a replica say, it would for the next one, and what
        was claimed beside them would wait for each.
        """
        failed: set[bool] = set()
        for taken in spent:
            is_large = taken.row.size is not None
            reason = f"not acked in {taken.lease.attempt} attempts"
            if is_large not in failed and not self._bury(taken, spec, reason):
                failed.add(is_large)

    def _bury(self, taken: Taken, spec: QueueSpec, reason: str) -> bool:
        """Dead-letter what cannot be delivered; should that fail, the next taker does it, and it is False.

        Whatever the error, messages claimed beside it are delivered all the same.
        """
        try:
            self._run_bury(taken, spec, reason)
        except CqueueError as exc:
            return not isinstance(exc, NotDone | OutcomeUnknown)
        return True

    def _run_bury(
        self, taken: Taken, spec: QueueSpec, reason: str, headers: Mapping[str, str] | None = None
    ) -> None:
        dead = self._catalog.entry(spec.name + DEAD_SUFFIX).spec
        id_ = MessageId.of(taken.lease.wide_row, taken.row.priority, taken.row.id)
        if headers:
            own = dead_headers(taken.row.headers, reason, spec.name, taken.lease.attempt, id_)
            headers = fitting(own, headers)
        self._settled(self._driver.run(bury(spec, dead, taken, reason, id_, headers)))

    def _settled(self, finished: Iterable[Lease]) -> None:
        """Leases of which nothing is outstanding: their slots can be freed."""
        for lease in finished:
            self._leases.discard(lease)
            if self._poll is not None:
                self._poll.finished.append(lease)

    # ── what a holder says ──

    def ack(self, messages: Messages) -> None:
        """Delete messages; returns when that is stored. Acking again, or too late, does no harm.

        Messages of other consumers of the same client may be among them, whatever their queues.

        Raises:
            NotDone: nothing was deleted.
            AckUnknown: it may be; what is not comes again after its timeout.
        """
        listed = _listed(messages)
        if not listed:
            return
        try:
            emptied = self._driver.run(acks.ack([message._taken for message in listed]))  # noqa: SLF001
        except OutcomeUnknown as exc:
            raise AckUnknown(f"it is not known whether {len(listed)} ack(s) are stored: {exc}") from exc
        if emptied:
            owners = {message._taken.lease: message._owner for message in listed}  # noqa: SLF001
            for lease in emptied:
                owners[lease]._settled((lease,))  # noqa: SLF001 - the same class

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

        Most messages that were received together share a timeout, which is extended for all that share it.

        Raises:
            LeaseLost: the timeout passed; the message belongs to somebody else.
        """
        check_duration("duration", duration, timedelta(seconds=2), timedelta(hours=12))

        def extend(lease: Lease) -> None:
            with self._stripe(lease):
                self._driver.run(acks.extend(lease, to_ms(duration)))

        _each({message._taken.lease for message in _listed(messages)}, extend)  # noqa: SLF001

    def dead(self, messages: Messages, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """Move messages to the dead-letter queue, with the reason in a header.

        headers: more of them for the dead letters. Where they and the message's own are too long
            together, they keep their ends; where they are too many, the last are left out.

        Raises:
            LeaseLost: the timeout passed; the message belongs to somebody else.
            NotDone, OutcomeUnknown: the message is still in its queue, and is dead-lettered by
                whoever takes it over.
        """
        spec = self._catalog.entry(self.name).spec
        if spec.is_dead_letter:
            raise BadInput(f"{self.name!r} is a dead-letter queue itself; ack the message instead")
        if not isinstance(reason, str):
            raise BadInput(f"reason is {reason!r}; it takes text")

        def bury_one(taken: Taken) -> None:
            with self._stripe(taken.lease):
                self._run_bury(taken, spec, reason, headers)

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
        if self._ahead is not None:
            self._ahead.close()
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
        except CqueueError:
            return  # its timeout gives it back

    def _let_go(self) -> None:
        if self._poll is not None:
            with suppress(CqueueError):
                self._driver.run(self._poll.let_go())

    def _free_at_close(self) -> None:
        if self._poll is not None:
            with suppress(CqueueError):
                self._driver.run(self._poll.tidy(at_once=True))

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


def fitting(own: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """As much of `more` as fits beside `own` into the limits of headers; of each text the end."""
    left = MAX_HEADERS_BYTES - sum(len(name.encode()) + len(text.encode()) for name, text in own.items())
    fits: dict[str, str] = {}
    for name, text in list(more.items())[: max(0, MAX_HEADERS - len(own))]:
        left -= len(name.encode())
        if left <= 0:
            break
        encoded = text.encode(errors="replace")[-left:]
        fits[name] = encoded.decode(errors="ignore")
        left -= len(encoded)
    return fits


def _listed(messages: Messages) -> list[ReceivedMessage]:
    """One message or several, as a list.

    Raises:
        BadInput: something in it is not a received message.
    """
    listed = [messages] if isinstance(messages, ReceivedMessage) else messages
    if not isinstance(listed, Iterable):
        raise BadInput(f"{messages!r} is neither a received message nor several of them")
    listed = list(listed)
    if set(map(type, listed)) <= {ReceivedMessage}:
        return listed
    for message in listed:
        if not isinstance(message, ReceivedMessage):
            raise BadInput(f"{message!r} is not a received message")
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
