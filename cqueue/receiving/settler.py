"""The leases that one consumer holds, and the calls that settle them: ack, nack, snooze, extend, dead."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from cqueue.config import to_ms
from cqueue.errors import AckUnknown, BadInput, CqueueError, LeaseLost, NotDone, OutcomeUnknown
from cqueue.message import MessageId, check_extension, delay_us, fitting
from cqueue.protocol import ack as acks
from cqueue.protocol import policy
from cqueue.protocol.dead import HEADER_ABANDONED, HEADER_FENCE, HEADER_HOLDER, bury, why_dead
from cqueue.protocol.lease import Lease, Taken
from cqueue.protocol.policy import Disposition
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.received import Messages, Received, listed
from cqueue.runtime import waiting
from cqueue.runtime.batcher import Calls
from cqueue.runtime.catalog import Catalog
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.rendezvous import own_name
from cqueue.runtime.sequences import grouped

T = TypeVar("T")

LOCKS = 16
"""Locks that changes of leases are spread over, so that threads that settle rarely wait for each other."""
MAX_LEASES = 10_000
"""Leases above which a claim forgets those that are lost or given back. Leases that are held all stay."""


class Settler:
    """Settles the messages of one consumer, and keeps its leases. Thread-safe.

    finished: leases whose messages are all acked, so that the next claim can free their slots.
    """

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        driver: BlockingDriver,
        *,
        executor: Calls,
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._driver = driver
        self._executor = executor
        self._locks = [waiting.lock() for _ in range(LOCKS)]
        self._leases: set[Lease] = set()
        self.acking: dict[object, Sequence[Received]] = {}  # of acks that wait, or run
        self.finished: deque[Lease] = deque()
        self.left_until_ms = 0  # until then leases may hold messages that were not delivered
        self._shared = acks.Shared()

    # ── leases ──

    def hold(self, taken: Iterable[Taken]) -> None:
        """Remember the leases of the messages of a claim."""
        if len(self._leases) > MAX_LEASES:
            self._leases = {lease for lease in list(self._leases) if lease.is_held}
        self._leases.update({one.lease for one in taken})

    def give_back_all(self, now_ms: int) -> None:
        """Nack all unsettled messages, but those whose ack is under way. If that fails, their timeout gives
        them back.

        With each answer the caller has its time anew, however many leases there are.
        """
        batches = list(self.acking.values())
        acking = {(one.lease, one.row.id) for batch in batches for one in batch}
        for lease in list(self._leases):
            if lease.is_held and lease.due_ms > now_ms:
                with suppress(CqueueError), self._lock_of(lease):
                    unsettled = [id_ for id_ in list(lease.outstanding) if (lease, id_) not in acking]
                    if not unsettled:
                        continue  # nothing is asked
                    with suppress(LeaseLost):  # an answer, too
                        self._driver.run(acks.nack(lease, unsettled, 0, self._shared))
                    waiting.renew(self._driver.deadline_s)

    def settled(self, lease: Lease) -> None:
        """Mark a lease whose messages are all settled, so that its slot can be freed."""
        self._leases.discard(lease)
        self.finished.append(lease)

    def _lock_of(self, lease: Lease) -> AbstractContextManager[object]:
        """Return the lock of a lease. Changes of a lease must not overlap: each needs the revision of the
        last.
        """
        self._driver.check_open()  # in a fork, a thread of the parent may hold it for good
        return self._locks[hash(lease) % LOCKS]

    # ── messages that are not delivered ──

    def drop(self, expired: Sequence[Taken]) -> None:
        """Delete messages whose ttl is over. If that fails, the next claim of them does it."""
        if not expired:
            return
        with suppress(NotDone, OutcomeUnknown):
            for lease in self._driver.run(acks.ack(expired)):
                self.settled(lease)
            if self._driver.meter is not None:
                self._driver.meter.count("expired", self.name, len(expired))

    def release(self, leases: Iterable[Lease], spec: QueueSpec) -> None:
        """Give back messages that were not delivered, without using an attempt. Else their timeout does
        so.
        """
        for lease in leases:
            with self._or_left([lease], spec), self._lock_of(lease):
                self._driver.run(acks.release(lease))

    def snooze_unread(self, unseen: Sequence[Taken], spec: QueueSpec) -> None:
        """Snooze messages that cannot be read now, without using an attempt. Else their timeout does so."""
        with self._or_left([one.lease for one in unseen], spec):
            self._give_back(unseen, spec.visibility_ms, count=False)

    @contextmanager
    def _or_left(self, leases: Iterable[Lease], spec: QueueSpec) -> Iterator[None]:
        """Leave messages to their timeouts where Cassandra fails to give them back."""
        try:
            yield
        except (NotDone, OutcomeUnknown):
            until_ms = max(lease.due_ms for lease in leases) + spec.skew_us // 1000
            self.left_until_ms = max(self.left_until_ms, until_ms)
        except LeaseLost:
            return

    def bury(self, taken: Taken, spec: QueueSpec, reason: str) -> bool:
        """Bury a message that cannot be delivered. Return False if Cassandra failed; the next claim then
        buries it.

        An error must not keep the messages claimed beside it from being delivered, so none is raised.
        """
        try:
            self._bury(taken, spec, reason)
        except CqueueError as exc:
            return not isinstance(exc, NotDone | OutcomeUnknown)
        return True

    def _bury(
        self,
        taken: Taken,
        spec: QueueSpec,
        reason: str,
        headers: Mapping[str, str] | None = None,
        *,
        holder: str | None = None,
    ) -> None:
        """Bury a message. headers: more of them, as far as they fit. holder: its holder, if that is known.

        Raises:
            LeaseLost: the queue has been deleted; one of its name that was made again is another one.
        """
        dead = self._catalog.dead_of(spec)
        if dead is None or taken.lease.wide_row.queue != spec.partition:
            raise LeaseLost(f"the message is of a queue {spec.name!r} that has been deleted")
        id_ = MessageId.of(taken.lease.wide_row, taken.row.priority, taken.row.id)
        why = why_dead(reason, spec.name, taken.lease.attempt, id_)
        if holder is not None:
            why |= {HEADER_HOLDER: holder, HEADER_FENCE: str(taken.lease.fence)}
        if taken.lease.abandoned:
            why[HEADER_ABANDONED] = "true"
        if headers:
            why |= fitting({**(taken.row.headers or {}), **why}, headers)
        buried = self._measured("bury", "buried", 1, bury(spec, dead, taken, why))
        for lease in buried:
            self.settled(lease)

    # ── calls of the holder ──

    def ack(self, messages: Messages) -> None:
        """See `Consumer.ack`."""
        self._settle("ack", messages, self._ack)

    def _settle(self, verb: str, messages: Messages, settle: Callable[[list[Received]], None]) -> None:
        """Settle messages, in a span if somebody traces."""
        some, tracing = listed(messages), self._driver.tracing
        if not some:
            return
        if tracing is None:
            settle(some)
            return
        names = {settler.name for settler in _settlers(some)}
        name = names.pop() if len(names) == 1 else None
        tracing.around(verb, name, some, lambda: settle(some))

    def _ack(self, some: list[Received]) -> None:
        since_s, meter = time.monotonic(), self._driver.meter
        note_end = _note_acking(some)
        try:
            emptied = self._measured("ack", None, 0, acks.ack(some))
        except OutcomeUnknown as exc:
            raise AckUnknown(f"it is not known whether {len(some)} ack(s) are stored: {exc}") from exc
        finally:
            note_end()
        if meter is not None:
            meter.took("ack", self.name, since_s)
            for name, count in Counter(settler.name for settler in _settlers(some)).items():
                meter.count("acked", name, count)
        if emptied:
            owners = dict(zip([one.lease for one in some], _settlers(some), strict=True))
            for lease in emptied:
                owners[lease].settled(lease)

    def _measured(self, call: str, what: str | None, count: int, proto: Proto[T]) -> T:
        """Run a protocol function; count what it has done, or how it has failed, if somebody asks."""
        meter = self._driver.meter
        if meter is None:
            return self._driver.run(proto)
        try:
            result = self._driver.run(proto)
        except CqueueError as exc:
            meter.failed(call, self.name, [exc])
            raise
        if what is not None:
            meter.count(what, self.name, count)
        return result

    def ack_async(self, messages: Messages) -> Future[None]:
        """See `Consumer.ack_async`."""
        some, traced = list(listed(messages)), self._driver.tracing is not None
        call, note_end = partial(self.ack, some), _note_acking(some)
        try:
            future = self._executor.submit(partial(copy_context().run, call) if traced else call)
        except BaseException:
            note_end()
            raise
        future.add_done_callback(lambda _: note_end())
        return future

    def nack(self, messages: Messages, delay: timedelta = timedelta()) -> None:
        """See `Consumer.nack`."""
        delay_ms = -(-delay_us(delay) // 1000)
        self._settle("nack", messages, lambda some: self._give_back(some, delay_ms, count=True))

    def snooze(self, messages: Messages, delay: timedelta) -> None:
        """See `Consumer.snooze`."""
        delay_ms = -(-delay_us(delay) // 1000)
        self._settle("snooze", messages, lambda some: self._give_back(some, delay_ms, count=False))

    def _give_back(self, taken: Sequence[Taken], delay_ms: int, *, count: bool) -> None:
        by_lease = grouped((one.lease, one.row.id) for one in taken)

        def give_back(lease: Lease) -> None:
            with self._lock_of(lease):
                ids = by_lease[lease]
                back = acks.nack(lease, ids, delay_ms, self._shared, count=count)
                self._measured("nack", "returned", len(ids), back)
                lease.check_uncancelled(ids)
                if not lease.is_held:
                    self._leases.discard(lease)

        _call_for_each(by_lease, give_back)

    def extend(self, messages: Messages, duration: timedelta) -> None:
        """See `Consumer.extend`."""
        check_extension(duration)

        taken = listed(messages)

        def extend(lease: Lease) -> None:
            with self._lock_of(lease):
                self._driver.run(acks.extend(lease, to_ms(duration)))
                lease.check_uncancelled(one.row.id for one in taken if one.lease is lease)

        _call_for_each({one.lease for one in taken}, extend)

    def dead(self, messages: Messages, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """See `Consumer.dead`."""
        spec = self._catalog.entry(self.name).spec
        if policy.disposition(spec, refused=True) is not Disposition.BURY:
            raise BadInput(f"{self.name!r} is a dead-letter queue itself; ack the message instead")
        if not isinstance(reason, str):
            raise BadInput(f"reason is {reason!r}; it takes text")
        if headers is not None and not _are_texts(headers):
            raise BadInput("headers takes a mapping of text to text")

        def bury_one(taken: Taken) -> None:
            with self._lock_of(taken.lease):
                self._bury(taken, spec, reason, headers, holder=own_name())

        self._settle("dead", messages, lambda some: _call_for_each(some, bury_one))


def _are_texts(headers: Any) -> bool:
    """Return whether this is a mapping of texts, of which values may have half a surrogate pair."""
    if not isinstance(headers, Mapping):
        return False
    return all(isinstance(text, str) for pair in headers.items() for text in pair)


def _note_acking(messages: Sequence[Received]) -> Callable[[], None]:
    """Note that an ack of these messages is under way. Return the call that notes its end."""
    note, settlers = object(), set(_settlers(messages))
    for settler in settlers:
        settler.acking[note] = messages

    def note_end() -> None:
        for settler in settlers:
            settler.acking.pop(note, None)

    return note_end


def _settlers(messages: Sequence[Received]) -> list[Settler]:
    return [message._settler for message in messages]  # noqa: SLF001 - of this package


def _call_for_each(items: Iterable[T], call: Callable[[T], None]) -> None:
    """Call for each item, even after an error. Then raise the first error, if any."""
    failure: CqueueError | None = None
    for item in items:
        try:
            call(item)
        except CqueueError as exc:
            failure = failure or exc
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # its traceback holds this frame
