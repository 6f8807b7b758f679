"""Send files to a queue: each row of Parquet, CSV, JSON or text becomes a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from cqueue.errors import BadInput
from cqueue.spark.jobs import target as targets
from cqueue.spark.jobs.failures import reading
from cqueue.spark.jobs.summary import Summary, timed
from cqueue.spark.jobs.target import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json", "text", "orc")
DEFAULTS: Mapping[str, Mapping[str, str]] = {
    # A line that is none must not become a message of nothing.
    "csv": {"header": "true", "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueue:
    """The options of an enqueue job: files, and where their rows go.

    Attributes:
        paths: files or directories, as Spark takes them.
        target: the queue or log, and what of a row goes where.
        format: parquet, csv, json, text or orc; None goes by the first path's suffix.
        options: of Spark's reader; CSV has a header and JSON an object a line unless they say otherwise.
        where: a SQL predicate; other rows are left out.
    """

    paths: tuple[str, ...]
    target: Target
    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None


@timed
def run(spark: SparkSession, job: Enqueue, *, dry_run: bool = False) -> Summary:
    """Write a message for each row.

    All rows are checked before the first is written. With an id in the target the job may be run again, after
    a crash or a success, and makes no copies until gc_grace after the due times.

    Raises:
        BadInput: files that cannot be read, expressions that mean nothing, rows that are no messages.
        QueueNotFound, LogNotFound: there is no such target.
        NotDone, OutcomeUnknown: it ended in the middle; what was written by then stays.
    """
    targets.ready(job.target, dry_run=dry_run)
    rows = read(spark, job)
    kept = rows if job.where is None else filtered(rows, job.where)
    messages = targets.shaped(kept, job.target)
    found = targets.check(messages, job.target)
    written = targets.write(messages, job.target, dry_run=dry_run)
    total = found if job.where is None else rows.count()
    return Summary(
        job="enqueue",
        dry_run=dry_run,
        read=total,
        written=written,
        skipped=total - written,
        details={job.target.kind: job.target.name, "columns": messages.columns},
    )


def read(spark: SparkSession, job: Enqueue) -> DataFrame:
    """Read the rows of the files.

    Raises:
        BadInput: there is no such file, or no such format.
    """
    kind = job.format or _by_suffix(job.paths)
    if kind not in FORMATS:
        raise BadInput(f"format is {kind!r}; it takes one of {', '.join(FORMATS)}")
    with reading(f"{', '.join(job.paths)} cannot be read"):
        reader = spark.read.format(kind).options(**{**DEFAULTS.get(kind, {}), **job.options})
        return reader.load(list(job.paths))


def filtered(rows: DataFrame, predicate: str) -> DataFrame:
    """Return the rows that the predicate holds for.

    Raises:
        BadInput: the predicate is no SQL, or names a column that the rows do not have.
    """
    with reading(f"{predicate!r} cannot be used"):
        return rows.where(predicate)


def _by_suffix(paths: tuple[str, ...]) -> str:
    if not paths:
        raise BadInput("no file is given")
    for suffix in reversed(PurePosixPath(paths[0]).suffixes):
        name = {"jsonl": "json", "ndjson": "json", "txt": "text"}.get(suffix[1:], suffix[1:])
        if name in FORMATS:
            return name
    raise BadInput(f"the name of {paths[0]} does not tell its format; say which: {', '.join(FORMATS)}")
