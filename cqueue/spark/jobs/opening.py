"""The Spark session of a job, and the progress of its stages.

A job gets its session from the caller; this makes the one of the command line. Under spark-submit master and
settings are those of the submit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from cqueue.errors import BadInput, NotDone
from cqueue.spark import register
from cqueue.spark.jobs.failures import gist

LOOK_EVERY_S = 0.2
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}

LOGGERS_OF_MISTAKES = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers that print a query's error with all its traces, as JSON, before it is raised."""

Tell = Callable[[float], None]
"""Called with the part of Spark's known tasks that is done, 0 to 1."""


@contextmanager
def opened(
    name: str, master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Open a Spark session that ends with the block.

    master: as Spark takes it; None takes that of spark-submit or of Spark's configuration, or `local[*]`.
    conf: more settings.

    Raises:
        BadInput: Spark does not take the settings.
        NotDone: Spark does not start; the message says what Java is needed.
    """
    # Python workers of a local master must be this Python, not the first one on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"cqueue {name}")
    if master is not None:
        builder = builder.master(master)
    builder = builder.config(map={**SETTINGS, **(conf or {})})
    try:
        spark = builder.getOrCreate()
    except PySparkException as exc:
        raise NotDone(
            f"Spark does not start: {gist(exc)} What it said stands above; it needs Java 17 or 21 "
            "(JAVA_HOME), and a master that it knows."
        ) from exc
    except Py4JJavaError as exc:
        raise BadInput(f"Spark does not start with these settings: {gist(exc)}") from exc
    for logger in LOGGERS_OF_MISTAKES:
        PySparkLogger.getLogger(logger).disabled = True
    try:
        register(spark)
        yield spark
    finally:
        spark.stop()


@contextmanager
def watched(spark: SparkSession, tell: Tell) -> Iterator[None]:
    """Tell the progress of the tasks that run within the block."""
    done = Event()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not done.wait(LOOK_EVERY_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            total = sum(stage.numTasks for stage in known)
            if total:
                tell(sum(stage.numCompletedTasks for stage in known) / total)

    thread = Thread(target=watch, name="cqueue-spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
