"""Spark's Python workers start with less: Python looks for this module on its path before it does anything.

Spark's own path begins with PySpark in a zip, which has no bytecode, so that every process compiles it again.
And each worker imports the data source by itself, unless the daemon that it is forked from has it already.
"""

import sys

if any(word.startswith("pyspark.") for word in sys.orig_argv):
    sys.path[:] = [place for place in sys.path if not place.endswith(".zip")]
if "pyspark.daemon" in sys.orig_argv:
    import cqueue.spark.source  # noqa: F401 - that is the point
