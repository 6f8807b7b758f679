"""The streaming writer: a batch that Spark runs again after a crash stores each row once.

Spark tells a task neither query nor batch, but hands both to it as local properties. With the number of the
task and of the row they name a row for good, as long as a repeated batch has the same rows in the same order;
where that is not so, a column names them (`idColumn`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from cqueue.errors import BadInput
from cqueue.runtime import logs
from cqueue.spark import ledger
from cqueue.spark.options import RESEND, WriteOptions, check_use
from cqueue.spark.rows import check_schema
from cqueue.spark.session import SparkSide, session
from cqueue.spark.sink import LogSink, Marks, QueueSink, Sink, Written, stored_by, write

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"

_log = logs.logger("cqueue.spark")


class StreamWriter(DataSourceStreamArrowWriter):
    """Sends or appends every row of each batch."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        """Check what can be checked before any task begins. Made anew whenever a query starts.

        Raises:
            ConfigError: columns or options that do not fit.
            BadInput: the target does not exist; or it is a queue that takes no derived ids.
        """
        check_use(options, is_stream=True)
        check_schema(schema, options)
        self._options = options
        self._run = uuid.uuid4().hex
        side = session(options.settings)
        if options.kind == "queue":
            QueueSink(side, options, work="")
        else:
            LogSink(side, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store one task's rows of one batch; those that an earlier try has stored are not stored again.

        Raises:
            BadInput, NotDone, SendUnknown, OwnershipLost: as `sink.write`; the batch can be repeated.
        """
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(BATCH)
        if context is None or batch is None:
            raise BadInput("this writer is Spark's, for batches of a streaming query")
        work = f"{context.getLocalProperty(QUERY)}/{batch}"
        return write(lambda: self._sink(work, context), iterator, f"{self._run}/{batch}")

    def _sink(self, work: str, context: TaskContext) -> Sink:
        options, side = self._options, session(self._options.settings)
        task = f"{work}/{context.partitionId()}"
        if options.kind == "queue":
            return self._queue_sink(side, work, task)
        spec = side.logs.entry(options.name).spec
        begun = ledger.first_try(side, spec.partition, work, self._run)
        # A row that a column names may be in another task when the batch is repeated.
        prefix = f"{task}/" if options.id_column is None else f"{work}/"
        seen: set[bytes] = set()
        attempt = ledger.begin(side, spec.partition, task, self._run, context)
        if attempt.repeated or begun.repeated:
            until_us = ledger.settle(side, spec, side.driver.clock.now_us())
            seen = ledger.marks(side, spec, begun.at_us - spec.skew_us, until_us, prefix)
        return LogSink(side, options, marks=Marks(prefix, attempt, frozenset(seen)))

    def _queue_sink(self, side: SparkSide, work: str, task: str) -> Sink:
        """Make a sink of messages whose times and ids follow from when the batch was tried first."""
        spec = side.queues.entry(self._options.name).spec
        due_us = ledger.due_us(side, spec.partition, work, task, self._run)
        now_us = side.driver.clock.now_us()
        stale = now_us + 4 * spec.settle_us > due_us + spec.gc_grace_us
        if stale and self._options.stale_batch == RESEND:
            _log.warning("spark_batch_resent", queue=spec.name, work=task)
            due_us = now_us
        return QueueSink(side, self._options, work=task, due_us=due_us)

    def commit(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log how many rows the batch has stored."""
        _log.info("spark_batch_written", batch=batchId, stored=stored_by(messages))

    def abort(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803
        """Log what the batch has stored, which stays: the batch is repeated, and stores what is missing."""
        _log.warning("spark_batch_aborted", batch=batchId, stored_at_least=stored_by(messages))
