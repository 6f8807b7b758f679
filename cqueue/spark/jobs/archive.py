"""Archive a log to Parquet files by day: each run adds the records that became stable since the last.

The commit is a manifest (see `cqueue.spark.jobs.manifest`), so a run that breaks at any point adds all or
nothing: what it had committed the next run finishes, what it had not is read again. Readers that know no
manifest see no file twice either, because a file gets a name that they look at after the commit only.
"""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from cqueue import ids
from cqueue.errors import BadInput, CqueueError, NotDone, unknown_if_not_done
from cqueue.message import datetime_at, datetime_us
from cqueue.settings import load as load_settings
from cqueue.spark import session
from cqueue.spark.jobs import manifest as manifests
from cqueue.spark.jobs.checks import check_aware, check_count
from cqueue.spark.jobs.failures import reading
from cqueue.spark.jobs.files import Files
from cqueue.spark.jobs.manifest import STAGING, Manifest, Part
from cqueue.spark.jobs.source import source
from cqueue.spark.jobs.summary import Summary, timed
from cqueue.spark.views import LOG, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cqueue.log.protocol.spec import LogSpec

FILE_ROWS = 1_000_000
_DAY = "date_from_unix_date(cast(floor(unix_micros(time) / 86400000000) as int))"
"""The day in UTC, whatever the session's time zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The options of an archive job.

    Attributes:
        log: the log's name.
        path: a directory that holds this log only; made if it does not exist.
        url: of the cluster; None takes `CQUEUE_URL`.
        until: records before this time (aware); None, or a time that is not stable yet: all that is stable.
        file_rows: rows of a file at most, from 1 on.

    Raises:
        BadInput: a time without a zone, or no rows.
    """

    log: str
    path: str
    url: str | None = None
    until: datetime | None = None
    file_rows: int = FILE_ROWS

    def __post_init__(self) -> None:
        """Check each field."""
        check_aware("until", self.until)
        check_count("file_rows", self.file_rows)


@timed
def run(spark: SparkSession, job: Archive, *, dry_run: bool = False, check: bool = False) -> Summary:
    """Add to the archive what became stable since the last run; run again, it adds nothing twice.

    check: then compare all files with their checksums; `details` says which are damaged.

    `details`: log, until, days (rows by day), files, finished (files of a broken run that were named now),
    gap (whether records may have been forgotten by the log before this run had read them).

    Raises:
        LogNotFound: there is no such log.
        BadInput: the directory holds another log's archive, or is damaged.
        NotDone: it could not be read or written, or another run was quicker; nothing was added.
        OutcomeUnknown: it may be added, or in part have its name; the next run finishes that.
    """
    side = session.session(load_settings(job.url))
    spec, now_us = side.logs.entry(job.log).spec, side.driver.clock.now_us()
    files = Files(spark, job.path)
    known = manifests.load(files)
    _check_log(files, known, spec)
    finished = 0 if dry_run or not known else manifests.finish(files, known[-1], strict=not check)
    stretch = _stretch(job, spec, now_us, known)
    rows = _read(spark, job, stretch)
    parts = _count(rows) if dry_run else _stage(spark, files, rows, stretch, job.file_rows)
    # Only now: what expires while the job reads is missing, too.
    spec, now_us = side.logs.entry(job.log).spec, side.driver.clock.now_us()
    stretch = replace(stretch, parts=parts, gap=_has_gap(stretch, spec, now_us))
    if adds := not dry_run and (bool(parts) or _is_long(stretch, spec)):
        manifests.commit(files, stretch)
        manifests.clear_staging(files, stretch.number)
    said = f"what is new was added to {files.root}, and nothing is checked"
    with unknown_if_not_done(said) if adds else nullcontext():
        damaged = verify(spark, job.path).details["damaged"] if check and (known or adds) else None
    days: dict[str, int] = {}
    for part in parts:
        days[part.day] = days.get(part.day, 0) + part.rows
    return Summary(
        job="archive",
        dry_run=dry_run,
        read=sum(days.values()),
        written=sum(days.values()),
        details={
            "log": job.log,
            "until": stretch.until.isoformat(),
            "days": dict(sorted(days.items())),
            "files": 0 if dry_run else len(parts),
            "finished": finished,
            "gap": stretch.gap,
            **({} if damaged is None else {"damaged": damaged}),
        },
    )


def load(spark: SparkSession, path: str) -> DataFrame:
    """Load the archive's records, with the columns of the view `log`.

    Raises:
        BadInput: there is no archive, or a file of it is gone.
    """
    files = Files(spark, path)
    known = _known(files)
    manifests.finish(files, known[-1])  # of a run that broke off behind its commit
    parts = [part for manifest in known for part in manifest.parts]
    schema = spark_schema(LOG)
    if not parts:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(files.pattern(part.path) for part in parts))


@timed
def verify(spark: SparkSession, path: str) -> Summary:
    """Read every file of an archive, and compare size and checksum with what its manifest says.

    `details`: files, and damaged: the names of those that differ or are gone.

    Raises:
        BadInput: there is no archive.
        NotDone: the files cannot be read.
    """
    files = Files(spark, path)
    parts = {part.path: part for manifest in _known(files) for part in manifest.parts}
    there = [path for path, part in parts.items() if files.exists(path)]
    found = files.sha256(there)
    damaged = [path for path, part in parts.items() if found.get(path) != (part.bytes, part.sha256)]
    return Summary(
        job="verify",
        dry_run=True,
        read=sum(part.rows for part in parts.values()),
        details={"files": len(parts), "damaged": sorted(damaged)},
    )


def _known(files: Files) -> list[Manifest]:
    known = manifests.load(files)
    if not known:
        raise BadInput(f"{files.root} is not an archive: it has no manifest")
    return known


# ── what to add ──


def _check_log(files: Files, known: list[Manifest], spec: LogSpec) -> None:
    other = next((one.log for one in known if one.log != spec.partition), None)
    if other is not None:
        raise BadInput(
            f"{files.root} holds the archive of {other}, not of {spec.partition}; give another place"
        )


def _stretch(job: Archive, spec: LogSpec, now_us: int, known: list[Manifest]) -> Manifest:
    """Return the manifest of what a run is to add, without files."""
    # Stable also by the clock of the process that plans the read, which may be ε behind.
    stable = datetime_at(now_us - spec.settle_us - 2 * spec.skew_us)
    since = known[-1].until if known else None
    until = stable if job.until is None else min(stable, job.until.astimezone(UTC))
    until = until if since is None else max(since, until)
    return Manifest(len(known) + 1, spec.partition, since, until, gap=False)


def _has_gap(stretch: Manifest, spec: LogSpec, now_us: int) -> bool:
    since = stretch.since
    return since is not None and spec.has_forgotten(ids.lowest_at(datetime_us(since)) - 1, now_us)


def _is_long(stretch: Manifest, spec: LogSpec) -> bool:
    """Return whether a stretch without records needs a manifest, before the log may forget some of it."""
    ttl = timedelta(seconds=spec.shortest_ttl_s(datetime_us(stretch.until)))
    return stretch.since is not None and bool(ttl) and stretch.until - stretch.since >= ttl / 2


def _read(spark: SparkSession, job: Archive, stretch: Manifest) -> DataFrame:
    since = None if stretch.since is None else stretch.since.isoformat()
    rows = source(spark, log=job.log, url=job.url, since=since, until=stretch.until.isoformat())
    return rows.withColumn("day", F.expr(_DAY))


def _count(rows: DataFrame) -> tuple[Part, ...]:
    with reading("the log cannot be read", NotDone):
        found = rows.groupBy("day").count().collect()
    return tuple(Part("", "", str(row["day"]), row["count"], 0, "") for row in found)


# ── adding ──


def _stage(
    spark: SparkSession, files: Files, rows: DataFrame, stretch: Manifest, file_rows: int
) -> tuple[Part, ...]:
    """Write the stretch to files that count once their manifest is there; return them.

    Raises:
        NotDone: they cannot be written or read.
    """
    if stretch.since is not None and stretch.until <= stretch.since:
        return ()
    staging = f"{STAGING}/{stretch.number:08d}-{uuid.uuid4().hex}"
    try:
        _write(files, staging, rows, file_rows)
        parts = _staged(spark, files, staging, stretch.number)
    except CqueueError:
        files.delete(staging)  # no manifest names what is there
        raise
    if not parts:
        files.delete(staging)
    return parts


def _write(files: Files, staging: str, rows: DataFrame, file_rows: int) -> None:
    """Write the files of the stretch.

    Raises:
        NotDone: they cannot be written, or not as many rows are there as were read.
    """
    observed = Observation()
    counted = rows.observe(observed, F.count(F.lit(1)).alias("rows"))
    with reading("the archive cannot be written", NotDone):
        writer = counted.write.partitionBy("day").option("maxRecordsPerFile", file_rows)
        writer.parquet(files.full(staging))
        there = rows.sparkSession.read.schema(spark_schema(LOG)).parquet(files.pattern(staging)).count()
    if there != observed.get["rows"]:
        raise NotDone(f"{observed.get['rows']:,} rows were read, and {there:,} written; nothing was added")


def _staged(spark: SparkSession, files: Files, staging: str, number: int) -> tuple[Part, ...]:
    """Return the files that were written, counted and summed by reading them."""
    with reading("what was written cannot be read", NotDone):
        written = spark.read.schema(spark_schema(LOG)).parquet(files.pattern(staging))
        counts = written.groupBy("_metadata.file_path").count().collect()
        rows = {files.relative(row[0]): int(row[1]) for row in counts}
        sums = files.sha256(rows)
    if set(sums) != set(rows):
        raise NotDone("what was written cannot be read; nothing was added")
    return tuple(
        Part(path, f"{_day(path)}/{number:08d}-{place:05d}.parquet", _day(path)[4:], rows[path], *sums[path])
        for place, path in enumerate(sorted(rows))
    )


def _day(path: str) -> str:
    """Return the directory of a file's day: `day=2026-01-31`."""
    return path.split("/")[-2]
