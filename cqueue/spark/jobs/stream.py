"""Stream a log to Parquet, a queue or another log as it grows, with the effect of exactly once.

Spark repeats a batch after a crash. A queue and a log take the repeated rows under ids or marks of the query,
the batch and the row. A directory of Parquet takes each batch as a directory of its own that appears by one
rename, so that a batch is there whole, and once: other readers need not know of Spark's `_spark_metadata`,
without which its own file sink shows them what broken batches left behind.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from cqueue.client import connect
from cqueue.errors import BadInput
from cqueue.log.positions import EARLIEST, LATEST
from cqueue.spark.jobs import target as targets
from cqueue.spark.jobs.checks import check_count
from cqueue.spark.jobs.enqueue import filtered
from cqueue.spark.jobs.failures import reading, writing
from cqueue.spark.jobs.files import CONTROL, Files
from cqueue.spark.jobs.manifest import STAGING, clear_staging
from cqueue.spark.jobs.summary import Summary, timed
from cqueue.spark.jobs.target import Target
from cqueue.spark.rows import JOB_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQuery

OWNER = f"{CONTROL}/stream.json"
COUNTED = "cqueue"
LOOK_EVERY_S = 0.2
COUNTED_AT_ONCE = 50
"""Batches after which they are counted: Spark remembers 100 reports, each of some 5 kB."""
COUNTED_EVERY_S = 60.0
"""Seconds after which fewer are counted, as Spark reports every 10 s that it waits for records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The options of a stream: the log, and where its records go.

    Attributes:
        log: the log's name.
        checkpoint: a directory that remembers how far the stream is; one for each stream.
        target: a queue or another log, without an id; or
        path: a directory for Parquet files.
        url: of the log's cluster; None takes `CQUEUE_URL`.
        since: where a new stream begins: earliest, latest, or a time (ISO 8601).
        topics: of these only.
        where: a SQL predicate over the columns of the view `log`.
        every_s: seconds between looks for new records, for ever; None: end with what is there now.
        batch_rows: records of a batch at most, from 1 on.
        fail_on_loss: stop where records were forgotten before they were read.
        resend_stale: store a batch again in a queue that broke off longer ago than gc_grace, perhaps as
            copies; otherwise the stream cannot go on after that time.

    Raises:
        BadInput: not exactly one of target and path, or what is out of its range.
    """

    log: str
    checkpoint: str
    target: Target | None = None
    path: str | None = None
    url: str | None = None
    since: str = EARLIEST
    topics: tuple[str, ...] = ()
    where: str | None = None
    every_s: float | None = None
    batch_rows: int | None = None
    fail_on_loss: bool = True
    resend_stale: bool = False

    def __post_init__(self) -> None:
        """Check what fits together."""
        if (self.target is None) == (self.path is None):
            raise BadInput("give a queue or log, or a directory, to stream to; one of them")
        if not self.checkpoint:
            raise BadInput("checkpoint is empty; a stream needs a directory that remembers how far it is")
        if self.target is not None and self.target.id is not None:
            raise BadInput("a stream gives rows ids of its own; leave out id")
        if self.target is not None and self.target.log == self.log and self.target.url == self.url:
            raise BadInput(f"log {self.log} would be streamed to itself, for ever")
        if self.every_s is not None and not 0 < self.every_s <= 86_400:
            raise BadInput(f"every_s is {self.every_s!r}; it takes seconds up to a day")
        check_count("batch_rows", self.batch_rows)
        if self.resend_stale and (self.target is None or self.target.log is not None):
            raise BadInput("resend_stale is for a stream to a queue")


def run(
    spark: SparkSession,
    job: Stream,
    *,
    dry_run: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Summary:
    """Stream until all that was there is done, or until `stopped` says so.

    dry_run: only check, and count the records that a new stream would begin with. stopped: asked five times
    a second; a batch that is under way then is repeated by the next run.

    `details`: log, sink, batches, and query: the id by which Spark knows the stream.

    Raises:
        LogNotFound, QueueNotFound: what does not exist.
        BadInput: a predicate that means nothing, or a directory that another stream fills.
        PositionExpired: records were forgotten before they were read.
        OutcomeUnknown: it ended in the middle; run it again with the same checkpoint.
    """
    with connect(job.url) as client:
        client.log(job.log)  # a stream that has begun says only that it broke
    if job.target is not None:
        targets.ready(job.target, dry_run=dry_run, derived=True)
    return _dry(spark, job) if dry_run else _streamed(spark, job, stopped)


@timed
def _streamed(spark: SparkSession, job: Stream, stopped: Callable[[], bool]) -> Summary:
    counts = _Counts()
    again = "Run it again with the same checkpoint: nothing is stored twice."
    with writing(f"the stream of log {job.log}", again):
        rows = _filtered(spark.readStream.format("cqueue").options(**_options(job)), job)
        sink = None if job.path is None else Batches(Files(spark, job.path), job.log)
        query = _writer(rows, job, sink).start()
        try:
            while not query.awaitTermination(LOOK_EVERY_S) and not stopped():
                counts.look(query)
        finally:
            query.stop()
        counts.look(query, at_end=True)
    written = counts.written if sink is None else sink.written
    return Summary(
        job="stream",
        dry_run=False,
        read=counts.read,
        written=written,
        skipped=counts.read - written if sink is None else sink.skipped,
        details={
            "log": job.log,
            "sink": job.path if job.target is None else f"{job.target.kind} {job.target.name}",
            "batches": counts.batches,
            "query": str(query.id),
        },
    )


@timed
def _dry(spark: SparkSession, job: Stream) -> Summary:
    options = {name: value for name, value in _options(job).items() if name in {"log", "url", "topics"}}
    from_latest = job.since.strip().lower() == LATEST
    if not from_latest:
        options["since"] = job.since
    rows = _filtered(spark.read.format("cqueue").options(**options), job)
    shaped = rows if job.target is None else targets.shaped(rows.drop("partition"), job.target)
    with reading(f"log {job.log} cannot be read"):
        count = 0 if from_latest else shaped.count()
    return Summary(job="stream", dry_run=True, read=count, written=count, details={"log": job.log})


def _options(job: Stream) -> dict[str, str]:
    options: dict[str, Any] = {
        "log": job.log,
        "since": job.since,
        "url": job.url,
        "topics": ",".join(job.topics) or None,
        "maxRowsPerBatch": job.batch_rows,
        "failOnDataLoss": str(job.fail_on_loss).lower(),
    }
    return {name: str(value) for name, value in options.items() if value is not None}


def _filtered(reader: DataFrameReader | DataStreamReader, job: Stream) -> DataFrame:
    with reading(f"log {job.log} cannot be read"):
        rows = reader.load()
    return rows if job.where is None else filtered(rows, job.where)


def _writer(rows: DataFrame, job: Stream, sink: Batches | None) -> DataStreamWriter:
    if job.target is not None:
        # By the record's id, so that a batch that broke off may be repeated with another predicate or topics.
        shaped = targets.shaped(rows.drop("partition"), job.target, row_id="id")
        counted = shaped.observe(COUNTED, F.count(F.lit(1)).alias("rows"))
        writer = counted.writeStream.format("cqueue").options(**job.target.options(), idColumn=JOB_ID)
        if job.resend_stale:
            writer = writer.option("staleBatch", "resend")
    else:
        writer = rows.writeStream.foreachBatch(sink)
    writer = writer.option("checkpointLocation", job.checkpoint)
    if job.every_s is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{job.every_s} seconds")


class _Counts:
    """Counts records read from the log, rows written to a queue or log, and batches with records."""

    read = written = batches = 0
    _last = _looked_at = -1

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_s = clock()

    def look(self, query: StreamingQuery, *, at_end: bool = False) -> None:
        """Count the batches since the last look, at the end or if Spark may soon forget one."""
        newest, now_s = query.lastProgress, self._clock()
        if newest is None:
            return
        is_due = now_s - self._looked_s >= COUNTED_EVERY_S
        if not (at_end or is_due or newest.batchId >= self._looked_at + COUNTED_AT_ONCE):
            return
        self._looked_s, self._looked_at = now_s, newest.batchId
        for each in query.recentProgress:
            if each.batchId > self._last and each.numInputRows:  # a batch without records is told again
                observed = each.observedMetrics.get(COUNTED)
                self.read += each.numInputRows
                self.written += 0 if observed is None else observed["rows"]
                self.batches += 1
                self._last = each.batchId


class Batches:
    """A directory that takes each batch of one stream once. Called by Spark, in the driver."""

    def __init__(self, files: Files, log: str) -> None:
        self._files = files
        self._log = log
        self._owned = False
        self.written = 0
        self.skipped = 0

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write the batch, unless it is there.

        Raises:
            BadInput: another stream fills the directory.
        """
        self._own(batch.sparkSession)
        place = f"batch={number:012d}"
        if self._files.exists(place):
            self.skipped += batch.count()
            return
        # Of earlier batches alone: another run with this checkpoint may be writing this one.
        clear_staging(self._files, number - 1)
        staging = f"{STAGING}/{number:012d}-{uuid.uuid4().hex}"
        observed = Observation()
        rows = batch.observe(observed, F.count(F.lit(1)).alias("rows"))
        try:
            rows.write.parquet(self._files.full(staging))
            count = observed.get["rows"]
            if count and self._files.move(staging, place):
                self.written += count
            else:
                self.skipped += count  # another run with this checkpoint was quicker
        finally:
            self._files.delete(staging)  # what was not moved

    def _own(self, spark: SparkSession) -> None:
        """Claim the directory for this stream. Another stream, or one with a new checkpoint, is refused."""
        if self._owned:
            return
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        mine = {"query": query, "log": self._log}
        if not self._files.create(OWNER, json.dumps(mine)):
            owner = json.loads(self._files.read(OWNER))
            if owner != mine:
                raise BadInput(
                    f"{self._files.root} is filled by another stream, of log {owner['log']}, "
                    "whose checkpoint is not this one; take another directory"
                )
        self._owned = True
