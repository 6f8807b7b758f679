"""The target of a job's rows: a queue or a log, and how a row becomes a message or a record.

What a column takes is given as a SQL expression over the rows, so that a job needs no code of its own for
each shape of data. All is checked in one pass over the rows before the first of them is written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, Observation
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql import types as T  # noqa: N812 - its usual name

from cqueue.client import connect
from cqueue.errors import BadInput
from cqueue.message import MAX_BODY, MAX_DELAY, MAX_HEADERS, MAX_HEADERS_BYTES, MAX_PRIORITY, datetime_us
from cqueue.runtime.texts import MAX_TEXT
from cqueue.settings import load as load_settings
from cqueue.spark import session
from cqueue.spark.jobs.checks import check_aware
from cqueue.spark.jobs.failures import reading, writing
from cqueue.spark.rows import JOB_ID, LOG_COLUMNS, MAX_DELAY_US, QUEUE_COLUMNS, TYPES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cqueue.queue import Queue
    from cqueue.spark.session import SparkSide

FOLLOWED_S = 2.0
"""Seconds after which all clients know of a changed configuration."""
TEXTS = ("key", "task", "codec", "topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A queue or a log, and the expressions for its columns.

    Attributes:
        queue, log: the name of the one or the other.
        url: of the cluster; None takes `CQUEUE_URL`, as everywhere.
        columns: what to write into each column of the target, as a SQL expression over the rows. Left out:
            the column of that name, in any case, if the rows have it, and for `body` else the whole row as
            JSON.
        id: a SQL expression; rows with the same id become one message or record, however often they are
            written. For a queue it needs `at`, or a `due` for each row, that every run gives again.
        at: of a queue, the due time of rows that have none; of a log, with an id, when rows were written
            first: earlier records are not looked at. Aware.
        rate: rows a second, over all tasks together; None as quick as it goes.

    Raises:
        BadInput: not exactly one of queue and log; a column that the target does not have; a rate of 0 or
            less.
    """

    queue: str | None = None
    log: str | None = None
    url: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    id: str | None = None
    at: datetime | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        """Check what fits together."""
        if (self.queue is None) == (self.log is None):
            raise BadInput("give a queue or a log to write to, one of them")
        unknown = set(self.columns) - set(self.known)
        if unknown:
            raise BadInput(
                f"{self.kind}s have no column {', '.join(sorted(unknown))}; they have {', '.join(self.known)}"
            )
        if self.rate is not None and not self.rate > 0:
            raise BadInput(f"rate is {self.rate!r}; it takes rows a second, more than 0")
        check_aware("at", self.at)
        if "delay" in self.columns and (self.id is not None or "due" in self.columns):
            raise BadInput("delay goes neither with due nor with an id; give due")

    @property
    def kind(self) -> str:
        """Return `queue` or `log`."""
        return "queue" if self.log is None else "log"

    @property
    def name(self) -> str:
        """Return the name of the queue or log."""
        return str(self.queue if self.log is None else self.log)

    @property
    def known(self) -> tuple[str, ...]:
        """Return the target's columns."""
        return QUEUE_COLUMNS if self.log is None else LOG_COLUMNS

    def options(self) -> dict[str, str]:
        """Return the options of the data source."""
        given = {self.kind: self.name, "url": self.url, "rate": self.rate}
        if self.id is not None:
            given["idColumn"] = JOB_ID
        if self.at is not None and self.log is None:
            # As an option, for which the rows get times of their own behind it: many at one µs are a burden.
            given["due"] = self.at.isoformat()
        if self.at is not None and self.log is not None and self.id is not None:
            given["rerunSince"] = self.at.isoformat()
        return {key: str(value) for key, value in given.items() if value is not None}


def ready(target: Target, *, dry_run: bool, derived: bool | None = None) -> None:
    """Look whether the target exists; alter a queue to take derived ids if it must.

    derived: whether it must; None: if the target has an id.

    Raises:
        QueueNotFound, LogNotFound: the target does not exist.
        NotDone: the cluster does not answer.
    """
    with connect(target.url) as client:
        if target.log is not None:
            client.log(target.log)
            return
        queue = client.queue(target.name)
        if not dry_run and (target.id is not None if derived is None else derived):
            take_derived(queue)


def take_derived(queue: Queue) -> None:
    """Let the queue take derived ids, and return when every client knows.

    Spark's workers live on from job to job, and one that has just read the old configuration would refuse.
    """
    if not queue.config.derived_sends:
        queue.alter(derived_sends=True)
        time.sleep(FOLLOWED_S)


def shaped(rows: DataFrame, target: Target, row_id: str | None = None) -> DataFrame:
    """Shape rows as the data source takes them.

    row_id: a SQL expression in place of the target's id, for a sink that has a time for rows without one.

    Raises:
        BadInput: an expression that Spark cannot read; a body that is neither binary nor text; an id without
            a due time; a record without a topic.
    """
    taken = {name: _given(rows, target, name) for name in target.known}
    if taken["body"] is None:
        taken["body"] = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    if target.id is not None and target.log is None and target.at is None and taken["due"] is None:
        raise BadInput(
            "an id needs a due time that is the same in every run: a column due, or --due, given again"
        )
    if (named := row_id or target.id) is not None:
        taken[JOB_ID] = F.expr(named).cast("string")
    if target.log is not None and taken["topic"] is None:
        raise BadInput("a record has a topic, and the rows have no such column; say which (--set topic=…)")
    with reading("the rows cannot be read so"):
        found = rows.select(*(value.alias(name) for name, value in taken.items() if value is not None))
    kind = found.schema["body"].dataType
    if not isinstance(kind, T.BinaryType | T.StringType):
        raise BadInput(f"body is {kind.simpleString()}; it takes binary or text, as of to_json(…)")
    return found


def _given(rows: DataFrame, target: Target, name: str) -> Column | None:
    """Return the caller's expression, else the column of that name, cast to the target's type."""
    expression, kind = target.columns.get(name), TYPES[name]
    has_case = rows.sparkSession.conf.get("spark.sql.caseSensitive").lower() == "true"
    if expression is None and name not in (rows.columns if has_case else map(str.lower, rows.columns)):
        return None
    if expression is None and name == "delay" and "due" in target.columns:
        return None
    column = F.col(f"`{name}`") if expression is None else F.expr(expression)
    if kind is None:
        return column
    # Without Spark's ANSI mode a cast that fails is null, which means the default, or some of the bits.
    cast = column.try_cast(kind)
    wrong = F.raise_error(F.concat(F.lit(f"{name} is no {kind}: "), column.cast("string")))
    return F.when(column.isNotNull() & cast.isNull(), wrong).otherwise(cast)


def check(rows: DataFrame, target: Target) -> int:
    """Check all shaped rows without writing; return how many there are.

    Raises:
        BadInput: rows that cannot be written: says how many, by what is wrong with them. Or rows that cannot
            be read, such as a line that is no JSON.
    """
    wrong = {name: F.count_if(F.coalesce(bad, F.lit(False))) for name, bad in _faults(rows, target).items()}
    columns = [F.count(F.lit(1)).alias("rows"), *(column.alias(name) for name, column in wrong.items())]
    with reading("the rows cannot be read"):
        counted = rows.agg(*columns).collect()[0]
    found = [f"{counted[name]:,} with {name}" for name in wrong if counted[name]]
    if found:
        raise BadInput(f"of {counted['rows']:,} rows, {', '.join(found)}: nothing was written")
    return int(counted["rows"])


def _faults(rows: DataFrame, target: Target) -> dict[str, Column]:
    """Return conditions that no row may meet, by what is wrong with such a row: all that a sink refuses."""
    faults = {
        "no body": F.col("body").isNull(),
        f"a body above {MAX_BODY:,} bytes": F.octet_length("body") > MAX_BODY,
    }
    for name in TEXTS:
        if name in rows.columns:
            faults[f"a {name} not of 1 to {MAX_TEXT:,} characters"] = ~F.length(name).between(1, MAX_TEXT)
            faults[f"a {name} that is not UTF-8"] = ~F.is_valid_utf8(name)
    if "headers" in rows.columns:
        marked = target.log is not None and target.id is not None
        faults |= _header_faults(MAX_HEADERS - 1 if marked else MAX_HEADERS)
    if JOB_ID in rows.columns:
        faults["no id"] = F.col(JOB_ID).isNull() | (F.length(JOB_ID) == 0)
        faults[f"an id above {MAX_TEXT:,} characters"] = F.length(JOB_ID) > MAX_TEXT
        faults["an id that is not UTF-8"] = ~F.is_valid_utf8(JOB_ID)
    side = session.session(load_settings(target.url))
    if target.log is not None:
        return faults | _record_faults(rows, side.logs.entry(target.log).spec.partitions)
    return faults | _message_faults(rows, target, side)


def _header_faults(most: int) -> dict[str, Column]:
    headers = F.col("headers")
    both = F.concat(F.map_keys(headers), F.map_values(headers))
    size = F.aggregate(both, F.lit(0), lambda total, each: total + F.octet_length(each))
    return {
        "a header that is null": F.exists(F.map_values(headers), lambda each: each.isNull()),
        "a header that is not UTF-8": F.exists(both, lambda each: ~F.is_valid_utf8(each)),
        f"more than {most} headers": F.size(headers) > most,
        f"headers above {MAX_HEADERS_BYTES:,} bytes": size > MAX_HEADERS_BYTES,
    }


def _record_faults(rows: DataFrame, partitions: int) -> dict[str, Column]:
    faults = {"no topic": F.col("topic").isNull()}
    if "partition" in rows.columns:
        last = partitions - 1
        faults[f"a partition not of 0 to {last}"] = ~F.col("partition").between(0, last)
    return faults


def _message_faults(rows: DataFrame, target: Target, side: SparkSide) -> dict[str, Column]:
    now_us = side.driver.clock.now_us()
    faults = {}
    if "priority" in rows.columns:
        faults[f"a priority not of 0 to {MAX_PRIORITY}"] = ~F.col("priority").between(0, MAX_PRIORITY)
    if "delay" in rows.columns:
        longest = MAX_DELAY.total_seconds()
        faults["a delay not of 0 to 10 years"] = ~F.col("delay").between(0, longest)
    if "expires" in rows.columns:
        faults["an expires in more than 10 years"] = F.unix_micros("expires") > now_us + MAX_DELAY_US
    if "expires" in rows.columns and target.id is None:  # with ids, a run may complete an earlier one
        faults["an expires in the past"] = F.unix_micros("expires") < now_us + 1000
    if "delay" in rows.columns and "due" in rows.columns:
        faults["both due and delay"] = F.col("due").isNotNull() & F.col("delay").isNotNull()
    due_us = F.unix_micros("due") if "due" in rows.columns else F.lit(None)
    if target.at is not None:
        due_us = F.coalesce(due_us, F.lit(datetime_us(target.at)))
    faults["a due in more than 10 years"] = due_us > now_us + MAX_DELAY_US
    if JOB_ID in rows.columns:
        spec = side.queues.entry(target.name).spec
        faults["no due time"] = due_us.isNull()
        faults["a due longer ago than gc_grace"] = due_us < now_us + 2 * spec.settle_us - spec.gc_grace_us
    return faults


def each_once(rows: DataFrame, target: Target) -> DataFrame:
    """Return one row of each id, for a log: its sink knows only ids of records of earlier runs.

    Rows keep their order, in which a log's records of one key are read, unless an id stands there twice.
    """
    if target.log is None or target.id is None:
        return rows
    with reading("the rows cannot be read"):
        count, distinct = rows.agg(F.count(JOB_ID), F.count_distinct(JOB_ID)).collect()[0]
    return rows if count == distinct else rows.dropDuplicates([JOB_ID])


def write(rows: DataFrame, target: Target, *, dry_run: bool) -> int:
    """Write shaped rows; return how many were stored and acknowledged. A log takes one of each id.

    dry_run: only count them.

    Raises:
        OutcomeUnknown: a task did not get its rows stored; what others stored stays.
    """
    once = each_once(rows, target)
    if dry_run:
        with reading("the rows cannot be read"):
            return int(once.count())
    observed = Observation()
    counted: Any = once.observe(observed, F.count(F.lit(1)).alias("rows"))
    again = "Run it again: what is stored is not stored twice." if target.id else "Another run makes copies."
    with writing(f"writing to {target.kind} {target.name}", again):
        counted.write.format("cqueue").mode("append").options(**target.options()).save()
    return int(observed.get["rows"])
