"""Messages that share a row: ids, marks, and who shares one."""

from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cqueue import ids
from cqueue.protocol.send import (
    INLINE_BODY,
    PACK_BYTES,
    PACK_ROWS,
    PACKED_BODY,
    Outgoing,
    ProducerState,
)
from cqueue.protocol.send import make_flushes as flushes_of
from cqueue.protocol.writing import PART_ROWS, Bits
from cqueue.store import packs
from cqueue.store.operations import ReadSlice, WideRow
from cqueue.store.packs import Density
from cqueue.store.requests import ManyRequests
from tests.simulation.hand import NOON_US, Table

ROW = WideRow("q@1", 0, 0)
places = st.sets(st.integers(0, 255))


def make_flushes(some, state=None, **changes):
    spec = Table(**changes).spec
    bits = Bits(bytes(range(256)) * (len(some) // 32 + 1))
    return flushes_of(spec, state or ProducerState(), some, NOON_US, bits)


def out(body=b"x", priority=0, **columns):
    return Outgoing(body, priority, columns.pop("due_us", None), None, None)._replace(**columns)


def mask(some):
    return sum(1 << place for place in some)


def sizes(rows):
    """How many messages each stored row holds."""
    return [ids.pack_size(row.id) if ids.is_packed(row.id) else 1 for row in packs.joined(rows)]


# ── Ids ──


@given(st.integers(0, 10**17), st.integers(0, 2**62 - 1), st.integers(2, ids.MOST_PACKED))
def test_ids_of_a_pack(ticks, bits, count):
    """Follow each other at one time, and each says which pack, how large, and where in it."""
    some = ids.packed(ticks, bits, count)
    assert len(some) == count
    for place, id_ in enumerate(some):
        assert ids.is_packed(id_)
        assert (ids.pack_of(id_), ids.place_in_pack(id_), ids.pack_size(id_)) == (some[0], place, count)
        assert ids.to_uuid(id_).time - ids.TICKS_1970 == ticks
        assert ids.from_bytes(ids.to_bytes(id_)) == id_
        assert ids.to_bytes(id_)[6] >> 4 == 1, "or Cassandra refuses it"
    uuids = [ids.to_uuid(id_) for id_ in some]
    signed = [tuple(byte - 256 if byte > 127 else byte for byte in uuid.bytes[8:]) for uuid in uuids]
    assert signed == sorted(signed), "Cassandra compares signed bytes"


@given(st.integers(0, 10**17), st.integers(0, 2**62 - 1))
def test_no_other_id_is_taken_for_one(ticks, bits):
    """Whatever its random bits are."""
    assert not ids.is_packed(ids.from_ticks(ticks, bits))
    assert not ids.is_packed(ids.derived(ticks // 10, b"source"))


def test_reading_begins_at_a_row_that_is_not_read_to_its_end():
    """And behind one that is."""
    some = ids.packed(NOON_US * 10, 77, 5)
    for id_ in some[:4]:
        assert packs.lowest(id_) == some[0] - 1
    assert packs.lowest(some[4]) == some[4]
    for bound in (ids.START, ids.lowest_at(NOON_US), ids.highest_at(NOON_US), ids.lowest_at(NOON_US) - 1):
        assert packs.lowest(bound) == bound


@given(
    st.lists(
        st.builds(
            lambda count, bits, cut, single: (
                [ids.from_ticks(NOON_US * 10, single)]
                if count == 1
                else list(ids.packed(NOON_US * 10, bits, count))[cut[0] : cut[1]]
            ),
            st.sampled_from((1, 2, 3, 125, 255, 256)),
            st.integers(0, 2**46 - 1),
            st.sampled_from(((0, None), (1, None), (0, -1), (0, 1))),
            st.integers(0, 2**62 - 1),
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_whole_packs_are_listed_in_short(parts, backwards):
    """Whatever else is listed, and in whatever order."""
    some = [id_ for part in parts for id_ in part]
    if backwards:
        some.reverse()
    short = ids.shortened(some)
    assert ids.lengthened(short) == tuple(some)
    assert len(short) <= len(some)


def test_a_whole_pack_is_one_element():
    """Beside what is listed one by one."""
    pack, other = ids.packed(NOON_US * 10, 5, 125), ids.packed(NOON_US * 10, 6, 125)
    short = ids.shortened([*pack, *other[:3], *other[4:]])
    assert len(short) == 1 + 124
    assert short[0] == pack[0] | 0xFF


# ── What is gone ──


@given(places)
def test_marks_say_which_places(some):
    """In as few stretches as there are."""
    marks = packs.marks_of(mask(some))
    assert packs.gone_mask(marks) == mask(some)
    assert len(marks) == len({place for place in some if place - 1 not in some})
    assert all(place // 256 <= place % 256 for place in marks)


@given(st.lists(places, max_size=5))
def test_marks_add_up(several):
    """In any order, overlapping or not."""
    marks = {mark for some in several for mark in packs.marks_of(mask(some))}
    assert packs.gone_mask(marks) == mask(set().union(*several))


def test_who_knows_that_all_is_gone_deletes_the_row():
    """What was deleted before counts only once it is known to be."""
    known, pack = packs.Known(), ids.packed(NOON_US * 10, 5, 4)
    single = ids.from_ticks(NOON_US * 10, 3)
    assert known.deletion(ROW, 0, pack) == ([pack[0]], {})
    assert known.deletion(ROW, 0, [single, *pack]) == ([single, pack[0]], {})
    first = known.deletion(ROW, 0, [pack[1], pack[0], single])
    assert first == ([single], {pack[0]: 0b11})
    assert known.deletion(ROW, 0, pack[2:]) == ([], {pack[0]: 0b1100}), "it may not have happened"
    known.learn(ROW, 0, pack[0], 0b11)
    assert known.deletion(ROW, 1, pack[2:]) == ([], {pack[0]: 0b1100}), "another priority"
    assert known.deletion(ROW, 0, pack[2:]) == ([pack[0]], {})
    assert known.deletion(ROW, 0, [pack[2], pack[0] + 200]).rows == [], "a place that the pack does not have"
    known.forget(ROW, 0, [pack[0]])
    assert known.deletion(ROW, 0, pack[2:]) == ([], {pack[0]: 0b1100})


def test_little_is_remembered(monkeypatch):
    """What nobody has touched for longest is forgotten first; that only leaves a row behind."""
    monkeypatch.setattr(packs, "REMEMBERED", 3)
    known = packs.Known()
    several = [ids.packed(NOON_US * 10 + n, 5, 2) for n in range(4)]
    for pack in several[:3]:
        known.learn(ROW, 0, pack[0], 0b1)
    known.learn(ROW, 0, several[0][0], 0b1)
    known.learn(ROW, 0, several[3][0], 0b1)
    rest = [pack[1] for pack in several]
    assert known.deletion(ROW, 0, rest).rows == [several[0][0], several[2][0], several[3][0]]


def test_a_row_ends_with_the_last_message_of_its_pack():
    """Any other row is one message, whatever its random bits are."""
    pack = ids.packed(NOON_US * 10, 5, 4)
    single = ids.from_ticks(NOON_US * 10, 0x80)
    assert ids.place_in_pack(single) == 0
    assert packs.last_in(pack[0]) == pack[3]
    assert packs.last_in(pack[2]) == pack[2]
    assert packs.last_in(single) == single


@pytest.mark.parametrize("gone", [(), (0,), (1, 2), (4,)])
def test_of_a_pack_that_a_range_cuts_only_the_ids_inside_are_live(gone):
    """Without those that are gone, wherever the range begins and ends."""
    pack = ids.packed(NOON_US * 10, 5, 5)
    row = pack[0], packs.PACK, packs.marks_of(mask(gone))
    bounds = range(pack[0] - 1, pack[-1] + 2)
    for after, upto in product(bounds, bounds):
        expected = [id_ for at, id_ in enumerate(pack) if after < id_ <= upto and at not in gone]
        assert list(packs.live_ids([row], after, upto)) == expected


def test_a_pack_that_nobody_can_have_written_is_damaged():
    """Under another id than its first message's, or with places marked as gone that it does not have."""
    pack = ids.packed(NOON_US * 10, 5, 4)
    assert packs.id_damage((pack[0], packs.PACK, {1 * 256 + 3})) is None
    assert packs.id_damage((pack[2], packs.PACK, None)) is not None
    for mark in (1 * 256 + 4, 3 * 256 + 1, -1, -(1 << 20)):
        assert packs.id_damage((pack[0], packs.PACK, {mark})) is not None


@pytest.mark.parametrize(
    ("is_pack", "body", "size", "reason"),
    [
        (False, b"x", None, None),
        (False, None, 70_000, None),
        (False, None, None, "neither a body nor the size"),
        (False, b"x", 1, "a body and a size"),
        (True, packs._LENGTHS[2].pack(1, 2) + b"abb", None, None),
        (True, packs._LENGTHS[2].pack(1, 2) + b"ab", None, "do not add up"),
        (True, b"x", None, "too short"),
    ],
)
def test_a_row_whose_body_cannot_be_its_own_is_damaged(is_pack, body, size, reason):
    """So no message comes with the bytes of another one."""
    id_ = ids.packed(NOON_US * 10, 5, 2)[0] if is_pack else ids.from_ticks(NOON_US * 10, 5)
    format_ = packs.PACK if is_pack else packs.SINGLE
    found = packs.damage((0, id_, body, size, None, None, None, None, None, 5, None, format_, None))
    assert found is None if reason is None else reason in found


# ── How many rows to ask for ──


def rows_of(*counts):
    return [ids.packed(NOON_US * 10, n, count)[0] if count > 1 else n for n, count in enumerate(counts)]


def test_few_rows_are_asked_for_where_they_hold_many_messages():
    """What is not known yet is found out with few, and a failure makes it unknown again."""
    density = Density()
    assert (density.rows("q", 500), density.rows("q", 3)) == (16, 3)
    density.saw("q", rows_of(*[100] * 5))
    assert (density.rows("q", 500), density.rows("q", 501), density.rows("q", 1)) == (5, 6, 1)
    density.forget("q")
    assert density.rows("q", 500) == 16


def test_one_single_message_among_packs_changes_little():
    """Or the next read would ask for as many packs as messages; many single ones do."""
    density = Density()
    density.saw("q", rows_of(*[100] * 5))
    density.saw("q", rows_of(1))
    assert density.rows("q", 500) <= 6
    density.saw("q", rows_of(*[1] * 500))
    assert density.rows("q", 500) == 500
    density.saw("q", rows_of(100))
    assert density.rows("q", 500) == 5


def range_read(upto, *answers, take=lambda rows: (rows, rows[:1], ())):
    """Read a range of 100 messages with these answers; return its result, and what was asked."""
    asked, left = list[tuple[int, int]](), list(answers)

    def send(after, rows):
        asked.append((after, rows))
        found, warnings = left.pop(0)
        return SimpleNamespace(result=lambda: take(found), warnings=warnings)

    operation = ReadSlice(ROW, 0, ids.START, upto, 100)
    steps = packs.ranged(operation, send, Density())
    return ManyRequests(steps).result(), asked


def test_the_tombstones_of_all_requests_of_a_range_count():
    """They tell how long the next read may be."""
    many = [*range(1, 17)]
    (_, crossed, _), asked = range_read(
        packs.EVERY,
        (many, ["Read 16 live rows and 1200 tombstone cells"]),
        ([17], ["Read 1 live rows and 1100 tombstone cells"]),
    )
    assert crossed == 2300
    assert [after for after, _ in asked] == [ids.START, 16]


def test_a_range_gives_no_more_than_it_is_asked_for():
    """However many messages the rows of the last answer hold."""
    answers = ([*range(1, 17)], None), ([*range(17, 40)], None)
    (items, _, _), _ = range_read(packs.EVERY, *answers, take=lambda rows: (rows, rows * 5, ()))
    assert len(items) == 100


def test_a_range_is_read_on_with_as_many_rows_as_messages_lack():
    """Where each row holds one: a row too many is read in vain."""
    answers = ([*range(1, 17)], None), ([*range(17, 101)], None)
    (items, _, _), asked = range_read(packs.EVERY, *answers, take=lambda rows: (rows, rows, ()))
    assert (items, asked) == ([*range(1, 101)], [(ids.START, 16), (16, 84)])


def test_a_range_whose_last_row_was_read_takes_no_other_request():
    """Though it holds fewer messages than may be asked for."""
    many = [*range(1, 17)]
    (items, _, _), asked = range_read(many[-1], (many, None))
    assert (items, len(asked)) == ([1], 1)


# ── Who shares a row ──


def test_messages_that_are_alike_share_a_row():
    """All that is sent together, in order, with a time of its own for each row."""
    (flush,) = make_flushes([out(bytes([place])) for place in range(100)])
    assert sizes(flush.rows) == [100]
    assert [row.body for row in flush.rows] == [bytes([place]) for place in range(100)]
    assert flush.indexes == list(range(100))


def test_messages_that_differ_do_not():
    """In priority, due time, or any column; neighbours that are alike do."""
    later = NOON_US + 1_000_000
    some = [
        *(out(), out()), out(priority=1), *(out(task="a"), out(task="a")), out(task="b"), out(ttl_ms=5),
        out(headers={"a": "1"}), out(headers={"a": "2"}), *(out(due_us=later), out(due_us=later)),
        out(due_us=later + 1),
    ]  # fmt: skip
    (flush,) = make_flushes(some)
    assert sizes(flush.rows) == [2, 1, 2, 1, 1, 1, 1, 2, 1]
    assert [row.priority for row in flush.rows][2] == 1
    assert [ids.time_us(row.id) for row in flush.rows][-3:] == [later, later, later + 1]


def test_rows_stay_small():
    """A row has a most number of messages and of bytes; a large body has a row alone."""
    (many,) = make_flushes([out()] * (PACK_ROWS + 1))
    assert sizes(many.rows) == [PACK_ROWS, 1]
    (wide,) = make_flushes([out(bytes(PACKED_BODY))] * 17)
    assert PACK_BYTES == 8 * PACKED_BODY
    assert sizes(wide.rows) == [8, 8, 1]
    (large,) = make_flushes([out(), out(bytes(PACKED_BODY + 1)), out(bytes(INLINE_BODY + 1)), out(), out()])
    assert sizes(large.rows) == [1, 1, 1, 2]
    assert [row.body is None for row in large.rows] == [False, False, True, False, False]


def test_flushes_hold_whole_packs():
    """A flush never ends in the middle of one."""
    several = make_flushes([out()] * (2 * PART_ROWS))
    assert sum(len(flush.rows) for flush in several) == 2 * PART_ROWS
    assert all(len(flush.rows) <= PART_ROWS for flush in several)
    for flush in several:
        assert sum(sizes(flush.rows)) == len(flush.rows)


def test_ids_of_one_producer_rise():
    """From pack to pack and from call to call, at one moment."""
    state = ProducerState()
    seen = []
    for count in (3, 1, 200, 1, 2):
        seen += [row.id for flush in make_flushes([out()] * count, state) for row in flush.rows]
    assert seen == sorted(seen)
    assert len(set(seen)) == len(seen)


def test_derived_ids_and_old_deployments_know_no_packs():
    """A client that repeats a derived send must write the same row; one that knows no packs meets none."""
    sourced = [out(source=b"s%d" % n, due_us=NOON_US) for n in range(3)]
    assert not any(ids.is_packed(row.id) for flush in make_flushes(sourced) for row in flush.rows)
    old = make_flushes([out()] * 3, packs=False)
    assert not any(ids.is_packed(row.id) for flush in old for row in flush.rows)
