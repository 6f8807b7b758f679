"""Batch reads: every view gives what Cassandra holds, however the work is cut."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

import cqueue
from cqueue import LogConfig, Message, QueueConfig, ids
from cqueue.log import Record
from cqueue.runtime.rendezvous import own_name
from cqueue.spark.source import DefaultSource

WAIT = timedelta(seconds=10)
ON_FULL = pytest.mark.usefixtures("full")
ON_EVENTS = pytest.mark.usefixtures("events")


@pytest.fixture
def frame(spark, url):
    """A function that reads a view, with more options."""

    def read(**options):
        return spark.read.format("cqueue").options(url=url, **options).load()

    return read


@pytest.fixture(scope="module")
def full(client):
    """A queue with messages of every kind: three priorities, headers, large bodies, due later."""
    queue = client.create_queue("full", QueueConfig(shards=3))
    sent = [
        Message(
            f"body {number}".encode(),
            priority=number % 3,
            headers={"n": str(number), "é": "ü"} if number % 5 == 0 else None,
            key=f"key-{number}" if number % 7 == 0 else None,
            task="work" if number % 11 == 0 else None,
        )
        for number in range(1200)
    ]
    sent += [Message(bytes([number]) * 20_000) for number in range(5)]
    sent += [Message(b"later", delay=timedelta(days=day), ttl=timedelta(days=400)) for day in (1, 40, 300)]
    assert not queue.send_many(sent).failed
    return queue


def test_all_messages_come_with_all_that_they_have(frame, full):
    """Row for row what the client sees, whatever there is of bodies, headers and delays."""
    rows = {row.id: row for row in frame(queue="full").collect()}
    stored = full.peek(10_000)
    assert len(rows) == len(stored) == full.stats(exact=True).live == 1208
    for message in stored:
        row = rows[message.id]
        assert bytes(row.body) == message.body
        assert (row.headers or {}) == message.headers
        assert (row.queue, row.priority) == ("full", message.priority)
        due = row.due.replace(tzinfo=UTC)
        assert due.replace(microsecond=due.microsecond // 1000 * 1000) == message.due
        assert row.sent_at.replace(tzinfo=UTC) == message.sent_at
    assert {row.key for row in rows.values()} > {"key-7", "key-1197", None}
    assert {row.task for row in rows.values()} == {"work", None}
    assert sum(row.expires is not None for row in rows.values()) == 3


@pytest.mark.parametrize("target", [10, 500, 1_000_000])
def test_no_message_is_lost_or_doubled_between_tasks(frame, full, target):
    """Whatever size tasks have, together they read each message once."""
    found = frame(queue="full", partitionRows=target)
    assert sorted(row.id for row in found.select("id").collect()) == sorted(m.id for m in full.peek(10_000))
    if target == 10:
        assert found.rdd.getNumPartitions() >= 5


def test_options_narrow_what_is_read(frame, full):
    """Priorities, times, columns and a limit."""
    assert frame(queue="full", priorities="1, 2").count() == 800
    assert frame(queue="full", limit=7).count() == 7
    soon = full.now + timedelta(hours=1)
    assert frame(queue="full", since=soon.isoformat()).count() == 3
    assert frame(queue="full", until=soon.timestamp()).count() == 1205
    far = full.now + timedelta(days=100)
    assert frame(queue="full", since=soon.isoformat(), until=far.isoformat()).count() == 2
    assert frame(queue="full", columns="priority,body").columns == ["priority", "body"]
    assert frame(queue="full", columns="id").distinct().count() == 1208


def test_nothing_is_younger_than_the_moment_asked_for(frame, client, new_name):
    """`asOf` hides what was sent later; without it all is shown that was there."""
    queue = client.create_queue(new_name("asof"))
    queue.send(b"early")
    between = queue.now + timedelta(milliseconds=5)
    while queue.now < between + timedelta(milliseconds=5):
        pass
    queue.send(b"late")
    assert [bytes(row.body) for row in frame(queue=queue.name, asOf=between.isoformat()).collect()] == [
        b"early"
    ]
    assert frame(queue=queue.name).count() == 2


def test_dead_letters_say_why_and_where_from(frame, client, new_name):
    queue = client.create_queue(new_name("dying"))
    id_ = queue.send(b"bad", headers={"mine": "1"})
    with queue.consumer() as consumer:
        (held,) = consumer.receive(wait=WAIT)
        held.dead("cannot be read")
    (row,) = frame(queue=queue.name, view="dead").collect()
    assert (row.queue, row.reason, row.attempts, row.original_id) == (queue.name, "cannot be read", 1, id_)
    assert bytes(row.body) == b"bad"
    assert row.headers["mine"] == "1"
    assert (row.redrives, row.holder, row.fence, row.holder_lost) == (0, own_name(), held.fence, False)
    assert frame(queue=queue.name).count() == 0


def test_what_consumers_hold_and_wide_rows(frame, client, new_name):
    """`inflight` lists what is held and not acked; `shards` counts what is alive."""
    queue = client.create_queue(new_name("held"), QueueConfig(shards=1))
    queue.send_many([Message(b"x", priority=number % 2) for number in range(10)])
    with queue.consumer() as consumer:
        held = consumer.receive(max_messages=4, wait=WAIT)
        held[0].ack()
        held[1].nack(timedelta(hours=1))
        rows = {row.id: row for row in frame(queue=queue.name, view="inflight").collect()}
        assert {held_.id for held_ in held[1:]} == set(rows)
        assert rows[held[1].id].state == "waiting"
        assert rows[held[2].id].state == "claimed"
        assert {row.attempt for row in rows.values()} == {1}
        (shard,) = frame(queue=queue.name, view="shards").where("messages > 0").collect()
    assert (shard.messages, shard.in_flight, shard.open, shard.shard) == (9, 3, False, 0)
    assert shard.lock in {"free", "locked"}
    assert shard.fence == held[0].fence


@pytest.fixture(scope="module")
def events(client, wait_until_stable):
    """A log with 3,000 records in four partitions and several time shards."""
    log = client.create_log("events", LogConfig(partitions=4, time_shard=timedelta(seconds=1)))
    records = [
        Record(f"topic-{number % 3}", str(number).encode(), key=f"k{number % 50}", headers={"n": str(number)})
        for number in range(3000)
    ]
    for start in range(0, 3000, 1000):
        assert not log.append_many(records[start : start + 1000]).failed
    wait_until_stable(log)
    return log


def test_all_records_come_with_all_that_they_have(frame, events):
    rows = {row.id: row for row in frame(log="events").collect()}
    stored = list(events.scan())
    assert len(rows) == len(stored) == 3000
    for record in stored:
        row = rows[record.id]
        assert (row.log, row.partition, row.topic, row.key) == (
            "events",
            record.partition,
            record.topic,
            record.key,
        )
        assert (bytes(row.body), row.headers) == (record.body, record.headers)
        at_us = ids.time_us(record._id)
        assert row.time.replace(tzinfo=UTC) == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            microseconds=at_us
        )


@pytest.mark.parametrize("target", [100, 100_000])
@ON_EVENTS
def test_no_record_is_lost_or_doubled_between_tasks(frame, target):
    found = frame(log="events", partitionRows=target)
    assert found.select("body").distinct().count() == found.count() == 3000
    assert frame(log="events", topics="topic-1,topic-2", partitionRows=target).count() == 2000
    assert frame(log="events", limit=33).count() == 33
    assert frame(log="events", limit=33, topics="topic-0").where("topic = 'topic-0'").count() == 33


def test_a_log_is_read_up_to_what_is_stable(frame, client, new_name, wait_until_stable):
    """A record is not shown before no acknowledged one can appear below it."""
    log = client.create_log(new_name("young"))
    log.append("t", b"1")
    assert frame(log=log.name).count() == 0
    wait_until_stable(log)
    assert frame(log=log.name).count() == 1


@ON_FULL
@ON_EVENTS
def test_batches_fit_the_schema_to_the_unit(url):
    """Trap: Spark checks the first batch only. Every batch of every view is what the schema says."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from cqueue.settings import load
    from cqueue.spark.options import read_options
    from cqueue.spark.reader import Reader
    from cqueue.spark.views import VIEWS, spark_schema

    assert load(url).keyspace
    for view in VIEWS:
        target = {"log": "events"} if view == "log" else {"queue": "full"}
        options = read_options({"url": url, "view": view, "partitionRows": "300", **target})
        reader = Reader(options, tuple(spark_schema(view).fieldNames()))
        expected = to_arrow_schema(spark_schema(view), timezone="UTC")
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert all(batch.schema.equals(expected) for batch in batches)
        assert len(batches) > 1 or view in {"dead", "inflight"}


def test_an_empty_queue_has_no_rows(frame, client, new_name):
    """Trap: for an empty list of partitions Spark still calls read, with a partition of nothing."""
    queue, log = client.create_queue(new_name("empty")), client.create_log(new_name("empty"))
    for view in ("messages", "dead", "inflight", "shards"):
        assert frame(queue=queue.name, view=view).count() == 0
    assert frame(log=log.name).count() == 0


@ON_FULL
def test_partitions_are_a_list(url):
    """Trap: Spark refuses any other sequence."""
    from cqueue.spark.options import read_options
    from cqueue.spark.reader import Reader

    assert type(Reader(read_options({"url": url, "queue": "full"}), ("id",)).partitions()) is list


@ON_FULL
def test_what_lies_behind_a_limit_is_not_asked_for(url, monkeypatch):
    from cqueue.spark.options import read_options
    from cqueue.spark.reader import Reader
    from cqueue.spark.session import session
    from cqueue.store.operations import ReadHead

    options = read_options({"url": url, "queue": "full", "view": "shards", "limit": "1"})
    reader = Reader(options, ("shard", "messages"))
    (part,) = reader.partitions()
    assert len(part.rows) > 1
    driver, asked = session(options.settings).driver, []
    real = driver.ask
    monkeypatch.setattr(driver, "ask", lambda operation: asked.append(type(operation)) or real(operation))
    assert [batch.num_rows for batch in reader.read(part)] == [1]
    assert asked.count(ReadHead) == 1


@ON_FULL
def test_rows_come_with_numpy_2(frame):
    """Trap: with it the driver's own Numpy handler gives no rows, so none of it is used."""
    assert int(np.__version__.split(".")[0]) >= 2
    assert frame(queue="full").count() == 1208


def test_a_frame_that_is_read_again_is_read_anew(spark, frame, full):
    """Trap: Spark reads a frame the second time with the filters that it pushed the first time."""
    pushes = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(pushes)
    spark.conf.set(pushes, "true")
    try:
        rows = frame(queue="full")
        assert rows.where(F.col("due") > F.lit(full.now + timedelta(hours=1))).count() == 3
        assert rows.count() == 1208
    finally:
        spark.conf.set(pushes, before)


@ON_FULL
def test_readers_of_planner_and_executors_share_nothing(url):
    """Trap: what the planner's object learns is unknown where rows are read; the partition says it."""
    from pyspark.cloudpickle import dumps, loads

    from cqueue.spark.options import read_options
    from cqueue.spark.reader import Reader

    reader = Reader(read_options({"url": url, "queue": "full"}), ("id",))
    sent = dumps(reader)
    partitions = loads(dumps(reader.partitions()))
    assert sum(batch.num_rows for part in partitions for batch in loads(sent).read(part)) == 1208


def test_one_session_a_process(url):
    """A process opens its session once, for all that ask; a forked process does not take it over."""
    import os

    from cqueue.settings import load
    from cqueue.spark.session import session

    assert session(load(url)) is session(load(url))
    known = session(load(url))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"1" if session(load(url)) is not known else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1) == b"1"


@ON_FULL
def test_tasks_of_a_worker_share_a_session(spark, frame):
    """Many tasks, few processes, and as many sessions as processes that read."""
    before = _sessions(spark)
    assert frame(queue="full", partitionRows=20).count() == 1208
    after = _sessions(spark)
    assert set(before) & set(after)
    assert all(count <= 1 for count in after.values())


def _sessions(spark):
    """How many sessions each Python worker has to this keyspace."""

    def count(_rows):
        import os
        import time

        from cqueue.spark import session

        time.sleep(0.3)
        keys = [key for key in session._opened if key[0] == os.getpid()]
        yield os.getpid(), len(keys) - len({key for key in keys if key[1].keyspace != keys[-1][1].keyspace})

    return dict(spark.sparkContext.parallelize(range(4), 4).mapPartitions(count).collect())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, "ConfigError", "one of the options queue and log"),
        ({"queue": "a", "log": "b"}, "ConfigError", "one of the options queue and log"),
        ({"queue": "nowhere"}, "QueueNotFound", "there is no queue 'nowhere'"),
        ({"log": "nowhere"}, "LogNotFound", "there is no log 'nowhere'"),
        ({"queue": "full", "view": "all"}, "ConfigError", "view='all'"),
        ({"queue": "full", "vieww": "dead"}, "ConfigError", "Did you mean 'view'?"),
        ({"queue": "full", "columns": "id,size"}, "ConfigError", "has no column 'size'"),
        ({"queue": "full", "since": "yesterday"}, "ConfigError", "since='yesterday'"),
        ({"queue": "full", "limit": "0"}, "ConfigError", "limit='0'"),
        ({"queue": "full", "topics": "a"}, "ConfigError", "option topics is for a log"),
        ({"queue": "full", "priorities": "10"}, "ConfigError", "from 0 to 9"),
        ({"log": "events", "view": "dead"}, "ConfigError", "view='dead'"),
        ({"log": "events", "since": "latest"}, "ConfigError", "since='latest' is for a stream"),
        ({"url": "memory://x", "queue": "full"}, "ConfigError", "exists in one process only"),
    ],
)
@ON_FULL
@ON_EVENTS
def test_wrong_options_are_refused_by_name(url, options, error, words):
    """Where the query is planned, with the error's own name and what to do."""
    with pytest.raises(getattr(cqueue, error), match=re.escape(words)):
        planned({"url": url, **options})


def planned(options):
    """What Spark does in the driver before any task runs."""
    source = DefaultSource(CaseInsensitiveDict(options))
    return source.reader(source.schema()).partitions()


def test_errors_come_through_spark_by_name(frame):
    with pytest.raises(Exception, match="QueueNotFound: there is no queue 'nowhere'"):
        frame(queue="nowhere").collect()
    with pytest.raises(Exception, match=r"ConfigError: a read has no option 'vieww'. Did you mean 'view'"):
        frame(queue="nowhere", vieww="dead")


@ON_FULL
def test_another_schema_is_refused(spark, url):
    wrong = StructType().add("id", "long")
    with pytest.raises(Exception, match="is string, not bigint"):
        spark.read.format("cqueue").schema(wrong).options(url=url, queue="full").load().collect()
