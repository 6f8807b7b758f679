"""The batch writer: made where the query is planned, sent to the tasks, and asked for nothing at the end.

What a task has stored stays: a queue or a log cannot take anything back that readers may have seen. A job
that has to be repeated names a column that ids derive from.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.types import StructType

from cqueue.errors import ConfigError
from cqueue.runtime import logs
from cqueue.spark import ledger
from cqueue.spark.options import WriteOptions, check_use
from cqueue.spark.rows import check_schema
from cqueue.spark.session import SparkSide, session
from cqueue.spark.sink import LogSink, Marks, QueueSink, Sink, Written, stored_by, write

_log = logs.logger("cqueue.spark")


class Writer(DataSourceArrowWriter):
    """Sends or appends every row."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        """Check what can be checked before any task begins.

        Raises:
            ConfigError: columns or options that do not fit.
            BadInput: the target does not exist, or takes no derived ids.
        """
        check_use(options, is_stream=False)
        check_schema(schema, options)
        _check_due(schema, options)
        side = session(options.settings)
        self._options = options
        self._job = uuid.uuid4().hex
        self._began_us = side.driver.clock.now_us()
        self._sink(side)  # raises what is wrong with the target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store one task's rows.

        Raises:
            BadInput, NotDone, SendUnknown, OwnershipLost: as `sink.write`.
        """
        return write(lambda: self._sink(session(self._options.settings)), iterator, self._job)

    def _sink(self, side: SparkSide) -> Sink:
        options = self._options
        if options.kind == "queue":
            return QueueSink(side, options)
        if options.id_column is None:
            return LogSink(side, options)
        return LogSink(side, options, marks=self._marks(side))

    def _marks(self, side: SparkSide) -> Marks | None:
        """Look for marks of earlier runs, and in a repeated task of this run. None where Spark plans."""
        context = TaskContext.get()
        if context is None:
            return None
        spec = side.logs.entry(self._options.name).spec
        task = f"{self._job}/{context.partitionId()}"
        seen = _marks_before(self._options, self._began_us)
        attempt = ledger.begin(side, spec.partition, task, self._job, context)
        if attempt.repeated:
            until_us = ledger.settle(side, spec, side.driver.clock.now_us())
            seen |= ledger.marks(side, spec, self._began_us, until_us, "")
        return Marks("", attempt, seen)

    def commit(self, messages: list[Written | None]) -> None:
        """Log how many rows all tasks have stored."""
        _log.info("spark_written", target=self._options.name, stored=stored_by(messages))

    def abort(self, messages: list[Written | None]) -> None:
        """Log what was stored before a task failed; it stays."""
        _log.warning("spark_write_aborted", target=self._options.name, stored_at_least=stored_by(messages))


@lru_cache(maxsize=1)
def _marks_before(options: WriteOptions, began_us: int) -> frozenset[bytes]:
    """Return the marks of runs before this job, once what a task of theirs had sent has arrived.

    They are the same for all tasks, so a process reads them once.
    """
    side = session(options.settings)
    spec = side.logs.entry(options.name).spec
    until_us = ledger.settle(side, spec, began_us)  # nothing of this job has been stored yet
    return frozenset(ledger.marks(side, spec, options.rerun_since_us or 0, until_us, ""))


def _check_due(schema: StructType, options: WriteOptions) -> None:
    if options.kind == "log" or options.id_column is None:
        return
    if "delay" in schema.fieldNames():
        raise ConfigError("with idColumn give due and no delay: a rerun has to give the same time again")
    if "due" not in schema.fieldNames() and options.due_us is None:
        raise ConfigError(
            "with idColumn a message needs a time that a rerun gives again: a column due, or the option"
        )
