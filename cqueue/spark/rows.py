"""Rows of a data frame as messages and records, checked whole batches at a time.

Limits are checked on Arrow's columns, before anything of the batch is stored: a million rows are checked in
the time that one Python object for each of them would take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from cqueue.errors import BadInput, BodyTooLarge, ConfigError, DelayOutOfRange
from cqueue.message import MAX_BODY, MAX_DELAY, check_headers
from cqueue.runtime.texts import MAX_TEXT
from cqueue.spark.options import WriteOptions

_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_TAKES: Final[dict[str | None, tuple[str, tuple[type[DataType], ...]]]] = {
    None: ("binary or string, such as to_json(struct(*))", (BinaryType, StringType)),
    "string": ("string", (StringType,)),
    "int": ("a whole number", _WHOLE),
    "double": ("a number", (*_WHOLE, FloatType, DoubleType, DecimalType)),
    "timestamp": ("timestamp", (TimestampType,)),
    "map<string,string>": ("map<string,string>", (MapType,)),
}
_IDS: Final = ("string, binary or a whole number", (StringType, BinaryType, *_WHOLE))
TYPES: Final[dict[str, str | None]] = {
    "body": None,
    "key": "string",
    "priority": "int",
    "delay": "double",
    "due": "timestamp",
    "headers": "map<string,string>",
    "task": "string",
    "codec": "string",
    "expires": "timestamp",
    "topic": "string",
    "partition": "int",
}
"""Types of columns in SQL; None for the body, which may be binary or a string."""
QUEUE_COLUMNS: Final = ("body", "key", "priority", "delay", "due", "headers", "task", "codec", "expires")
LOG_COLUMNS: Final = ("body", "topic", "key", "partition", "headers")
MAX_DELAY_US: Final = int(MAX_DELAY.total_seconds()) * 1_000_000
JOB_ID: Final = "cqueue_job_id"
"""The column of ids that jobs give to rows."""


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Refuse a data frame that cannot be written, before any task begins.

    Raises:
        ConfigError: a column is missing, unknown, or of a type that it does not take.
    """
    known = QUEUE_COLUMNS if options.kind == "queue" else LOG_COLUMNS
    types = {field.name: field.dataType for field in schema.fields}
    if len(types) < len(schema.fields):
        raise ConfigError(f"two columns have the same name, of {', '.join(schema.fieldNames())}; rename one")
    if "body" not in types:
        raise ConfigError(
            f"there is no column body; the rows have {', '.join(types) or 'none'}: rename one, or make it, "
            "such as to_json(struct(*))"
        )
    for name, type_ in types.items():
        if name not in known and name != options.id_column:
            raise ConfigError(
                f"a {options.kind} takes no column {name!r}, only {', '.join(known)}; drop or rename it"
            )
        wanted = [_TAKES[TYPES[name]]] if name in known else []
        for told, takes in [*wanted, _IDS] if name == options.id_column else wanted:
            if not (isinstance(type_, takes) and _is_texts(type_)):
                raise ConfigError(f"column {name!r} is {type_.simpleString()}; it takes {told}: cast it")
    if options.id_column is not None and options.id_column not in types:
        raise ConfigError(
            f"there is no column {options.id_column!r}, which idColumn names; "
            f"the rows have {', '.join(types)}"
        )
    if options.kind == "log" and "topic" not in types and options.topic is None:
        raise ConfigError("a record has a topic: give a column topic, or the option")


def _is_texts(type_: DataType) -> bool:
    """Return whether it is a map of texts, if it is a map at all."""
    if not isinstance(type_, MapType):
        return True
    return isinstance(type_.keyType, StringType) and isinstance(type_.valueType, StringType)


class Columns:
    """Checked columns of one batch as Python lists. first: the number of its first row in the task."""

    def __init__(self, batch: pa.RecordBatch, first: int) -> None:
        self._batch = batch
        self._first = first

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def _column(self, name: str) -> pa.Array | None:
        place = self._batch.schema.get_field_index(name)
        return None if place < 0 else self._batch.column(place)

    def bodies(self) -> list[bytes]:
        """Return every row's body.

        Raises:
            BadInput, BodyTooLarge: one is null, or has more than 1 MiB.
        """
        column = self._batch.column("body").cast(pa.binary())
        self._refuse(column.is_null(), BadInput, "has no body")
        self._refuse(pc.greater(pc.binary_length(column), MAX_BODY), BodyTooLarge, "has a body above 1 MiB")
        return _values(column)

    def texts(self, name: str) -> list[str | None] | None:
        """Return texts of 1 to 1,000 characters, or None where there is no such column.

        Raises:
            BadInput: one is longer, or empty.
        """
        column = self._column(name)
        if column is None:
            return None
        length = pc.utf8_length(column)
        wrong = pc.or_(pc.greater(length, MAX_TEXT), pc.equal(length, 0))
        self._refuse(wrong, BadInput, f"has a {name} that is empty or longer than {MAX_TEXT:,} characters")
        return self._python(column, name)

    def sources(self, name: str) -> list[str]:
        """Return the values that ids derive from, as texts of up to 1,000 characters.

        Raises:
            BadInput: one is null, empty or longer.
        """
        column = self._batch.column(name)
        if pa.types.is_binary(column.type):
            found = [None if each is None else each.hex() for each in column.to_pylist()]
            column = pa.array(found, pa.string())
        column = column.cast(pa.string())
        length = pc.utf8_length(column)
        wrong = pc.or_kleene(column.is_null(), pc.or_(pc.greater(length, MAX_TEXT), pc.equal(length, 0)))
        self._refuse(wrong, BadInput, f"has a {name} that is null, empty or longer than {MAX_TEXT:,}")
        return self._python(column, name)

    def whole(self, name: str, low: int, high: int, error: type[BadInput]) -> list[int | None] | None:
        """Return whole numbers in a range, or None where there is no such column.

        Raises:
            BadInput: as `error`, outside of the range.
        """
        column = self._column(name)
        if column is None:
            return None
        wrong = pc.or_(pc.less(column, low), pc.greater(column, high))
        self._refuse(wrong, error, f"has a {name} not of {low} to {high}")
        return _values(column)

    def headers(self) -> list[dict[str, str] | None] | None:
        """Return headers by name, or None where there is no such column or none in it.

        Raises:
            BadInput, HeadersTooLarge: a value is null; too many.
        """
        column = self._column("headers")
        if column is None or column.null_count == len(column):
            return None
        stored = self._python(column, "header")
        return [dict(check_headers(dict(each))) if each else None for each in stored]

    def times_us(self, name: str) -> list[int | None] | None:
        """Return times in µs since 1970, or None where there is no such column."""
        column = self._column(name)
        if column is None:
            return None
        return _values(column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()))

    def delays_us(self) -> list[int | None] | None:
        """Return delays in µs, or None where there is no such column.

        Raises:
            DelayOutOfRange: not 0 to 10 years.
        """
        column = self._column("delay")
        if column is None:
            return None
        us = pc.multiply(column.cast(pa.float64()), 1e6)
        wrong = pc.invert(pc.and_(pc.greater_equal(us, 0.0), pc.less_equal(us, float(MAX_DELAY_US))))
        self._refuse(wrong, DelayOutOfRange, "has a delay not of 0 to 10 years")
        return _values(pc.round(us).cast(pa.int64()))

    def _python(self, column: pa.Array, name: str) -> list[Any]:
        """Return texts as Python's. Spark's strings may hold any bytes, as casts and files bring them."""
        try:
            return _values(column)
        except UnicodeDecodeError as exc:
            raise BadInput(
                f"a row from {self._first + 1} on of this task has a {name} that is not UTF-8 ({exc}); "
                "nothing of its batch is stored"
            ) from exc

    def _refuse(self, wrong: pa.Array, error: type[BadInput], what: str) -> None:
        place = pc.index(wrong, pa.scalar(value=True)).as_py()
        if place >= 0:
            raise error(f"row {self._first + place + 1} of this task {what}; nothing of its batch is stored")

    def refuse_any(self, wrong: Sequence[bool], error: type[BadInput], what: str) -> None:
        """Raise if any row is wrong.

        Raises:
            BadInput: as `error`.
        """
        if any(wrong):
            self._refuse(pa.array(wrong, pa.bool_()), error, what)


def _values(column: pa.Array) -> list[Any]:
    found: list[Any] = column.to_pylist()
    return found
