"""Conditional mutations of a wide row: what every store promises."""

import pytest

from cqueue import ids
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import (
    RETIRED_TTL_S,
    CursorRow,
    HasMessages,
    InsertMessages,
    LockState,
    Mutate,
    ReadHead,
    ReadIds,
    SlotChange,
    SlotRow,
    SlotState,
)
from tests.fix_store import MovableClock, lock, message, new_id, new_ids, now_us

END = ids.highest_at(now_us() + 86_400_000_000)


def slot(number=0, rev=1, **values):
    row = SlotRow(0, number, SlotState.CLAIMED, (), 1_700_000_000_000, 1, b"me", rev)
    return row._replace(**values)


def slots_of(store, wide_row):
    return sorted(store.execute(ReadHead(wide_row)).slots)


def take(store, wide_row, expect, fence, **more):
    return store.execute(Mutate(wide_row, lock(fence), expect, **more))


def test_a_lock_is_taken_once(store, wide_row):
    """Of two that saw no lock, one gets it; the fence guards every later change."""
    assert take(store, wide_row, None, 5)
    assert not take(store, wide_row, None, 6)
    assert not take(store, wide_row, 4, 6)
    assert store.execute(ReadHead(wide_row)).lock == lock(5)
    assert take(store, wide_row, 5, 6)
    assert store.execute(ReadHead(wide_row)).lock == lock(6)


def test_a_lock_keeps_all_its_values(store, wide_row):
    """State, owner, until and fence are read as written, an empty owner too."""
    free = lock(2**62, LockState.FREE, b"")
    assert store.execute(Mutate(wide_row, free))
    head = store.execute(ReadHead(wide_row))
    assert head.lock == free
    assert head.lock.state is LockState.FREE


def test_tallies_are_kept(store, wide_row):
    """Of lock, cursor and slot, at both ends of their range; a head of which they add up to 0 is whole."""
    most, least = 2**63 - 1, -(2**63)
    cursor = CursorRow(0, new_id(), new_id(), least)
    changes = (SlotChange(None, slot(tally=most)), SlotChange(None, slot(1, tally=-5)))
    locked = lock(1)._replace(tally=6)
    assert store.execute(Mutate(wide_row, locked, None, (cursor,), changes))
    head = store.execute(ReadHead(wide_row))
    assert (head.lock, dict(head.cursors)) == (locked, {0: cursor})
    assert slots_of(store, wide_row) == [change.row for change in changes]
    assert head.is_whole
    assert take(store, wide_row, 1, 2)
    assert not store.execute(ReadHead(wide_row)).is_whole


def test_wrong_fence_stores_nothing(store, wide_row):
    """With the lock fail the cursors and the slots of the same mutation."""
    take(store, wide_row, None, 5)
    more = {"cursors": (CursorRow(0, 1 << 64, 2 << 64),), "slots": (SlotChange(None, slot()),)}
    assert not take(store, wide_row, 4, 9, **more)
    head = store.execute(ReadHead(wide_row))
    assert (head.lock, dict(head.cursors), head.slots) == (lock(5), {}, ())
    assert take(store, wide_row, 5, 9, **more)


def test_a_lock_that_overtakes_needs_no_fence_but_a_higher_one(store, wide_row):
    """The stored tally stays; where no lock is, or a retired wide row, it is not written."""
    over = lock(7, owner=b"over")
    assert not store.execute(Mutate(wide_row, over, overtakes=True))
    stored = lock(5)._replace(tally=-3)
    assert store.execute(Mutate(wide_row, stored))
    assert store.execute(Mutate(wide_row, over, overtakes=True))
    assert store.execute(ReadHead(wide_row)).lock == over._replace(tally=-3)
    assert not store.execute(Mutate(wide_row, over, overtakes=True))
    assert not take(store, wide_row, 5, 8)
    retired = lock(8, LockState.RETIRED)
    assert store.execute(Mutate(wide_row, retired, 7, retire=True))
    assert not store.execute(Mutate(wide_row, lock(now_us()), overtakes=True))
    assert store.execute(ReadHead(wide_row)).lock == retired


def test_cursors_move_with_the_lock(store, wide_row):
    """One per priority; those not named stay."""
    first, second = CursorRow(0, new_id(), new_id()), CursorRow(9, ids.START, new_id())
    take(store, wide_row, None, 1, cursors=(first, second))
    assert dict(store.execute(ReadHead(wide_row)).cursors) == {0: first, 9: second}
    moved = first._replace(boundary=new_id())
    take(store, wide_row, 1, 2, cursors=(moved,))
    assert dict(store.execute(ReadHead(wide_row)).cursors) == {0: moved, 9: second}


def test_one_wrong_revision_stores_nothing(store, wide_row):
    """All slots as expected, or no change at all: neither lock nor cursor nor any slot."""
    take(store, wide_row, None, 1, slots=tuple(SlotChange(None, slot(n)) for n in range(3)))
    changes = [SlotChange(1, slot(n, rev=2)) for n in range(3)]
    before = store.execute(ReadHead(wide_row))
    for wrong in (0, 7, None):
        one_wrong = (*changes[:2], SlotChange(wrong, slot(2, rev=2)))
        assert not take(store, wide_row, 1, 2, slots=one_wrong, cursors=(CursorRow(0, 0, new_id()),))
        assert store.execute(ReadHead(wide_row)) == before
    assert take(store, wide_row, 1, 2, slots=tuple(changes))
    assert [s.rev for s in slots_of(store, wide_row)] == [2, 2, 2]


def test_slots_can_change_without_the_lock(store, wide_row):
    """A nack or an extension is conditional on revisions only, both of them."""
    source, target = slot(0, ids=tuple(new_ids(2))), slot(1, state=SlotState.WAITING)
    assert store.execute(Mutate(wide_row, slots=(SlotChange(None, source),)))
    assert store.execute(ReadHead(wide_row)).lock is None
    both = (
        SlotChange(1, source._replace(ids=source.ids[:1], rev=2)),
        SlotChange(None, target._replace(ids=source.ids[1:])),
    )
    assert store.execute(Mutate(wide_row, slots=both))
    assert not store.execute(Mutate(wide_row, slots=both))
    assert [s.ids for s in slots_of(store, wide_row)] == [source.ids[:1], source.ids[1:]]


@pytest.mark.parametrize("count", [0, 1, 500])
def test_a_slot_keeps_all_its_values(store, wide_row, count):
    """Ids in the order given, none or 500 of them; an empty owner; all states."""
    for number, state in enumerate(SlotState):
        row = slot(
            number,
            priority=3,
            state=state,
            ids=tuple(reversed(new_ids(count))),
            due_ms=2**45,
            attempt=number,
            owner=b"",
            rev=2**60,
            died_at_ms=1_700_000_000_001,
        )
        assert store.execute(Mutate(wide_row, slots=(SlotChange(None, row),)))
        assert slots_of(store, wide_row)[number] == row
        assert slots_of(store, wide_row)[number].state is state


def test_a_slot_is_overwritten_as_a_whole(store, wide_row):
    """A freed slot has no ids left and, taken again, no time of death."""
    store.execute(Mutate(wide_row, slots=(SlotChange(None, slot(ids=(new_id(),), died_at_ms=5)),)))
    freed = slot(state=SlotState.FREE, rev=2)
    assert store.execute(Mutate(wide_row, slots=(SlotChange(1, freed),)))
    assert slots_of(store, wide_row) == [freed]
    assert freed.died_at_ms is None


def test_slots_are_numbered_per_priority(store, wide_row):
    """Slot 3 of one priority is not slot 3 of another; numbers far apart are kept."""
    rows = [slot(3, priority=0), slot(3, priority=1), slot(40_000, priority=1)]
    store.execute(Mutate(wide_row, slots=tuple(SlotChange(None, row) for row in rows)))
    assert slots_of(store, wide_row) == rows


def test_many_conditions_in_one_mutation(store, wide_row):
    """Twenty slots and the lock change at once."""
    take(store, wide_row, None, 1, slots=tuple(SlotChange(None, slot(n)) for n in range(20)))
    assert take(store, wide_row, 1, 2, slots=tuple(SlotChange(1, slot(n, 2)) for n in range(20)))
    assert [s.rev for s in slots_of(store, wide_row)] == [2] * 20


def test_a_serial_read_sees_the_same(store, wide_row):
    """The head at serial consistency equals the head at quorum, when nothing is under way."""
    take(store, wide_row, None, 1, slots=(SlotChange(None, slot(ids=(new_id(),))),))
    assert store.execute(ReadHead(wide_row, serial=True)) == store.execute(ReadHead(wide_row))


# ── Retirement ──


def retire(store, wide_row, expect, fence):
    return store.execute(Mutate(wide_row, lock(fence, LockState.RETIRED, b""), expect, retire=True))


def test_retirement_leaves_the_marker_only(store, wide_row):
    """The lock row, written in the same mutation as the delete of the partition, survives it."""
    insert = InsertMessages(wide_row, tuple(message(id_) for id_ in new_ids(5)))
    store.execute(insert)
    changes = (SlotChange(None, slot(0)), SlotChange(None, slot(1)))
    take(store, wide_row, None, 1, cursors=(CursorRow(0, 0, new_id()),), slots=changes)
    assert retire(store, wide_row, 1, 2)
    head = store.execute(ReadHead(wide_row))
    assert head.lock == lock(2, LockState.RETIRED, b"")
    assert (dict(head.cursors), head.slots) == ({}, ())
    assert store.execute(ReadIds(wide_row, 0, ids.START, END, 10)).ids == []
    store.execute(insert)
    store.execute(InsertMessages(wide_row, tuple(row._replace(priority=3) for row in insert.rows)))
    assert not store.execute(HasMessages(wide_row))


def test_the_marker_of_retirement_expires_in_memory(wide_row):
    """As Cassandra's does; a lock that was taken after it stays."""
    store = MemoryStore(MovableClock())
    take(store, wide_row, None, 1)
    retire(store, wide_row, 1, 2)
    store._clock_us.added_us += RETIRED_TTL_S * 1_000_000 - 1_000_000
    assert store.execute(ReadHead(wide_row)).lock is not None
    store._clock_us.added_us += 1_000_000
    assert store.execute(ReadHead(wide_row)).lock is None
    take(store, wide_row, None, 3)
    store._clock_us.added_us += RETIRED_TTL_S * 1_000_000
    assert store.execute(ReadHead(wide_row)).lock == lock(3)


@pytest.mark.parametrize("parts", [{}, {"cursors": (CursorRow(0, 0, 0),)}, {"retire": True}])
def test_a_mutation_without_a_condition_is_refused(wide_row, parts):
    """Cassandra would apply it beside another client's claim."""
    with pytest.raises(ValueError, match="without a condition"):
        Mutate(wide_row, slots=(SlotChange(None, slot()),) if parts else (), **parts)


def test_retirement_needs_the_fence(store, wide_row):
    """With a wrong fence everything stays."""
    store.execute(InsertMessages(wide_row, (message(id_ := new_id()),)))
    take(store, wide_row, None, 1, slots=(SlotChange(None, slot()),))
    before = store.execute(ReadHead(wide_row))
    assert not retire(store, wide_row, None, 2)
    assert not retire(store, wide_row, 7, 8)
    assert store.execute(ReadHead(wide_row)) == before
    assert store.execute(ReadIds(wide_row, 0, ids.START, END, 10)).ids == [id_]


def test_a_retired_wide_row_can_be_used_again(store, wide_row):
    """Mutations, cursors, slots and messages written after a retirement are stored."""
    take(store, wide_row, None, 1, slots=(SlotChange(None, slot()),))
    retire(store, wide_row, 1, 2)
    assert not take(store, wide_row, None, 3)
    assert not take(store, wide_row, 1, 3)
    cursor, again = CursorRow(0, 0, new_id()), slot(0, rev=9, ids=(new_id(),))
    assert take(store, wide_row, 2, 3, cursors=(cursor,), slots=(SlotChange(None, again),))
    head = store.execute(ReadHead(wide_row))
    assert (head.lock, dict(head.cursors), head.slots) == (lock(3), {0: cursor}, (again,))
    store.execute(InsertMessages(wide_row, (message(id_ := new_id()),)))
    assert store.execute(ReadIds(wide_row, 0, ids.START, END, 10)).ids == [id_]
    assert retire(store, wide_row, 3, 4)
    assert store.execute(ReadHead(wide_row)).slots == ()


def test_retirement_spares_rows_beyond_now(store, wide_row):
    """The delete lies just below now: a message due later, with a later timestamp, is not covered."""
    early, late = new_id(now_us() - 1_000_000), new_id(now_us() + 600_000_000)
    store.execute(InsertMessages(wide_row, (message(early), message(late))))
    take(store, wide_row, None, 1)
    assert retire(store, wide_row, 1, 2)
    assert store.execute(ReadIds(wide_row, 0, ids.START, END, 10)).ids == [late]
