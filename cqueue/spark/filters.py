"""Filters of a query as bounds of what is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from cqueue.message import datetime_us
from cqueue.spark.options import ReadOptions
from cqueue.spark.views import DEAD, LOG, MESSAGES

_TIMES = {MESSAGES: "due", DEAD: "due", LOG: "time"}
_SETS = {
    MESSAGES: {"priority": "priorities"},
    DEAD: {"priority": "priorities"},
    LOG: {"topic": "topics", "partition": "partitions"},
}


def narrowed(options: ReadOptions, filters: Sequence[Filter]) -> tuple[ReadOptions, list[Filter]]:
    """Move filters that options can express exactly into the options; return both.

    With a limit all filters are left to Spark: the limit counts rows before they are filtered.
    """
    if options.limit is not None:
        return options, list(filters)
    left: list[Filter] = []
    for each in filters:
        found = _narrow(options, each)
        if found is None:
            left.append(each)
        else:
            options = found
    return options, left


def _narrow(options: ReadOptions, one: Filter) -> ReadOptions | None:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    column = attribute[0] if len(attribute) == 1 else ""
    if column == _TIMES.get(options.view):
        return _in_time(options, one)
    name = _SETS.get(options.view, {}).get(column)
    return None if name is None else _among(options, name, one)


def _in_time(options: ReadOptions, one: Any) -> ReadOptions | None:
    value = getattr(one, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    at_us = datetime_us(value)
    bounds = {
        EqualTo: (at_us, at_us + 1),
        GreaterThan: (at_us + 1, None),
        GreaterThanOrEqual: (at_us, None),
        LessThan: (None, at_us),
        LessThanOrEqual: (None, at_us + 1),
    }.get(type(one))
    return None if bounds is None else _between(options, *bounds)


def _between(options: ReadOptions, since_us: int | None, until_us: int | None) -> ReadOptions:
    """Narrow the bounds of time; None leaves a bound as it is."""
    since = [each for each in (since_us, options.since_us) if each is not None]
    until = [each for each in (until_us, options.until_us) if each is not None]
    return replace(options, since_us=max(since, default=None), until_us=min(until, default=None))


def _among(options: ReadOptions, name: str, one: Any) -> ReadOptions | None:
    match one:
        case EqualTo():
            values = frozenset({one.value})
        case In():
            values = frozenset(one.value)
        case _:
            return None
    known = getattr(options, name)
    wanted: dict[str, Any] = {name: values if known is None else known & values}
    return replace(options, **wanted)
