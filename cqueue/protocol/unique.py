"""Send a message unless another one of its key is in the way.

A *reservation* names the message that a key stands for. Whether that message is in the way is judged by the
message itself, so nobody has to give a reservation back. docs/explanation/control.md, "Unique messages", goes
through everything that can fail in between.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Literal, NamedTuple

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown, caused
from cqueue.protocol import by_id, inspection
from cqueue.protocol.inspection import Found
from cqueue.protocol.send import Flush, Outgoing, ProducerState, Sending, make_flushes
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.writing import LONGEST_PAUSE_S, bits_for
from cqueue.store.keys import Place, ReadReservation, ReservationRow, WriteReservation
from cqueue.store.operations import DeleteMessages, InsertMessages, MessageRow, Now, Pause

KEPT_US: Final = 30 * 86_400_000_000
"""µs (30 days) for which a key is kept after its message was due, unless its rule says something else. A key
that is not used again leaves no row for ever; a message that waits longer than that is not protected."""
SLACK_S: Final = 60
"""Seconds that a reservation outlasts the end of its use: far more than clocks disagree by."""
FIRST_PAUSE_S: Final = 0.01
"""Seconds to wait before looking again for a message that is being sent; each further wait is twice as
long."""
ROUNDS: Final = 10
"""Times W + ε after which a sender gives up that others forestall each time."""


class Rule(NamedTuple):
    """When a message of the key is in the way, and what follows.

    while_: "pending" while it waits, "running" also while a consumer holds it, "ever" also afterwards.
    within_us: only for this time after it was sent; None for no such limit. replace: it gives way.
    """

    key: str
    while_: Literal["pending", "running", "ever"]
    within_us: int | None
    replace: bool


class Verdict(NamedTuple):
    """What a sender finds under its key.

    standing: the reservation; None if it is gone. message: the place of the message that it stands for.
    live: that message, if it exists. blocks: whether it is in the way.
    """

    standing: ReservationRow | None
    message: Place | None = None
    live: Found | None = None
    blocks: bool = False


def send_unique(spec: QueueSpec, state: ProducerState, one: Outgoing, rule: Rule) -> Proto[Flush | Place]:
    """Send a message; return its flush, which tells the outcome, or the message that is in the way.

    Raises:
        NotDone: nothing was sent.
    """
    try:
        return (yield from _send(spec, state, one, rule))
    except OutcomeUnknown as exc:  # of a step before the message is written
        raise NotDone(f"it was not sent, as its key could not be reserved: {exc}") from exc


def _send(spec: QueueSpec, state: ProducerState, one: Outgoing, rule: Rule) -> Proto[Flush | Place]:
    began_us = now_us = yield from Now()
    found = Verdict(None)
    while now_us <= began_us + ROUNDS * (spec.settle_us + spec.skew_us):
        bits = yield from bits_for(1)
        (flush,) = make_flushes(spec, state, [one], now_us, bits)
        (sent,) = flush.rows
        place = Place(*flush.wide_row[1:], sent.priority, sent.id)
        old = found.message if found.blocks and found.live is not None else None
        row = ReservationRow(spec.partition, rule.key, place, old, now_us, sent=False)
        ttl_s = _ttl_s(rule, row)
        stored = yield from _reserve(row, ttl_s, found.standing)
        if stored is not None and stored.message == place:
            now_us = yield from Now()
            if _counts(spec, row, now_us):
                return (yield from _write(_Reserving(spec, state, row), flush, ttl_s))
            found = found._replace(standing=row)  # nothing is written yet: reserve again, under a new id
            continue
        found = yield from look(spec, rule, stored)
        if found.blocks and not rule.replace:
            assert found.message is not None  # noqa: S101 - what blocks is a message
            return found.message
        now_us = yield from Now()
    raise NotDone("it was not sent: others sent under its key each time that it tried")


def _counts(spec: QueueSpec, row: ReservationRow, now_us: int) -> bool:
    """Return whether a message that is stored by now counts as sent: nobody takes its key over yet."""
    return now_us <= row.made_us + spec.settle_us


def _ttl_s(rule: Rule, row: ReservationRow) -> int:
    """Return for how many seconds a reservation is kept; 0 is for ever.

    A message's own time to live does not count: the message may be held for longer, or never be stored, while
    the one that it replaces is in the way.
    """
    if rule.within_us is not None:
        kept_us = rule.within_us
    elif rule.while_ == "ever":
        return 0
    else:
        places = (row.message, row.replaces or row.message)
        due_us = max(row.made_us, *(ids.time_us(place.id) for place in places))
        kept_us = due_us - row.made_us + KEPT_US
    return kept_us // 1_000_000 + SLACK_S


def _reserve(
    row: ReservationRow, ttl_s: int, standing: ReservationRow | None
) -> Proto[ReservationRow | None]:
    """Write a reservation in place of the standing one; return what stands now.

    "Not applied" may be the answer to a request that was sent twice, so the id decides. A request that is
    applied after that, unnoticed, reserves for a message that is never written: it counts as a dead sender's.
    """
    with suppress(OutcomeUnknown):
        if (yield from WriteReservation(row, ttl_s, standing and standing.message)):
            return row
    return (yield from ReadReservation(row.queue, row.key))


# ── Write the message ──


class _Reserving(Sending):
    """Writes one message under the id that its reservation names, and never under another one."""

    def __init__(self, spec: QueueSpec, state: ProducerState, row: ReservationRow) -> None:
        super().__init__(spec, state)
        self.row = row

    def judge(self, part: Flush, now_us: int) -> tuple[list[Flush], Flush | None]:
        """Count the message only if nobody can have taken its key over yet."""
        if not _counts(self.spec, self.row, now_us):
            part.error = OutcomeUnknown("stored, but so late that another sender may have deleted it")
        return [part], None


def _write(writer: _Reserving, flush: Flush, ttl_s: int) -> Proto[Flush]:
    """Write the message, then delete the one that it replaces, then note that it is sent."""
    (flush,) = yield from writer.write_parts([flush])
    if flush.error is not None:
        return flush
    try:
        if writer.row.replaces is not None:
            yield from _cancel(writer.spec, writer.row.replaces)
    except (NotDone, OutcomeUnknown) as exc:
        both = OutcomeUnknown("stored, but the message that it replaces may be delivered as well")
        flush.error = caused(both, exc)
        return flush
    with suppress(NotDone, OutcomeUnknown):  # then others wait until the time of a send is over
        yield from WriteReservation(writer.row._replace(replaces=None, sent=True), ttl_s, writer.row.message)
    return flush


# ── Judge what stands ──


def look(spec: QueueSpec, rule: Rule, row: ReservationRow | None) -> Proto[Verdict]:
    """Look whether the message of a reservation is in the way; wait while it may still be on its way.

    What it does to messages, it first writes into the reservation, which is decided once: sent, or void.
    """
    pause_s = FIRST_PAUSE_S
    while row is not None:
        now_us = yield from Now(checked=True)  # before the reads: what counts as sent by now is found
        lapsed = rule.within_us is not None and now_us > row.made_us + rule.within_us
        over = now_us > row.made_us + spec.settle_us + spec.skew_us
        void, old = row.message.is_void, row.replaces
        message = row.message.voided() if void else row.message
        live = yield from _find(spec, message)
        if void and (live is None or live.slot is None):  # in a slot, it came late and was claimed
            yield from _fence(row.queue, message)  # also if another one has: that one may have died before
            live = None
        elif live is None and not row.sent:
            if over:
                row = yield from _void(spec, rule, row, now_us)
            else:
                yield from Pause(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                row = yield from ReadReservation(row.queue, row.key)
            continue
        if live is not None and old is not None:  # its sender may have died before this
            if not row.sent:
                row = yield from _decide(rule, row, row._replace(sent=True))
                continue
            yield from _cancel(spec, old)
        elif old is not None and (kept := (yield from _find(spec, old))) is not None:
            message, live = old, kept
        if live is None and void and not row.sent:
            return Verdict(row)
        blocks = {
            "pending": live is not None and live.state != "claimed",
            "running": live is not None,
            "ever": True,
        }[rule.while_]
        return Verdict(row, message, live, blocks and not lapsed)
    return Verdict(None)


def _find(spec: QueueSpec, place: Place) -> Proto[Found | None]:
    """Return the message at a place; None if it is gone, or expired."""
    found = yield from inspection.look(place.row_in(spec.partition), place.priority, (place.id,))
    return found[0] if found and found[0].state != "expired" else None


def _cancel(spec: QueueSpec, place: Place) -> Proto[None]:
    """Cancel a message. One that is being buried becomes a dead letter, which is in nobody's way."""
    yield from by_id.cancel(spec, place.row_in(spec.partition), place.priority, (place.id,))


def _decide(rule: Rule, row: ReservationRow, decided: ReservationRow) -> Proto[ReservationRow | None]:
    """Write into a reservation what became of its message; return what stands now.

    Raises:
        NotDone, OutcomeUnknown: it may not be written, so nothing may be done that relies on it.
    """
    if (yield from WriteReservation(decided, _ttl_s(rule, row), row.message)):
        return decided
    return (yield from ReadReservation(row.queue, row.key))


def _void(spec: QueueSpec, rule: Rule, row: ReservationRow, now_us: int) -> Proto[ReservationRow | None]:
    """Make the reservation of a sender that was too late void; return what stands now.

    For a rule that holds for ever, the message may also have been sent and handled, or have expired, before
    its sender could note that. So nothing is deleted before the reservation is void.
    """
    void = row._replace(message=row.message.voided())
    used = rule.while_ == "ever" and (yield from _may_be_sent(spec, row, now_us))
    return (yield from _decide(rule, row, row._replace(sent=True) if used else void))


def _may_be_sent(spec: QueueSpec, row: ReservationRow, now_us: int) -> Proto[bool]:
    """Return whether the message of a reservation, which is not live, may have been sent.

    A delete is told by an insert that it hides: of a message that has expired, so that nobody is given it.
    """
    if now_us >= row.made_us + spec.gc_grace_us // 2:  # a delete may be forgotten
        yield from _fence(row.queue, row.message)
        return True
    wide_row, (_, _, priority, id_) = row.message.row_in(row.queue), row.message
    made_ms = row.made_us // 1000
    stored = yield from inspection.look(wide_row, priority, (id_,))
    if stored and stored[0].row.expires != made_ms:  # the message itself, not what is inserted below
        return True
    expired = MessageRow(priority, id_, b"", *(None,) * 6, made_ms, made_ms, 0)
    yield from InsertMessages(wide_row, (expired,))
    shown = yield from inspection.look(wide_row, priority, (id_,))
    return not shown or shown[0].slot is not None  # in a slot, it came late and was claimed


def _fence(queue: str, place: Place) -> Proto[None]:
    """Delete the id of a sender that was too late, so that its message cannot turn up any more."""
    yield from DeleteMessages(place.row_in(queue), place.priority, (place.id,))
