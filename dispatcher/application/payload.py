"""Arguments of a task as bytes and back: equal values of equal types, or an error that says where.

JSON alone would turn a tuple into a list without a word, and would refuse a datetime. So values that JSON
lacks are tagged, `{"$datetime": "2031-01-01T00:00:00+00:00"}`, and other programs can read and write
everything that JSON has. There is no pickle: a body must not be able to run code, and must not depend on the
module of a class.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from importlib import import_module
from typing import Any, Final, NamedTuple
from uuid import UUID

from cqueue.errors import BadArguments, ConfigError, PayloadMismatch

MAX_DEPTH: Final = 100
"""Levels of nested lists and dictionaries; far beyond use, well within Python's recursion limit."""
DEFAULT_CODEC: Final = "json"
"""Codec of tasks and bodies that name none: every language reads JSON."""
_MICROSECOND = timedelta(microseconds=1)

Above = tuple[int, ...]
"""The identities of the containers that a value stands in."""


class Arguments(NamedTuple):
    """The arguments of a task's call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Unreadable(ValueError):
    """A tree that stands for no arguments. Its text quotes nothing of the body."""


_QUOTE_NOTHING: Final = (_Unreadable, ConfigError, json.JSONDecodeError)
"""Errors of decoding whose text may stand in a log line."""


class _Refused(ValueError):
    """A value that cannot be encoded. `path`: where it stands in the argument, in Python's notation."""

    path = ""


# ── Bytes ──


@dataclass(frozen=True, slots=True)
class Codec:
    """How a tree of plain values becomes bytes.

    Attributes:
        name: name in `Message.codec`.
        plain: types that need no tag.
        dump: encode a tree.
        load: decode bytes.
    """

    name: str
    plain: frozenset[type]
    dump: Callable[[Any], bytes]
    load: Callable[[bytes], Any]


def _dump_json(tree: Any) -> bytes:
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()


def _json() -> Codec:
    return Codec("json", frozenset({str, bool, type(None)}), _dump_json, json.loads)


def _msgpack() -> Codec:
    try:
        msgpack = import_module("msgpack")
    except ImportError as exc:
        raise ConfigError(
            "codec 'msgpack' needs a package that is missing: pip install 'cassandra-cqueue[msgpack]'"
        ) from exc

    def dump(tree: Any) -> bytes:
        packed: bytes = msgpack.packb(tree, unicode_errors="surrogatepass")
        return packed

    def load(body: bytes) -> Any:
        return msgpack.unpackb(body, unicode_errors="surrogatepass")

    return Codec("msgpack", frozenset({str, bool, type(None), bytes}), dump, load)


CODECS: Final[Mapping[str, Callable[[], Codec]]] = {"json": _json, "msgpack": _msgpack}
"""Makers of codecs, by name."""


def codec(name: str) -> Codec:
    """Return the codec of this name.

    Raises:
        ConfigError: the name is unknown, or the codec's package is not installed.
    """
    if not isinstance(name, str) or name not in CODECS:
        raise ConfigError(f"codec is {name!r}; there are {', '.join(CODECS)}")
    return CODECS[name]()


def encode(arguments: Arguments, codec: Codec, names: Sequence[str] = ()) -> bytes:
    """Return the body of a message.

    Args:
        arguments: values of any type that `decode` restores exactly.
        codec: how to write them.
        names: names of the positional arguments, for error messages.

    Raises:
        BadArguments: a value cannot be encoded; the text says which one.
    """
    paths = (*names, *(f"args[{i}]" for i in range(len(names), len(arguments.args))))
    args = [_argument(path, value, codec) for path, value in zip(paths, arguments.args, strict=False)]
    kwargs = {name: _argument(name, value, codec) for name, value in arguments.kwargs.items()}
    try:
        return codec.dump({"args": args, "kwargs": kwargs})
    except (ValueError, OverflowError) as exc:
        raise BadArguments(f"the arguments cannot be written as {codec.name}: {exc}") from exc


def digest(arguments: Mapping[str, Any]) -> str:
    """Return 32 hexadecimal digits that equal arguments share, whatever the order of dictionaries and sets.

    Raises:
        BadArguments: as `encode`.
    """
    tree = {name: _argument(name, value, _json()) for name, value in arguments.items()}
    return blake2b(_dump_json(_in_order(tree)), digest_size=16).hexdigest()


def _in_order(tree: Any) -> Any:
    """Return a tree with the keys of dictionaries, and the elements of sets, in order."""
    if type(tree) is list:
        return [_in_order(each) for each in tree]
    if type(tree) is not dict:
        return tree
    found = {name: _in_order(tree[name]) for name in sorted(tree)}
    if len(found) == 1 and (tag := next(iter(found))) in {"$set", "$frozenset"}:
        found[tag] = sorted(found[tag], key=_dump_json)
    return found


def decode(body: bytes, name: str | None) -> Arguments:
    """Return the arguments that `encode` was given, or that another program has written. No name means JSON.

    Raises:
        PayloadMismatch: the body is not of this codec, or this installation lacks the codec.
    """
    try:
        tree = codec(name or DEFAULT_CODEC).load(body)
        args, kwargs = tree.get("args", []), tree.get("kwargs", {})
        if tree.keys() - {"args", "kwargs"} or type(args) is not list:
            raise _Unreadable('it takes {"args": [...], "kwargs": {...}}')  # noqa: TRY301
        values = {name: _untagged(value) for name, value in kwargs.items()}
        return Arguments(tuple(_untagged(value) for value in args), values)
    except Exception as exc:  # codecs raise anything at foreign bytes, and may quote them
        why = f"{type(exc).__name__}: {exc}" if isinstance(exc, _QUOTE_NOTHING) else type(exc).__name__
        raise PayloadMismatch(f"the body cannot be read as {name or DEFAULT_CODEC}: {why}") from exc


def encode_value(value: Any, codec: Codec) -> bytes:
    """Return one value as bytes: what a task returned.

    Raises:
        BadArguments: the value cannot be encoded; the text says why.
    """
    try:
        return codec.dump(_tagged(value, codec, ()))
    except _Refused as exc:  # without the path, whose keys may be secret: the text is logged
        what = "a value in the result" if exc.path else "the result"
        raise BadArguments(f"{what} {exc}") from exc
    except (ValueError, OverflowError, RuntimeError) as exc:  # another thread may change it meanwhile
        raise BadArguments(f"the result cannot be written as {codec.name}: {exc}") from exc


def decode_value(value: bytes, name: str | None) -> Any:
    """Return the value that `encode_value` was given.

    Raises:
        PayloadMismatch: the bytes are not of this codec, or this installation lacks the codec.
    """
    try:
        return _untagged(codec(name or DEFAULT_CODEC).load(value))
    except Exception as exc:  # as above
        raise PayloadMismatch(
            f"the result cannot be read as {name or DEFAULT_CODEC}: {type(exc).__name__}"
        ) from exc


# ── Values with tags ──


def _argument(name: str, value: Any, codec: Codec) -> Any:
    try:
        return _tagged(value, codec, ())
    except _Refused as exc:
        raise BadArguments(f"{name}{exc.path} {exc}") from exc


def _tagged(value: Any, codec: Codec, above: Above) -> Any:
    """Return the value as the codec can write it. Exact types: a subclass would come back as its base."""
    kind = type(value)
    if kind in codec.plain:
        return value
    if len(above) > MAX_DEPTH:
        raise _Refused(f"lies more than {MAX_DEPTH} levels deep")
    if id(value) in above:
        raise _Refused("holds itself")
    if kind not in _WRITE:
        raise _Refused(f"is a {kind.__module__}.{kind.__qualname__}; pass plain values, or an id")
    return _WRITE[kind](value, codec, above)


def _inside(container: Any, items: Iterable[tuple[Any, Any]], codec: Codec, above: Above) -> Iterator[Any]:
    """Yield the container's values as the codec can write them."""
    above, plain = (*above, id(container)), codec.plain
    for key, each in items:
        try:
            yield each if type(each) in plain else _tagged(each, codec, above)
        except _Refused as exc:
            exc.path = f"[{key!r}]{exc.path}"
            raise


def _float(value: float, *_: Any) -> Any:
    return value if math.isfinite(value) else {"$float": str(value)}


def _int(value: int, *_: Any) -> Any:
    """Tag large numbers: other languages read 64 bits at most, and Python refuses 5,000 decimal digits."""
    return value if -(1 << 63) <= value < 1 << 63 else {"$int": hex(value)}


def _list(value: Iterable[Any], codec: Codec, above: Above) -> Any:
    return list(_inside(value, enumerate(value), codec, above))


def _dict(value: dict[Any, Any], codec: Codec, above: Above) -> Any:
    for key in value:
        if type(key) is not str:
            raise _Refused(f"has a key of type {type(key).__name__}; keys are text")
    tree = dict(zip(value, _inside(value, value.items(), codec, above), strict=True))
    return {"$dict": tree} if _looks_tagged(tree) else tree


def _folded(value: datetime | time, tree: dict[str, Any]) -> dict[str, Any]:
    """Tag the second of two equal local times, as in the night that ends summer time: ISO 8601 cannot tell.

    With an offset they are not equal.
    """
    return {"$fold": tree} if value.fold and value.utcoffset() is None else tree


def _looks_tagged(tree: Mapping[str, Any]) -> bool:
    """Return whether a reader would take the dictionary for a tag."""
    return len(tree) == 1 and next(iter(tree)).startswith("$")


_WRITE: Final[Mapping[type, Callable[[Any, Codec, Above], Any]]] = {
    float: _float,
    int: _int,
    list: _list,
    dict: _dict,
    tuple: lambda value, *place: {"$tuple": _list(value, *place)},
    set: lambda value, *place: {"$set": _list(value, *place)},
    frozenset: lambda value, *place: {"$frozenset": _list(value, *place)},
    datetime: lambda value, *_: _folded(value, {"$datetime": value.isoformat()}),
    date: lambda value, *_: {"$date": value.isoformat()},
    time: lambda value, *_: _folded(value, {"$time": value.isoformat()}),
    timedelta: lambda value, *_: {"$timedelta_us": _int(value // _MICROSECOND)},
    UUID: lambda value, *_: {"$uuid": str(value)},
    Decimal: lambda value, *_: {"$decimal": str(value)},
    bytes: lambda value, *_: {"$bytes": value.hex()},
}
"""How to write values that may need a tag, by type."""

_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "$float": float,
    "$int": lambda text: int(text, 16),
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$fold": lambda moment: moment.replace(fold=1),
    "$timedelta_us": lambda number: timedelta(microseconds=number),
    "$uuid": UUID,
    "$decimal": Decimal,
    "$bytes": bytes.fromhex,
}
"""How to read the value of a tag."""


def _untagged(tree: Any) -> Any:
    """Return the value that a tree stands for."""
    if type(tree) is list:
        return [_untagged(each) for each in tree]
    if type(tree) is not dict:
        return tree
    if _looks_tagged(tree):
        ((tag, inside),) = tree.items()
        if tag == "$dict":
            return {key: _untagged(each) for key, each in inside.items()}
        if tag not in _READ:
            raise _Unreadable("it has an unknown tag; a newer version may have written it")
        return _READ[tag](_untagged(inside))
    return {key: _untagged(each) for key, each in tree.items()}
