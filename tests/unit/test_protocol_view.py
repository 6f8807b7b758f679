"""The pace of sweeps and passes: no read is to cross more than about 1,000 tombstones."""

from cqueue.protocol.view import FIRST_PACE_US, GENTLE_TOMBSTONES, GOOD_PIECES, RowView
from cqueue.store.operations import WideRow


def view() -> RowView:
    return RowView(WideRow("q@1", 0, 0), 30_000_000, {0})


def test_a_pass_begins_as_densely_as_it_ever_was():
    """However long pieces became over a sparse stretch, the next pass starts with short ones."""
    row = view()
    row.expect_density(500, 40_000)  # 500 messages in 40 ms
    for _ in range(10 * GOOD_PIECES):
        row.keep_pace(0)
    assert row.pace_us > FIRST_PACE_US
    row.set_out()
    assert row.pace_us == 40_000 * GENTLE_TOMBSTONES // 500


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
