"""Send messages: what is written for a flush, and when the send counts. See `writing`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from cqueue.errors import NotDone, OutcomeUnknown, caused
from cqueue.protocol import keys, registry, writing
from cqueue.protocol.flush import Flush, Outgoing, ProducerState, make_flushes, new_flush
from cqueue.protocol.registry import registration
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.writing import REMAKES, Bits, Failure, Writer, worst
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
