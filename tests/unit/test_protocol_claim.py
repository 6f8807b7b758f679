"""Test what a claim costs, and what keeps claims apart."""

import itertools
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown, Unavailable
from cqueue.protocol import ack
from cqueue.protocol.budget import MAX_COUNTED_TOMBSTONES
from cqueue.protocol.claim import claim
from cqueue.protocol.claim_draft import FREED_AT_ONCE, MAX_LISTED, _portions
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.lock import acquire, unlock
from cqueue.protocol.registry import Registry
from cqueue.protocol.retire import PASS_IDS, PRIORITIES, READS_AT_ONCE
from cqueue.protocol.row_memory import (
    BOUNDARY_CURRENT_US,
    HEAD_REMEMBERED_US,
    MAX_UNSEEN_US,
    RIVAL_WINDOW_US,
    UNKNOWN_SIZE,
    MessageSizes,
    RowMemory,
)
from cqueue.protocol.unclaimed import LOOK_BACK_GAP_US, READ_AHEAD_AGE_US, READ_BYTES, _order
from cqueue.store.operations import (
    DropBodies,
    HasMessages,
    Head,
    InsertMessages,
    Mutate,
    ReadHead,
    ReadIds,
    ReadMessages,
    ReadSlice,
    Together,
    UnregisterShard,
    wrapped,
)
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, SKEW_US, Table, ids_of, message


def mutations(table: Table) -> int:
    return sum(type(operation) is Mutate for operation in table.log)


def claimed(table: Table, view, want: int = 10) -> list[int]:
    """Claim once, and unlock the wide row if its lock was kept; return the claim."""
    found = ids_of(table.claim(view, want=want))
    table.run(unlock(view))
    return found


def heads(table: Table) -> int:
    return sum(type(operation) is ReadHead for operation in table.log)


def slices(table: Table) -> int:
    return sum(type(operation) is ReadSlice for operation in table.log)


def put(table: Table, count: int = 1) -> list[int]:
    found = table.put(*(table.time_us + number for number in range(count)))
    table.pass_time(1000)
    return found


def test_who_claimed_last_claims_in_one_mutation():
    """A trickle that one consumer takes costs one Paxos round a message, not two."""
    table = Table()
    view = table.view()
    put(table)
    claimed(table, view)
    for _ in range(5):
        before = mutations(table)
        new = put(table)
        assert claimed(table, view) == new
        assert mutations(table) == before + 1
        table.pass_time(HEAD_REMEMBERED_US)


def test_a_claim_that_finds_nothing_writes_nothing():
    """A hint of messages that another consumer has taken is no reason for a Paxos round."""
    table = Table()
    view = table.view()
    put(table)
    claimed(table, view)
    before = mutations(table)
    assert claimed(table, view) == []
    assert mutations(table) == before


def test_a_claim_that_reads_the_head_in_vain_writes_nothing():
    """Another consumer has taken everything, and no cursor moves."""
    table = Table()
    put(table)
    table.run(ack.free(table.run(ack.ack(table.claim().taken))))
    table.pass_time(SETTLE_US + SKEW_US)
    table.claim()
    assert table.cursor().cursor == table.cursor().boundary, "the sweep is over"
    table.pass_time(RIVAL_WINDOW_US)
    before, view = (mutations(table), heads(table)), table.view()
    assert claimed(table, view) == []
    assert (mutations(table), heads(table) > before[1]) == (before[0], True)
    read = heads(table)
    assert claimed(table, view) == []
    assert heads(table) == read, "what the head shows is known for a moment"


def test_a_claim_of_another_consumer_ends_that():
    """If the fence has moved, a claim locks again, and takes only unlisted messages."""
    table = Table()
    mine, theirs = table.view(), table.view()
    put(table)
    claimed(table, mine)
    taken = put(table, 2)
    assert claimed(table, theirs, want=1) == taken[:1]
    before = mutations(table)
    assert claimed(table, mine) == taken[1:]
    assert mutations(table) == before + 3  # one that fails, the lock, the claim


def test_where_others_claim_too_the_lock_is_taken_first():
    """The lock keeps consumers from reading in vain; a while later the stored fence is enough again."""
    table = Table()
    mine, theirs = table.view(), table.view()
    for view in (mine, theirs, mine):
        put(table)
        claimed(table, view)
    put(table)
    claimed(table, theirs)
    taken, before = put(table), mutations(table)
    assert claimed(table, mine) == taken
    assert mutations(table) == before + 2
    put(table)
    claimed(table, theirs)
    table.pass_time(RIVAL_WINDOW_US)
    taken, before = put(table), mutations(table)
    assert ids_of(table.poll(mine)) == taken
    assert mutations(table) == before + 1


def test_a_fence_that_somebody_else_wrote_will_do():
    """A consumer's first claim costs one mutation, and goes by the head that the probe has read."""
    table = Table()
    put(table)
    table.claim()
    table.pass_time(RIVAL_WINDOW_US)
    view, new = table.view(), put(table)
    table.log.clear()
    assert ids_of(table.poll(view)) == new
    assert [type(one) for one in table.log] == [ReadHead, ReadIds, ReadSlice, ReadIds, Mutate]
    assert mutations(table) == 1


def test_beside_a_lock_that_ran_out_the_head_is_read_again():
    """A lock that overtook others may be newer than the slots in the read that shows it first."""
    table = Table()
    put(table)
    table.claim()
    table.run(acquire(table.view(), table.spec, overtakes=True))
    table.pass_time(table.spec.lease_ms * 1000)
    table.log.clear()
    view = table.view()
    table.poll(view)
    assert [type(one) for one in table.log][:3] == [ReadHead, ReadHead, ReadSlice]


@pytest.fixture
def two_rows():
    """Return a table and a consumer's memory of two wide rows; the consumer has claimed from the first."""
    table = Table()
    registry = Registry(0, 0, read_open=False)
    here, there = table.row, table.row._replace(shard=1)
    first, second = (registry.add(table.spec, row, frozenset({0})) for row in (here, there))
    put(table)
    assert len(claimed(table, first)) == 1
    return table, first, second


def first_read(table: Table, view) -> list[type]:
    """Return what the next claim reads before it reads a slice."""
    new = put(table)
    table.log.clear()
    assert claimed(table, view)[-1:] == new
    kinds = [type(one) for one in table.log]
    return kinds[: kinds.index(ReadSlice)]


def test_what_another_worker_looks_at_first_is_soon_out_of_date(two_rows):
    table, first, _ = two_rows
    first.assigned_elsewhere = True
    table.pass_time(BOUNDARY_CURRENT_US)
    assert first_read(table, first) == [ReadHead]


def test_where_more_was_left_a_boundary_is_soon_out_of_date(two_rows):
    """Any other consumer may claim the messages that were left."""
    table, first, _ = two_rows
    put(table, 2)
    assert table.run(claim(first, table.spec, SuspectGate(), 1, stay=False)).more
    assert not first.remembered.locked
    table.pass_time(BOUNDARY_CURRENT_US)
    assert first_read(table, first)[:1] == [ReadHead]


def test_after_a_long_absence_a_boundary_is_out_of_date(two_rows):
    """After a long handler, a consumer does not read across what others have acked meanwhile."""
    table, first, _ = two_rows
    other = table.view()
    for _ in range(8):
        put(table, 400)
        table.run(ack.ack(table.claim(other, want=400).taken))
    table.run(unlock(other))
    table.pass_time(MAX_UNSEEN_US)
    new, crossed = put(table), list[int]()

    def note(operation) -> None:
        if type(operation) is ReadSlice:
            crossed.append(table.store.execute(operation).tombstones)

    assert ids_of(table.claim(first, hook=note)) == new
    assert crossed == [0]


def test_what_comes_back_is_found_when_the_head_is_read_again():
    table = Table()
    view, shared = table.view(), ack.Shared()
    first, second, third = put(table, 3)
    (taken,) = table.claim(view, want=1).taken
    table.run(ack.nack(taken.lease, [first], 0, shared))
    before = heads(table)
    assert ids_of(table.claim(view, want=1)) == [second]
    assert heads(table) == before, "the lock is kept: what is listed is known"
    table.pass_time(HEAD_REMEMBERED_US)
    assert ids_of(table.claim(view, want=2)) == [first, third]


def test_a_slot_that_its_holder_extended_is_freed_later():
    """The slot differs from what the claim read; if it were forgotten, it would stay until its timeout."""
    table = Table()
    view = table.view()
    put(table, 3)
    (taken,) = table.claim(view, want=1).taken
    table.run(ack.extend(taken.lease, 60_000))
    view.finished += table.run(ack.ack([taken]))
    assert len(table.claim(view, want=1).taken) == 1
    assert view.finished == [taken.lease]
    table.pass_time(HEAD_REMEMBERED_US)
    table.claim(view)
    assert taken.row.id not in table.listed()
    assert view.finished == []


def test_a_claim_frees_a_few_slots_on_the_way():
    """Each claim frees more slots than it uses; a claim that takes nothing frees all."""
    table = Table()
    view = table.view()
    taken = []
    for _ in range(12):
        put(table)
        taken += table.claim(view).taken
    view.finished += table.run(ack.ack(taken))
    used = []
    for _ in range(3):
        put(table)
        taken = table.claim(view).taken
        used.append(len(table.listed()))
        view.finished += table.run(ack.ack(taken))
    assert used == [12 - FREED_AT_ONCE * claims for claims in (1, 2, 3)]
    table.pass_time(HEAD_REMEMBERED_US)
    table.claim(view)
    assert table.listed() == []
    assert view.finished == []


def test_a_large_claim_takes_several_slots():
    """Each slot lists what one takeover can read at once; messages of one pack stay together."""
    table = Table()
    view = table.view()
    view.reads.sizes.note_read(0, 64, 100)
    sizes = [300, 250, 250, 250, 7]  # the first ones are sent one by one
    sent = put(table, sizes[0])
    for number, size in enumerate(sizes[1:]):
        sent += table.insert(ids.packed((table.time_us + number) * 10, number, size))
    table.pass_time(1000)
    taken = table.claim(view, want=2000).taken
    assert [one.row.id for one in taken] == sent
    slots = sorted(table.head().slots, key=lambda slot: slot.number)
    assert [len(slot.ids) for slot in slots] == [300 + 250 + 250, 250 + 7]
    assert [id_ for slot in slots for id_ in slot.ids] == sent
    assert MAX_LISTED == 1000
    view.finished += table.run(ack.ack(taken))
    put(table)
    table.claim(view)
    assert len(table.listed()) == 1


def test_what_is_taken_over_is_read_a_thousand_at_a_time():
    """A deleted message is a tombstone in such a read."""
    table = Table()
    view = table.view()
    view.reads.sizes.note_read(0, 64, 100)
    sent = put(table, 2500)
    table.pass_time(2000)
    taken = table.claim(view, want=4000).taken
    assert len(taken) == 2500
    together = ack.Shared()
    for lease in {one.lease for one in taken}:
        table.run(ack.nack(lease, lease.slot.ids, 0, together, count=False))
    assert len([slot for slot in table.head().slots if slot.ids]) == 1
    again = []
    for _ in range(3):
        table.pass_time(HEAD_REMEMBERED_US)
        before = len(table.log)
        again += ids_of(table.claim(view, want=4000))
        reads = [one for one in table.log[before:] if type(one) is ReadMessages]
        assert [len(one.ids) <= MAX_LISTED for one in reads] == [True]
    assert sorted(again) == sent
    assert max(len(slot.ids) for slot in table.head().slots) == MAX_LISTED


def test_a_claim_in_between_makes_the_mutation_fail():
    """A claim that is overtaken after its reads claims nothing twice, and leaves nothing behind."""
    table = Table()
    mine, theirs = table.view(), table.view()
    put(table)
    claimed(table, mine)
    taken = put(table, 3)
    between = [True]

    def overtake(operation):
        if type(operation) is Mutate and between:
            between.clear()
            assert claimed(table, theirs, want=2) == taken[:2]

    assert ids_of(table.claim(mine, hook=overtake)) == taken[2:]


def test_the_next_slice_is_read_beside_the_mutation():
    """In a backlog only the first claim waits for messages; each message is delivered once, in order."""
    table = Table()
    view = table.view()
    some = put(table, 50)
    found = ids_of(table.claim(view, want=20))
    before = slices(table)
    found += ids_of(table.claim(view, want=20))
    assert slices(table) == before + 1  # for the third claim
    found += ids_of(table.claim(view, want=20))
    assert found == some
    assert slices(table) == before + 2  # what was read ahead did not fill a claim


def test_what_was_read_ahead_is_not_read_again():
    """A claim of fewer messages leaves the others to the next one."""
    table = Table()
    view = table.view()
    some = put(table, 50)
    found = ids_of(table.claim(view, want=30))
    before = slices(table)
    for _ in range(2):
        found += ids_of(table.claim(view, want=5))
    assert found == some[:40]
    assert slices(table) == before
    assert view.remembered.read_ahead.rows[0].id == some[40]
    table.pass_time(HEAD_REMEMBERED_US)
    assert ids_of(table.claim(view, want=5)) == some[40:45], "also beside a new head"
    assert slices(table) == before


def test_what_was_read_ahead_long_ago_is_read_again():
    table = Table()
    view = table.view()
    some = put(table, 50)
    table.claim(view, want=20)
    before = slices(table)
    table.pass_time(READ_AHEAD_AGE_US)
    assert ids_of(table.claim(view, want=20)) == some[20:40]
    assert slices(table) == before + 2


@pytest.fixture
def slices_of_five(monkeypatch):
    """Let byte limits bound a slice to five messages."""
    monkeypatch.setattr(MessageSizes, "count_within", lambda *_: 5)


@pytest.mark.usefixtures("slices_of_five")
def test_of_slices_that_are_claimed_in_parts_nothing_is_read_twice():
    """What a claim leaves of a slice comes before what is read beside its mutation."""
    table = Table()
    view = table.view()
    some, found = put(table, 50), []
    for want in (20, 1, 1, 1, 1, 1, 20, 20):
        found += ids_of(table.claim(view, want=want))
    assert found == some[: len(found)]
    assert slices(table) <= len(found) // 5 + 2


@pytest.mark.usefixtures("slices_of_five")
def test_nothing_is_read_ahead_of_its_due_time():
    """Neither the read beside the mutation nor the next claim's slice reaches into the future."""
    table = Table()
    view = table.view()
    start_us = table.time_us
    now = table.put(*(start_us + number for number in range(20)))
    later = table.put(*(start_us + 60_000 + number for number in range(20)))
    table.pass_time(1000)
    found = []
    for _ in range(7):
        found += ids_of(table.claim(view, want=20))
        table.pass_time(1000)
    assert found == now
    table.pass_time(60_000)
    while len(found) < 40:
        found += ids_of(table.claim(view, want=20))
    assert found == now + later


@pytest.mark.usefixtures("slices_of_five")
def test_what_a_claim_leaves_of_a_slice_keeps_its_age():
    """Even after later messages were read, the cursor passes nothing that landed since the slice was read."""
    table = Table()
    view = table.view()
    start_us = table.time_us
    some = table.put(*(start_us + 100_000 * number for number in range(30)))
    table.time_us = start_us + SETTLE_US + SKEW_US + 840_000
    assert ids_of(table.claim(view, want=20)) == some[:5]
    (late,) = table.put(start_us + 850_000)  # among those that were read ahead just now
    table.pass_time(1000)
    assert ids_of(table.claim(view, want=3)) == some[5:8]
    table.pass_time(140_000)
    assert ids_of(table.claim(view, want=3)) == some[8:11]
    at = table.cursor()
    assert at.cursor < late < at.boundary


def test_a_claim_stands_though_the_read_beside_it_failed():
    table = Table()
    view = table.view()
    some = put(table, 50)
    read = []

    def fail(operation):
        if type(operation) is ReadSlice:
            read.append(operation)
            if len(read) == 2:
                raise NotDone("no answer")

    assert ids_of(table.claim(view, want=20, hook=fail)) == some[:20]
    assert len(read) == 2
    assert ids_of(table.claim(view, want=20)) == some[20:40]


def test_a_claim_without_an_answer_is_looked_up_whatever_was_read_beside_it():
    """It is applied, so its messages are delivered at once and not after their timeout."""
    table = Table()
    some = put(table, 50)

    def lose_reply(operation):
        if type(operation) is Mutate:
            table.store.execute(operation)
            raise OutcomeUnknown("lost")

    assert ids_of(table.claim(table.view(), want=20, hook=lose_reply)) == some[:20]


def test_a_full_claim_reads_no_less_urgent_priority():
    """It says that there may be more."""
    table = Table()
    view = table.view(None, 0, 5)
    urgent = put(table, 10)
    table.put(NOON_US, priority=5)
    claimed = table.claim(view, want=10)
    assert (ids_of(claimed), claimed.more) == (urgent, True)
    assert {one.priority for one in table.log if type(one) in {ReadSlice, ReadIds}} == {0}


def id_reads(table: Table) -> list[ReadIds]:
    return [operation for operation in table.log if type(operation) is ReadIds]


def drained(table: Table, view, count: int = 4000) -> None:
    """Return a row with many messages at its beginning, all claimed and acked."""
    table.put(*(table.time_us + number for number in range(count)))
    table.pass_time(SECOND_US)
    while claimed := table.claim(view, want=500):
        view.finished += table.run(ack.ack(claimed.taken))
        if not claimed.taken:
            break


def test_where_messages_come_all_the_time_few_claims_sweep():
    """The horizon moves with the clock, but a sweep that cannot reach the boundary can wait."""
    table = Table()
    view = table.view()
    for _ in range(400):  # 4 s: W + ε are 2.5 s
        new = put(table)
        assert claimed(table, view) == new
        table.pass_time(9000)
    table.log.clear()
    for _ in range(100):
        new = put(table)
        assert claimed(table, view) == new
        table.pass_time(9000)
    assert 10 <= len(id_reads(table)) <= 22  # sweeps and look-backs, ten a second of each
    table.pass_time(3 * SECOND_US)
    claimed(table, view)
    cursor = table.head().cursors[0]
    assert cursor.cursor >= cursor.boundary


def test_a_sweep_that_cannot_reach_the_boundary_is_not_made_at_each_claim():
    """The horizon lies W + ε back, so in a trickle of messages ten sweeps a second are enough."""
    table = Table()
    view = table.view()
    put(table)
    claimed(table, view)
    table.pass_time(SETTLE_US + SKEW_US)
    table.log.clear()
    for _ in range(8):
        new = put(table)
        assert claimed(table, view) == new
        table.pass_time(9000)
    assert len(id_reads(table)) <= 2  # a sweep and a look-back in 80 ms


def test_a_claim_with_nothing_to_take_sweeps_to_the_boundary():
    """Piece by piece, as another consumer's messages may have left many tombstones."""
    table = Table()
    taken = table.put(NOON_US, NOON_US + 3 * SECOND_US)
    table.pass_time(3 * SECOND_US + 1000)
    assert ids_of(table.claim()) == taken
    table.pass_time(SETTLE_US + SKEW_US)
    before = slices(table)
    assert ids_of(table.claim()) == []
    assert table.cursor().cursor == table.cursor().boundary == taken[1]
    assert slices(table) == before + 1, "above the boundary is read once"


def test_the_cursor_stays_below_late_messages_that_a_claim_leaves():
    """A sweep that finds more than a claim takes is not over: the next ones find the others."""
    table = Table()
    table.put(NOON_US + SECOND_US)
    table.pass_time(SECOND_US)
    table.claim()
    late = table.put(*(NOON_US + number for number in range(5)))
    table.pass_time(SETTLE_US + SKEW_US)
    found = [ids_of(table.claim(want=2)) for _ in range(3)]
    assert found == [late[:2], late[2:4], late[4:]]


def test_a_row_is_swept_and_retired_in_few_reads():
    """The consumer knows where it took messages, so elsewhere its reads can be long."""
    table = Table()
    view = table.view()
    drained(table, view)
    table.pass_time(table.end_us - table.time_us + 3 * SECOND_US)
    table.log.clear()
    while not view.retired:
        table.poll(view)
    reads = [read for read in id_reads(table) if read.priority == 0]
    assert len(reads) < 60
    assert all(crossed(read, 4000) <= MAX_COUNTED_TOMBSTONES for read in reads)


def crossed(read: ReadIds, count: int) -> int:
    """Return how many tombstones of `drained` a read crosses: one a µs."""
    first, last = max(ids.time_us(read.after) + 1, NOON_US), min(ids.time_us(read.upto), NOON_US + count - 1)
    return max(0, last - first + 1)


def test_a_pass_that_fails_is_made_in_small_pieces():
    """A purge leaves tombstones where nobody took messages; a failed read is repeated in smaller pieces."""
    table = Table()
    drained(table, table.view(), 1)
    view = table.view()
    table.pass_time(table.end_us - table.time_us + 3 * SECOND_US)

    def fail(operation):
        if type(operation) is ReadIds and operation.priority == 0:
            read_us = ids.time_us(operation.upto) - max(ids.time_us(operation.after), NOON_US)
            if read_us > 2 * SECOND_US:
                raise NotDone("too many tombstones")

    failed = 0
    while not view.retired:
        try:
            table.claim(view, hook=fail)
        except NotDone:
            failed += 1
            table.run(unlock(view))
    assert 1 <= failed <= 3


def test_a_long_pass_goes_on_in_the_next_claim():
    """Small pieces of an unknown dense row take many reads, and a receive does not wait for all of them."""
    table = Table()
    drained(table, table.view())
    view = table.view()
    table.pass_time(table.end_us - table.time_us + 3 * SECOND_US)
    view.reads.budget.cautious = True  # above the boundary as well
    view.reads.budget.note_density(500, 500, 3 * SECOND_US // 10)
    claims = 0
    while not view.retired:
        before = len(id_reads(table))
        table.claim(view)
        made = id_reads(table)[before:]
        assert len(made) <= READS_AT_ONCE + 20
        assert len([one for one in made if one.priority == 0 and one.limit == PASS_IDS]) <= READS_AT_ONCE
        claims += 1
    assert claims > 5


def retired_by(table: Table, view: RowMemory) -> list[type]:
    """Return the operations of the claims that retire a wide row, once it is swept and over."""
    table.pass_time(3 * SECOND_US)
    table.claim(view)
    table.pass_time(table.end_us - table.time_us + 3 * SECOND_US)
    table.log.clear()
    while not view.retired:
        table.claim(view)
    return [type(operation) for operation in table.log]


def test_a_wide_row_that_one_consumer_emptied_is_retired_by_one_read():
    """That consumer knows how few tombstones the read crosses; its claim needs no lock."""
    table = Table()
    view = table.view()
    drained(table, view, 700)
    made = retired_by(table, view)
    assert made == [ReadHead, ReadSlice, HasMessages, Mutate, DropBodies, UnregisterShard]


@pytest.mark.parametrize("by", ["mine", "other", "both"])
def test_a_wide_row_that_others_emptied_is_passed_over_in_pieces(by):
    """Only they know how many tombstones lie there; so is one with more than a read may cross."""
    table = Table()
    view = table.view()
    counts = {"mine": (2000, 0), "other": (0, 10), "both": (10, 10)}[by]
    for taker, count in zip((view, table.view()), counts, strict=True):
        drained(table, taker, count)
    made = retired_by(table, view)
    assert HasMessages not in made
    assert made.count(ReadIds) > len(PRIORITIES)


def test_who_joins_late_has_not_emptied_a_wide_row():
    """Others took messages before its first claim."""
    table = Table()
    view = table.view()
    drained(table, table.view(), 10)
    drained(table, view, 10)
    assert HasMessages not in retired_by(table, view)


def test_a_wide_row_whose_one_read_fails_is_passed_over_in_pieces():
    """The read may have crossed what a purge left."""
    table = Table()
    view = table.view()
    drained(table, view, 10)
    table.pass_time(table.end_us - table.time_us + 3 * SECOND_US)

    def fail(operation):
        if type(operation) is HasMessages:
            raise NotDone("too many tombstones")

    with pytest.raises(NotDone):
        table.claim(view, hook=fail)
    while not view.retired:
        table.claim(view, hook=fail)


def test_what_lands_late_keeps_a_wide_row_that_one_consumer_emptied():
    """The read shows it, and the consumer looks for it."""
    table = Table()
    view = table.view()
    drained(table, view, 10)
    late = table.put(NOON_US + 5, priority=7)
    table.pass_time(table.end_us - table.time_us + 3 * SECOND_US)
    assert ids_of(table.claim(view)) == late
    assert HasMessages in map(type, table.log)


def test_one_consumer_at_a_time_passes_over_a_wide_row():
    """Other consumers find the lock taken, and read nothing of the row."""
    table = Table()
    mine, theirs = table.view(), table.view()
    drained(table, table.view(), 1)
    table.pass_time(table.end_us - table.time_us + SETTLE_US + SKEW_US)
    met: list[ReadIds] = []

    def meet(operation) -> None:
        if type(operation) is ReadIds and operation.priority == 9 and not met:
            met.append(operation)
            before = len(id_reads(table))
            assert table.claim(theirs).contended
            assert table.poll(theirs).taken == []
            assert id_reads(table)[before:] == []

    table.claim(mine, hook=meet)
    assert met
    assert mine.retired


@pytest.mark.usefixtures("slices_of_five")
def test_a_slice_of_listed_messages_only_leaves_nothing_when_what_is_behind_it_was_read():
    """The consumer keeps no lock, and makes no claim, for messages that do not exist."""
    table = Table()
    view = table.view()
    table.pass_time(table.end_us - NOON_US + SETTLE_US + SKEW_US)
    strays: list[int] = []

    def land(operation) -> None:
        if type(operation) is ReadIds and not strays:
            strays.extend(table.put(*(NOON_US + number for number in range(5))))

    assert ids_of(table.claim(view, hook=land)) == strays
    (last,) = table.put(NOON_US + 1000)
    claimed = table.claim(view)
    assert ids_of(claimed) == [last]
    assert not claimed.more
    assert not table.head().lock.until_ms


def test_damaged_tallies_stop_nobody_and_are_mended():
    """The rows of two backups do not add up; a claim accepts a head that it has read twice alike."""
    table = Table()
    put(table)
    claimed(table, table.view())
    head = table.head()
    damaged = head.lock._replace(fence=head.lock.fence + 1, tally=head.lock.tally ^ 1)
    table.store.execute(Mutate(table.row, damaged, head.lock.fence))
    assert not table.head().is_whole
    new = put(table)
    assert claimed(table, table.view()) == new
    assert table.head().is_whole


def test_a_claim_adds_its_number_to_the_tally_of_a_cursor():
    """So a head shows that a cursor in it is older than the rest, whatever the numbers are."""
    table = Table()
    tallies = []
    for _ in range(3):
        put(table)
        table.claim()
        tallies.append(table.cursor().tally)
    assert len({*tallies}) == 3


def test_a_head_that_never_stands_still_is_not_gone_by():
    """Each read shows another mutation in part, so nothing is claimed, and nothing is lost."""
    table = Table()
    put(table)
    claimed(table, table.view())
    table.pass_time(RIVAL_WINDOW_US)
    wanted = put(table)
    execute, tallies = table.store.execute, itertools.count(1)

    def torn(operation):
        answer = execute(operation)
        if type(operation) is not ReadHead or answer.lock is None:
            return answer
        return Head(answer.lock._replace(tally=next(tallies)), answer.cursors, answer.slots)

    view = table.view()
    with patch.object(table.store, "execute", torn), pytest.raises(NotDone, match="too fast"):
        table.claim(view)
    assert claimed(table, view) == wanted


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_a_tally_stays_in_its_range(numbers):
    """Tallies are signed bigints modulo 2⁶⁴, and so is the one that makes the sum 0."""
    last = wrapped(-sum(numbers))
    assert -(2**63) <= last < 2**63
    assert wrapped(sum(numbers) + last) == 0


def asked_together(table: Table, view) -> list[tuple[type, ...]]:
    """Return the operations that a claim performs side by side."""
    groups: list[tuple[type, ...]] = []

    def watched():
        script, value = claim(view, table.spec, SuspectGate(), 10), None
        while True:
            try:
                operation = script.send(value)
            except StopIteration as stop:
                return stop.value
            if type(operation) is Together:
                groups.append(tuple(type(each) for each in operation.operations))
            value = yield operation

    table.run(watched())
    return groups


def test_slice_sweep_and_look_back_are_read_at_once():
    table = Table()
    view = table.view()
    for _ in range(int((SETTLE_US + SKEW_US) / LOOK_BACK_GAP_US) + 2):
        put(table)
        groups = asked_together(table, view)
        table.pass_time(LOOK_BACK_GAP_US)
    assert groups == [(ReadSlice, ReadIds, ReadIds)]


def test_each_priority_is_looked_back_to():
    """Late messages of a priority are found at once, whatever other priorities were looked back to."""
    table = Table()
    view = table.view(None, 0, 1)
    at_us = table.time_us
    for priority in (0, 1):
        table.put(at_us, at_us + 2000, priority=priority)
    table.pass_time(3000)
    table.run(ack.ack(table.claim(view).taken))
    table.run(unlock(view))
    table.pass_time(150_000)
    late = [table.put(at_us + 1000, priority=priority)[0] for priority in (0, 1)]
    assert ids_of(table.poll(view)) == late


def test_how_large_messages_are_is_learned_once_for_all_wide_rows():
    """The first slice of a new wide row is as large as the slices of the others."""
    table = Table()
    rows = [table.row, table.row._replace(shard=1)]
    for row in rows:
        table.insert(ids.packed(table.time_us * 10, row.shard, 200), row=row)
    table.pass_time(1000)
    registry = Registry(0, 0, read_open=False)
    limits = []
    for row in rows:
        table.claim(registry.add(table.spec, row, frozenset({0})), want=4000)
        limits += [one.limit for one in table.log if type(one) is ReadSlice][-1:]
    assert limits == [READ_BYTES // UNKNOWN_SIZE, 4000]


def test_larger_messages_are_heeded_at_once_and_smaller_ones_bit_by_bit():
    sizes = MessageSizes()
    assert sizes.count_within(3, 1 << 20) == 128
    for size, messages, within in [
        (1 << 10, 50, 1024),
        (1 << 20, 1, 1),
        (1 << 10, 25, 1),
        (1 << 10, 50, 1024),
    ]:
        sizes.note_read(3, size, messages)
        assert sizes.count_within(3, 1 << 20) == within
    assert sizes.count_within(4, 1 << 20) == 128, "another priority has messages of its own"


@pytest.mark.parametrize("size", [200, UNKNOWN_SIZE, 16 << 10, 1 << 20])
def test_after_reads_that_failed_less_is_asked_for(size):
    """Failed reads make the next ones smaller, but only down to a limit."""
    sizes = MessageSizes()
    if size != UNKNOWN_SIZE:
        sizes.note_read(3, size, 1000)
    limits = [sizes.count_within(3, READ_BYTES)]
    for _ in range(12):
        sizes.assume_larger([3])
        limits.append(sizes.count_within(3, READ_BYTES))
    assert limits == sorted(limits, reverse=True)
    assert limits[1] <= READ_BYTES // UNKNOWN_SIZE
    assert limits[-1] == min(limits[0], 16)
    sizes.note_read(3, size, 50)
    assert sizes.count_within(3, READ_BYTES) == limits[0]


def test_of_bodies_that_are_loaded_later_a_read_shows_as_many_as_a_claim_takes():
    """Rows with large bodies elsewhere are small to read; a claim that loads the bodies is not."""
    table = Table()
    large = 1 << 20
    some = [table.id_at(table.time_us + number) for number in range(100)]
    rows = [message(id_)._replace(body=None, size=large) for id_ in some]
    table.store.execute(InsertMessages(table.row, tuple(rows)))
    table.pass_time(1000)
    view = table.view()
    taken = [len(table.claim(view, want=4000).taken) for _ in range(3)]
    limits = [one.limit for one in table.log if type(one) is ReadSlice]
    assert taken == [16] * 3
    assert limits[0] == READ_BYTES // UNKNOWN_SIZE
    assert set(limits[1:]) <= set(range(15, 17))


def test_of_many_that_landed_below_the_boundary_a_claim_takes_a_part():
    """Late rows are read by id, as many as a slot lists; the cursor waits for the others."""
    table = Table()
    view = table.view()
    before = table.time_us
    table.pass_time(3000)
    put(table)
    assert len(table.claim(view, want=4000).taken) == 1
    late = table.put(*range(before, before + 2500))
    found = []
    while table.time_us < before + 10 * SECOND_US:
        taken = table.claim(view, want=4000)
        assert len(taken.taken) <= MAX_LISTED
        assert {one.lease.attempt for one in taken.taken} <= {1}, "late, but for the first time"
        found += ids_of(taken)
        table.pass_time(200_000)
    assert sorted(found) == late


def test_a_slice_that_failed_makes_the_next_one_smaller():
    table = Table()
    poll = table.rounds()
    table.insert(ids.packed(table.time_us * 10, 1, 200))
    table.pass_time(1000)
    assert len(table.receive(poll)) == 10
    view = poll.registry.rows[table.row]
    supposed = view.reads.sizes.means[0]

    def fail(operation):
        if isinstance(operation, ReadSlice):
            raise Unavailable("too large")

    table.pass_time(READ_AHEAD_AGE_US)
    with pytest.raises(NotDone):
        table.receive(poll, hook=fail)
    assert view.reads.sizes.means[0] > supposed


def test_a_search_for_what_is_claimed_ahead_only_notes_where_a_suspect_is():
    """A suspect costs no claim there and hides no other work; a claim of its own takes it alone."""
    table = Table()
    poll = table.rounds()
    sent = put(table, 2)
    assert ids_of(table.claim()) == sent
    table.pass_time(20 * SECOND_US)
    assert ids_of(table.claim()) == [], "but the sweep is over"
    table.pass_time(11 * SECOND_US)
    before = mutations(table)
    poll.gate = SuspectGate(shut=True)
    assert table.receive(poll) == []
    assert (poll.has_left_suspects, mutations(table)) == (True, before)
    suspect = table.run(poll.claim_suspect(table.spec, 10))
    assert len(suspect.taken) == 1
    assert not poll.has_left_suspects
    table.pass_time(SECOND_US)
    poll.gate = SuspectGate(shut=True)
    assert table.receive(poll) == []
    assert poll.has_left_suspects, "the other one"
    assert table.run(poll.claim_suspect(table.spec, 10)).taken == [], "while the first is held"


def test_no_claim_goes_by_a_head_that_was_only_glanced_at():
    """The head for the lock showed a mutation in part, and the next read failed: no claim may use it."""
    table = Table()
    _, moved = put(table, 2)
    one, two = table.claim(table.view(), want=2).taken
    table.run(ack.nack(two.lease, (moved,), 20_000, ack.Shared()))
    table.run(ack.free(table.run(ack.ack([one]))))
    table.pass_time(2 * RIVAL_WINDOW_US)
    put(table)
    table.run(ack.free(table.run(ack.ack(table.claim(want=10).taken))))  # a rival: the lock comes first
    table.pass_time(RIVAL_WINDOW_US - 10_000)  # the next claim sweeps over what was moved
    view, execute, reads = table.view(), table.store.execute, []

    def torn_then_failing(operation):
        if type(operation) is ReadHead:
            reads.append(operation)
            head = execute(operation)
            if len(reads) == 1:
                return replace(head, slots=tuple(slot for slot in head.slots if moved not in slot.ids))
            if len(reads) == 2:
                raise Unavailable("no answer")
        return execute(operation)

    table.store.execute = torn_then_failing
    with pytest.raises(NotDone):
        table.run(claim(view, table.spec, SuspectGate(), 10, stay=False))
    assert view.remembered.locked
    new = put(table)
    assert ids_of(table.run(claim(view, table.spec, SuspectGate(), 10, stay=False))) == new


def test_every_tenth_claim_begins_with_a_less_urgent_priority():
    """Each of them in turn, so that none starves; the others begin with the most urgent one."""
    for priorities, turns in (((0, 5), [(9, 5), (19, 5), (29, 5)]), ((0, 5, 9), [(9, 5), (19, 9), (29, 5)])):
        view, first = Table().view(None, *priorities), []
        for number in range(30):
            view.claims = number
            assert sorted(_order(view)) == list(priorities)
            first.append(_order(view)[0])
        assert [(number, priority) for number, priority in enumerate(first) if priority] == turns


@pytest.mark.parametrize("singles", [MAX_LISTED - 2, MAX_LISTED - 1, MAX_LISTED])
def test_a_pack_at_the_end_of_a_slots_list_stands_in_the_next_slot(singles):
    """Also where only its first message would still fit: who acks a whole pack deletes its row."""
    pack = ids.packed(NOON_US * 10, 7, 5)
    before = [ids.from_ticks(NOON_US * 10 - singles + number, 0) for number in range(singles)]
    parts = [[row.id for row in part] for part in _portions([message(id_) for id_ in [*before, *pack]])]
    assert parts == [before, list(pack)]
