"""Spark over queues and logs: the data source `cqueue`, and the jobs that people run on it.

Needs the extra `spark` (PySpark 4.2 and Java 17). Nothing here is imported by the rest of cqueue,
and importing this package imports no Spark: the command line lists the jobs without it.
"""
