"""Test the tombstone budget of sweeps, passes and look-backs: about 1,000 tombstones a read at most."""

from types import SimpleNamespace

import pytest

from cqueue import ids
from cqueue.protocol import budget as budgets
from cqueue.protocol.budget import (
    FIRST_PIECE_US,
    MAX_COUNTED_TOMBSTONES,
    MAX_PIECES,
    PIECES_TO_DOUBLE,
    SHORTEST_PIECE_US,
    TARGET_TOMBSTONES,
    TombstoneBudget,
)
from cqueue.protocol.row_memory import ReadMemory, RowMemory
from cqueue.protocol.unclaimed import look_back
from cqueue.store.operations import CursorRow, WideRow


def view() -> RowMemory:
    return RowMemory(WideRow("q@1", 0, 0), 30_000_000, {0}, ReadMemory(TombstoneBudget(0, 30_000_000)))


def test_a_pass_goes_no_faster_than_where_messages_lay_densest():
    """After a sparse part the next one may be as dense as the densest, and threefold in places."""
    row = view()
    row.reads.budget.note_density(500, 500, 600_000)  # 500 messages in 600 ms
    for _ in range(10 * PIECES_TO_DOUBLE):
        row.reads.budget.note_tombstones(0)
    assert row.reads.budget.piece_us == 200_000 * TARGET_TOMBSTONES // 500
    row.reads.budget.restart()
    assert row.reads.budget.piece_us == 200_000 * TARGET_TOMBSTONES // 500


def test_a_pass_takes_no_more_pieces_than_it_is_worth():
    """A burst of 500 messages in a millisecond does not cut half a minute into 30,000 reads."""
    row = view()
    row.reads.budget.note_density(500, 500, 1000)
    row.reads.budget.restart()
    assert row.reads.budget.piece_us == SHORTEST_PIECE_US
    for _ in range(10 * PIECES_TO_DOUBLE):
        row.reads.budget.note_tombstones(0)
    assert row.reads.budget.piece_us == row.end_us // MAX_PIECES


def test_the_bound_hangs_on_how_long_a_wide_row_is_and_not_on_its_date():
    """Else pieces would grow again to a minute, however densely messages lay."""
    begin_us = 1_700_000_000_000_000
    budget = TombstoneBudget(begin_us, begin_us + 30_000_000)
    budget.note_density(500, 500, 1000)
    for _ in range(10 * PIECES_TO_DOUBLE):
        budget.note_tombstones(0)
    assert budget.piece_us == 30_000_000 // MAX_PIECES


def test_too_many_tombstones_shorten_the_next_piece_in_proportion():
    """A piece that crosses ten times its target is followed at once by one a tenth as long."""
    row = view()
    row.reads.budget.note_tombstones(TARGET_TOMBSTONES * 10)
    assert row.reads.budget.piece_us == FIRST_PIECE_US // 10
    row.reads.budget.restart()
    assert row.reads.budget.piece_us == FIRST_PIECE_US // 10


def test_pieces_grow_only_after_several_good_ones():
    """One sparse piece says little about the next."""
    row = view()
    for _ in range(PIECES_TO_DOUBLE - 1):
        row.reads.budget.note_tombstones(0)
    assert row.reads.budget.piece_us == FIRST_PIECE_US
    row.reads.budget.note_tombstones(0)
    assert row.reads.budget.piece_us == 2 * FIRST_PIECE_US


# ── look-back ──

EPSILON_US = 500_000
SPEC = SimpleNamespace(skew_us=EPSILON_US)
DUE_US = 10_000_000  # late enough for any look-back to be due


def at(us):
    return ids.lowest_at(us)


def cursor(boundary_us):
    return CursorRow(0, 0, at(boundary_us))


def took(row: RowMemory, after_us: int, upto_us: int, count: int) -> None:
    """Note `count` taken messages, evenly spread between an old boundary and a new one."""
    step_us = (upto_us - after_us) / count
    row.reads.budget.note_taken(
        0, at(after_us), [at(after_us + round(step_us * (number + 1))) for number in range(count)]
    )


def test_a_look_back_covers_what_was_taken_last_and_no_more_than_may_be_crossed():
    """Of two batches of 300 messages, a look-back reads the later one and part of the earlier."""
    row = view()
    took(row, 1_000_000, 1_010_000, 300)
    took(row, 1_010_000, 1_020_000, 300)
    after, upto = look_back(row, SPEC, cursor(1_020_000), DUE_US)
    assert (after, upto) == (at(1_005_000), at(1_020_000))


def test_a_look_back_leaves_what_others_took_to_them():
    """A consumer cannot know how many tombstones lie where another one has moved the boundary."""
    row = view()
    took(row, 1_000_000, 1_010_000, 300)
    assert look_back(row, SPEC, cursor(2_000_000), DUE_US) == (at(1_000_000), at(1_010_000))
    took(row, 2_000_000, 2_010_000, 101)
    assert look_back(row, SPEC, cursor(2_010_000), DUE_US) == (at(2_000_000), at(2_010_000))
    assert look_back(view(), SPEC, cursor(2_010_000), DUE_US) is None


def test_a_look_back_is_not_made_where_a_sweep_was_already():
    """All that this consumer took lies below the cursor."""
    row = view()
    took(row, 1_000_000, 1_010_000, 300)
    assert look_back(row, SPEC, CursorRow(0, at(1_009_999), at(2_000_000)), DUE_US) is not None
    assert look_back(row, SPEC, CursorRow(0, at(1_010_000), at(2_000_000)), DUE_US) is None


def test_a_look_back_covers_all_of_epsilon_where_messages_are_few():
    """In a trickle, reading the last ε again costs nothing, whichever consumer took the messages."""
    row = view()
    took(row, 1_000_000, 2_000_000, 20)
    assert look_back(row, SPEC, cursor(3_000_000), DUE_US) == (at(3_000_000 - EPSILON_US), at(3_000_000))


def test_where_tombstones_lie_is_known_of_what_we_took():
    """A read within the counted messages ends after a few hundred; outside of them nothing is known."""
    row = view()
    assert row.reads.budget.counted_end(0, 0, at(10_000)) is None
    for number in range(20):
        took(row, number * 1000, (number + 1) * 1000, 150)
    assert row.reads.budget.counted_end(0, at(0), at(20_000)) == at(5000)  # five, and not six
    assert row.reads.budget.counted_end(0, at(5000), at(20_000)) == at(10_000)
    assert row.reads.budget.counted_end(0, at(2500), at(3000)) == at(3000)
    assert row.reads.budget.counted_end(0, at(17_000), at(50_000)) == at(20_000)
    assert row.reads.budget.counted_end(0, at(20_000), at(50_000)) is None
    assert row.reads.budget.counted_end(1, at(0), at(10_000)) is None


def test_no_read_of_what_we_took_crosses_too_much():
    """The bound holds from any id, and however the messages were taken."""
    row = view()
    sizes = [1, 700, 3, 149, 151, 20, 450, 80] * 20
    for number, size in enumerate(sizes):
        took(row, number * 1000, (number + 1) * 1000, size)
    after, last, reads = at(0), at(len(sizes) * 1000), 0
    while after < last:
        after, reads = row.reads.budget.counted_end(0, after, last), reads + 1
    assert sum(sizes) / MAX_COUNTED_TOMBSTONES <= reads <= 3 * sum(sizes) / MAX_COUNTED_TOMBSTONES


def test_what_others_took_is_not_known():
    row = view()
    took(row, 0, 1000, 10)
    took(row, 1000, 2000, 10)
    took(row, 3000, 4000, 10)
    assert row.reads.budget.counted_end(0, at(0), at(4000)) is None
    assert row.reads.budget.counted_end(0, at(3000), at(4000)) == at(4000)


def test_what_is_remembered_of_taken_messages_grows_slowly():
    """Claims of ten messages each leave one entry for as many of them as one read may cross."""
    row = view()
    for number in range(1500):
        took(row, number * 1000, (number + 1) * 1000, 10)
    known = row.reads.budget._taken[0]
    assert len(known._older) + len(known.recent) <= 15_000 / MAX_COUNTED_TOMBSTONES + TARGET_TOMBSTONES / 10


def test_a_ctrl_c_while_messages_are_counted_leaves_the_counts_usable(monkeypatch):
    """Else each later receive of the consumer would end in an IndexError."""
    budget = view().reads.budget

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(budgets, "_stretches", interrupt)
        with pytest.raises(KeyboardInterrupt):
            budget.note_taken(0, 0, [ids.lowest_at(1)])
    assert budget.recent(0) is None
    budget.note_taken(0, 0, [ids.lowest_at(1)])
    assert budget.recent(0) == (0, ids.lowest_at(1))
