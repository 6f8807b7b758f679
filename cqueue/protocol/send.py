"""Send messages: group them into flushes, write these, and tell when the send counts. See `writing`.

A flush holds messages of one wide row, with their ids, that are written together. The order of writes leaves
no garbage. The registry row comes before large bodies, so that retiring the wide row also drops bodies whose
message was never written. Large bodies come before their messages, so that no message is read without its
body.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown, caused
from cqueue.protocol import keys, registry, writing
from cqueue.protocol.registry import normal_row, registration
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.writing import PART_ROWS, REMAKES, Bits, Failure, Part, Writer, WriterState, worst
from cqueue.runtime.sequences import grouped
from cqueue.store.operations import (
    DeleteBodies,
    DeleteMessages,
    InsertBodies,
    InsertMessages,
    MessageRow,
    Now,
    Operation,
    RandomBits,
    Together,
    WideRow,
)

PACK_ROWS = 125
"""Messages of one pack at most (cqueue.store.packs): four full packs make a flush of 500 messages."""
PACK_BYTES = 32 << 10
"""Bytes of bodies in one pack at most: a read of one message reads the whole pack."""
PACKED_BODY = 4 << 10
"""Bytes of the largest body in a pack. A larger one gets its own row: the row's cost is small beside it, and
large rows are slow to read."""
INLINE_BODY = 16 << 10
"""Bytes of the largest body stored in its message's row. A larger one goes to the table `bodies`: that costs
a second write and read, and keeps reads of messages small."""
TURN_US = 250_000
"""µs after which a producer moves to the next concurrency shard: a trickle fills one shard for that time, so
that a claim finds several messages. With a new shard for each send, two consumers could claim side by side.
But where processors are short, more claims cost more than that gains: twice the latency at 500 sends/s."""


# ── flushes ──


class Outgoing(NamedTuple):
    """A message to send, with its limits checked. due_us: None for now. source: what the id derives from."""

    body: bytes
    priority: int
    due_us: int | None
    headers: dict[str, str] | None
    ttl_ms: int | None
    codec: str | None = None
    task: str | None = None
    key: str | None = None
    trigger: str | None = None
    source: bytes | None = None


@dataclass(slots=True, kw_only=True)
class Flush(Part):
    """Messages of one wide row that are written together.

    bodies: large bodies, by id. derived: the ids are derived, so the flush goes to an open wide row and is
    never written again under new ids. skipped: nothing was written, because of the message in `rows`.
    """

    wide_row: WideRow
    rows: list[MessageRow] = field(default_factory=list)
    bodies: list[tuple[int, bytes]] = field(default_factory=list)
    derived: bool = False
    skipped: bool = False


@dataclass(slots=True)
class ProducerState(WriterState):
    """A writer's state, with the rotation of concurrency shards."""

    turned_us: int = 0
    rows_in_turn: int = 0


def make_flushes(
    spec: QueueSpec, state: ProducerState, outgoing: Sequence[Outgoing], now_us: int, bits: Bits
) -> list[Flush]:
    """Give each message its id, and group messages by time shard.

    Neighbours that differ only in their bodies get the ids of a pack.
    """
    width_us = spec.width_ms * 1000
    open_: dict[int | WideRow, Flush] = {}
    done: list[Flush] = []
    start = 0
    while start < len(outgoing):
        message, end = outgoing[start], _run(outgoing, start) if spec.packs else start + 1
        due_us, source = message.due_us, message.source
        several: Sequence[int]
        key: int | WideRow
        if source is not None:
            several = (ids.derived(due_us or 0, source),)
            key = registry.open_row(spec, due_us or 0, source)
        else:
            if due_us is None or due_us <= now_us:
                id_ticks = state.next_ticks(now_us)
            else:
                id_ticks = due_us * 10 + start % 10
            several = _ids(id_ticks, bits.at(start), end - start)
            key = id_ticks // 10 // width_us
        flush = open_.get(key)
        if flush is not None and len(flush.rows) + end - start > PART_ROWS:
            done.append(flush)
            flush = None
        if flush is None:
            flush = open_[key] = (
                new_flush(spec, state, id_ticks // 10, now_us)
                if isinstance(key, int)
                else Flush(wide_row=key, derived=True)
            )
        _add(flush, range(start, end), outgoing[start:end], several, now_us // 1000)
        state.rows_in_turn += end - start
        if flush.is_full:
            done.append(open_.pop(key))
        start = end
    return done + list(open_.values())


def _run(outgoing: Sequence[Outgoing], start: int) -> int:
    """Return the end of the run of messages that can share a pack with the one at `start`."""
    first = outgoing[start]
    size, shape = len(first.body), first[1:]
    if size > PACKED_BODY or first.source is not None:
        return start + 1
    most = min(len(outgoing), start + PACK_ROWS)
    for at in range(start + 1, most):
        message = outgoing[at]
        body_size = len(message[0])
        size += body_size
        if size > PACK_BYTES or body_size > PACKED_BODY or message[1:] != shape:
            return at
    return most


def _ids(ticks: int, random_bits: int, count: int) -> Sequence[int]:
    return (ids.from_ticks(ticks, random_bits),) if count == 1 else ids.packed(ticks, random_bits, count)


def new_flush(spec: QueueSpec, state: ProducerState, due_us: int, now_us: int) -> Flush:
    """Begin a flush to the current concurrency shard; small flushes in quick succession share a shard.

    A claim costs the same for one message as for hundreds. If a trickle were spread over all shards, a
    consumer would pay for a claim per message.
    """
    if state.rows_in_turn >= PART_ROWS or now_us - state.turned_us >= TURN_US:
        state.turn, state.turned_us, state.rows_in_turn = state.turn + 1, now_us, 0
    return Flush(wide_row=normal_row(spec, due_us, state.turn % spec.shards))


def _add(
    flush: Flush, indexes: Sequence[int], alike: Sequence[Outgoing], several: Sequence[int], now_ms: int
) -> None:
    """Add messages that differ only in their bodies to a flush; a large body goes beside the rows."""
    first = alike[0]
    body, priority, _, headers, ttl_ms, codec, task, key, trigger, _ = first
    inline = len(body) <= INLINE_BODY
    rest = (headers, codec, task, key, trigger, now_ms, None if ttl_ms is None else now_ms + ttl_ms, 0)
    flush.indexes += indexes
    if inline:
        new = tuple.__new__  # several times as quick as the class itself
        flush.rows += [
            new(MessageRow, (priority, id_, message[0], None, *rest))
            for id_, message in zip(several, alike, strict=True)
        ]
        flush.size += sum([len(message[0]) for message in alike])
    else:
        flush.rows.append(MessageRow(priority, several[0], None, len(body), *rest))
        flush.bodies.append((several[0], body))
        flush.size += len(body)
    if headers:
        flush.size += sum(map(len, headers)) + sum(map(len, headers.values()))


# ── sends ──


def send(spec: QueueSpec, state: ProducerState, outgoing: Sequence[Outgoing]) -> Proto[list[Flush]]:
    """Store messages; return flushes that each tell the outcome of their messages."""
    return (yield from Sending(spec, state).write(outgoing))


def prepare(spec: QueueSpec, state: ProducerState, one: Outgoing) -> Proto[Flush]:
    """Write all that comes before a message, which somebody else inserts; return the flush with its row.

    Its id is derived, so the insert may come late, and twice: the row is an open one.

    Raises:
        NotDone: nothing was written that stands for a message.
    """
    now_us = yield from Now()
    if one.source is None:
        source = (yield from RandomBits(128)).to_bytes(16, "big")
        one = one._replace(source=source, due_us=now_us if one.due_us is None else one.due_us)
    sending = Sending(spec, state)
    (flush,) = sending.parts_of([one], now_us, Bits())
    failed = (yield from sending.register([flush])) or (yield from sending.before([flush]))
    if failed is not None:
        raise writing.not_written("the message's partition could not be registered", failed)
    if abs((yield from Now(checked=True)) - now_us) > spec.settle_us:
        raise NotDone("the clock jumped, or this process stood still: the id is of another time")
    return flush


class Sending(Writer[QueueSpec, ProducerState, Outgoing, Flush]):
    """The writer of messages."""

    rows_in_flight = 2000
    copy_may = "may lie behind a cursor"

    def parts_of(self, entries: Sequence[Outgoing], now_us: int, bits: Bits) -> list[Flush]:
        """Group messages into flushes by time shard."""
        return make_flushes(self.spec, self.state, entries, now_us, bits)

    def insert(self, part: Flush) -> Operation[Any]:
        """Return the insert of the flush's messages."""
        return InsertMessages(part.wide_row, tuple(part.rows))

    def places(self, part: Flush) -> set[tuple[WideRow, int]]:
        """Return the flush's wide row with each of its priorities."""
        return {(part.wide_row, priority) for priority in {row.priority for row in part.rows}}

    def registrations(self, new: set[Any]) -> list[Operation[Any]]:
        """Return the writes of these wide rows and priorities to the registry."""
        return [
            row for wide_row, priority in sorted(new) for row in registration(self.spec, wide_row, priority)
        ]

    def before(self, parts: list[Flush]) -> Proto[Failure | None]:
        """Write keys, register wide rows and store large bodies. If this fails, no message has been
        written.
        """
        if self.spec.keyed and (failed := (yield from keys.write(_rows_of(parts)))) is not None:
            return writing.not_written("a key could not be stored, so its message was not", failed)
        large = [flush for flush in parts if flush.bodies]
        if not large:
            return None
        failed = yield from self.register(large)
        if failed is None:
            bodies = tuple(InsertBodies(flush.wide_row, tuple(flush.bodies)) for flush in large)
            failed = worst((yield from Together(bodies)))
        if failed is None:
            return None
        return writing.not_written("a large body could not be stored, so its message was not", failed)

    def write_parts(self, parts: list[Flush], remakes: int = REMAKES) -> Proto[list[Flush]]:
        """Write parts to their end; write keys again that a look-up may have deleted since."""
        done = yield from super().write_parts(parts, remakes)
        if self.spec.keyed:
            now_us = yield from Now()
            stored = [flush for flush in done if flush.error is None]
            late = [flush for flush in stored if keys.is_late(self.spec, flush.began_us, now_us)]
            if (failed := (yield from keys.write(_rows_of(late)))) is not None:
                for flush in late:
                    flush.error = caused(OutcomeUnknown("stored, but its key may not find it"), failed)
        return done

    def judge(self, part: Flush, now_us: int) -> tuple[list[Flush], Flush | None]:
        """Split off the messages that are answered too late; those under derived ids cannot be sent again."""
        counts = registry.open_in_time if part.derived else writing.in_time
        if counts(self.spec, min([row.id for row in part.rows]), now_us):  # the earliest id is in time
            return [part], None
        if part.derived:  # neither sent again nor deleted: another writer may own the id
            part.error = OutcomeUnknown("stored, but longer after its due time than gc_grace allows")
            return [part], None
        late = {row.id for row in part.rows if not counts(self.spec, row.id, now_us)}
        kept = _share(part, {row.id for row in part.rows} - late)
        return ([kept] if kept.rows else []), _share(part, late)

    def successor(self, late: Flush, time_us: int, now_us: int) -> Flush:
        """Begin a flush to the current concurrency shard."""
        return new_flush(self.spec, self.state, time_us, now_us)

    def move(self, row: MessageRow, id_: int, late: Flush, renewed: Flush) -> None:
        """Move a message, and its large body if it has one."""
        super().move(row, id_, late, renewed)
        renewed.bodies += [(id_, body) for old, body in late.bodies if old == row.id]

    def delete(self, late: Flush) -> Proto[None]:
        """Delete the messages, then their bodies."""
        by_priority = grouped((row.priority, row.id) for row in late.rows)
        deletes: list[Operation[Any]] = [
            DeleteMessages(late.wide_row, priority, tuple(ids_)) for priority, ids_ in by_priority.items()
        ]
        failed = worst((yield from Together(tuple(deletes))))
        if late.bodies and failed is None:  # a message that may still be delivered keeps its body
            with suppress(NotDone, OutcomeUnknown):
                yield from DeleteBodies(late.wide_row, tuple(id_ for id_, _ in late.bodies))
        if self.spec.keyed and failed is None:
            yield from keys.delete(_rows_of([late]))


def _rows_of(flushes: Iterable[Flush]) -> Iterator[tuple[WideRow, MessageRow]]:
    return ((flush.wide_row, row) for flush in flushes for row in flush.rows)


def _share(flush: Flush, wanted: set[int]) -> Flush:
    """Return the part of a flush with the wanted ids."""
    places = [place for place, row in enumerate(flush.rows) if row.id in wanted]
    return Flush(
        wide_row=flush.wide_row,
        indexes=[flush.indexes[place] for place in places],
        rows=[flush.rows[place] for place in places],
        bodies=[(id_, body) for id_, body in flush.bodies if id_ in wanted],
        began_us=flush.began_us,
        late=flush.late,
        late_places=[flush.late_places[place] for place in places] if flush.remade else [],
    )
