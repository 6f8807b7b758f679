"""Writes and reads through executors that are processes of their own; prints what came of it as JSON."""

from __future__ import annotations

import json
import os
import sys
import time


def main(url, rows):
    """A queue and a log, both of them written by one cluster and read by it."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.python.worker.reuse", "true")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    numbers = spark.range(0, rows, 1, 4).selectExpr("cast(id as string) as body")
    found = {}
    for options in ({"queue": "cluster"}, {"log": "cluster", "topic": "t"}):
        kind = next(iter(options))
        numbers.write.format("cqueue").mode("append").options(url=url, **options).save()
        reader = spark.read.format("cqueue").options(url=url, partitionRows=50, **{kind: "cluster"})
        stored = _loaded(reader, rows)
        found[kind] = [stored.count(), stored.select("body").distinct().count()]
    found["executors"] = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    spark.stop()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


def _loaded(reader, rows):
    """A record can be read 2.5 s after it was appended; a frame that was read stays as it was."""
    end = time.monotonic() + 60
    while (stored := reader.load()).count() < rows and time.monotonic() < end:
        time.sleep(0.5)
    return stored


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
