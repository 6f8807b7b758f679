"""A driver that copies one log to a queue and to another log, and is killed on its way.

Where: the data source `killing` is `cqueue`, except that the JVM of the driver gets a SIGKILL at one moment
of a batch, once. The starting process writes that moment to a file, and the file is gone when it has
happened.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from cqueue.spark.source import DefaultSource
from cqueue.spark.stream import LogStreamReader
from cqueue.spark.stream_writer import StreamWriter

PHASES = ("offset", "plan", "read", "write-begin", "write-middle", "write-end", "commit", "next")


def reach(phase, sink):
    """Die here, if this is where to."""
    order = Path(os.environ["CQUEUE_TEST_KILL"])
    try:
        if order.read_text(encoding="utf-8") != f"{phase} {sink}":
            return
        order.unlink()
    except FileNotFoundError:
        return
    os.kill(int(Path(os.environ["CQUEUE_TEST_JVM"]).read_text(encoding="utf-8")), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class KillingReader(LogStreamReader):
    """Dies where a batch is planned or read."""

    committed = 0

    def __getstate__(self):
        return {**super().__getstate__(), "sink": self.sink}

    def latestOffset(self, start, limit):  # noqa: N802
        if self.committed:
            reach("next", self.sink)
        found = super().latestOffset(start, limit)
        if found != start:
            reach("offset", self.sink)
        return found

    def partitions(self, start, end):
        reach("plan", self.sink)
        type(self).committed += 1
        return super().partitions(start, end)

    def read(self, partition):
        for batch in super().read(partition):
            yield batch
            reach("read", self.sink)


class KillingWriter(StreamWriter):
    """Dies before, between and after what a task stores, or when the batch is committed."""

    def write(self, iterator):
        sink = self._options.kind
        reach("write-begin", sink)
        report = super().write(self._cut(iterator, sink))
        if report.rows:
            reach("write-end", sink)
        return report

    def _cut(self, iterator, sink):
        for batch in iterator:
            yield batch.slice(0, batch.num_rows // 2)
            yield batch.slice(batch.num_rows // 2)
            if batch.num_rows:
                reach("write-middle", sink)

    def commit(self, messages, batchId):  # noqa: N803
        reach("commit", self._options.kind)
        super().commit(messages, batchId)


class KillingSource(DefaultSource):
    """The source `killing`."""

    @classmethod
    def name(cls):
        return "killing"

    def __init__(self, options):  # Spark advises against it, and has no other way to an option of one's own
        super().__init__({name: value for name, value in options.items() if name != "sink"})
        self.sink = options.get("sink")

    def streamReader(self, schema):  # noqa: N802
        killing = KillingReader(self.options, schema)
        killing.sink = self.sink
        return killing

    def streamWriter(self, schema, overwrite):  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = KillingWriter
        return writer


def main(url, directory, rows):
    """Copy what there is, and end."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    Path(os.environ["CQUEUE_TEST_JVM"]).write_text(str(jvm), encoding="utf-8")
    spark.dataSource.register(KillingSource)
    for sink, options in (("queue", {"queue": "copy"}), ("log", {"log": "copy", "topic": "t"})):
        stream = spark.readStream.format("killing").options(
            url=url, log="source", sink=sink, maxRowsPerBatch=rows
        )
        query = (
            stream.load()
            .select("body")
            .writeStream.format("killing")
            .options(url=url, checkpointLocation=f"{directory}/{sink}", **options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    sys.modules["tests.spark.stream_child"] = sys.modules["__main__"]
    main(*sys.argv[1:])
