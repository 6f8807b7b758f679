"""Whatever bytes come from a network, a disk or another program: a value, or the answer that is promised."""

import json
import math
from datetime import UTC, timedelta

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cqueue
from cqueue.dispatcher.application.payload import CODECS, Arguments, codec, decode, encode
from cqueue.doorbell import datagram
from cqueue.errors import DamagedRow, PayloadMismatch
from tests.properties import examples

FUZZ = settings(max_examples=examples(60), deadline=None)
BYTES = st.binary(max_size=80)
DEEP = [b"[" * 30_000, b'{"a":' * 15_000, b"\x91" * 30_000, b'{"kwargs":{"a":' + b"9" * 5000 + b"}}"]


def with_a_byte_changed(data, place, value):
    changed = bytearray(data)
    if changed:
        changed[place % len(changed)] = value
    return bytes(changed)


CHANGE = st.tuples(st.integers(0, 2000), st.integers(0, 255))


# ── Datagrams ──

RINGS = st.builds(
    datagram.Ring,
    name=st.binary(min_size=8, max_size=8),
    place=st.binary(max_size=datagram.MAX_PLACE),
    flags=st.integers(0, 0xFFFF),
    due_us=st.integers(-(2**63), 2**63 - 1),
    details=st.binary(max_size=datagram.MAX_DETAILS) | st.binary(min_size=16, max_size=16),
)
KEY = b"k" * 16


@FUZZ
@given(RINGS, CHANGE)
def test_a_datagram_comes_back_and_a_changed_one_is_dropped(ring, change):
    data = datagram.encode(ring, KEY)
    assert datagram.decode(data, KEY) == ring
    assert datagram.decode(data, b"another key") is None
    changed = with_a_byte_changed(data, *change)
    assert changed == data or datagram.decode(changed, KEY) is None


@FUZZ
@given(st.binary(max_size=200))
def test_any_datagram_is_dropped(data):
    assert datagram.decode(data, KEY) is None


@FUZZ
@given(BYTES.filter(bool))
def test_any_content_with_a_good_tag(said):
    """Of a sender of another version, which has the key."""
    found = datagram.decode(said + datagram._tag(said, KEY), KEY)
    assert found is None or datagram.encode(found, KEY)[:-16] == said


@FUZZ
@given(RINGS)
def test_any_ring_that_is_believed(ring):
    """A ring says where to look; a wrong one makes nothing worse than a look in vain."""
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("mail")
        spec = client._catalog.entry("mail").spec
        queue.send(b"x")
        with queue.consumer() as consumer:
            wakeups = client._wakeups["mail"]
            wakeups.join(consumer._receiver.inbox, spec.partition)
            wakeups._heard(ring)
            assert [message.body for message in consumer.receive(10, wait=timedelta(seconds=5))] == [b"x"]


# ── Bodies ──

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=10)
    | st.binary(max_size=10)
    | st.datetimes(timezones=st.none() | st.just(UTC)).map(lambda one: one.replace(fold=0))
    | st.dates()
    | st.times().map(lambda one: one.replace(fold=0))
    | st.timedeltas()
    | st.uuids()
    | st.decimals(allow_nan=False)
)
VALUES = st.recursive(
    LEAVES,
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.lists(inside, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.just("$set"), inside, max_size=3)
        | st.frozensets(LEAVES, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted(CODECS))


@FUZZ
@given(NAMES, st.lists(VALUES, max_size=3), st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
def test_arguments_come_back_exactly(name, args, kwargs):
    given_ = Arguments(tuple(args), kwargs)
    found = decode(encode(given_, codec(name)), name)
    assert found == given_
    assert repr(found) == repr(given_) or _has_set(given_)  # the types too: 1 is not True, nor 1.0


def _has_set(value):
    return "frozenset" in repr(value)


def test_not_a_number_comes_back():
    for name in CODECS:
        (found,) = decode(encode(Arguments((math.nan,), {}), codec(name)), name).args
        assert math.isnan(found)


TAGS = [f"${name}" for name in ("float", "int", "tuple", "set", "datetime", "date", "time", "timedelta_us")]
TAGS += ["$uuid", "$decimal", "$bytes", "$dict", "$new"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(st.sampled_from(TAGS) | st.text(max_size=3), inside, max_size=2)
    ),
    max_leaves=8,
)


@FUZZ
@given(JSON, JSON, st.booleans())
def test_any_tree_of_tags(args, kwargs, whole):
    tree = {"args": args, "kwargs": kwargs} if whole else args
    _read(json.dumps(tree).encode(), "json")
    _read(msgpack.packb(_packable(tree)), "msgpack")


def _packable(tree):
    match tree:
        case list():
            return [_packable(each) for each in tree]
        case dict():
            return {key: _packable(value) for key, value in tree.items()}
        case int():
            return tree % 2**63
    return tree


@FUZZ
@given(BYTES | st.sampled_from(DEEP), st.sampled_from([None, "json", "msgpack", "new", ""]))
def test_any_body(body, name):
    _read(body, name)


@FUZZ
@given(NAMES, st.lists(VALUES, max_size=2), CHANGE)
def test_a_body_with_a_byte_changed(name, args, change):
    _read(with_a_byte_changed(encode(Arguments(tuple(args), {}), codec(name)), *change), name)


def _read(body, name):
    try:
        found = decode(body, name)
    except PayloadMismatch:
        return
    assert type(found.args) is tuple
    assert set(map(type, found.kwargs)) <= {str}


# ── Files of a spool ──


@FUZZ
@given(BYTES | st.sampled_from(DEEP), CHANGE, st.dictionaries(st.text(max_size=5), st.integers(), max_size=2))
def test_any_payload_of_a_spool(payload, change, more):
    from cqueue.spool.forward_frame import Frame

    frame = Frame(1, 2, 3, b"s" * 16, more, payload[:100])
    assert Frame.unpack(frame.pack()) == frame
    changed = with_a_byte_changed(frame.pack(), *change)
    with_json = Frame(1, 2, 3, b"", {"a": 1}, b"").pack().replace(b'{"a":1}', b"[12345]")
    for data in (payload, changed, with_json, changed[:20] + payload):
        try:
            found = Frame.unpack(data)
        except DamagedRow:
            continue
        assert isinstance(found.more, dict)


@FUZZ
@given(st.lists(BYTES, max_size=6), CHANGE, st.integers(0, 400), BYTES)
def test_any_damage_of_a_segment(payloads, change, cut, tail):
    """Records before the damage are read, those behind it are found again, and none is made up."""
    record = pytest.importorskip("cqueue.spool.record")
    data = record.encode(payloads, first=7, now_ms=1, salt=3)
    found, end = record.decode(data, first=7, salt=3, count=100)
    assert [one.payload for one in found] == payloads
    assert end == len(data)
    known = dict(enumerate(payloads, 7))
    for damaged in (with_a_byte_changed(data, *change), data[:cut], data[:cut] + tail, tail + data):
        found, _ = record.decode(damaged, first=7, salt=3, count=100)
        assert all(known[one.offset] == one.payload for one in found)
        scan = record.scan(damaged, first=7, salt=3, start=0)
        assert scan.next_offset <= 7 + len(payloads)


@FUZZ
@given(st.binary(max_size=5000) | st.tuples(CHANGE, st.integers(0, 2**64 - 1)))
def test_any_file_of_progress(tmp_path_factory, given_):
    progress = pytest.importorskip("cqueue.spool.progress")
    path = tmp_path_factory.mktemp("spool") / "progress"
    path.write_bytes(given_ if isinstance(given_, bytes) else with_a_byte_changed(bytes(8192), *given_[0]))
    slots = progress.read(path)
    assert slots.generation == 0
    assert slots.offset == 0
