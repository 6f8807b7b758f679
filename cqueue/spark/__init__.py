"""Spark over queues and logs: the data source `cqueue`, and the jobs that people run on it.

Needs the extra `spark` (PySpark 4.2 and Java 17). Nothing here is imported by the rest of cqueue,
and importing this package imports no Spark: the command line lists the jobs without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from cqueue.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

_NEEDED = "import cqueue, cassandra, pyarrow"
"""What planners and tasks import, besides PySpark, which Spark brings."""


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("cqueue")`, and the other three, work in this session.

    Spark by itself looks for data sources with the `python3` of `PATH`, and does not see editable installs.
    A thread other than the one that made the session has to call this, too, before it writes.

    Where `PYSPARK_PYTHON` is not set and the master is local, Spark's Python workers become the Python that
    calls this, also for functions of your own. Otherwise they stay what they are. On a cluster the same
    command has to be a Python with cqueue here and on all executors.

    Example:
        `register(SparkSession.builder.getOrCreate())`

    Raises:
        ConfigError: the Python of Spark's workers lacks cqueue or what it needs.
    """
    from pyspark.sql.utils import is_remote  # noqa: PLC0415 - PySpark is an extra

    from cqueue.spark.source import DefaultSource  # noqa: PLC0415 - as above

    if not is_remote():  # a Spark Connect server has its own Python
        context = spark.sparkContext
        if "PYSPARK_PYTHON" not in os.environ and context.master.startswith("local"):
            context.pythonExec = sys.executable
        _check_python(context.pythonExec)
        # Spark looks for the format of a write in this thread's active session, which this call sets.
        spark.createDataFrame([], "nothing int")
    spark.dataSource.register(DefaultSource)


def _check_python(command: str) -> None:
    """Run what Spark's workers will run; what they would say comes late and inside Java's traces."""
    try:
        tried = subprocess.run([command, "-c", _NEEDED], capture_output=True, text=True, check=False)
    except OSError as exc:
        why = str(exc)
    else:
        if tried.returncode == 0:
            return
        why = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
    raise ConfigError(
        f"Spark's workers run {command!r}, which lacks what cqueue needs ({why}). Set PYSPARK_PYTHON to a "
        f"Python with cqueue, here and on all executors, before the session is made; this is {sys.executable}"
    )
