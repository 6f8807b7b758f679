"""The batch reader: planned in one process, and pickled for the processes that read."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.spark import heads, messages, records
from cqueue.spark.brief import brief
from cqueue.spark.options import ReadOptions, check_batch
from cqueue.spark.session import patient, session
from cqueue.spark.views import DEAD, LOG, MESSAGES


class Reader(DataSourceReader):
    """Reads one view.

    Takes no filters from Spark, which reads a data frame for the second time with the filters of the first.
    """

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    @brief
    def partitions(self) -> list[InputPartition]:
        """Plan the tasks. Called once, where the query is planned.

        Raises:
            QueueNotFound, LogNotFound: there is none of that name.
            ConfigError: an option is not for batches.
            NotDone: Cassandra does not answer.
        """
        options = self._options
        check_batch(options)
        side = session(options.settings)
        as_of_us = side.driver.clock.now_us() if options.as_of_us is None else options.as_of_us
        if options.view == LOG:
            return records.plan(side, side.logs.entry(options.name).spec, options, as_of_us)
        spec = side.queues.entry(_queue_name(options)).spec
        if options.view in {MESSAGES, DEAD}:
            return messages.plan(side, spec, options, as_of_us)
        return heads.plan(side, spec, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a task, as Arrow batches. Where there are no tasks Spark asks for one all the same.

        Raises:
            NotDone: Cassandra does not answer; Spark tries the task again.
        """
        side = patient(session)(self._options.settings)
        match partition:
            case messages.MessagePart():
                return messages.read(side, partition, self._options.view, self._columns)
            case heads.HeadPart():
                return heads.read(side, partition, self._options.view, self._columns)
            case records.LogPart():
                return records.read(side, partition, self._columns)
        return iter(())


def _queue_name(options: ReadOptions) -> str:
    """Return the queue to read; dead letters stand in a queue of their own."""
    if options.view == DEAD and not options.name.endswith(DEAD_SUFFIX):
        return options.name + DEAD_SUFFIX
    return options.name
