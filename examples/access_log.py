"""From the access log of web servers to alerts that somebody handles.

    lines → log `access` → Spark: errors by path and minute → queue `alerts` → a task for each alert

`python access_log.py DIRECTORY` makes an hour of lines in which one path fails for a while, and takes them
all the way, on the cluster of `CQUEUE_URL`. DIRECTORY keeps Spark's checkpoint: run again, it goes on there.
Each step also stands alone, as it would in production: `ship` beside the web servers, `watch` as a Spark job
without an end, and the tasks in `cqueue dispatch access_log:app`.

Needs the extra `spark` and Java 17.
"""

import random
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.streaming import StreamingQuery

import cqueue
from cqueue.spark.jobs import opening

LOG, QUEUE = "access", "alerts"
PATHS = ("/", "/search", "/cart", "/checkout", "/help")
MANY_ERRORS, LARGE_SHARE = 20, 0.2
LATE = "30 seconds"
PATTERN = r'^(\S+) \S+ \S+ \[([^\]]+)\] "(\S+) (\S+) [^"]*" (\d{3}) (\d+|-)'
TIME = "dd/MMM/yyyy:HH:mm:ss Z"

app = cqueue.App(queue=QUEUE)


# ── The web servers ──


def lines(
    begin: datetime, count: int, *, over: timedelta = timedelta(hours=1), seed: int = 1
) -> Iterator[str]:
    """Lines in the common log format; `/checkout` fails in the second fifth of the time."""
    chance = random.Random(seed)
    for number in range(count):
        part = number / count
        path = chance.choice(PATHS)
        broken = path == "/checkout" and 0.2 <= part < 0.4 and chance.random() < 0.6
        status = 503 if broken else 500 if chance.random() < 0.01 else 200
        address = f"192.0.2.{chance.randrange(1, 255)}"
        moment = (begin + part * over).astimezone(UTC)
        yield f'{address} - - [{moment:%d/%b/%Y:%H:%M:%S %z}] "GET {path} HTTP/1.1" {status} {number % 9000}'


def ship(client: cqueue.Client, source: Iterable[str]) -> int:
    """Append each line to the log, those of one address in order; return how many."""
    log = client.create_log(LOG, cqueue.LogConfig(partitions=4), exist_ok=True)
    count, batch = 0, []
    for line in source:
        batch.append(cqueue.Record("http", line.encode(), key=line.partition(" ")[0]))
        if len(batch) == 1000:
            count += append(log, batch)
            batch = []
    return count + append(log, batch)


def append(log: cqueue.Log, records: list[cqueue.Record]) -> int:
    for _, error in log.append_many(records).failed:
        raise error
    return len(records)


# ── Spark ──


def requests(spark: SparkSession, **source: str) -> DataFrame:
    """The log as a stream of requests: time, path, status. What is no line of a request is left out."""
    line = F.col("body").cast("string")
    return (
        spark.readStream.format("cqueue")
        .options(log=LOG, **source)
        .load()
        .where(line.rlike(PATTERN))
        .select(
            F.to_timestamp(F.regexp_extract(line, PATTERN, 2), TIME).alias("time"),
            F.regexp_extract(line, PATTERN, 4).alias("path"),
            F.regexp_extract(line, PATTERN, 5).cast("int").alias("status"),
        )
    )


def errors(found: DataFrame) -> DataFrame:
    """Requests and server errors by path and minute, once a minute is over and 30 s have passed."""
    return (
        found.withWatermark("time", LATE)
        .groupBy(F.window("time", "1 minute").alias("minute"), "path")
        .agg(F.count("*").alias("requests"), F.count_if(F.col("status") >= 500).alias("errors"))
    )


def alerts(counts: DataFrame) -> DataFrame:
    """Make a message for the task `alert` where many requests fail."""
    bad = counts.where(
        (F.col("errors") >= MANY_ERRORS) & (F.col("errors") >= F.col("requests") * LARGE_SHARE)
    )
    arguments = F.struct("path", F.date_format("minute.start", "HH:mm").alias("minute"), "requests", "errors")
    return bad.select(
        F.to_json(F.struct(arguments.alias("kwargs"))).alias("body"),
        F.col("path").alias("key"),
        F.lit("alert").alias("task"),
        F.lit("json").alias("codec"),
        F.concat_ws(" ", F.unix_seconds("minute.start"), "path").alias("alert"),
    )


def watch(spark: SparkSession, directory: str, *, end: bool, **source: str) -> StreamingQuery:
    """Send alerts as lines come; each once, whatever is killed meanwhile.

    Spark may give the rows of a repeated batch in another order, so a column says which alert is which.
    end: stop when all is read. source: more options of the data source, such as url.
    """
    writer = (
        alerts(errors(requests(spark, **source)))
        .writeStream.format("cqueue")
        .options(queue=QUEUE, idColumn="alert", checkpointLocation=f"{directory}/checkpoint", **source)
    )
    return (writer.trigger(availableNow=True) if end else writer.trigger(processingTime="10 seconds")).start()


# ── Those who handle alerts ──


@app.task(name="alert")
def alert(path: str, minute: str, requests: int, errors: int) -> None:
    """Print an alert; a real one would wake somebody up."""
    print(f"{minute} {path}: {errors} of {requests} requests failed")


def main(directory: str, count: int = 20_000) -> None:
    client = app.client
    client.create_queue(QUEUE, cqueue.QueueConfig(derived_sends=True), exist_ok=True)
    began = datetime.now(UTC) - timedelta(hours=1)
    print(f"{ship(client, lines(began, count)):,} lines appended")
    time.sleep(3)  # until they are stable: readers of a log stay so far behind
    with opening.opened("access log") as spark:
        watch(spark, directory, end=True).awaitTermination()
    dispatcher = app.dispatcher()
    with dispatcher:
        dispatcher.drain()
    print(f"{dispatcher.stats().total.succeeded} alerts handled")


if __name__ == "__main__":
    main(*sys.argv[1:2])
    app.close()
