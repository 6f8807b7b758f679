"""The pace of sweeps, passes and look-backs: no read is to cross more than about 1,000 tombstones."""

from types import SimpleNamespace

from cqueue import ids
from cqueue.protocol.fresh import look_back
from cqueue.protocol.view import (
    FIRST_PACE_US,
    GENTLE_TOMBSTONES,
    GOOD_PIECES,
    MOST_PIECES,
    SHORTEST_PACE_US,
    RowView,
    Stretch,
)
from cqueue.store.operations import CursorRow, WideRow


def view() -> RowView:
    return RowView(WideRow("q@1", 0, 0), 30_000_000, {0})


def test_a_pass_goes_no_faster_than_where_messages_lay_densest():
    """However sparse it was for a while: what lies ahead may be as dense, and a third leaves room."""
    row = view()
    row.expect_density(500, 500, 600_000)  # 500 messages in 600 ms
    for _ in range(10 * GOOD_PIECES):
        row.keep_pace(0)
    assert row.pace_us == 200_000 * GENTLE_TOMBSTONES // 500
    row.set_out()
    assert row.pace_us == 200_000 * GENTLE_TOMBSTONES // 500


def test_a_pass_takes_no_more_pieces_than_it_is_worth():
    """A burst of 500 messages in a millisecond does not cut half a minute into 30,000 reads."""
    row = view()
    row.expect_density(500, 500, 1000)
    row.set_out()
    assert row.pace_us == SHORTEST_PACE_US
    for _ in range(10 * GOOD_PIECES):
        row.keep_pace(0)
    assert row.pace_us == row.end_us // MOST_PIECES


def test_too_many_tombstones_shorten_the_next_piece_in_proportion():
    """A piece that crossed ten times as many as it should is followed by one a tenth as long, at once."""
    row = view()
    row.keep_pace(GENTLE_TOMBSTONES * 10)
    assert row.pace_us == FIRST_PACE_US // 10
    row.set_out()
    assert row.pace_us == FIRST_PACE_US // 10


def test_pieces_grow_only_after_several_good_ones():
    """One sparse piece says little about the next."""
    row = view()
    for _ in range(GOOD_PIECES - 1):
        row.keep_pace(0)
    assert row.pace_us == FIRST_PACE_US
    row.keep_pace(0)
    assert row.pace_us == 2 * FIRST_PACE_US


# ── look-back ──

EPSILON_US = 500_000
SPEC = SimpleNamespace(skew_us=EPSILON_US)
DUE_US = 10_000_000  # late enough for any look-back to be due


def at(us):
    return ids.lowest_at(us)


def cursor(boundary_us):
    return CursorRow(0, 0, at(boundary_us))


def test_a_look_back_covers_what_was_taken_last_and_no_more_than_may_be_crossed():
    """Two batches of 300 messages: only the later one may be read again."""
    row = view()
    row.took(0, Stretch(at(1_000_000), at(1_010_000), 300, 300))
    row.took(0, Stretch(at(1_010_000), at(1_020_000), 300, 300))
    assert look_back(row, SPEC, cursor(1_020_000), DUE_US) == (at(1_010_000), at(1_020_000))


def test_a_look_back_leaves_what_others_took_to_them():
    """Nobody knows how many tombstones lie where another consumer has moved the boundary on."""
    row = view()
    row.took(0, Stretch(at(1_000_000), at(1_010_000), 300, 300))
    assert look_back(row, SPEC, cursor(2_000_000), DUE_US) == (at(1_000_000), at(1_010_000))
    row.took(0, Stretch(at(2_000_000), at(2_010_000), 100, 100))
    assert look_back(row, SPEC, cursor(2_010_000), DUE_US) == (at(2_000_000), at(2_010_000))
    assert look_back(view(), SPEC, cursor(2_010_000), DUE_US) is None


def test_a_look_back_covers_all_of_epsilon_where_messages_are_few():
    """A trickle: whoever took what is there, reading ε of it again costs nothing."""
    row = view()
    row.took(0, Stretch(at(1_000_000), at(2_000_000), 20, 20))
    assert look_back(row, SPEC, cursor(3_000_000), DUE_US) == (at(3_000_000 - EPSILON_US), at(3_000_000))


def test_where_tombstones_lie_is_known_of_what_we_took():
    """Pieces end where they cross a few hundred; what lies outside of it is not known."""
    row = view()
    assert row.gentle_end(0, 0, 10_000) is None
    for number in range(10):
        row.note_passed(0, Stretch(number * 1000, (number + 1) * 1000, 200, 200))
    assert row.gentle_end(0, 0, 10_000) == 3000  # three go together, four would be too many
    assert row.gentle_end(0, 3000, 10_000) == 6000
    assert row.gentle_end(0, 2500, 3000) == 3000
    assert row.gentle_end(0, 8000, 50_000) == 9000
    assert row.gentle_end(0, 9000, 50_000) == 10_000
    assert row.gentle_end(0, 10_000, 50_000) is None
    assert row.gentle_end(1, 0, 10_000) is None


def test_what_others_took_is_not_known():
    row = view()
    row.note_passed(0, Stretch(0, 1000, 10, 10))
    row.note_passed(0, Stretch(1000, 2000, 10, 10))
    assert len(row.passed[0]) == 1  # a trickle needs no memory
    row.note_passed(0, Stretch(3000, 4000, 10, 10))
    assert row.gentle_end(0, 0, 4000) is None
    assert row.gentle_end(0, 3000, 4000) == 4000
