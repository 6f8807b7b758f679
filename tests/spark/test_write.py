"""Batch writes: what a data frame becomes in a queue and in a log."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.datasource import CaseInsensitiveDict

import cqueue
from cqueue import LogConfig, QueueConfig
from cqueue.spark.source import DefaultSource


@pytest.fixture
def save(url):
    """A function that writes a data frame, with more options."""

    def write(rows, *, mode="append", **options):
        rows.write.format("cqueue").mode(mode).options(url=url, **options).save()

    return write


@pytest.fixture
def numbers(spark):
    """A function that makes rows: an id, and it as a body."""
    return lambda count, parts=2: spark.range(0, count, 1, parts).select(
        "id", F.col("id").cast("string").alias("body")
    )


@pytest.fixture
def queue(client, new_name):
    """A queue that takes derived ids."""
    return client.create_queue(new_name("in"), QueueConfig(derived_sends=True, open_shards=2))


def bodies(queue):
    return sorted(message.body for message in queue.peek(10_000))


def test_rows_become_messages(spark, save, queue, url):
    """All columns, and null for what a row does not have."""
    due = (queue.now + timedelta(hours=2)).replace(microsecond=0)
    rows = spark.createDataFrame(
        [
            (bytearray(b"plain"), None, None, None, None, None, None, None, None),
            (bytearray(b"late"), 2, None, due, {"a": "é"}, "k", "t", "json", due + timedelta(days=1)),
            (bytearray(b"soon"), 9, 60.5, None, {}, None, None, None, None),
        ],
        "body binary, priority int, delay double, due timestamp, headers map<string,string>, "
        "key string, task string, codec string, expires timestamp",
    )
    began = queue.now
    save(rows, queue=queue.name)
    ended = queue.now
    found = {message.body: message for message in queue.peek(10)}
    assert sorted(found) == [b"late", b"plain", b"soon"]
    assert (found[b"late"].priority, found[b"late"].due, found[b"late"].headers) == (2, due, {"a": "é"})
    assert (found[b"plain"].priority, found[b"plain"].headers) == (0, {})
    skew, delay = timedelta(milliseconds=200), timedelta(seconds=60.5)
    assert began - skew <= found[b"soon"].due - delay <= ended + skew
    (row,) = (
        spark.read.format("cqueue").options(url=url, queue=queue.name).load().where("task = 't'").collect()
    )
    assert (row.key, row.codec, row.trigger) == ("k", "json", None)
    assert abs(row.expires.replace(tzinfo=UTC) - due - timedelta(days=1)) < timedelta(seconds=5)


def test_consumers_receive_what_was_written(save, numbers, queue):
    save(numbers(500).select("body"), queue=queue.name)
    received = set()
    with queue.consumer() as consumer:
        while len(received) < 500:
            batch = consumer.receive(max_messages=200, wait=timedelta(seconds=10))
            assert batch
            received |= {message.body for message in batch}
            consumer.ack(batch)
    assert queue.stats(exact=True).live == 0


def test_row_counts_equal_cassandras(save, numbers, queue, *, client, new_name, wait_until_stable):
    """As many as there were, once each, in several tasks of several parts."""
    count = 9_000
    save(numbers(count, 3).select("body"), queue=queue.name)
    assert queue.stats(exact=True).live == count
    log = client.create_log(new_name("out"))
    save(numbers(count, 3).select("body"), log=log.name, topic="t")
    wait_until_stable(log)
    assert len({record.body for record in log.scan()}) == sum(1 for _ in log.scan()) == count


def test_rows_become_records(spark, save, client, new_name, wait_until_stable):
    log = client.create_log(new_name("out"), LogConfig(partitions=4))
    rows = spark.createDataFrame(
        [("a", "x", None, None, {"h": "1"}), ("b", None, "user", None, None), ("c", None, None, 3, None)],
        "body string, topic string, key string, partition int, headers map<string,string>",
    )
    save(rows, log=log.name, topic="default")
    wait_until_stable(log)
    found = {record.body: record for record in log.scan()}
    assert (found[b"a"].topic, found[b"a"].headers) == ("x", {"h": "1"})
    assert (found[b"b"].topic, found[b"b"].key) == ("default", "user")
    assert found[b"c"].partition == 3


def test_a_rerun_with_ids_makes_no_copies(save, numbers, queue, *, client, new_name, wait_until_stable):
    """In a queue by derived ids, in a log by marks; also where rows are cut otherwise and some are new."""
    due = int(queue.now.timestamp())
    log = client.create_log(new_name("out"))
    for count, parts in ((300, 2), (400, 3)):
        rows = numbers(count, parts).withColumnRenamed("id", "number")
        save(rows, queue=queue.name, idColumn="number", due=due)
        save(rows, log=log.name, topic="t", idColumn="number")
        wait_until_stable(log)
    assert len(set(bodies(queue))) == queue.stats(exact=True).live == 400
    assert len({record.body for record in log.scan()}) == sum(1 for _ in log.scan()) == 400


def test_a_derived_id_is_that_of_a_message_with_a_source(save, numbers, queue):
    """A job and a producer that name the same thing the same make one message."""
    from cqueue import Message

    due = datetime.fromtimestamp(int(queue.now.timestamp()), UTC)
    queue.send_many([Message(b"0", due=due, source="0")])
    save(numbers(1).withColumn("due", F.lit(due)), queue=queue.name, idColumn="id")
    assert queue.stats(exact=True).live == 1


def test_a_rate_is_kept_by_all_tasks_together(save, numbers, queue):
    """400 rows in four tasks at 100 a second take at least three seconds."""
    begin = time.monotonic()
    save(numbers(400, 4).select("body"), queue=queue.name, rate=100)
    assert time.monotonic() - begin > 3.0
    assert queue.stats(exact=True).live == 400


@pytest.mark.parametrize(
    ("columns", "options", "error", "words"),
    [
        ("id as number", {}, "ConfigError", "there is no column body"),
        ("body, id", {}, "ConfigError", "takes no column 'id'"),
        ("id as body", {}, "ConfigError", "column 'body' is bigint"),
        ("body, 'x' as priority", {}, "ConfigError", "column 'priority' is string"),
        ("body, id", {"idColumn": "id"}, "ConfigError", "a column due, or the option"),
        ("body, 1.0D as delay, id", {"idColumn": "id"}, "ConfigError", "give due and no delay"),
        ("body", {"idColumn": "other"}, "ConfigError", "which idColumn names"),
        ("body", {"rate": "0"}, "ConfigError", "rate='0'"),
        ("body", {"topic": "t"}, "ConfigError", "option topic is for a log"),
        ("body", {"mode": "overwrite"}, "ConfigError", "nothing is ever overwritten"),
        ("body", {"queue": "nowhere"}, "QueueNotFound", "there is no queue"),
        ("cast(null as string) as body", {}, "BadInput", "row 1 of this task has no body"),
        ("repeat('x', 1048577) as body", {}, "BodyTooLarge", "above 1 MiB"),
        ("body, 10 as priority", {}, "PriorityOutOfRange", "priority not of 0 to 9"),
        ("body, -1 as delay", {}, "DelayOutOfRange", "delay not of 0 to 10 years"),
        ("body, repeat('k', 1001) as key", {}, "BadInput", "longer than 1,000"),
        ("body, map('a', cast(null as string)) as headers", {}, "BadInput", "value of a header is text"),
        ("body, timestamp'2020-01-01' as expires", {}, "BadInput", "has expired already"),
        ("body, now() as due, 1 as delay", {}, "BadInput", "a due and a delay"),
        (
            "body, id, timestamp'2020-01-01' as due",
            {"idColumn": "id"},
            "DelayOutOfRange",
            "longer ago than the deployment's gc_grace",
        ),
    ],
)
def test_wrong_rows_and_options_are_refused(url, numbers, queue, *, columns, options, error, words):
    """Before anything is stored, with the error's own name."""
    rows = numbers(5, 1).selectExpr(*_split(columns))
    given = {"url": url, "queue": queue.name, **options}
    overwrite = given.pop("mode", "append") == "overwrite"
    with pytest.raises(getattr(cqueue, error), match=re.escape(words)):
        _write_here(rows, given, overwrite=overwrite)
    assert queue.stats(exact=True).live == 0


def _write_here(rows, options, *, overwrite):
    """What Spark does in the driver and in a task, in this process."""
    writer = DefaultSource(CaseInsensitiveDict(options)).writer(rows.schema, overwrite)
    return writer.write(iter(rows.toArrow().to_batches()))


def test_errors_come_through_spark_by_name(save, numbers, queue):
    with pytest.raises(Exception, match="ConfigError: a queue takes no column 'id'"):
        save(numbers(5), queue=queue.name)
    with pytest.raises(Exception, match="PriorityOutOfRange: row 1 of this task has a priority not of 0"):
        save(numbers(5).selectExpr("body", "11 as priority"), queue=queue.name)
    with pytest.raises(Exception, match="ConfigError: nothing is ever overwritten"):
        save(numbers(5).select("body"), queue=queue.name, mode="overwrite")
    assert queue.stats(exact=True).live == 0


def _split(columns):
    """At commas outside of brackets."""
    depth, parts = 0, [""]
    for letter in columns:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def test_a_queue_without_derived_ids_is_named(save, numbers, client, new_name):
    queue = client.create_queue(new_name("plain"))
    with pytest.raises(Exception, match="derived_sends=True"):
        save(numbers(1), queue=queue.name, idColumn="id", due="2026-01-01")


def test_a_log_needs_a_topic(spark, save, numbers, client, new_name):
    log = client.create_log(new_name("out"))
    with pytest.raises(Exception, match="a record has a topic"):
        save(numbers(1).select("body"), log=log.name)
    with pytest.raises(Exception, match="has no topic"):
        save(spark.sql("select 'a' as body, cast(null as string) as topic"), log=log.name)
