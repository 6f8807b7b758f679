"""Data frames that jobs read: views of queues and logs, and rows that are kept to be used several times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def source(spark: SparkSession, **options: Any) -> DataFrame:
    """Return a view of a queue or log; options that are None are left out."""
    given = {name: str(value) for name, value in options.items() if value is not None}
    return spark.read.format("cqueue").options(**given).load()


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Keep rows on disk until the end of the block, so that they are read once and do not change."""
    found = rows.persist(StorageLevel.DISK_ONLY)
    try:
        yield found
    finally:
        found.unpersist()
