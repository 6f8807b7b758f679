"""An archive back to a queue or a log: those records that a predicate picks, each under an id of its own.

Ids are derived from the records' and from the time of the replay's first run, which is written down beside
the archive. So a replay that broke off is run again as it was, and makes no copies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING

from cqueue.errors import BadInput
from cqueue.log.fanout import HEADER_TOPIC
from cqueue.message import datetime_at
from cqueue.settings import load as load_settings
from cqueue.spark import session
from cqueue.spark.jobs import archive
from cqueue.spark.jobs import target as targets
from cqueue.spark.jobs.enqueue import filtered
from cqueue.spark.jobs.files import CONTROL, Files
from cqueue.spark.jobs.summary import Summary, timed
from cqueue.spark.jobs.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HEADERS = f"""
    map_concat(
        map_filter(coalesce(headers, cast(map() as map<string,string>)), (k, v) -> k != '{HEADER_TOPIC}'),
        map('{HEADER_TOPIC}', topic)
    )"""
"""The record's own and its topic; a map with a key twice would be an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The options of a replay: the records, and where to send them.

    Attributes:
        path: the archive's directory.
        target: where to. By default a message has the record's body, key and headers, and its topic in the
            header `cqueue-topic`; a record has the same body, topic, key and headers, and a partition by its
            key. Without an id it takes the record's.
        where: a SQL predicate over id, log, partition, time, topic, key, body and headers.
        name: tells one replay of an archive from another: runs of one name are one replay. None makes it out
            of the target and the predicate.
        check: compare checksums of all files first.
    """

    path: str
    target: Target
    where: str | None = None
    name: str | None = None
    check: bool = False


@timed
def run(spark: SparkSession, job: Replay, *, dry_run: bool = False) -> Summary:
    """Send what the predicate picks; run again, it makes no copies. That holds for half of gc_grace.

    `details`: the target, name and at (the time of the replay's first run).

    Raises:
        BadInput: no archive, a damaged one, a predicate that means nothing, rows that the target does not
            take, or a replay that began longer ago than half of gc_grace.
        QueueNotFound, LogNotFound: there is no such target.
        OutcomeUnknown: it ended in the middle; run it again.
    """
    targets.ready(job.target, dry_run=True)
    rows = archive.load(spark, job.path)
    if job.check and (damaged := archive.verify(spark, job.path).details["damaged"]):
        raise BadInput(f"{job.path} is damaged: {', '.join(damaged)}; nothing was sent")
    total = rows.count()
    kept = rows if job.where is None else filtered(rows, job.where)
    at = _began(Files(spark, job.path), job, dry_run=dry_run)
    target = _filled(job.target, at)
    shaped = targets.shaped(kept.drop("partition"), target)
    targets.check(shaped, target)
    if not dry_run:
        targets.ready(target, dry_run=False)
    written = targets.write(shaped, target, dry_run=dry_run)
    return Summary(
        job="replay",
        dry_run=dry_run,
        read=total,
        written=written,
        skipped=total - written,
        details={target.kind: target.name, "name": _name(job), "at": at.isoformat()},
    )


def _filled(target: Target, at: datetime) -> Target:
    columns = dict(target.columns)
    if target.log is None:
        columns = {"headers": _HEADERS, **columns}
    return replace(target, columns=columns, id=target.id or "id", at=target.at or at)


def _name(job: Replay) -> str:
    if job.name is None:
        parts = [job.target.kind, job.target.name, job.where, sorted(job.target.columns.items())]
        return blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()
    if not job.name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise BadInput(f"name is {job.name!r}; it takes letters, digits, - _ and .")
    return job.name


def _began(files: Files, job: Replay, *, dry_run: bool) -> datetime:
    """The time of the replay's first run, by the cluster's clock.

    Raises:
        BadInput: it lies too far back to tell what was sent.
    """
    side = session.session(load_settings(job.target.url))
    now = datetime_at(side.driver.clock.now_us())
    path = f"{CONTROL}/replays/{_name(job)}.json"
    if not files.exists(path) and (dry_run or files.create(path, json.dumps({"at": now.isoformat()}))):
        return now
    at = datetime.fromisoformat(json.loads(files.read(path))["at"])
    if job.target.log is None:
        grace = timedelta(microseconds=side.queues.entry(job.target.name).spec.gc_grace_us)
        if now - at > grace / 2:
            raise BadInput(
                f"replay {_name(job)!r} began at {at}, and what it sent may be forgotten by now: "
                "another run could make copies. To send all of it again give another name."
            )
    return at
