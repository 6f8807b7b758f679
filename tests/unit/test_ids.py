"""Ids are integers whose order is Cassandra's order of TimeUUIDs."""

from uuid import RFC_4122, UUID, uuid1

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cqueue import ids

times_us = st.integers(0, 4_102_444_800_000_000)  # to the year 2100
ticks = times_us.map(lambda us: us * 10) | st.integers(0, 4_102_444_800_000_0000)
random_bits = st.integers(0, 2**62 - 1)
message_ids = st.builds(ids.from_ticks, ticks, random_bits)
# Ids that share their time, so that the other bytes decide.
close_ids = st.builds(ids.from_ticks, st.integers(10**16, 10**16 + 2), random_bits)


def cassandra_key(uuid):
    """TimeUUIDType's comparator, written anew: by time, then by the other bytes as *signed* ones."""
    data = uuid.bytes
    time = (data[6] & 0x0F, data[7], data[4], data[5], data[0], data[1], data[2], data[3])
    return time, tuple(byte - 256 if byte > 127 else byte for byte in data[8:])


@given(message_ids | close_ids, message_ids | close_ids)
def test_order_is_cassandras(a, b):
    """A < b as integers exactly if Cassandra sorts a before b."""
    assert (a < b) == (cassandra_key(ids.to_uuid(a)) < cassandra_key(ids.to_uuid(b)))


@given(st.lists(close_ids, min_size=2, max_size=30))
def test_sorting_is_cassandras(some):
    """A sorted list of ids is sorted as a partition is."""
    uuids = [ids.to_uuid(id_) for id_ in sorted(some)]
    assert uuids == sorted(uuids, key=cassandra_key)


@given(message_ids)
def test_bytes_come_back(id_):
    """Nothing is lost between integer, bytes and UUID."""
    assert ids.from_bytes(ids.to_bytes(id_)) == id_
    assert ids.from_uuid(ids.to_uuid(id_)) == id_


@given(st.uuids(version=1))
def test_any_version_1_uuid_comes_back(uuid):
    """Also one that another program made."""
    assert ids.to_uuid(ids.from_uuid(uuid)) == uuid


@given(message_ids)
def test_an_id_is_a_version_1_uuid(id_):
    """Cassandra refuses anything else in a timeuuid column."""
    uuid = ids.to_uuid(id_)
    assert (uuid.version, uuid.variant) == (1, RFC_4122)


@given(ticks, random_bits)
def test_the_time_is_kept(at, bits):
    """To 100 ns in the id; `time_us` rounds down, below zero never."""
    id_ = ids.from_ticks(at, bits)
    assert ids.time_us(id_) == at // 10
    assert ids.to_uuid(id_).time - ids.TICKS_1970 == at


def test_the_time_is_the_one_python_writes():
    """The epoch of UUIDs is the one of Python's own."""
    uuid = uuid1()
    assert ids.time_us(ids.from_uuid(uuid)) == (uuid.time - 0x01B21DD213814000) // 10


@given(message_ids, times_us)
def test_bounds(id_, us):
    """`lowest_at` and `highest_at` part the ids exactly by their µs."""
    assert (ids.lowest_at(us) <= id_) == (us <= ids.time_us(id_))
    assert (id_ <= ids.highest_at(us)) == (ids.time_us(id_) <= us)


@given(times_us)
def test_bounds_are_extreme_uuids(us):
    """As minTimeuuid and maxTimeuuid: the low bytes are all -128, or all 127."""
    assert ids.to_bytes(ids.lowest_at(us))[8:] == b"\x80" * 8
    assert ids.to_bytes(ids.highest_at(us))[8:] == b"\x7f" * 8
    assert ids.lowest_at(us) < ids.highest_at(us) < ids.lowest_at(us + 1)


@pytest.mark.parametrize("bound", [ids.lowest_at, ids.highest_at])
def test_bounds_do_not_fall_below_the_start(bound):
    """A time before 1582 is the start of UUID time: the result still fits a UUID."""
    assert bound(-(10**18)) >= ids.START
    assert len(ids.to_bytes(bound(-(10**18)))) == 16


@given(times_us, st.binary(max_size=100))
def test_a_derived_id_is_always_the_same(us, source):
    """The same source at the same time has one id, with exactly that time."""
    id_ = ids.derived(us, source)
    assert id_ == ids.derived(us, source)
    uuid = ids.to_uuid(id_)
    assert (uuid.version, uuid.time - ids.TICKS_1970) == (1, us * 10)


def test_derived_ids_are_fixed_for_good():
    """Other versions and machines must derive the same: these values may never change."""
    assert (
        str(ids.to_uuid(ids.derived(1_700_000_000_000_000, b"cron:nightly")))
        == "04afc000-833b-11ee-85ff-de48b21668a0"
    )
    assert str(ids.to_uuid(ids.derived(0, b""))) == "13814000-1dd2-11b2-948c-5eae18836ecf"


@given(times_us, st.binary(max_size=20), st.binary(max_size=20))
def test_other_sources_have_other_ids(us, a, b):
    """Different sources at one time do not share an id."""
    assert (a == b) == (ids.derived(us, a) == ids.derived(us, b))


@given(st.integers(0, 2**31))
def test_slots(number):
    """A slot's number is its row's id, in order, below every message, and comes back from the wire."""
    id_ = ids.slot_id(number)
    assert ids.slot_number(id_) == number
    assert ids.slot_number(ids.from_bytes(ids.to_bytes(id_))) == number
    assert ids.START <= id_ < ids.slot_id(number + 1) < ids.from_ticks(0, 0)
    assert ids.to_uuid(id_).version == 1


def test_the_start_is_below_everything():
    """Also as Cassandra sees it."""
    lowest = ids.to_uuid(ids.START)
    assert lowest == UUID("00000000-0000-1000-8080-808080808080")
    assert cassandra_key(lowest) < cassandra_key(ids.to_uuid(ids.from_ticks(0, 0)))


@st.composite
def acked(draw):
    """Ids of single messages and of packs, parts of them, in any order."""
    count = draw(st.integers(2, 9))
    pack = ids.packed(10**16, draw(random_bits), count)
    whole = [*pack, *ids.packed(10**16 + 5, draw(random_bits), 3), *draw(st.lists(close_ids, max_size=4))]
    some = draw(st.lists(st.sampled_from(whole), max_size=20))
    return some if draw(st.booleans()) else draw(st.sampled_from([whole, sorted(some), whole[1:] + some]))


@given(acked())
def test_stretches_are_the_ids_themselves_in_order(some):
    """Each id stands in one stretch, and one that is more than a single id stays in its pack."""
    found = list(ids.stretches(some))
    assert [first + place for first, count in found for place in range(count)] == some
    for first, count in found:
        assert count == 1 or ids.share_row(first, first + count - 1)


def test_a_whole_pack_is_one_stretch_and_so_is_what_is_left_of_one():
    pack = ids.packed(10**16, 7, 125)
    assert list(ids.stretches(pack)) == [(pack[0], 125)]
    assert list(ids.stretches(pack[3:])) == [(pack[3], 122)]
    assert list(ids.stretches([*pack[:2], *pack[5:]])) == [(pack[0], 2), (pack[5], 120)]
