"""Payloads: what a task gets is what it was given, type and all, or enqueueing refuses it by name."""

import contextlib
import enum
import json
import math
import sys
from collections import OrderedDict
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cqueue.dispatcher.application.payload import CODECS, Arguments, codec, decode, encode, encode_value
from cqueue.errors import BadArguments, ConfigError, PayloadMismatch

pytest.importorskip("msgpack", reason="the extra `msgpack` is not installed")

names = pytest.mark.parametrize("name", CODECS)


def there_and_back(value, name="json"):
    return decode(encode(Arguments((value,), {}), codec(name)), name).args[0]


# ── Everything comes back ──

_offsets = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(
    lambda offset: timezone(timedelta(minutes=offset // timedelta(minutes=1)))
)
_hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters()),
    st.binary(),
    st.dates(),
    st.times(),
    st.datetimes(),
    st.datetimes(timezones=_offsets),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False),
)
_keys = st.text(max_size=5) | st.sampled_from(["$dict", "$datetime", "$tuple", "$", "$new"])
_values = st.recursive(
    _hashable | st.frozensets(_hashable, max_size=3) | st.sets(_hashable, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(_keys, inner, max_size=3)
    ),
    max_leaves=8,
)


def same(one, other):
    """Equal, and of the same types to the bottom: True is no 1, and a tuple no list."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return one == other


@names
@given(args=st.lists(_values, max_size=3), kwargs=st.dictionaries(_keys, _values, max_size=3))
def test_arguments_come_back_as_they_were(name, args, kwargs):
    """Values of every type come back, in every nesting, under every key, also keys that look like a tag."""
    given_ = Arguments(tuple(args), kwargs)
    got = decode(encode(given_, codec(name)), name)
    assert same(got.args, given_.args)
    assert same(got.kwargs, kwargs)


@names
@pytest.mark.parametrize(
    "value",
    [10**5000, -(1 << 63) - 1, 1 << 64, math.inf, -math.inf, timedelta.max, date.min, Decimal("-0.00")],
    ids=lambda value: f"{type(value).__name__}",
)
def test_extremes_come_back(name, value):
    """Values that the format's own numbers cannot hold come back."""
    assert same(there_and_back(value, name), value)


@names
def test_nan_comes_back(name):
    assert math.isnan(there_and_back(math.nan, name))
    assert there_and_back(Decimal("NaN"), name).is_nan()


@names
def test_the_second_of_two_equal_local_times_comes_back_as_the_second(name):
    """Equality does not look at `fold`; conversions to UTC do."""
    for twice in (datetime.fromisoformat("2026-10-25T02:30").replace(fold=1), time(2, 30, fold=1)):
        assert there_and_back(twice, name).fold == 1
        assert there_and_back(twice.replace(fold=0), name).fold == 0
    aware = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert there_and_back(aware, name).astimezone(UTC) == aware.astimezone(UTC)


@names
def test_lone_surrogates_come_back(name):
    """A file name may hold them."""
    assert there_and_back("\udcff", name) == "\udcff"


def test_the_body_is_json_that_others_read():
    """Plain values stand as they are; only what JSON has no words for is tagged."""
    at, uuid = datetime(2031, 1, 2, 3, tzinfo=UTC), UUID(int=7)
    arguments = Arguments(("a@b", 1, [None]), {"at": at, "day": date(2031, 1, 2), "id": uuid, "raw": b"\1"})
    assert json.loads(encode(arguments, codec("json"))) == {
        "args": ["a@b", 1, [None]],
        "kwargs": {
            "at": {"$datetime": "2031-01-02T03:00:00+00:00"},
            "day": {"$date": "2031-01-02"},
            "id": {"$uuid": "00000000-0000-0000-0000-000000000007"},
            "raw": {"$bytes": "01"},
        },
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"args": ["a"]}', Arguments(("a",), {})),
        (b'{"kwargs": {"to": "a"}}', Arguments((), {"to": "a"})),
        (b"{}", Arguments((), {})),
        (b'{"args": [{"$time": "12:30:00"}]}', Arguments((time(12, 30),), {})),
    ],
)
def test_others_may_write_it(body, expected):
    """A message without a codec is JSON, and either half may be left out."""
    assert decode(body, None) == expected


# ── What is refused ──


class Colour(enum.IntEnum):
    RED = 1


class Name(str):
    __slots__ = ()


def _in_itself():
    loop = []
    loop += [loop, loop]
    return loop


def _deep():
    value = None
    for _ in range(1000):
        value = [value]
    return value


@names
@pytest.mark.parametrize(
    ("value", "path", "why"),
    [
        (object(), "to", "builtins.object"),
        ([1, {"a": (2, object())}], "to[1]['a'][1]", "builtins.object"),
        (Colour.RED, "to", "Colour"),
        (Name("x"), "to", "Name"),
        (OrderedDict(), "to", "OrderedDict"),
        (1j, "to", "complex"),
        ({1: "x"}, "to", "a key of type int"),
        ({"a": {None: "x"}}, "to['a']", "a key of type NoneType"),
        (_in_itself(), "to[0]", "holds itself"),
        (_deep(), "to[0][0]", "100 levels"),
        (test_nan_comes_back, "to", "function"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_come_back_is_refused_with_its_path(name, value, path, why):
    """A subclass too: it would come back as its base."""
    with pytest.raises(BadArguments) as caught:
        encode(Arguments((value,), {}), codec(name), ["to"])
    assert str(caught.value).startswith(path)
    assert why in str(caught.value)


@names
def test_a_result_that_another_thread_changes_meanwhile_is_refused(name):
    """Its message counts as done, without a value. Any other error would have the task run again."""
    shared = {"a": 1, "b": 2}

    class Beside(frozenset):
        def __contains__(self, kind):
            shared[str(len(shared))] = 3
            return super().__contains__(kind)

    usual = codec(name)
    with pytest.raises(BadArguments, match="changed size"):
        encode_value(shared, replace(usual, plain=Beside(usual.plain)))


def test_arguments_without_a_name_are_counted():
    """`*args` have none."""
    with pytest.raises(BadArguments, match=r"^args\[1\] is a"):
        encode(Arguments((1, object()), {}), codec("json"), ["to"])


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"", "json"),
        (b"\xff", "json"),
        (b"\xc1", "msgpack"),
        (b"[]", "json"),
        (b'{"args": {}}', "json"),
        (b'{"kwargs": []}', "json"),
        (b'{"args": [], "more": 1}', "json"),
        (b'{"args": [{"$later": 1}]}', "json"),
        (b'{"args": [{"$uuid": "x"}]}', "json"),
        (b'{"args": [{"$set": [[]]}]}', "json"),
        (b'{"args": ' + b"[" * 100_000, "json"),
        (b"{}", "pickle"),
    ],
)
def test_bodies_that_cannot_be_read_are_a_mismatch(body, name):
    """One error covers every defect: another version of the code may read the body."""
    with pytest.raises(PayloadMismatch, match=f"cannot be read as {name}"):
        decode(body, name)


@given(body=st.binary(), name=st.sampled_from([*CODECS]))
def test_no_bytes_raise_anything_else(body, name):
    with contextlib.suppress(PayloadMismatch):
        decode(body, name)


def test_an_unknown_codec_is_a_wrong_setting():
    with pytest.raises(ConfigError, match="there are json, msgpack"):
        codec("pickle")


def test_a_codec_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(ConfigError, match=r"pip install 'cassandra-cqueue\[msgpack\]'"):
        codec("msgpack")
