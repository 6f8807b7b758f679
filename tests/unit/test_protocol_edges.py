"""Decisions at their edges: each test is here because a changed decision was noticed by no other."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from cqueue import ids
from cqueue.errors import MessageHeld, NotDone, OutcomeUnknown
from cqueue.protocol import ack, by_id, inspection, keys, policy, registry, unclaimed, writing
from cqueue.protocol.claim import claim
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.lock import acquire, mutate_once_beside, prepare_fence, was_applied
from cqueue.protocol.probe import head_has_work
from cqueue.protocol.row_memory import RIVAL_WINDOW_US, Hint, RememberedHead
from cqueue.store import packs
from cqueue.store.cells import Unreadable
from cqueue.store.operations import (
    DeleteMessages,
    Head,
    LockRow,
    LockState,
    Mutate,
    ReadHead,
    SlotChange,
    SlotRow,
    SlotState,
    Together,
    WideRow,
)
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, SKEW_US, Table, ids_of


def slot(number, state=SlotState.CLAIMED, due_ms=0, some=(1,)):
    return SlotRow(0, number, state=state, ids=some, due_ms=due_ms, attempt=1, owner=b"me", rev=number)


def test_marks_that_no_pack_can_have_mean_nothing():
    """A stretch that ends before it begins, and a place below the first."""
    for mark in (5 * 256 + 2, -1, -300):
        assert packs.gone_mask([mark]) == 0
        assert packs.gone_mask([mark, 3 * 256 + 4]) == 0b11000


def test_bodies_that_just_fit_are_written_together(monkeypatch):
    """The bound is what may be under way, not one byte less."""
    monkeypatch.setattr(writing, "BYTES_IN_FLIGHT", 100)
    for body, headers in ((50, None), (45, {"a": "1234"})):
        entries = [SimpleNamespace(body=bytes(body), headers=headers) for _ in range(3)]
        assert list(writing._stretches(entries, 10)) == [(0, 2), (2, 3)]
    for size, is_full in ((writing.PART_BYTES - 1, False), (writing.PART_BYTES, True)):
        assert writing.Part(size=size).is_full is is_full


def test_a_dropped_wide_row_gives_no_fence():
    """A consumer that finds the mark of a retired wide row claims nothing there."""
    table = Table()
    table.store.execute(Mutate(table.row, lock=LockRow(LockState.RETIRED, b"", 0, 1), expect_fence=None))
    table.pass_time(table.end_us - NOON_US + SETTLE_US + SKEW_US + SECOND_US)
    view = table.view()
    assert table.run(prepare_fence(view, table.spec)) is False
    assert view.retired


def test_what_shows_that_a_mutation_was_applied():
    """Of a holder's two slots either one; of a claim each slot that lists messages, or the lock alone."""
    one, other = slot(1), slot(2)
    changes = (SlotChange(None, one), SlotChange(None, other))
    row, lock = WideRow("q@1", 0, 0), LockRow(LockState.FREE, b"", 0, 7)
    assert was_applied(Head(slots=(other,)), Mutate(row, slots=changes))
    assert not was_applied(Head(slots=(other,)), Mutate(row, slots=changes, lock=lock))
    freed = slot(3, SlotState.FREE, some=())
    assert not was_applied(Head(), Mutate(row, slots=(SlotChange(1, freed),), lock=lock))


def test_an_open_wide_row_with_a_held_message_is_no_work_for_its_age():
    """It is once nothing is listed there any more, and gc_grace is over."""
    table = Table(name="q.dead", width_ms=600_000)
    view = table.view(WideRow("q.dead@1", NOON_US // 1000, -1))
    now_us = view.retire_at_us(table.spec)
    view.reads.floors.pass_at_us = now_us + 1
    for slots, expected in (((), True), ((slot(1, due_ms=now_us // 1000 + 60_000),), False)):
        view.remembered.head = Head(slots=slots)
        assert head_has_work(view, table.spec, SuspectGate(), now_us) is expected
        assert head_has_work(view, table.spec, SuspectGate(), now_us - 1) is False


def test_a_change_that_may_be_done_stays_unknown_if_the_head_cannot_be_read_again():
    """Its answer is lost, a consumer takes the message from where it was put, and no later try may say no."""
    table, lost = Table(), False
    table.claim()
    (message,) = table.put(NOON_US)
    table.pass_time(2 * RIVAL_WINDOW_US)

    def hook(operation: object) -> None:
        nonlocal lost
        if type(operation) is Mutate and operation.slots:
            table.store.execute(operation)
            table.pass_time(RIVAL_WINDOW_US)
            assert ids_of(table.claim()) == [message]
            lost = True
            raise OutcomeUnknown("no answer")
        if lost and type(operation) is ReadHead and not operation.serial:
            raise NotDone("no answer")

    change = by_id.reschedule(table.spec, table.row, 0, [message], table.time_us // 1000)
    with pytest.raises(OutcomeUnknown, match="may have been applied"):
        table.run(change, hook)
    assert lost


def test_a_change_without_an_answer_whose_message_was_claimed_is_unknown():
    """It was moved, or a consumer came first: the read shows only that one holds the message now."""
    table = Table()
    table.claim()
    (message,) = table.put(NOON_US)
    table.pass_time(2 * RIVAL_WINDOW_US)
    lost = False

    def hook(operation: object) -> None:
        nonlocal lost
        if type(operation) is Mutate and operation.slots and not lost:
            lost = True
            table.store.execute(operation)
            table.pass_time(RIVAL_WINDOW_US)
            assert ids_of(table.claim()) == [message]
            raise OutcomeUnknown("no answer")

    change = by_id.reschedule(table.spec, table.row, 0, [message], table.time_us // 1000)
    changed = table.run(change, hook)
    assert (changed.done, type(changed.failed[message])) == (set(), OutcomeUnknown)


def test_a_change_is_done_though_its_lock_cannot_be_released():
    """A consumer with a backlog claims and gives back the message just before the change takes its lock."""
    table = Table()
    message = table.put(*(NOON_US + number for number in range(4)))[-1]
    table.pass_time(SECOND_US)
    consumer, unlocks = table.view(), 0
    table.claim(consumer, want=1)

    def hook(operation: object) -> None:
        nonlocal unlocks
        if type(operation) is not Mutate:
            return
        if operation.lock and operation.slots:
            table.claim(consumer, want=1)
        elif operation.overtakes:
            for lease in {taken.lease for taken in table.claim(consumer, want=5).taken}:
                table.run(ack.release(lease))
        elif not operation.slots:
            unlocks += 1
            raise NotDone("no answer")

    change = by_id.reschedule(table.spec, table.row, 0, [message], table.time_us // 1000 + 60_000)
    assert table.run(change, hook).done == {message}
    assert unlocks == 1


def test_a_lock_that_ran_out_and_that_a_sweep_left_keeps_nobody_out():
    """The sweep's consumer counts it as its own; another one claims all the same, and then each goes on."""
    table = Table()
    some = table.put(*(NOON_US + number for number in range(4)))
    table.pass_time(SECOND_US)
    table.claim(table.view(), want=2)  # and dies with the lock
    table.store.execute(DeleteMessages(table.row, 0, tuple(some[2:])))
    table.pass_time(SETTLE_US + SKEW_US + SECOND_US)
    consumer = table.view()
    assert ids_of(table.claim(consumer)) == []
    assert table.head().lock.state is LockState.LOCKED
    assert consumer.remembered.locked
    first = table.put(table.time_us)
    assert ids_of(table.claim()) == first
    second = table.put(table.time_us)
    assert ids_of(table.claim(consumer)) == second
    assert table.head().lock.state is LockState.FREE


def test_no_more_messages_are_looked_at_than_asked_for():
    """Also where they stand in several pieces of a walk."""
    table = Table()
    some = table.put(NOON_US, NOON_US + 1000, *(NOON_US + 20 * SECOND_US + number for number in range(5)))
    rows = table.run(inspection._first_rows(table.spec, table.row, 0, 3))
    assert [row.id for row in rows] == some[:3]


def test_an_epoch_closes_with_the_last_wide_row_that_starts_in_it():
    """An open wide row is longer, and takes acknowledged messages until gc_grace is over."""
    spec = Table(width_ms=3_000_000).spec
    normal = registry.epoch_at(spec, NOON_US // 1000)
    starts = range(normal // 3_000_000 * 3_000_000, normal + spec.epoch_ms, 3_000_000)
    assert registry.closed_at_us(spec, normal) == (starts[-1] + 3_000_000) * 1000 + SETTLE_US + SKEW_US
    open_ = registry.epoch_at(spec, NOON_US // 1000, open_=True)
    width_ms, begins_ms = 3_000_000 * registry.OPEN_WIDTHS, registry.epoch_start_ms(open_)
    starts = range(begins_ms // width_ms * width_ms, begins_ms + registry.DAY_MS, width_ms)
    ends_us = (starts[-1] + width_ms) * 1000
    assert registry.closed_at_us(spec, open_) == ends_us + SETTLE_US + SKEW_US + spec.gc_grace_us


def test_a_rival_counts_for_its_window():
    """And not a moment longer."""
    remembered = RememberedHead(rival_us=NOON_US)
    assert not remembered.expects_no_rival(NOON_US + RIVAL_WINDOW_US - 1)
    assert remembered.expects_no_rival(NOON_US + RIVAL_WINDOW_US)


def test_a_sweep_that_a_full_answer_cuts_off_goes_on_from_there():
    """Also if all that it read is held: what follows unread may be a late message."""
    table = Table()
    table.put(*(NOON_US + number * 1000 for number in range(5)))
    table.pass_time(10_000)
    assert len(ids_of(table.claim())) == 5
    late = table.put(NOON_US + 3500)
    table.pass_time(SETTLE_US + SKEW_US + SECOND_US)
    other, found = table.view(), list[int]()
    with patch.object(unclaimed, "MAX_IDS", 2):
        for _ in range(6):
            found += ids_of(table.claim(other))
            table.pass_time(200_000)
    assert found == late
    assert ids.time_us(late[0]) < NOON_US + 4000


def test_a_single_row_that_is_odd_is_looked_at():
    """The short way is for rows with a sound time and nothing but a body."""
    plain = (0, ids.from_ticks(NOON_US * 10, 1), b"x", None, None, None, None, None, None, 5, None, 0, None)
    assert len(packs.messages([plain]).messages) == 1
    for column, value in ((9, -5), (9, packs.LAST_MS + 1), (3, 7), (4, Unreadable(b"\xff"))):
        row = (*plain[:column], value, *plain[column + 1 :])
        assert not packs.messages([row]).messages
        assert list(packs.messages([row]).damaged) == [plain[1]]


def test_a_lock_alone_shows_that_it_was_written():
    lock, other = LockRow(LockState.FREE, b"a", 0, 7), LockRow(LockState.FREE, b"b", 0, 8)
    row = WideRow("q@1", 0, 0)
    assert was_applied(Head(lock=lock), Mutate(row, lock=lock))
    assert not was_applied(Head(lock=other), Mutate(row, lock=lock))
    assert not was_applied(Head(), Mutate(row, lock=lock))


def test_an_open_wide_row_spans_ten_time_shards():
    """Dead letters are few, so that shorter ones would be many empty wide rows."""
    spec = Table().spec
    width_us = spec.width_ms * registry.OPEN_WIDTHS * 1000
    begins_us = NOON_US // width_us * width_us
    for time_us in (begins_us, begins_us + width_us - 1):
        assert registry.open_row(spec, time_us, b"x").time_shard * 1000 == begins_us
    assert registry.open_row(spec, begins_us + width_us, b"x").time_shard * 1000 == begins_us + width_us


def test_a_look_at_several_wide_rows_ends_with_what_was_asked_for():
    """It gives no message too many, and reads no further head."""
    table = Table()
    rows = [table.row._replace(shard=shard) for shard in range(4)]
    some = []
    for row in rows:
        for registration in registry.registration(table.spec, row, 0):
            table.store.execute(registration)
        some += table.put(NOON_US, NOON_US + 1, row=row)
    assert [found.row.id for found in table.run(inspection.peek(table.spec, 3))] == some[:3]
    assert {one.wide_row for one in table.log if type(one) is ReadHead} < set(rows)


def test_a_change_by_id_takes_no_lock_where_nobody_comes_between():
    """Each lock would be two mutations more, and keep consumers out."""
    table = Table()
    (first, second) = table.put(NOON_US, NOON_US + 1)
    table.pass_time(1000)
    assert ids_of(table.claim(want=1)) == [first]
    table.log.clear()
    changed = table.run(by_id.reschedule(table.spec, table.row, 0, [second], NOON_US // 1000 + 60_000))
    assert changed.done == {second}
    assert sum(type(one) is Mutate for one in table.log) == 1


def test_a_change_by_id_overtakes_claims_that_leave_the_lock_free():
    """A consumer that claims by name comes between each read and write of a change."""
    table = Table()
    view = table.view()
    table.put(NOON_US)
    table.pass_time(1000)
    table.claim(view)
    (later,) = table.put(table.time_us + 20 * SECOND_US)

    def claim_first(operation):
        if type(operation) is Mutate and not operation.overtakes:
            named = table.put(table.time_us)
            table.pass_time(1000)
            hint = Hint(table.row, frozenset({0}), tuple(named))
            got = table.run(claim(view, table.spec, SuspectGate(), 10, hint=hint))
            view.finished += table.run(ack.ack(got.taken))

    assert table.run(by_id.cancel(table.spec, table.row, 0, [later]), claim_first).done == {later}


def test_a_change_by_id_does_not_go_by_slots_that_are_older_than_the_lock():
    """A lock that overtakes writes no tally, so a torn read may show the slots of before a claim."""
    table = Table()
    consumer, rival = table.view(), table.view()
    table.put(NOON_US)
    table.pass_time(1000)
    consumer.finished += table.run(ack.ack(table.claim(consumer).taken))
    held, *_ = table.put(*(table.time_us + number for number in range(5)))
    table.pass_time(1000)
    before = table.head()
    claimed = table.run(claim(consumer, table.spec, SuspectGate(), 1, stay=True))
    assert ids_of(claimed) == [held]
    rival.remembered.note_read(table.head(), table.time_us)
    assert table.run(acquire(rival, table.spec, overtakes=True))
    now = table.head()
    torn = replace(before, lock=now.lock._replace(tally=before.lock.tally))
    assert policy.is_whole(torn)
    execute, reads = table.store.execute, []

    def answer(operation):
        if type(operation) is ReadHead and not reads:
            reads.append(operation)
            return torn
        return execute(operation)

    with patch.object(table.store, "execute", answer):
        changed = table.run(by_id.reschedule(table.spec, table.row, 0, [held], table.time_us // 1000))
    assert isinstance(changed.failed[held], MessageHeld)
    assert table.listed().count(held) == 1


def test_what_a_claim_took_does_not_wait_for_the_read_beside_it():
    """A read that failed is not repeated before the claim's outcome is known."""
    row = WideRow("q@1", 0, 0)
    mutation, read = Mutate(row, lock=LockRow(LockState.FREE, b"a", 0, 7)), ReadHead(row)
    assert next(mutate_once_beside(mutation, read)) == Together((mutation, read), retried=False)


def test_a_scan_of_all_keys_begins_at_the_lowest_token():
    """Cassandra's tokens are signed, and it refuses one that does not fit 64 bits."""
    assert next(keys.forget(Table().spec)).after == -(2**63)
