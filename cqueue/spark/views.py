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

_TYPES: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "string": (StringType(), pa.string()),
    "int": (IntegerType(), pa.int32()),
    "bigint": (LongType(), pa.int64()),
    "boolean": (BooleanType(), pa.bool_()),
    "binary": (BinaryType(), pa.binary()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "map<string,string>": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
}

_MESSAGE: Final = (
    "id string, queue string, priority int, due timestamp, body binary, headers map<string,string>, "
    "codec string, task string, key string, trigger string, sent_at timestamp, expires timestamp"
)
_COLUMNS: Final = {
    MESSAGES: _MESSAGE,
    DEAD: f"{_MESSAGE}, reason string, attempts int, original_id string, traceback string, redrives int, "
    "holder string, fence bigint, holder_lost boolean",
    INFLIGHT: "id string, queue string, priority int, attempt int, state string, due timestamp, owner string",
    SHARDS: "queue string, time_shard timestamp, shard int, open boolean, messages bigint, in_flight bigint, "
    "oldest_due timestamp, lock string, fence bigint",
    LOG: "id string, log string, partition int, time timestamp, topic string, key string, body binary, "
    "headers map<string,string>",
}
VIEWS: Final = {
    view: {name: _TYPES[kind] for name, kind in map(str.split, columns.split(", "))}
    for view, columns in _COLUMNS.items()
}
"""Types of columns in Spark and in Arrow, by view and name."""
QUEUE_VIEWS: Final = (MESSAGES, DEAD, INFLIGHT, SHARDS)


def spark_schema(view: str, columns: Sequence[str] | None = None) -> StructType:
    """Return the columns of a view, all or those named, in that order.

    Raises:
        ConfigError: the view has no such column.
    """
    names = list(VIEWS[view]) if columns is None else columns
    return StructType([StructField(name, _type(view, name)) for name in names])


def columns_of(view: str, schema: StructType, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the columns that a reader is to give. columns: those that the option names, if any.

    Raises:
        ConfigError: the schema asks for what the view has not, or as another type, or for other columns than
            the option.
    """
    for field in schema.fields:
        type_ = _type(view, field.name)
        if field.dataType != type_:
            wanted, given = type_.simpleString(), field.dataType.simpleString()
            raise ConfigError(f"column {field.name!r} of view {view!r} is {wanted}, not {given}")
    names = tuple(field.name for field in schema.fields)
    if columns is not None and names != tuple(columns):
        raise ConfigError(
            f".schema(…) names {', '.join(names) or 'no columns'}, and option columns {', '.join(columns)}; "
            "leave one of them out"
        )
    return names


def arrow_schema(view: str, columns: Sequence[str]) -> pa.Schema:
    """Return columns of a view in Arrow: times in µs and UTC, whatever the session's time zone."""
    return pa.schema([pa.field(name, VIEWS[view][name][1]) for name in columns])


def _type(view: str, name: str) -> DataType:
    known = VIEWS[view]
    if name not in known:
        raise ConfigError(f"view {view!r} has no column {name!r}; it has {', '.join(known)}")
    return known[name][0]
