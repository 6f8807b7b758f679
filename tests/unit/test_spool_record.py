"""Records of a segment: what is found again, and what is never taken for one."""

from __future__ import annotations

import random
import struct

import google_crc32c
import pytest

from cqueue.spool import record
from tests.spool.images import payloads

SALT = 12345
START = 64


def segment(messages, *, first=0, salt=SALT, room=256):
    return bytes(START) + record.encode(messages, first=first, now_ms=7, salt=salt) + bytes(room)


def found(data, *, first=0):
    scan = record.scan(data, first=first, salt=SALT, start=START)
    records = {}
    for offset, position in enumerate(scan.positions, first):
        if position:
            ((one,), _) = record.decode(data[position:], first=offset, salt=SALT, count=1)
            records[offset] = one.payload
    return records, scan


def test_a_scan_finds_what_was_encoded():
    """All records are found, with their offsets and times, and the scan ends behind the last."""
    messages = payloads(50)
    data = segment(messages, first=90)
    records, scan = found(data, first=90)
    assert records == dict(enumerate(messages, 90))
    assert scan.next_offset == 140
    assert len(data) - scan.end_position == 256
    assert not scan.damage
    ((one, *_), _) = record.decode(data[START:], first=90, salt=SALT, count=9)
    assert one.appended_ms == 7


def test_a_record_takes_the_size_that_is_reckoned_with():
    """The room that a writer looks for is the room that records take, at every length."""
    for length in range(40):
        payload = b"x" * length
        _, second = record.positions([payload, payload], 40)
        assert len(record.encode([payload], first=0, now_ms=7, salt=SALT)) == second - 40


@pytest.mark.parametrize("victim", [0, 3, 8])
def test_a_flipped_bit_costs_one_record_and_is_reported(victim):
    """Whichever bit of a record flips, that record is lost, its offset is named, and the others are read."""
    messages = payloads(10)
    data = segment(messages)
    positions = found(data)[1].positions
    stop = positions[victim] + record.HEAD.size + len(messages[victim])
    for bit in range(positions[victim] * 8, stop * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        records, scan = found(bytes(damaged))
        assert records == {k: v for k, v in enumerate(messages) if k != victim}
        assert [one.offsets for one in scan.damage] == [range(victim, victim + 1)]


def test_the_last_record_is_cut_if_it_is_torn():
    """A record that ends too early is no record, and nothing behind it is looked for in vain."""
    data = segment(payloads(5), room=0)
    whole = found(data)[1].positions
    for stop in range(whole[4] + 1, len(data) - 8):
        records, scan = found(data[:stop])
        assert sorted(records) == [0, 1, 2, 3]
        assert (scan.next_offset, scan.end_position, scan.damage) == (4, whole[4], [])


def test_records_of_another_file_are_none():
    """What an older segment left on the disk has another salt, so it is not read."""
    data = segment(payloads(5), room=0) + segment(payloads(9), salt=SALT + 1)[START:]
    records, scan = found(data)
    assert sorted(records) == [0, 1, 2, 3, 4]
    assert not scan.damage


def test_a_copy_of_an_older_record_inside_a_payload_is_none():
    """A message may hold the bytes of the spool itself; a scan over its damaged head does not take them."""
    old = record.encode([b"old"], first=1, now_ms=7, salt=SALT)
    messages = [b"a", b"old", b"........" + old * 3, b"c"]
    data = bytearray(segment(messages))
    position = found(bytes(data))[1].positions[2]
    data[position] ^= 1
    records, scan = found(bytes(data))
    assert records == {0: b"a", 1: b"old", 3: b"c"}
    assert [one.offsets for one in scan.damage] == [range(2, 3)]


def test_an_offset_that_there_is_no_room_for_is_none():
    """Between a damaged record and the next, no more are lost than the bytes have room for."""
    far = record.encode([b"far"], first=1000, now_ms=7, salt=SALT)
    data = segment([b"a"], room=0) + b"\1" * 64 + far
    records, scan = found(data)
    assert (records, scan.damage) == ({0: b"a"}, [])


def test_zeros_are_no_record():
    """A page that was never written holds nothing, not even if the checksum of zeros fits by chance."""
    body = struct.pack("<IQQ", 0, 0, 0)
    zeros = struct.pack("<I", google_crc32c.extend(SALT, body)) + body
    assert record.decode(zeros, first=0, salt=SALT, count=1) == ([], 0)
    assert record.scan(zeros + bytes(64), first=0, salt=SALT, start=0).next_offset == 0


def test_zeroed_pages_are_reported_and_the_rest_is_read():
    """Blocks that the disk lost cost the records in them, as ranges; records between are still found."""
    messages = payloads(400)
    data = segment(messages)
    for seed in range(30):
        random.seed(seed)
        damaged = bytearray(data)
        for _ in range(random.randint(1, 5)):
            page = random.randrange(START, len(data) - 512)
            damaged[page : page + 512] = bytes(512)
        records, scan = found(bytes(damaged))
        assert all(messages[offset] == payload for offset, payload in records.items())
        lost = {offset for one in scan.damage for offset in one.offsets}
        assert lost | set(records) == set(range(scan.next_offset))
        assert not lost & set(records)
