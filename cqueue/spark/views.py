"""The columns of each view, for Spark and for Arrow.

Both schemas are made here, side by side, because Spark takes Arrow batches as they are: a column whose unit
or order differs in a single batch is an error at best.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from cqueue.errors import ConfigError

MESSAGES: Final = "messages"
DEAD: Final = "dead"
INFLIGHT: Final = "inflight"
SHARDS: Final = "shards"
LOG: Final = "log"

_TEXTS: Final = MapType(StringType(), StringType())
_ARROW: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}

Columns = dict[str, DataType]

_MESSAGE: Final[Columns] = {
    "id": StringType(),
    "queue": StringType(),
    "priority": IntegerType(),
    "due": TimestampType(),
    "body": BinaryType(),
    "headers": _TEXTS,
    "codec": StringType(),
    "task": StringType(),
    "key": StringType(),
    "trigger": StringType(),
    "sent_at": TimestampType(),
    "expires": TimestampType(),
}
VIEWS: Final[dict[str, Columns]] = {
    MESSAGES: _MESSAGE,
    DEAD: {
        **_MESSAGE,
        "reason": StringType(),
        "attempts": IntegerType(),
        "original_id": StringType(),
        "traceback": StringType(),
        "redrives": IntegerType(),
        "holder": StringType(),
        "fence": LongType(),
        "holder_lost": BooleanType(),
    },
    INFLIGHT: {
        "id": StringType(),
        "queue": StringType(),
        "priority": IntegerType(),
        "attempt": IntegerType(),
        "state": StringType(),
        "due": TimestampType(),
        "owner": StringType(),
    },
    SHARDS: {
        "queue": StringType(),
        "time_shard": TimestampType(),
        "shard": IntegerType(),
        "open": BooleanType(),
        "messages": LongType(),
        "in_flight": LongType(),
        "oldest_due": TimestampType(),
        "lock": StringType(),
        "fence": LongType(),
    },
    LOG: {
        "id": StringType(),
        "log": StringType(),
        "partition": IntegerType(),
        "time": TimestampType(),
        "topic": StringType(),
        "key": StringType(),
        "body": BinaryType(),
        "headers": _TEXTS,
    },
}
QUEUE_VIEWS: Final = (MESSAGES, DEAD, INFLIGHT, SHARDS)


def spark_schema(view: str, columns: Sequence[str] | None = None) -> StructType:
    """Return the columns of a view, all or those named, in that order.

    Raises:
        ConfigError: the view has no such column.
    """
    names = list(VIEWS[view]) if columns is None else columns
    return StructType([StructField(name, _type(view, name)) for name in names])


def columns_of(view: str, schema: StructType) -> tuple[str, ...]:
    """Return the names of the columns that a reader is to give.

    Raises:
        ConfigError: the schema asks for what the view has not, or as another type.
    """
    for field in schema.fields:
        type_ = _type(view, field.name)
        if field.dataType != type_:
            wanted, given = type_.simpleString(), field.dataType.simpleString()
            raise ConfigError(f"column {field.name!r} of view {view!r} is {wanted}, not {given}")
    return tuple(field.name for field in schema.fields)


def arrow_schema(view: str, columns: Sequence[str]) -> pa.Schema:
    """Return columns of a view in Arrow: times in µs and UTC, whatever the session's time zone."""
    return pa.schema([pa.field(name, _ARROW[VIEWS[view][name].simpleString()]) for name in columns])


def _type(view: str, name: str) -> DataType:
    known = VIEWS[view]
    if name not in known:
        raise ConfigError(f"view {view!r} has no column {name!r}; it has {', '.join(known)}")
    return known[name]
