"""Small scenarios, each of which tempts the protocol to break one rule; an assertion fails if it does."""

from __future__ import annotations

from unittest.mock import patch

from cqueue.errors import LeaseLost, OutcomeUnknown
from cqueue.protocol import ack
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.row_memory import HEAD_REMEMBERED_US
from cqueue.store.operations import (
    Head,
    Mutate,
    ReadHead,
    ReadIds,
    SlotState,
    WideRow,
)
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, SKEW_US, Table, ids_of

# `ack.nack` and its like are looked up when called, so that a broken one is used.


def lost_reply_is_found_out() -> None:
    """A claim that was applied, but whose answer was lost, is delivered."""
    table = Table()
    wanted = table.put(NOON_US)
    table.pass_time(1000)
    lost = []

    def lose_reply(operation: object) -> None:
        if type(operation) is Mutate and operation.slots and not lost:
            lost.append(table.store.execute(operation))
            raise OutcomeUnknown("reply lost")

    assert ids_of(table.claim(hook=lose_reply)) == wanted


def claim_outrun_by_another_fails() -> None:
    """Of two consumers that have read the same message one claims it, though each lists it elsewhere."""
    table = Table()
    slow, quick = table.view(), table.view()
    table.put(NOON_US)
    table.pass_time(1000)
    first = table.claim(quick)
    quick.finished.extend(table.run(ack.ack(first.taken)))  # so that it has a slot of its own
    (wanted,) = table.put(NOON_US + 2000)
    table.pass_time(2 * SECOND_US)
    others: list[int] = []

    def outrun(operation: object) -> None:
        if type(operation) is Mutate and operation.slots and not others:
            others.append(0)
            others[:] = ids_of(table.claim(quick))

    assert ids_of(table.claim(slow, hook=outrun)) == []
    assert others == [wanted]


def sweep_is_made() -> None:
    """A message that landed far below the boundary is claimed W + ε after the boundary's time."""
    table = Table(width_ms=3_600_000)
    view = table.view()
    table.put(NOON_US + 3 * SECOND_US)
    table.pass_time(4 * SECOND_US)
    table.poll(view)
    late = table.put(NOON_US + 2 * SECOND_US)
    table.pass_time(SETTLE_US + SKEW_US)
    assert ids_of(table.poll(view)) == late


def late_neighbour_is_found_at_once() -> None:
    """A message that landed just below the boundary is found and claimed by the next poll."""
    table = Table(width_ms=3_600_000)
    view = table.view()
    table.put(NOON_US + 1000)
    table.pass_time(10_000)
    table.poll(view)
    late = table.put(NOON_US + 500)
    table.pass_time(200_000)
    assert ids_of(table.poll(view)) == late


def expired_is_taken_over() -> None:
    """A poll finds a timeout that has expired, and nothing else to do."""
    table = Table()
    held = table.put(NOON_US)
    table.pass_time(1000)
    table.claim()
    table.pass_time(5 * SECOND_US)
    table.poll(table.view())  # a sweep, so that there is none left to do
    table.pass_time(25 * SECOND_US + SKEW_US)
    assert ids_of(table.poll(table.view())) == held


def head_is_one_read() -> None:
    """A nack between the reads of a claim does not hide a message from it."""
    table = Table()
    holder = table.view()
    leases = []
    for _ in range(2):
        table.put(table.time_us)
        table.pass_time(1000)
        leases.append(table.claim(holder).taken)
    held = table.put(table.time_us, table.time_us + 1)
    table.pass_time(1000)
    lease = table.claim(holder).taken[0].lease
    for taken in leases:
        table.run(ack.free(table.run(ack.ack(taken))))
    table.pass_time(SETTLE_US + SKEW_US)
    table.bits = 1
    heads = []

    def nack_between(operation: object) -> None:
        if type(operation) is ReadHead:
            heads.append(operation)
        if len(heads) == 2 or (len(heads) == 1 and type(operation) is ReadIds):
            heads.clear()
            heads.extend([operation] * 9)
            table.run(ack.nack(lease, [held[0]], 60_000, ack.Shared()))

    table.claim(holder, hook=nack_between)
    assert len(heads) >= 9
    assert table.listed() == held


def torn_head_is_read_again() -> None:
    """A head whose slots are of two moments, between which a message moved, does not hide that message."""
    table = Table()
    moved, kept = table.put(NOON_US, NOON_US + 1)
    table.pass_time(1000)
    lease = table.claim().taken[0].lease
    before = table.head()
    table.run(ack.nack(lease, [moved], 60_000, ack.Shared()))
    table.run(ack.extend(lease, 60_000))
    table.pass_time(SETTLE_US + SKEW_US)
    (source,) = (slot for slot in table.head().slots if slot.ids == (kept,))
    older = [slot for slot in before.slots if slot.number != source.number]
    execute, reads = table.store.execute, []

    def torn(operation: object) -> object:
        """The first head that is read: the source as it is now, and the others as they were."""
        answer = execute(operation)
        if type(operation) is not ReadHead:
            return answer
        reads.append(operation)
        return Head(answer.lock, answer.cursors, (source, *older)) if len(reads) == 1 else answer

    with patch.object(table.store, "execute", torn):
        assert ids_of(table.claim()) == []
    assert len(reads) == 2


def head_comes_before_messages() -> None:
    """A message that is acked, and its slot freed, while a claim begins is not delivered again."""
    table = Table(name="q.dead", width_ms=600_000)
    row = WideRow("q.dead@1", NOON_US // 1000, -1)
    (held,) = table.put(NOON_US, row=row)
    table.pass_time(1000)
    view = table.view(row)
    (taken,) = table.claim(view).taken
    table.pass_time(HEAD_REMEMBERED_US)
    done = []

    def ack_before_head(operation: object) -> None:
        if type(operation) is ReadHead:
            done.append(operation)
            if len(done) == 1:
                table.run(ack.free(table.run(ack.ack([taken]))))

    assert held not in ids_of(table.claim(view, hook=ack_before_head))
    assert done


def expired_is_skipped_by_reads() -> None:
    """While a suspect is held, what else has expired is not claimed from the messages."""
    table = Table()
    (held,) = table.put(NOON_US)
    table.pass_time(1000)
    table.claim()
    table.pass_time(30 * SECOND_US + SKEW_US)
    gate = SuspectGate()
    gate.reserve(0)
    assert ids_of(table.claim(gate=gate)) == []
    assert table.listed() == [held]


def takeover_minds_the_revision() -> None:
    """A holder that extends while its expired slot is being taken over keeps its messages."""
    table = Table()
    table.put(NOON_US)
    table.pass_time(1000)
    (taken,) = table.claim().taken
    table.pass_time(30 * SECOND_US + SKEW_US)

    def extend(operation: object) -> None:
        if type(operation) is Mutate and operation.slots and operation.lock:
            table.run(ack.extend(taken.lease, 30_000))

    assert ids_of(table.claim(hook=extend)) == []


def stale_nack_fails() -> None:
    """A nack by a holder whose messages somebody else has taken over is refused."""
    table = Table()
    table.put(NOON_US)
    table.pass_time(1000)
    (taken,) = table.claim().taken
    table.pass_time(30 * SECOND_US + SKEW_US)
    assert len(table.claim().taken) == 1
    try:
        table.run(ack.nack(taken.lease, [taken.row.id], 0, ack.Shared()))
    except LeaseLost:
        return
    raise AssertionError("the nack was accepted")


def _expired_batch() -> tuple[Table, list[int]]:
    table = Table()
    batch = table.put(NOON_US, NOON_US + 1, NOON_US + 2)
    table.pass_time(1000)
    assert ids_of(table.claim()) == batch
    table.pass_time(30 * SECOND_US + SKEW_US)
    return table, batch


def suspects_come_alone() -> None:
    """What expired together is taken over one by one, each in a slot of its own."""
    table, batch = _expired_batch()
    claimed = table.claim()
    assert ids_of(claimed) == batch[:1]
    assert claimed.taken[0].lease.slot.ids == (batch[0],)


def suspects_are_not_prefetched() -> None:
    """A process that holds a suspect gets no other."""
    table, _ = _expired_batch()
    gate, view = SuspectGate(), table.view()
    table.claim(view, gate=gate)
    assert ids_of(table.claim(view, gate=gate)) == []


def suspect_is_not_held_again() -> None:
    """Once its time has passed and the next one is taken, a suspect cannot be extended any more."""
    table, _ = _expired_batch()
    gate, view = SuspectGate(), table.view()
    (first,) = table.claim(view, gate=gate).taken
    table.pass_time(table.spec.visibility_ms * 1000)
    assert len(ids_of(table.claim(view, gate=gate))) == 1
    refused = False
    try:
        table.run(ack.extend(first.lease, 30_000))
    except LeaseLost:
        refused = True
    assert refused


def suspect_is_held_while_it_is_extended() -> None:
    """An extension that is under way when a suspect's time passes counts."""
    table, _ = _expired_batch()
    gate, view = SuspectGate(), table.view()
    (first,) = table.claim(view, gate=gate).taken
    table.pass_time(table.spec.visibility_ms * 1000 - 1000)

    def slowly(operation: object) -> None:
        if type(operation) is Mutate:
            table.pass_time(1_000_000)
            assert gate.busy(table.time_us // 1000)

    table.run(ack.extend(first.lease, 30_000), slowly)


def remembered_head_lists_the_last_claim() -> None:
    """A claim that goes by what the last one left does not take its messages again."""
    table = Table()
    view = table.view()
    first, second = table.put(NOON_US, NOON_US + 1)
    table.pass_time(1000)
    assert ids_of(table.claim(view, want=1)) == [first]
    table.pass_time(1000)
    assert ids_of(table.claim(view, want=1)) == [second]


def first_claim_does_not_outlive_its_wide_row() -> None:
    """A program stands still before it sends the first claim, until the marker of its wide row has ended."""
    table = Table()
    sent = table.put(NOON_US)
    table.pass_time(1000)
    late = [True]

    def stands_still(operation: object) -> None:
        if type(operation) is not Mutate or not operation.slots or not late:
            return
        late.clear()
        table.pass_time(table.spec.lease_ms * 1000)
        (taken,) = table.claim().taken
        assert [taken.row.id] == sent
        other = table.view()
        table.pass_time(table.end_us - NOON_US + SETTLE_US + SKEW_US)
        emptied = table.run(ack.ack([taken]))
        table.run(ack.free(emptied))
        table.claim(other)
        assert other.retired
        table.pass_time(2 * 3600 * SECOND_US)

    assert ids_of(table.claim(table.view(), hook=stands_still)) == []


def what_is_claimed_is_not_kept_ahead() -> None:
    """A stray that is read ahead while a slot lists it is not given again once its slot is free."""
    table = Table()
    first, view = table.view(), table.view()
    table.put(NOON_US)
    table.pass_time(1000)
    table.run(ack.free(table.run(ack.ack(table.claim(first).taken))))
    table.pass_time(table.end_us - NOON_US + SETTLE_US + SKEW_US)
    stray: list[int] = []

    def land(operation: object) -> None:
        """Behind the slice, which has been read, and before the pass comes to this priority."""
        if type(operation) is ReadIds and operation.priority and not stray:
            stray.extend(table.put(NOON_US + 50_000))

    (taken,) = table.claim(view, hook=land).taken
    assert [taken.row.id] == stray
    others = table.put(*(NOON_US + 50_000 + number for number in (-5, -4, -3, -2, -1, 1, 2)))
    given = ids_of(table.claim(view, want=4))  # and reads on, beyond the stray
    view.finished.extend(table.run(ack.ack([taken])))
    for _ in range(3):
        given += ids_of(table.claim(view, want=1))
    assert given == others


def what_was_read_ahead_is_as_old_as_its_read() -> None:
    """The cursor does not pass what landed after messages were read ahead, and before they were claimed."""
    skew_us = 100_000
    table = Table(skew_us=skew_us)
    view = table.view()
    first, second, third = table.put(NOON_US, NOON_US + 2000, NOON_US + 4000)
    table.pass_time(SETTLE_US - 50_000)
    assert ids_of(table.claim(view, want=1)) == [first]
    late = table.put(NOON_US + 1000)
    table.pass_time(50_000 + skew_us + 10_000)
    assert ids_of(table.claim(view, want=1)) == [second]
    table.pass_time(SETTLE_US + skew_us)
    assert sorted(ids_of(table.poll(view))) == [*late, third]


def released_stays_listed() -> None:
    """What is released waits in its slot, due now, with no attempt used."""
    table = Table()
    held = table.put(NOON_US)
    table.pass_time(1000)
    (taken,) = table.claim().taken
    table.run(ack.release(taken.lease))
    assert table.listed() == held
    (again,) = table.claim().taken
    assert again.lease.attempt == 1


def rest_of_a_slot_stays_listed() -> None:
    """When one suspect of several is taken over, the others stay listed."""
    table, batch = _expired_batch()
    table.claim()
    assert table.listed() == batch
    assert {slot.state for slot in table.head().slots} == {SlotState.CLAIMED}
