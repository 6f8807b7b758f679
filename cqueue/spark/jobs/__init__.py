"""Jobs over queues and logs that Spark runs: each a module with its options and `run`.

    from cqueue.spark.jobs import enqueue
    summary = enqueue.run(spark, enqueue.Enqueue(queue="orders", paths=("orders.parquet",)))

`cqueue spark <job>` runs the same from the shell. Every job checks what it was given before it writes, can
be run again after a crash, and returns a `Summary`.
"""
