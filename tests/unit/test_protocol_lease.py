"""Test what holders do to their slots, and what happens to slots that holders let expire."""

import pytest

from cqueue import ids
from cqueue.errors import LeaseLost, NotDone, OutcomeUnknown
from cqueue.protocol import ack, by_id, registry
from cqueue.protocol.claim import BURIED_AT_ONCE, FREED_AT_ONCE
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.policy import kept_time_of_death
from cqueue.protocol.probe import probe
from cqueue.store.operations import Mutate, ReadHead, ReadIds, ReadSlice, SlotRow, SlotState, WideRow
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, SKEW_US, Table, ids_of


def held(table: Table, count: int):
    """Claim `count` messages in one lease."""
    table.put(*(table.time_us + number for number in range(count)))
    table.pass_time(1000)
    return table.claim(want=count).taken


def test_ack_beside_nack_does_not_free_what_was_given_back():
    """An ack that ends while the rest of its lease is being nacked never frees the nacked messages' slot.

    The slot waits for them under the lease's newest revision; freed, nobody would look for them again.
    """
    table = Table()
    first, second = held(table, 2)
    lease = first.lease
    acked = [False]

    class Outstanding(set):
        """The ack thread took its message out; before it looks whether any is left, the nack ends."""

        def difference_update(self, *gone) -> None:
            super().difference_update(*gone)
            if not acked[0]:
                acked[0] = True
                table.run(ack.nack(lease, [second.row.id], 60_000, ack.Shared()))

    lease.outstanding = Outstanding(lease.outstanding)
    emptied = table.run(ack.ack([first]))
    assert acked[0]
    assert emptied == []
    assert table.listed() == [second.row.id]


def test_a_repeated_ack_ends_no_lease():
    """A slot is freed once, after its last message; before that it lists messages that are held."""
    table = Table()
    first, second = held(table, 2)
    emptied = [table.run(ack.ack([one])) for one in (first, first, second, second)]
    assert emptied == [[], [], [first.lease], []]


def test_a_nack_whose_second_slot_somebody_else_took_is_no_lost_lease():
    """The holder's own slot stands as it was, so the nack is made again with another slot."""
    table = Table()
    table.put(*(table.time_us + number for number in range(4)))
    table.pass_time(1000)
    mine, other = table.claim(want=2).taken, table.claim(want=2).taken
    met = []

    def take_the_slot(operation: object) -> None:
        if type(operation) is Mutate and not met:
            met.append(other[0].row.id)
            table.run(ack.nack(other[0].lease, met, 60_000, ack.Shared()))

    table.run(ack.nack(mine[0].lease, [mine[0].row.id], 5000, ack.Shared()), take_the_slot)
    waiting = {slot.ids for slot in table.head().slots if slot.state is SlotState.WAITING}
    assert waiting == {(other[0].row.id,), (mine[0].row.id,)}
    assert table.listed() == sorted(one.row.id for one in [*mine, *other])


def test_nacks_of_one_moment_share_a_slot():
    """Messages nacked one after the other within 100 ms wait in one slot."""
    table = Table()
    taken = held(table, 3)
    shared = ack.Shared()
    for one in taken:
        table.run(ack.nack(one.lease, [one.row.id], 1000, shared))
    waiting = [slot for slot in table.head().slots if slot.state is SlotState.WAITING]
    assert [len(slot.ids) for slot in waiting] == [3]


def test_slots_of_nacks_are_remembered_until_they_are_due():
    """By then a consumer has taken their messages. What is not due yet is shared, whatever came between."""
    table = Table()
    shared, taken = ack.Shared(), held(table, 6)
    for one, delay_ms in zip(taken, (10_000, 60_000, 10_000, 60_000), strict=False):
        table.run(ack.nack(one.lease, [one.row.id], delay_ms, shared))
    waiting = [slot for slot in table.head().slots if slot.state is SlotState.WAITING]
    assert sorted(len(slot.ids) for slot in waiting) == [2, 2]
    table.pass_time(11 * SECOND_US)
    table.run(ack.nack(taken[4].lease, [taken[4].row.id], 90_000, shared))
    assert sorted(slot.due_ms for slot in shared._slots.values()) == sorted(
        slot.due_ms for slot in table.head().slots if slot.due_ms > table.time_us // 1000 + 20_000
    )


def test_snooze_uses_no_attempt_and_nack_does():
    """A snoozed message comes back with the attempt it had, a nacked one with the next."""
    table = Table()
    for count, attempt in ((False, 1), (True, 2)):
        (one,) = held(table, 1)
        table.run(ack.nack(one.lease, [one.row.id], 0, ack.Shared(), count=count))
        (again,) = table.claim().taken
        assert again.lease.attempt == attempt
        table.run(ack.free(table.run(ack.ack([again]))))


@pytest.mark.parametrize("count", [False, True])
def test_a_message_that_comes_again_tells_when_it_was_due_again(count):
    """A monitor must not take the delay of a snooze or a nack, or a holder's timeout, for lateness."""
    table = Table()
    (one,) = held(table, 1)
    assert one.lease.due_again_ms is None
    due_ms = table.time_us // 1000 + 60_000
    table.run(ack.nack(one.lease, [one.row.id], 60_000, ack.Shared(), count=count))
    table.pass_time(90 * SECOND_US)
    (again,) = table.claim().taken
    assert 0 <= again.lease.due_again_ms - due_ms < ack.SHARED_MS
    table.pass_time(again.lease.due_ms * 1000 - table.time_us + SKEW_US)
    (suspect,) = table.claim().taken
    assert suspect.lease.due_again_ms == again.lease.due_ms


def test_nack_whose_reply_was_lost_has_happened():
    """A nack without an answer is looked up, not sent again: no false LeaseLost, one slot lists it."""
    table = Table()
    (one,) = held(table, 1)

    def lose_reply(operation: object) -> None:
        if type(operation) is Mutate:
            table.store.execute(operation)
            raise OutcomeUnknown("lost")

    table.run(ack.nack(one.lease, [one.row.id], 0, ack.Shared()), lose_reply)
    assert table.listed() == [one.row.id]
    assert not one.lease.lost


def test_extend_after_takeover_is_refused():
    """A holder that is too late learns it, and cannot hold the message again."""
    table = Table()
    (one,) = held(table, 1)
    table.pass_time(30 * SECOND_US + SKEW_US)
    table.claim()
    with pytest.raises(LeaseLost):
        table.run(ack.extend(one.lease, 30_000))
    assert one.lease.lost


def last_attempt_together(table: Table) -> list[int]:
    """Nack three messages together, and claim them together for the last time; then the worker dies."""
    taken = held(table, 3)
    table.run(ack.nack(taken[0].lease, [one.row.id for one in taken], 0, ack.Shared()))
    again = table.claim().taken
    assert [one.lease.attempt for one in again] == [table.spec.max_attempts] * 3
    table.pass_time(30 * SECOND_US + SKEW_US)
    return [one.row.id for one in again]


def test_batch_that_expired_at_its_last_attempt_is_not_buried_as_a_whole():
    """Only one message need have killed the worker: each gets its last attempt alone."""
    table = Table(max_attempts=2)
    batch = last_attempt_together(table)
    for id_ in batch:
        claimed = table.claim(gate=SuspectGate())
        assert claimed.dead == []
        assert ids_of(claimed) == [id_]
        assert claimed.taken[0].lease.attempt == 2
        table.run(ack.free(table.run(ack.ack(claimed.taken))))
    assert table.listed() == []


def test_message_that_kills_alone_is_buried():
    """What expires alone at its last attempt is dead, and only that."""
    table = Table(max_attempts=2)
    batch = last_attempt_together(table)
    table.claim(gate=SuspectGate())  # and dies again
    table.pass_time(30 * SECOND_US + SKEW_US)
    dead = []
    for _ in range(3):
        claimed = table.claim(gate=SuspectGate())
        dead += [one.row.id for one in claimed.dead]
    assert dead == batch[:1]


@pytest.mark.parametrize("count", [3, BURIED_AT_ONCE + 2])
def test_messages_given_back_at_their_last_attempt_are_buried_in_slots_of_their_own(count):
    """Each stays listed until its letter is stored; a slot that lists one of them loses the others."""
    table = Table(max_attempts=1)
    taken = held(table, count)
    nacked = [one.row.id for one in taken]
    table.run(ack.nack(taken[0].lease, nacked, 0, ack.Shared()))
    dead = table.claim().dead
    assert [one.row.id for one in dead] == nacked[:BURIED_AT_ONCE]
    assert [one.lease.slot.ids for one in dead] == [(id_,) for id_ in nacked[:BURIED_AT_ONCE]]
    assert table.listed() == nacked


def test_a_time_of_death_is_kept_for_half_of_gc_grace():
    """Until then all who bury a message derive one letter; later, tombstones could swallow its insert."""
    spec, now_ms = Table().spec, NOON_US // 1000
    half_ms = spec.gc_grace_us // 1000 // 2
    for age_ms, kept in ((half_ms, True), (half_ms + 1, False)):
        slot = SlotRow(0, 1, SlotState.CLAIMED, (7,), 0, 1, b"x", 7, died_at_ms=now_ms - age_ms)
        assert kept_time_of_death(slot, spec, now_ms) == (now_ms - age_ms if kept else now_ms)


@pytest.mark.parametrize(("slots", "max_attempts"), [(1, 5), (FREED_AT_ONCE + 5, 5), (1, 1)])
def test_slots_of_a_dead_holder_that_list_nothing_alive_keep_nobody_waiting(slots, max_attempts):
    """The holder had acked everything and freed no slot; one claim frees many, and takes other messages."""
    table = Table(max_attempts=max_attempts)
    holder = table.view()
    for _ in range(slots):
        table.put(table.time_us)
        table.run(ack.ack(table.claim(holder, want=1).taken))
        table.pass_time(1000)
    table.pass_time(30 * SECOND_US + SKEW_US)
    expired, gate = table.put(table.time_us), SuspectGate()
    assert ids_of(table.claim(gate=gate)) == expired
    assert not gate.busy(table.time_us // 1000)
    table.claim()
    assert table.listed() == expired


def test_a_suspect_behind_slots_that_list_nothing_alive_is_taken_alone():
    """One claim frees those slots, and takes no more than one suspect."""
    table = Table()
    holder, gate = table.view(), SuspectGate()
    for alive in (False, True, True):
        table.put(table.time_us)
        claimed = table.claim(holder, want=1)
        if not alive:
            table.run(ack.ack(claimed.taken))
        table.pass_time(1000)
    table.pass_time(30 * SECOND_US + SKEW_US)
    table.put(table.time_us)
    (taken,) = table.claim(gate=gate).taken
    assert taken.lease.suspect
    assert gate.busy(table.time_us // 1000)


def test_no_second_suspect_is_taken_while_the_first_is_being_claimed():
    """Two threads of a process claim from two wide rows; what may kill it comes alone."""
    table, gate, beside = Table(), SuspectGate(), []
    rows = [WideRow(table.row.queue, table.row.time_shard, shard) for shard in (0, 1)]
    for row in rows:
        table.put(table.time_us, row=row)
    table.pass_time(1000)
    for row in rows:
        table.claim(table.view(row))
    table.pass_time(30 * SECOND_US + SKEW_US)

    def claim_beside(operation: object) -> None:
        if type(operation) is Mutate and operation.slots and not beside:
            beside.append(None)
            beside[0] = table.claim(table.view(rows[1]), gate=gate)

    (taken,) = table.claim(gate=gate, hook=claim_beside).taken
    assert taken.lease.suspect
    assert beside[0].taken == []


def test_open_row_truncated_poll_still_sees_what_lands_late():
    """A poll that was cut short does not make the next one start above messages that may still land."""
    table = Table(name="q.dead", width_ms=600_000)
    row = WideRow("q.dead@1", NOON_US // 1000, -1)
    view = table.view(row)
    for _ in range(6):  # until whole passes are far apart
        table.pass_time(20 * SECOND_US)
        table.poll(view)
    start_us = table.time_us
    table.put(start_us, start_us + 100_000, row=row)
    table.pass_time(200_000)
    assert len(ids_of(table.claim(view, want=1))) == 1
    late = table.put(start_us - 100_000, row=row)
    table.pass_time(SETTLE_US + SKEW_US + SECOND_US)
    assert late[0] in ids_of(table.claim(view))


@pytest.mark.parametrize("hinted", [False, True])
def test_after_a_pass_that_found_nothing_an_open_row_is_not_read_from_its_start(hinted):
    """The pass writes nothing, yet the next polls do not cross its old tombstones again."""
    table = Table(name="q.dead", width_ms=600_000)
    row = WideRow("q.dead@1", NOON_US // 1000, -1)
    view = table.view(row)
    table.put(table.time_us, row=row)
    table.pass_time(SECOND_US)
    view.finished += table.run(ack.ack(table.claim(view).taken))
    for _ in range(6):  # whole passes among them
        table.pass_time(20 * SECOND_US)
        assert ids_of(table.claim(view)) == []
        if hinted:  # by the head as it was a moment ago
            view.reads.floors.by_priority.clear()
            table.pass_time(1000)
            assert ids_of(table.claim(view)) == []
        behind_us = SETTLE_US + SKEW_US + SECOND_US
        assert view.reads.floors.by_priority[0] >= table.id_at(table.time_us - behind_us)


def test_a_claim_of_an_open_row_that_takes_enough_before_the_present_says_that_there_is_more():
    """A claim reads in pieces, and its last piece may hold exactly as many messages as it still wants."""
    table = Table(name="q.dead", width_ms=600_000)
    row = WideRow("q.dead@1", NOON_US // 1000, -1)
    table.put(*(NOON_US + piece * 300_000 + number for piece in range(4) for number in range(5)), row=row)
    table.pass_time(2 * SECOND_US)
    claimed = table.claim(table.view(row), want=10)
    assert (len(claimed.taken), claimed.more) == (10, True)


def test_a_full_claim_of_an_open_row_is_followed_by_one_that_reads_on():
    """It says that there is more, and what it took is not read again once nothing can land there."""
    table = Table(name="q.dead", width_ms=600_000)
    row = WideRow("q.dead@1", NOON_US // 1000, -1)
    some = table.put(*(NOON_US + number for number in range(5)), row=row)
    table.pass_time(60 * SECOND_US)
    view = table.view(row)
    assert table.claim(view, want=2).more
    table.log.clear()
    assert ids_of(table.claim(view, want=2)) == some[2:4]
    (read,) = [operation for operation in table.log if type(operation) is ReadSlice]
    assert read.after == some[1]


def test_a_pass_over_an_open_wide_row_ends_with_the_row():
    """However old it is: no message can stand behind its end, and dead letters may keep it for a day."""
    table = Table(name="q.dead", gc_grace_us=86_400_000_000)
    row = WideRow("q.dead@1", NOON_US // 1000, -1)
    (message,) = table.put(NOON_US, row=row)
    view = table.view(row)
    claimed = table.claim(view)
    assert ids_of(claimed) == [message]
    view.finished += table.run(ack.ack(claimed.taken))
    table.pass_time(20 * 3_600_000_000)
    table.log.clear()
    table.claim(view)
    end = ids.highest_at(registry.end_us(table.spec, row))
    reads = [operation for operation in table.log if type(operation) is ReadSlice]
    assert len(reads) < 50
    assert max(read.upto for read in reads) <= end
    table.log.clear()
    table.run(probe([view], table.spec, SuspectGate()))
    assert not any(type(operation) is ReadIds for operation in table.log)


def test_a_pass_over_an_open_wide_row_crosses_few_tombstones_where_many_messages_lay():
    """The consumer has seen how dense they were, and reads in pieces that suit it."""
    table = Table(name="q.dead", width_ms=600_000)
    row = WideRow("q.dead@1", NOON_US // 1000, -1)
    some = table.put(*(NOON_US + 2 * number for number in range(3000)), row=row)
    table.pass_time(SECOND_US)
    view = table.view(row)
    view.reads.sizes.note_read(0, 64, 100)
    taken = table.claim(view, want=4000).taken
    assert [one.row.id for one in taken] == some
    view.finished += table.run(ack.ack(taken))
    table.pass_time(SETTLE_US + SKEW_US)
    crossed = []

    def note(operation) -> None:
        if type(operation) is ReadSlice:
            crossed.append(table.store.execute(operation).tombstones)

    assert view.reads.floors.pass_at_us <= table.time_us
    assert ids_of(table.claim(view, hook=note)) == []
    assert crossed
    assert max(crossed) == 0, "the store tells of more than a thousand only"


def outage(table: Table, *, applied: bool):
    """Return a hook that leaves conditional mutations unanswered, applied or not, and fails serial reads."""

    def hook(operation: object) -> None:
        if type(operation) is Mutate:
            if applied:
                table.store.execute(operation)
            raise OutcomeUnknown("no answer")
        if type(operation) is ReadHead and operation.serial:
            raise NotDone("no answer")

    return hook


@pytest.mark.parametrize("applied", [True, False])
def test_an_extend_without_an_answer_is_no_lost_lease(applied):
    """After an outage the holder keeps its messages, whether its last extension was applied or not."""
    table = Table()
    (one,) = held(table, 1)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            table.run(ack.extend(one.lease, 60_000), outage(table, applied=applied))
    table.run(ack.extend(one.lease, 90_000))
    (slot,) = table.head().slots
    assert (slot.rev, slot.due_ms) == (one.lease.slot.rev, one.lease.due_ms)
    assert slot.due_ms >= NOON_US // 1000 + 90_000
    table.run(ack.nack(one.lease, [one.row.id], 0, ack.Shared()))


@pytest.mark.parametrize("by", ["claim", "free"])
@pytest.mark.parametrize("applied", [True, False])
def test_after_an_extend_without_an_answer_an_acked_slot_is_freed(applied, by):
    """Whether the extension was applied or not, the slot is freed before its timeout."""
    table = Table()
    view = table.view()
    table.put(table.time_us)
    (one,) = table.claim(view).taken
    with pytest.raises(OutcomeUnknown):
        table.run(ack.extend(one.lease, 3_600_000), outage(table, applied=applied))
    finished = table.run(ack.ack([one]))
    table.pass_time(SECOND_US)
    if by == "claim":
        view.finished += finished
        table.claim(view)
    else:
        table.run(ack.free(finished))
    assert [slot.state for slot in table.head().slots] == [SlotState.FREE]


def test_an_acked_slot_that_another_client_extended_is_freed():
    """Else it would stay until the extension is over."""
    table = Table()
    (one,) = held(table, 1)
    assert table.run(by_id.extend(table.spec, table.row, 0, [one.row.id], 3_600_000)).done == {one.row.id}
    table.run(ack.free(table.run(ack.ack([one]))))
    assert [slot.state for slot in table.head().slots] == [SlotState.FREE]


def test_of_finished_slots_only_those_are_freed_that_nobody_else_has_changed():
    """One mutation frees the others, and leaves a slot alone that another consumer holds."""
    table = Table()
    old = held(table, 1)
    table.pass_time(30 * SECOND_US + SKEW_US)
    (taken_over,) = table.claim(gate=SuspectGate()).taken
    new = held(table, 1)
    table.run(ack.free([old[0].lease, *table.run(ack.ack(new))]))
    slots = {slot.number: slot for slot in table.head().slots}
    assert slots[taken_over.lease.slot.number].rev == taken_over.lease.slot.rev
    assert slots[new[0].lease.slot.number].state is SlotState.FREE


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_a_nack_without_an_answer_can_be_repeated(applied, count):
    """The repeat learns that the first nack was applied, or applies it; the message waits in one slot."""
    table = Table()
    taken = held(table, count)
    lease, chosen = taken[0].lease, [taken[0].row.id]
    with pytest.raises(OutcomeUnknown):
        table.run(ack.nack(lease, chosen, 5000, ack.Shared()), outage(table, applied=applied))
    table.run(ack.nack(lease, chosen, 5000, ack.Shared()))
    (waiting,) = [slot for slot in table.head().slots if slot.state is SlotState.WAITING]
    assert list(waiting.ids) == chosen
    assert sorted(table.listed()) == sorted(one.row.id for one in taken)
    with pytest.raises(LeaseLost, match="already"):
        table.run(ack.nack(lease, chosen, 5000, ack.Shared()))


def test_a_strangers_change_is_a_lost_lease_even_after_an_outage():
    """Only changes that the holder tried itself count as its own."""
    table = Table()
    (one,) = held(table, 1)
    with pytest.raises(OutcomeUnknown):
        table.run(ack.extend(one.lease, 3000), outage(table, applied=False))
    table.pass_time(3_600_000_000)
    assert ids_of(table.claim()) == [one.row.id]
    with pytest.raises(LeaseLost):
        table.run(ack.extend(one.lease, 90_000))
    assert one.lease.lost


def test_a_suspect_whose_gate_has_let_in_the_next_one_is_lost():
    """Its holder learns it at the next extension, stops, and decides nothing about it any more."""
    table = Table()
    gate = SuspectGate()
    first, second = (held(table, 1)[0].lease for _ in range(2))
    gate.hold(first)
    gate.hold(second)
    with pytest.raises(LeaseLost):
        gate.extend(first, first.due_ms + 1)
    assert (first.lost, second.is_held) == (True, True)
