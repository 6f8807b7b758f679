"""The Spark data source: bulk writes to a queue and a log, and both read back, every row counted.

Beside it the Spark Cassandra Connector reads the table of the log, where its jar loads at all: in a Spark of
its own, because a jar that does not fit breaks more than what it is asked for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from cqueue.bench.log import until_stable
from cqueue.bench.options import Options
from cqueue.bench.setup import Bench, Progress, seconds_of, silent
from cqueue.errors import ConfigError, NotDone
from cqueue.log.log import Log
from cqueue.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONNECTOR: Final = "com.datastax.spark:spark-cassandra-connector_2.13:3.5.1"
CONNECTOR_TIMEOUT_S: Final = 600.0
WARM_UP: Final = 2000
PARTITIONS: Final = 16
"""Partitions of the log."""


def spark(
    bench: Bench,
    options: Options,
    url: str | None,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    connector: str = CONNECTOR,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write all messages to a queue and to a log, read both, and have the connector read the log's table.

    url: of the cluster; None is what `bench` found without one. connector: its Maven coordinates; "" leaves
    it out.

    Raises:
        ConfigError: the extra `spark` is not installed.
        NotDone: rows are missing.
    """
    if find_spec("pyspark") is None:
        raise ConfigError("this needs Spark: pip install 'cassandra-cqueue[spark]'")
    from cqueue.spark.jobs.opening import opened  # noqa: PLC0415 - the extra

    with bench.queue(options) as queue, bench.log(PARTITIONS) as log:
        with opened("bench", master, conf) as session:
            run = _Run(session, url, {"queue": queue.name, "log": log.name}, options)
            figures = {
                "spark": session.version,
                "master": session.sparkContext.master,
                "tasks": run.tasks,
                **run.figures(log, progress),
            }
        figures |= _connector(bench.settings, connector, master, conf, options.messages)
    return bench.result("spark", options, figures, without=("batch", "receive"))


class _Run:
    """One Spark session that writes and reads the same rows."""

    def __init__(
        self, session: SparkSession, url: str | None, names: Mapping[str, str], options: Options
    ) -> None:
        self._session = session
        there = {} if url is None else {"url": url}
        self._targets = {kind: {**there, kind: name} for kind, name in names.items()}
        self._options = options
        self.tasks = session.sparkContext.defaultParallelism

    def figures(self, log: Log, progress: Progress) -> dict[str, float]:
        """Rows a second of each write and each read, after one of each to warm up."""
        count, found = self._options.messages, dict[str, float]()
        for kind in self._targets:
            self._write(kind, WARM_UP)
            found[f"{kind}_written_per_s"] = _rate(count, partial(self._write, kind, count))
            progress(0.3)
        until_stable(log)
        for kind in self._targets:
            rows, written = self._read(kind).count(), count + WARM_UP + (kind == "log")  # and the last one
            if rows != written:
                raise NotDone(f"{written:,} rows were written to the {kind}, {rows:,} are read")
            progress(0.6)
            found[f"{kind}_read_per_s"] = _rate(rows, partial(_drain, self._read(kind)))
        progress(0.8)
        return found

    def _write(self, kind: str, count: int) -> None:
        body = "x" * self._options.size
        rows = self._session.range(0, count, 1, self.tasks).selectExpr(f"'{body}' as body")
        extra = {"topic": "bench"} if kind == "log" else {}
        rows.write.format("cqueue").mode("append").options(**self._targets[kind], **extra).save()

    def _read(self, kind: str) -> DataFrame:
        return self._session.read.format("cqueue").options(**self._targets[kind]).load()


def _drain(rows: DataFrame) -> None:
    """Read every row with every column, and keep none."""
    rows.write.format("noop").mode("overwrite").save()


def _rate(rows: int, work: Callable[[], None]) -> float:
    return round(rows / seconds_of(work), 1)


def _connector(
    settings: Settings, coordinates: str, master: str | None, conf: Mapping[str, str] | None, rows: int
) -> dict[str, Any]:
    """Let the connector read the table of the logs; return its rate, or why it does not work."""
    if not coordinates:
        return {"connector": "left out", "connector_read_per_s": None}
    (host, port), *_ = settings.hosts
    ask = {
        "coordinates": coordinates,
        "master": master or "local[*]",
        "conf": dict(conf or {}),
        "host": host,
        "port": port,
        "local_dc": settings.local_dc,
        "keyspace": settings.keyspace,
    }
    command = [sys.executable, "-m", "cqueue.bench.spark_connector", json.dumps(ask)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CONNECTOR_TIMEOUT_S, check=False
        )
        answer = json.loads(done.stdout.strip().rpartition("\n")[2])
        answer |= _said_before_java_ended(answer, done.stderr)
    except (subprocess.TimeoutExpired, ValueError) as exc:
        answer = {"error": f"it ended without an answer: {type(exc).__name__}"}
    if "error" in answer:
        why = f"{coordinates} does not work here: {answer['error']}"
        return {"connector": why, "connector_read_per_s": None}
    if answer["rows"] < rows:
        raise NotDone(f"the connector read {answer['rows']:,} of at least {rows:,} records")
    return {"connector": coordinates, "connector_read_per_s": round(answer["rows"] / answer["seconds"], 1)}


def _said_before_java_ended(answer: dict[str, Any], said: str) -> dict[str, Any]:
    """The reason, where all that Python knows is that Java has ended."""
    reasons = [line for line in said.splitlines() if line.startswith("Exception in thread")]
    return {"error": reasons[-1][:300]} if reasons and "GATEWAY" in answer.get("error", "") else {}
