"""Change messages by id: cancel, reschedule, extend, and give another priority.

The last, and a reschedule to before the time shard in which a message stands, need another row in Cassandra.
Then the message is copied under a new id, and deleted when the copy is known to be stored. Meanwhile the
original waits, so that nobody delivers both, unless the process dies between the two writes. If somebody
else acks, cancels, copies or claims the original meanwhile, the copy is deleted instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from cqueue import ids
from cqueue.errors import (
    BadInput,
    BatchTooLarge,
    CqueueError,
    DamagedRow,
    MessageHeld,
    NotDone,
    OutcomeUnknown,
    caused,
)
from cqueue.message import MAX_BATCH, Location, Message, MessageId, datetime_at
from cqueue.producer import Producer
from cqueue.protocol import by_id
from cqueue.protocol.by_id import Changed
from cqueue.protocol.inspection import Found, is_expired
from cqueue.protocol.probe import MAX_WAITING_REST_US
from cqueue.protocol.row_memory import Hint
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.firing_id import FiringId
from cqueue.runtime.listing import by_row, still_at
from cqueue.runtime.sequences import parts
from cqueue.store.operations import MessageRow, ReadBodies, WideRow

COPY_MS = 10_000
"""ms for which the original of a copy waits at least: longer than a send takes, but on a slow cluster."""

Change = Callable[[QueueSpec, WideRow, int, Sequence[int]], Proto[Changed]]
"""A change of some messages of one wide row and priority."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The result of a change of several messages; each id stands in one of the three.

    Attributes:
        done: the id that each changed message has now, by the id that was asked for. Mostly it is the same.
        missing: ids without a message: it was acked, is dead, has expired, or was cancelled before.
        failed: errors of the others, by id. `NotDone`, such as `MessageHeld`, `LeaseLost`, and `BadInput` for
            a firing of a schedule: the message is as it was. `OutcomeUnknown`: the message may be changed.
    """

    done: Mapping[MessageId, MessageId] = field(default_factory=dict)
    missing: tuple[MessageId, ...] = ()
    failed: Mapping[MessageId, CqueueError] = field(default_factory=dict)


class Changes:
    """Changes messages of one queue. Thread-safe."""

    def __init__(self, driver: BlockingDriver, producer: Producer, spec: Callable[[], QueueSpec]) -> None:
        self._driver = driver
        self._producer = producer
        self._spec = spec

    # ── places ──

    def locate(self, message_id: str) -> Location:
        """Return where a message stands.

        Raises:
            InvalidMessageId: the text is no message id.
            BadInput: the id is that of another queue's message.
        """
        place = MessageId(message_id).locate()
        if place.wide_row.queue != self._spec().partition:
            raise BadInput(f"the message is not one of queue {self._producer.name!r}")
        return place

    def places(self, message_ids: Iterable[str]) -> dict[MessageId, Location]:
        """Return where each of several messages stands. Raises as `locate`, or `BatchTooLarge`."""
        if isinstance(message_ids, str) or not isinstance(message_ids, Iterable):
            raise BadInput(f"the call takes several ids, not one {type(message_ids).__name__}")
        wanted = dict.fromkeys(map(MessageId, message_ids))
        if len(wanted) > MAX_BATCH:
            raise BatchTooLarge(f"{len(wanted):,} ids; at most {MAX_BATCH:,} in one call")
        return {id_: self.locate(id_) for id_ in wanted}

    # ── changes ──

    def cancel(self, places: Mapping[MessageId, Location]) -> ChangeResult:
        """Delete messages."""
        try:
            return self._each(places, by_id.cancel)
        finally:
            self._producer.wakeups.deleted()

    def extend(self, places: Mapping[MessageId, Location], duration_ms: int) -> ChangeResult:
        """Keep held messages invisible until `duration_ms` from now."""
        return self._each(places, partial(by_id.extend, duration_ms=duration_ms))

    def reschedule(self, places: Mapping[MessageId, Location], due_us: int) -> ChangeResult:
        """Make messages due at `due_us`; copy those whose wide row begins later."""
        due_ms = -(-due_us // 1000)
        here = {id_: place for id_, place in places.items() if place.wide_row.time_shard <= due_ms}
        result = self._each(here, partial(by_id.reschedule, due_ms=due_ms))
        # A consumer may not look there before: it has seen that the messages wait for longer.
        now_us = self._driver.clock.now_us()
        if due_us <= now_us + MAX_WAITING_REST_US:
            for place in {places[id_] for id_ in result.done}:
                hint = Hint(place.wide_row, frozenset({place.priority}))
                self._producer.wakeups.ring(hint, min(due_us, now_us))
        others = {id_: place for id_, place in places.items() if id_ not in here}
        return merged([result, *(self._copied(id_, places[id_], due_us=due_us) for id_ in others)])

    def set_priority(self, places: Mapping[MessageId, Location], priority: int) -> ChangeResult:
        """Give messages a priority; copy those that have another one."""
        return merged(self._copied(id_, place, priority=priority) for id_, place in places.items())

    def _each(self, places: Mapping[MessageId, Location], change: Change) -> ChangeResult:
        """Change messages, those of one wide row and priority together."""
        results = list[ChangeResult]()
        for (wide_row, priority), some in by_row(places.values()).items():
            for chunk in parts(some, by_id.AT_ONCE):
                try:
                    changed = self._driver.run(change(self._spec(), wide_row, priority, chunk))
                except CqueueError as exc:
                    changed = Changed(failed=dict.fromkeys(chunk, exc))
                results.append(self._result(wide_row, priority, chunk, changed))
        return merged(results)

    def _result(
        self, wide_row: WideRow, priority: int, some: Iterable[int], changed: Changed
    ) -> ChangeResult:
        """Return what became of these messages; one without a readable row may be damaged."""
        failed = dict(changed.failed)
        for id_ in some:
            if id_ not in changed.done and id_ not in failed:
                try:
                    self._driver.store.quarantine.check_message(wide_row, priority, id_)
                except DamagedRow as exc:
                    failed[id_] = exc
        texts = {id_: MessageId.of(wide_row, priority, id_) for id_ in some}
        return ChangeResult(
            {texts[id_]: texts[id_] for id_ in some if id_ in changed.done},
            tuple(texts[id_] for id_ in some if id_ not in changed.done and id_ not in failed),
            {texts[id_]: error for id_, error in failed.items()},
        )

    # ── copies ──

    def _copied(
        self, id_: MessageId, place: Location, *, due_us: int | None = None, priority: int | None = None
    ) -> ChangeResult:
        """Replace a message by a copy with another due time or priority."""
        try:
            found, now_us = still_at(self._driver, [place]), self._driver.clock.now_us()
            if not found or is_expired(found[0].row, found[0].slot, now_us):
                return self._result(place.wide_row, place.priority, (place.id,), Changed())
            if priority == place.priority:
                return ChangeResult({id_: id_})
            (one,) = found
            _check_copyable(one.row)
            next_us = one.slot.due_ms * 1000 if one.slot else ids.time_us(place.id)
            copy = self._copy(one, next_us if due_us is None else due_us, now_us)
            if priority is not None:
                copy = replace(copy, priority=priority)
            put_off = self._put_off(id_, place, next_us // 1000)
            if not put_off.done:
                return put_off
            new = self._producer.send(copy)
        except CqueueError as exc:
            return ChangeResult(failed={id_: exc})
        return self._replaced(id_, place, next_us // 1000, new)

    def _replaced(self, id_: MessageId, place: Location, due_ms: int, new: MessageId) -> ChangeResult:
        """Delete the original of a copy; the copy, if somebody else holds, settled or copied the original."""
        original = self._withdraw(id_, place, due_ms)
        if original.done:
            return ChangeResult({id_: new})
        error = original.failed.get(id_)
        if error is None or isinstance(error, MessageHeld):
            its_place = new.locate()
            withdrawn = self._withdraw(new, its_place, ids.time_us(its_place.id) // 1000)
            if withdrawn.done:
                return original
            error = withdrawn.failed.get(new)
        told = OutcomeUnknown(f"stored as {new}, but the original may be delivered or cancelled as well")
        return ChangeResult(failed={id_: caused(told, error)})

    def _put_off(self, id_: MessageId, place: Location, due_ms: int) -> ChangeResult:
        """Let nobody claim a message for `COPY_MS`, nor before `due_ms`; `MessageHeld` if somebody has."""
        soonest_ms = self._driver.clock.now_us() // 1000 + COPY_MS
        return self._each({id_: place}, partial(by_id.reschedule, due_ms=max(due_ms, soonest_ms)))

    def _withdraw(self, id_: MessageId, place: Location, due_ms: int) -> ChangeResult:
        """Delete a message that is due at `due_ms`, but not one that somebody holds or has settled.

        To cancel alone would not do: that also deletes what is held, and so may be delivered.
        """
        put_off = self._put_off(id_, place, due_ms)
        return self.cancel({id_: place}) if put_off.done else put_off

    def _copy(self, found: Found, due_us: int, now_us: int) -> Message:
        row, body = found.row, found.row.body
        if body is None:
            body = self._driver.ask(ReadBodies(found.wide_row, (row.id,))).get(row.id)
        if body is None:
            raise NotDone("the message's body cannot be read")
        return Message(
            body,
            due=datetime_at(due_us),
            priority=row.priority,
            headers=row.headers,
            ttl=None if row.expires is None else timedelta(milliseconds=max(1, row.expires - now_us // 1000)),
            task=row.task,
            key=row.key,
            codec=row.codec,
            trigger=row.trigger,
        )


def _check_copyable(row: MessageRow) -> None:
    """Check that a message may get another id.

    Raises:
        BadInput: it is a firing, which its schedule finds by its id: it would count as lost, and be passed
            over.
    """
    firing_id = FiringId.parse(row.trigger)
    if firing_id is not None and not firing_id.is_manual:
        raise BadInput(
            f"the message is a firing of schedule {firing_id.key!r}, and keeps its id: "
            "replace the schedule, or run it now"
        )


def only(result: ChangeResult) -> MessageId | None:
    """Return the id that a single message has now, None if there is no such message; raise its error."""
    for error in result.failed.values():
        raise error
    return next(iter(result.done.values()), None)


def merged(results: Iterable[ChangeResult]) -> ChangeResult:
    """Return one result with all that these say."""
    done: dict[MessageId, MessageId] = {}
    missing: list[MessageId] = []
    failed: dict[MessageId, CqueueError] = {}
    for result in results:
        done |= result.done
        missing += result.missing
        failed |= result.failed
    return ChangeResult(done, tuple(missing), failed)
