"""`cqueue.spark.jobs.dedup`: of each key that was not there, one row is written."""

from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.errors import BadInput
from cqueue.spark.jobs import dedup
from cqueue.spark.jobs.dedup import Dedup
from cqueue.spark.jobs.target import Target


@pytest.fixture
def batch(spark):
    """100 rows with 40 keys."""
    return spark.createDataFrame([(f"body {n}", f"k{n % 40}") for n in range(100)], "body string, key string")


@pytest.fixture
def queue(client, new_name):
    """A queue with the keys k0 to k9, and two messages without a key."""
    made = client.create_queue(new_name("q"))
    old = [cqueue.Message(b"old", key=f"k{n}") for n in range(10)]
    assert not made.send_many([*old, cqueue.Message(b"none"), cqueue.Message(b"none")]).failed
    return made


def test_what_is_new_is_enqueued_once(spark, batch, queue, url):
    """A second run of the same batch writes nothing."""
    job = Dedup(target=Target(queue=queue.name, url=url))
    summary = dedup.run(spark, batch, job)
    assert (summary.read, summary.written, summary.skipped) == (100, 30, 70)
    assert (summary.details["duplicates"], summary.details["known"]) == (60, 10)
    rows = (
        spark.read.format("cqueue").options(queue=queue.name, url=url).load().select("key", "body").collect()
    )
    assert sorted(row.key for row in rows if row.key) == sorted(f"k{n}" for n in range(40))
    assert sum(bytes(row.body).startswith(b"body") for row in rows) == 30
    again = dedup.run(spark, batch, job)
    assert (again.written, again.details["known"]) == (0, 40)
    assert queue.stats(exact=True).live == 42


def test_a_dry_run_only_counts(spark, batch, queue, url):
    assert (
        dedup.run(spark, batch, Dedup(target=Target(queue=queue.name, url=url)), dry_run=True).written == 30
    )
    assert queue.stats(exact=True).live == 12


def test_against_a_log(spark, client, batch, url, *, new_name, wait_until_stable):
    """Keys of the log's records, of those since a time only, and of a queue beside it."""
    log = client.create_log(new_name("l"), cqueue.LogConfig(partitions=2))
    assert not log.append_many([cqueue.Record("t", b"x", key=f"k{n}") for n in range(25)]).failed
    wait_until_stable(log)
    target = Target(log=log.name, url=url, columns={"topic": "'t'"})
    assert dedup.run(spark, batch, Dedup(target=target), dry_run=True).written == 15
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert dedup.run(spark, batch, Dedup(target=target, since=soon), dry_run=True).written == 40
    other = client.create_queue(new_name("q"))
    other.send_many([cqueue.Message(b"x", key=f"k{n}") for n in range(20, 30)])
    job = Dedup(target=target, against=(("queue", other.name),))
    assert dedup.run(spark, batch, job).written == 10
    wait_until_stable(log)
    assert dedup.run(spark, batch, job).written == 0
    assert len({record.key for record in log.scan()}) == 35


def test_a_key_may_be_an_expression(spark, queue, url):
    rows = spark.createDataFrame([(n, "x") for n in range(20)], "n int, body string")
    job = Dedup(target=Target(queue=queue.name, url=url, columns={"key": "concat('k', n div 2)"}))
    assert dedup.run(spark, rows, job, dry_run=True).written == 0


def test_rows_without_a_key_are_refused(spark, queue, url):
    rows = spark.createDataFrame([("a", None), ("b", "k")], "body string, key string")
    job = Dedup(target=Target(queue=queue.name, url=url))
    with pytest.raises(BadInput, match="1 rows have no key"):
        dedup.run(spark, rows, job)
    with pytest.raises(BadInput, match="no column key"):
        dedup.run(spark, rows.drop("key"), job)
    with pytest.raises(BadInput, match="takes"):
        Dedup(target=Target(queue="q"), against=(("topic", "x"),))
