"""Reads the table of the logs with the Spark Cassandra Connector; run as a process of its own.

Takes one JSON object as its argument, and prints one: rows and seconds, or the error.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main(ask: dict[str, Any]) -> dict[str, Any]:
    """Read it all twice; the second time counts."""
    try:
        return _read(ask)
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is the answer
        lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
        told = next((line for line in lines if "Exception" in line or "Error" in line), None)
        return {"error": (told or (lines[0] if lines else type(exc).__name__))[:300]}


def _read(ask: dict[str, Any]) -> dict[str, Any]:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the extra

    settings = {
        "spark.jars.packages": ask["coordinates"],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.cassandra.connection.host": ask["host"],
        "spark.cassandra.connection.port": str(ask["port"]),
    }
    if ask["local_dc"]:
        settings["spark.cassandra.connection.localDC"] = ask["local_dc"]
    session = SparkSession.builder.master(ask["master"]).config(map={**settings, **ask["conf"]}).getOrCreate()
    table = session.read.format("org.apache.spark.sql.cassandra")
    rows = table.options(keyspace=ask["keyspace"], table="log").load()
    count = rows.count()
    begin = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - begin
    session.stop()
    return {"rows": count, "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201 - that is its answer
