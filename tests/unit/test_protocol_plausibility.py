"""Test that impossible times, and rows in quarantine, stop no wide row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cqueue import ids
from cqueue.message import to_datetime
from cqueue.protocol.ack import Shared, nack
from cqueue.protocol.policy import AHEAD_US, LAST_FENCE, is_lost, next_fence, restarted
from cqueue.protocol.retire import QUARANTINE_REST_US
from cqueue.store import codec
from cqueue.store.operations import (
    CursorRow,
    DeleteMessages,
    IdSlice,
    LockRow,
    LockState,
    Mutate,
    ReadIds,
    ReadSlice,
    Slice,
    SlotRow,
    SlotState,
)
from tests.simulation.hand import NOON_US, SECOND_US, Table, ids_of

YEARS_31_US = 31 * 365 * 86_400 * SECOND_US
END = (1 << 124) - 1


def write(table, *, lock=None, cursors=(), slots=()):
    """Write rows into the head, over all that is stored."""
    partition = table.store._partition(table.row)
    partition.lock = lock or partition.lock
    partition.cursors.update({row.priority: row for row in cursors})
    partition.slots.update({(row.priority, row.number): row for row in slots})


def slot(state, some, number=0, due_ms=0):
    return SlotRow(0, number, state, tuple(some), due_ms, 1, b"x", 7)


@pytest.mark.parametrize("fence", [5, NOON_US, 2**63 - 1])
def test_a_lease_that_nobody_can_have_is_no_lease(fence):
    """A claim takes a lock until in 31 years, and writes a fence that can be stored."""
    table = Table()
    some = table.put(NOON_US)
    write(table, lock=LockRow(LockState.LOCKED, b"x", (NOON_US + YEARS_31_US) // 1000, fence))
    assert ids_of(table.poll(table.view())) == some
    assert 0 < table.head().lock.fence < LAST_FENCE


def test_a_lease_that_somebody_may_have_is_kept():
    """A claim leaves a lock alone within its lease, then takes it."""
    table = Table()
    some = table.put(NOON_US)
    write(table, lock=LockRow(LockState.LOCKED, b"x", NOON_US // 1000 + table.spec.lease_ms, 5))
    assert ids_of(table.poll(table.view())) == []
    table.pass_time(table.spec.lease_ms * 1000)
    assert ids_of(table.poll(table.view())) == some


@given(st.none() | st.integers(-(2**63), 2**63 - 1), st.integers(1, LAST_FENCE - 1))
def test_a_fence_can_be_stored_and_grows_where_it_was_sane(stored, now_us):
    """The next fence is valid for any stored one."""
    fence = next_fence(stored, now_us)
    assert now_us <= fence <= LAST_FENCE
    assert stored is None or not 0 <= stored < LAST_FENCE or fence > stored


@pytest.mark.parametrize(
    "lost",
    [
        CursorRow(0, END, END),
        CursorRow(0, codec.BEYOND_ALL_IDS, codec.BEYOND_ALL_IDS),
        CursorRow(0, 0, ids.highest_at(NOON_US + YEARS_31_US)),
        CursorRow(0, ids.highest_at(NOON_US), ids.lowest_at(NOON_US - SECOND_US)),
    ],
)
def test_a_lost_cursor_hides_no_message(lost):
    """A sweep finds messages below the cursor, a slice those above it, and the cursor is written anew."""
    table = Table()
    old = table.put(NOON_US - 20 * SECOND_US, NOON_US - 10 * SECOND_US)
    write(table, cursors=(lost,))
    view = table.view()
    found = ids_of(table.poll(view))
    new = table.put(table.time_us + SECOND_US)
    table.pass_time(2 * SECOND_US)
    while set(found) < {*old, *new}:
        table.pass_time(SECOND_US)
        assert table.time_us < NOON_US + 30 * SECOND_US
        found += ids_of(table.poll(view))
    assert sorted(found) == sorted([*old, *new])
    assert not is_lost(table.cursor(), table.time_us)


def test_another_clock_a_little_ahead_loses_no_cursor():
    """Only a time that no clock of a deployment shows counts as damage."""
    at = CursorRow(0, 0, ids.highest_at(NOON_US + AHEAD_US))
    assert not is_lost(at, NOON_US)
    assert not is_lost(restarted(at, NOON_US), NOON_US)


def test_a_timeout_in_31_years_is_over():
    """The slot's messages are delivered again."""
    table = Table()
    some = table.put(NOON_US)
    write(table, slots=(slot(SlotState.CLAIMED, some, due_ms=(NOON_US + YEARS_31_US) // 1000),))
    assert ids_of(table.poll(table.view())) == some


def test_what_a_quarantined_slot_lists_is_not_claimed():
    """The slot is not overwritten either, and the next messages get slots of their own."""
    table = Table()
    held = table.put(NOON_US - SECOND_US)
    aside = slot(SlotState.QUARANTINED, held)
    write(table, slots=(aside, slot(SlotState.QUARANTINED, (), number=-1)))
    other = table.put(NOON_US)
    assert ids_of(table.poll(table.view())) == other
    stored = {row.number: row for row in table.head().slots}
    assert stored[0] == aside
    assert stored[1].ids == tuple(other)


def test_a_wide_row_with_a_quarantined_slot_is_retired_once_nothing_lives_in_it():
    """A quarantined slot without a live message keeps no wide row."""
    table = Table()
    write(table, slots=(slot(SlotState.QUARANTINED, [table.id_at(NOON_US)]),))
    table.time_us = table.end_us + 10 * SECOND_US
    table.poll(table.view())
    assert table.head().lock.state is LockState.RETIRED


def test_a_wide_row_with_a_quarantined_message_stays_and_rests():
    """The wide row keeps what an operator has to see, and is probed seldom."""
    table = Table()
    held = table.put(NOON_US)
    write(table, slots=(slot(SlotState.QUARANTINED, held),))
    table.time_us = table.end_us + 10 * SECOND_US
    view = table.view()
    assert ids_of(table.poll(view)) == []
    assert view.rest_until_us == table.time_us + QUARANTINE_REST_US
    assert table.head().lock is None or table.head().lock.state is not LockState.RETIRED


# ── The pass before retirement, with rows in quarantine beside live ones ──


def packed(table, at_us, count):
    """Return the ids of a pack at that time."""
    return list(ids.packed(at_us * 10, next(table._numbers), count))


def over(table):
    """A wide row that is over and swept, in the view of somebody who took nothing there.

    What is put there now is found by a pass only.
    """
    (first,) = table.put(NOON_US)
    (last,) = table.put(NOON_US + 50 * SECOND_US)
    table.pass_time(51 * SECOND_US)
    assert ids_of(table.claim()) == [first, last]
    view = table.view()
    table.store.execute(DeleteMessages(table.row, 0, (first, last)))
    while table.time_us < table.end_us + SECOND_US:
        table.pass_time(SECOND_US)
        table.poll(view)
    table.log.clear()
    return view


def passed(table, view, seconds=400):
    """Return what polls at these seconds deliver; each message is acked at once."""
    found = []
    for _ in range(seconds):
        table.pass_time(SECOND_US)
        some = ids_of(table.poll(view, want=500))
        found += some
        if some:
            table.store.execute(DeleteMessages(table.row, 0, tuple(some)))
    return sorted(found)


@pytest.mark.parametrize("gap_s", [0.05, 0.3, 0.5, 0.6, 1])
def test_a_pass_deletes_nothing_that_it_has_not_read(gap_s):
    """More strays than one read of ids shows are all delivered, and none is deleted as a phantom."""
    table = Table()
    view = over(table)
    strays = [id_ for _ in range(3) for id_ in packed(table, NOON_US + SECOND_US, 100)]
    strays += packed(table, NOON_US + SECOND_US + int(gap_s * SECOND_US), 100)
    table.insert(strays)
    assert passed(table, view) == sorted(strays)


def test_a_pass_delivers_what_stands_around_a_quarantined_slots_messages():
    """Quarantined ids fill a page, and are neither delivered nor deleted; packs around them are delivered."""
    table = Table()
    view = over(table)
    at_us = NOON_US + 5 * SECOND_US
    before = packed(table, at_us, 3)
    held = table.put(at_us + 10, at_us + 20, at_us + 25)
    after = packed(table, at_us + 30, 3)
    table.insert([*before, *after])
    write(table, slots=(slot(SlotState.QUARANTINED, held, number=7),))
    assert passed(table, view) == [*before, *after]
    assert table.store.execute(ReadIds(table.row, 0, 0, END, 10)).ids == held


@pytest.mark.parametrize("gap_s", [1, 40])
def test_a_pass_goes_on_behind_a_row_in_quarantine(gap_s):
    """Messages behind the row are delivered, near or far."""
    table = Table()
    view = over(table)
    held = table.put(NOON_US + SECOND_US)
    stray = table.put(NOON_US + (1 + gap_s) * SECOND_US)
    write(table, slots=(slot(SlotState.QUARANTINED, held, number=7),))
    assert passed(table, view) == stray


def test_a_pass_goes_on_behind_many_messages_in_quarantine():
    """The quarantined messages fill more than one read of ids."""
    table = Table()
    view = over(table)
    held = table.put(*(NOON_US + SECOND_US + at for at in range(250)))
    stray = table.put(NOON_US + SECOND_US + 300)
    write(table, slots=(slot(SlotState.QUARANTINED, held, number=7),))
    assert passed(table, view) == stray


# ── Numbers of slots, and locks of the future ──


def test_a_slot_with_the_last_number_does_not_drive_others_beyond_it():
    """Claims and nacks take numbers that are free, which can be stored and read."""
    table = Table()
    held = table.put(NOON_US - SECOND_US)
    last = slot(SlotState.CLAIMED, held, number=(1 << 20) - 1, due_ms=NOON_US // 1000 + 20_000)
    write(table, slots=(last,))
    table.put(NOON_US, NOON_US)
    claimed = table.claim()
    lease = claimed.taken[0].lease
    table.run(nack(lease, [claimed.taken[0].row.id], 1000, Shared()))
    numbers = sorted(row.number for row in table.head().slots)
    assert len(numbers) == 3
    assert numbers[1] < 20


def test_a_wide_row_that_is_not_over_was_not_dropped():
    """A lock that says so counts as free."""
    table = Table()
    some = table.put(NOON_US)
    write(table, lock=LockRow(LockState.RETIRED, b"x", 0, 5))
    assert ids_of(table.poll(table.view())) == some


@pytest.mark.parametrize("claimed", [False, True])
def test_a_wide_row_with_a_cursor_or_a_slot_was_not_dropped(claimed):
    """A lock that says so counts as free: what the wide row holds is delivered, and stays registered."""
    table = Table()
    some = table.put(NOON_US, NOON_US)
    if claimed:
        assert ids_of(table.poll(table.view())) == some
        table.pass_time(60 * SECOND_US)
    else:
        write(table, cursors=(CursorRow(0, 0, 0),))
    table.time_us = max(table.time_us, table.end_us + 10 * SECOND_US)
    write(table, lock=LockRow(LockState.RETIRED, b"x", 0, table.time_us))
    view, found = table.view(), []
    for _ in range(120):
        found += ids_of(table.poll(view))
        table.pass_time(SECOND_US)
    assert set(found) == set(some)


class Damaged:
    """A store in which the rows of some messages cannot be read; reads of ids show that, too, or do not."""

    def __init__(self, store, some, *, ids_show=True):
        self._store, self._some, self._ids_show = store, frozenset(some), ids_show

    def __getattr__(self, name):
        return getattr(self._store, name)

    def execute(self, operation):
        found = self._store.execute(operation)
        if isinstance(operation, ReadSlice):
            rows = [row for row in found.rows if row.id not in self._some]
            damaged = tuple(row.id for row in found.rows if row.id in self._some)
            return Slice(rows, found.tombstones, damaged)
        if isinstance(operation, ReadIds) and self._ids_show:
            return IdSlice(found.ids, found.tombstones, tuple(self._some & set(found.ids)))
        return found


def test_a_damaged_message_is_passed_over_once():
    """The boundary moves past the message, so that not every poll finds it again."""
    table = Table()
    first, damaged, last = table.put(NOON_US - 3, NOON_US - 2, NOON_US - 1)
    table.store = Damaged(table.store, [damaged, *table.put(NOON_US)])
    view = table.view()
    assert ids_of(table.poll(view)) == [first, last]
    table.pass_time(10 * SECOND_US)  # beyond look-back and sweep
    for _ in range(3):
        table.poll(view)
        table.pass_time(SECOND_US)
    before = sum(isinstance(op, Mutate | ReadSlice) for op in table.log)
    for _ in range(5):
        assert ids_of(table.poll(view)) == []
        table.pass_time(SECOND_US)
    assert sum(isinstance(op, Mutate | ReadSlice) for op in table.log) == before


@pytest.mark.parametrize("ids_show", [True, False])
def test_a_wide_row_with_a_damaged_message_is_kept(ids_show):
    """The message is not deleted as a pack without a message either. It is looked at seldom."""
    table = Table()
    pack = list(ids.packed(NOON_US * 10, 1, 3))
    table.insert(pack)
    table.store = Damaged(table.store, pack, ids_show=ids_show)
    table.time_us = table.end_us + 10 * SECOND_US
    view = table.view()
    for _ in range(3):
        assert ids_of(table.poll(view)) == []
        assert view.rest_until_us == table.time_us + QUARANTINE_REST_US
        table.pass_time(QUARANTINE_REST_US)
    assert table.store._store.execute(ReadIds(table.row, 0, 0, END, 10)).ids == pack
    assert table.head().lock.state is not LockState.RETIRED


class WithPhantoms(Damaged):
    """Reads of ids also show messages that no other read finds."""

    def __init__(self, store, damaged, phantoms):
        super().__init__(store, damaged, ids_show=False)
        self._phantoms = frozenset(phantoms)

    def execute(self, operation):
        found = super().execute(operation)
        if isinstance(operation, ReadSlice):
            return found._replace(rows=[row for row in found.rows if row.id not in self._phantoms])
        return found


def test_a_damaged_message_lets_the_wide_row_rest_whatever_another_priority_holds():
    """Priorities that are not registered are passed over together."""
    table = Table()
    damaged, phantoms = table.put(NOON_US, priority=1), table.put(NOON_US, priority=2)
    table.store = WithPhantoms(table.store, damaged, phantoms)
    table.time_us = table.end_us + 10 * SECOND_US
    view = table.view(0)
    assert ids_of(table.poll(view)) == []
    assert view.rest_until_us == table.time_us + QUARANTINE_REST_US


def rows_of_a_head():
    number = st.none() | st.integers(-(2**63), 2**63 - 1)
    small = st.none() | st.integers(-128, 127)
    id_ = st.none() | st.integers(0, END)
    return st.lists(
        st.tuples(
            st.integers(-1, 2), st.integers(0, 9), st.integers(0, END) | st.integers(0, 4).map(ids.slot_id),
            id_, id_, small, st.none() | st.binary(max_size=4), number, number,
            st.none() | st.lists(st.integers(0, END), max_size=3).map(tuple), number,
            st.none() | st.integers(-(2**31), 2**31 - 1), number, number, number,
        ),
        max_size=6,
    )  # fmt: skip


@given(rows_of_a_head())
def test_whatever_stands_in_a_head_a_claim_goes_on(rows):
    """With any column null or absurd, an unlisted message is delivered within two minutes."""
    table = Table()
    told = []
    head = codec.head(rows, lambda place, reason: told.append((place, reason)))
    partition = table.store._partition(table.row)
    partition.lock = head.lock
    partition.cursors.update(head.cursors)
    partition.slots.update({(row.priority, row.number): row for row in head.slots})
    (wanted,) = table.put(NOON_US)
    listed = {id_ for row in head.slots for id_ in row.ids}
    view, found = table.view(), []
    deadline_us = NOON_US + 120 * SECOND_US
    while wanted not in found and table.time_us < deadline_us and wanted not in listed:
        if head.lock is not None and head.lock.state is LockState.RETIRED:
            return  # its partition was dropped
        found += ids_of(table.poll(view))
        table.pass_time(SECOND_US)
    assert wanted in found or wanted in listed


@given(rows_of_a_head())
def test_whatever_stands_in_a_slot_its_timeout_is_a_date(rows):
    """A list of messages shows when each comes again, also of a slot with a time that no date can hold."""
    for row in codec.head(rows, lambda *_: None).slots:
        assert to_datetime(row.due_ms).year <= 9999


def test_an_attempt_that_cannot_grow_stops_nobody():
    """A queue without a limit of attempts writes one more at each claim, and the column is an int."""
    table = Table(max_attempts=0)
    held, other = table.put(NOON_US, NOON_US)
    row = (2, 0, ids.slot_id(0), *[None] * 2, 2, b"x", *[None] * 2, (held,), 0, 2**31 - 1, 7, *[None] * 2)
    write(table, slots=codec.head([row], lambda *_: None).slots)
    assert other in ids_of(table.poll(table.view()))
    assert all(each.attempt < 2**31 for each in table.head().slots)


@pytest.mark.parametrize("key", [(1, 0, 1), (1, 3, 0), (0, 0, 1), (-1, 0, 0)])
def test_a_row_of_a_head_under_a_key_that_no_claim_writes_is_ignored(key):
    """In place of the lock it would make all claims fail, as they write, and find, the lock elsewhere."""
    lock = (1, 0, ids.START, None, None, 0, b"x", 0, 70, *[None] * 5, 5)
    cursor = (0, 0, ids.START, 8 << 64, 9 << 64, *[None] * 9, -5)
    stray = (*key, 1 << 64, 2 << 64, 1, b"y", NOON_US // 1000, 7, *[None] * 5, 11)
    told = []
    found = codec.head(sorted([lock, cursor, stray]), lambda *said: told.append(said))
    assert found == codec.head([cursor, lock], lambda *said: told.append(said))
    assert [place for place, _ in told] == [key]
