"""Where Spark looks for data sources written in Python: every top-level module `pyspark_*`.

Being installed is enough for `spark.read.format("cqueue")`, in the driver and in each executor.
"""

from cqueue.spark.source import DefaultSource

__all__ = ["DefaultSource"]
