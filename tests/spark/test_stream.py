"""Streams: every record of a log once, into queues and logs, whatever dies on the way."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import cqueue
from cqueue import LogConfig, QueueConfig
from cqueue.log import Record
from cqueue.spark import ledger
from cqueue.spark.session import session
from cqueue.spark.source import DefaultSource
from tests.unit import markdown_pages as markdown

from . import stream_child

ROOT = Path(__file__).parents[2]
TRIES = 3


@pytest.fixture
def source(client, new_name):
    """A log with two partitions."""
    return client.create_log(new_name("source"), LogConfig(partitions=2))


@pytest.fixture
def reader(url):
    """A function that makes what plans a stream's batches."""

    def make(log, **options):
        given = CaseInsensitiveDict(
            {"url": url, "log": log.name, **{name: str(value) for name, value in options.items()}}
        )
        opened = DefaultSource(given)
        return opened.streamReader(opened.schema())

    return make


def fill(log, count, start=0):
    records = [Record("t", str(number).encode(), key=str(number)) for number in range(start, start + count)]
    assert not log.append_many(records).failed


def bodies(reader, start, end):
    """What a batch holds, task for task."""
    return [
        [body for batch in reader.read(part) for body in batch.column("body").to_pylist()]
        for part in reader.partitions(start, end)
    ]


def flat(reader, start, end):
    """The same of all tasks together."""
    return list(chain.from_iterable(bodies(reader, start, end)))


def test_a_stream_of_a_log_fills_a_queue(spark, url, client, source, *, new_name, tmp_path):
    """Each record once, in batches of limited size; a second run goes on, also with new partitions."""
    queue = client.create_queue(new_name("sink"), QueueConfig(derived_sends=True))
    fill(source, 1000)

    def run():
        stream = spark.readStream.format("cqueue").options(url=url, log=source.name, maxRowsPerBatch=400)
        query = (
            stream.load()
            .selectExpr("body", "key", "map('topic', topic) as headers")
            .writeStream.format("cqueue")
            .options(url=url, queue=queue.name, checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    assert run() == [400, 400, 200]
    assert queue.stats(exact=True).live == 1000
    source.alter(partitions=5)
    fill(source, 300, start=1000)
    assert run() == [300]
    found = queue.peek(10_000)
    assert sorted(int(message.body) for message in found) == list(range(1300))
    assert {message.headers["topic"] for message in found} == {"t"}


def test_the_example_of_foreach_batch(spark, url, client, *, tmp_path, wait_until_stable):
    """It runs as it stands in the reference. Without its checkpoint it repeats all, and makes no copies."""
    (block,) = [
        each
        for each in markdown.blocks(markdown.ROOT / "docs/reference/spark.md", "python")
        if "foreachBatch" in each.text
    ]
    queue = client.create_queue("orders", QueueConfig(derived_sends=True))
    source, audit = client.create_log("events"), client.create_log("audit")
    fill(source, 200)
    wait_until_stable(source)
    text = block.text.replace('format("cqueue")', f'format("cqueue").option("url", "{url}")')
    for checkpoint in ("one", "other"):
        namespace = {"spark": spark}
        exec(text.replace("checkpoints/store", str(tmp_path / checkpoint)), namespace)  # noqa: S102
        query = namespace["query"]
        query.processAllAvailable()
        query.stop()
    assert sorted(int(message.body) for message in queue.peek(1000)) == list(range(200))
    wait_until_stable(audit)
    assert sorted(int(record.body) for record in audit.scan()) == list(range(200))


def test_a_queue_is_no_source_of_a_stream(spark, url, client, new_name):
    """The error says why, and what to do."""
    queue = client.create_queue(new_name("work"))
    stream = spark.readStream.format("cqueue").options(url=url, queue=queue.name)
    with pytest.raises(Exception, match="there is no offset to begin again from after a crash"):
        stream.load().writeStream.format("noop").start().awaitTermination()


def test_offsets_never_pass_what_is_stable(reader, source, wait_until_stable):
    """A record that was just appended is in no batch yet."""
    one = reader(source)
    start = one.initialOffset()
    fill(source, 1)
    assert one.latestOffset(start, ReadAllAvailable()) == start
    wait_until_stable(source)
    end = one.latestOffset(start, ReadAllAvailable())
    assert flat(one, start, end) == [b"0"]
    assert one.latestOffset(end, ReadAllAvailable()) == end


def test_a_batch_has_as_many_rows_as_allowed(reader, source, wait_until_stable):
    """To the row, and without a gap from one to the next."""
    fill(source, 777)
    wait_until_stable(source)
    one = reader(source, maxRowsPerBatch=100)
    assert one.getDefaultReadLimit() == ReadMaxRows(100)
    at, sizes, seen = one.initialOffset(), [], []
    while (end := one.latestOffset(at, ReadMaxRows(100))) != at:
        found = flat(one, at, end)
        sizes.append(len(found))
        seen += found
        at = end
    assert sizes == [100] * 7 + [77]
    assert sorted(map(int, seen)) == list(range(777))


def test_a_batch_read_again_has_the_same_tasks(reader, source, wait_until_stable):
    """By another object, later, with more in the log: row by row the same."""
    fill(source, 300)
    wait_until_stable(source)
    one = reader(source, maxRowsPerBatch=120)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadMaxRows(120))
    before = bodies(one, start, end)
    fill(source, 200, start=300)
    source.alter(partitions=4)
    wait_until_stable(source)
    assert bodies(reader(source), start, end) == before
    assert bodies(one, end, end) == []


def test_where_a_stream_begins(reader, source, wait_until_stable):
    fill(source, 10)
    wait_until_stable(source)
    latest = reader(source, since="latest")
    start = latest.initialOffset()
    assert latest.latestOffset(start, ReadAllAvailable()) == start
    early = reader(source, since="2020-01-01")
    assert early.latestOffset(early.initialOffset(), ReadAllAvailable()) != early.initialOffset()


def test_topics_are_filtered_where_they_are_read(reader, source, wait_until_stable):
    source.append_many([Record("a", b"1"), Record("b", b"2"), Record("a", b"3")])
    wait_until_stable(source)
    one = reader(source, topics="a")
    start = one.initialOffset()
    assert sorted(flat(one, start, one.latestOffset(start, ReadAllAvailable()))) == [b"1", b"3"]


def test_what_is_forgotten_is_an_error(reader, url, client, new_name, monkeypatch):
    """Unless the query is told to go on with what is left."""
    log = client.create_log(new_name("short"), LogConfig(partitions=1, ttl=timedelta(minutes=1)))
    strict, lenient = reader(log, since="latest"), reader(log, failOnDataLoss="false")
    clock = session(cqueue.settings.load(url)).driver.clock
    now_us = clock.now_us
    monkeypatch.setattr(clock, "now_us", lambda **_: now_us() + 10_000_000)
    start = strict.initialOffset()
    assert strict.partitions(start, start) == []
    monkeypatch.setattr(clock, "now_us", lambda **_: now_us() + 50_000_000)
    end = strict.latestOffset(start, ReadAllAvailable())
    assert end != start
    monkeypatch.setattr(clock, "now_us", lambda **_: now_us() + 100_000_000)
    restarted = strict.initialOffset()
    for begin in (start, restarted):  # a restart asks anew where the query begins
        with pytest.raises(cqueue.PositionExpired, match="failOnDataLoss=false"):
            strict.partitions(begin, end)
        assert len(lenient.partitions(begin, end)) <= 1
    with pytest.raises(cqueue.PositionExpired, match="failOnDataLoss=false"):
        strict.latestOffset(start, ReadAllAvailable())
    client.delete_log(log.name)


def test_a_checkpoint_of_another_log_is_refused(reader, source, client, new_name):
    """As of one of that name that was deleted and made again."""
    start = reader(client.create_log(new_name("other"))).initialOffset()
    end = reader(source).initialOffset()
    with pytest.raises(cqueue.PositionExpired, match="the checkpoint is of log 'other-"):
        reader(source).partitions(start, end)


@pytest.mark.parametrize("option", ["until", "limit", "asOf"])
def test_what_only_a_batch_has_is_refused(reader, source, option):
    with pytest.raises(cqueue.ConfigError, match=re.escape(f"option {option} is for a batch")):
        reader(source, **{option: "5"}).initialOffset()


def test_the_first_try_of_a_batch_is_remembered(url, source, new_name):
    """All tasks of a run remember the same try, and a later run hears of it."""
    side = session(cqueue.settings.load(url))
    work = new_name("query/1")
    first = ledger.first_try(side, source.name, work, "run")
    assert not first.repeated
    assert ledger.first_try(side, source.name, work, "run") == first
    again = ledger.first_try(side, source.name, work, "another run")
    assert (again.at_us, again.repeated) == (first.at_us, True)
    assert not ledger.first_try(side, source.name, work + "0", "another run").repeated


class Context:
    """What Spark tells a task."""

    attempts = itertools.count()

    def __init__(self, batch):
        self._properties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(batch)}
        self._attempt = next(self.attempts)

    def getLocalProperty(self, name):  # noqa: N802
        return self._properties.get(name)

    def taskAttemptId(self):  # noqa: N802
        return self._attempt

    def partitionId(self):  # noqa: N802
        return 3


def test_a_batch_stored_in_part_is_completed(
    url, spark, client, source, *, new_name, wait_until_stable, monkeypatch
):
    """Trap: write is told no batch. A repeat by another run, and in the same run, stores what is missing."""
    from pyspark import TaskContext

    queue = client.create_queue(new_name("sink"), QueueConfig(derived_sends=True))
    rows = spark.range(100).selectExpr("cast(id as string) as body")
    whole = rows.toArrow().combine_chunks().to_batches()[0]
    for options in ({"queue": queue.name}, {"log": source.name, "topic": "t"}):
        given = CaseInsensitiveDict({"url": url, **options})
        first, other = (DefaultSource(given).streamWriter(rows.schema, overwrite=False) for _ in range(2))
        for writer, batch, size in (
            (first, 1, 30),
            (first, 1, 60),
            (other, 1, 100),
            (other, 1, 100),
            (other, 2, 100),
        ):
            monkeypatch.setattr(TaskContext, "get", partial(Context, batch))
            writer.write(iter([whole.slice(0, size)]))
    assert queue.stats(exact=True).live == 200
    wait_until_stable(source)
    marks = [record.headers[ledger.MARK] for record in source.scan()]
    assert len(set(marks)) == len(marks) == 200


def test_derived_times_are_spread(url, spark, client, new_name, monkeypatch):
    """Messages of one batch are not all due at one microsecond, where nobody could go through them."""
    from pyspark import TaskContext

    queue = client.create_queue(new_name("sink"), QueueConfig(derived_sends=True))
    rows = spark.range(500).selectExpr("cast(id as string) as body")
    monkeypatch.setattr(TaskContext, "get", lambda: Context(1))
    given = CaseInsensitiveDict({"url": url, "queue": queue.name})
    DefaultSource(given).streamWriter(rows.schema, overwrite=False).write(iter(rows.toArrow().to_batches()))
    batch = CaseInsensitiveDict({"url": url, "queue": queue.name, "columns": "due"})
    opened = DefaultSource(batch)
    found = opened.reader(opened.schema())
    times = {
        due for part in found.partitions() for each in found.read(part) for due in each["due"].to_pylist()
    }
    assert len(times) == 500


KILLS = [
    ("offset", "queue"),
    ("write-begin", "queue"),
    ("write-middle", "queue"),
    ("commit", "queue"),
    ("plan", "log"),
    ("read", "log"),
    ("write-middle", "log"),
    ("write-end", "log"),
    ("next", "log"),
]


@pytest.mark.fault
@pytest.mark.timeout(1800)
def test_a_driver_killed_in_any_phase_stores_all_once(new_keyspace, tmp_path, wait_until_stable):
    """By SIGKILL, and begun again from its checkpoint: distinct = total = all, at both sinks."""
    assert {phase for phase, _ in KILLS} == set(stream_child.PHASES)
    url, count = new_keyspace().url, 3000
    with cqueue.connect(url) as client:
        source = client.create_log("source", LogConfig(partitions=2))
        queue = client.create_queue("copy", QueueConfig(derived_sends=True))
        copy = client.create_log("copy")
        fill(source, count)
        for phase, sink in KILLS:
            assert _run_child(url, tmp_path, f"{phase} {sink}") != 0, f"was not killed: {phase} {sink}"
        assert _run_child(url, tmp_path, None) == 0
        wait_until_stable(copy)
        sent = [message.body for message in queue.peek(10_000)]
        records = [record.body for record in copy.scan()]
    assert len(sent) == len(set(sent)) == count
    assert len(records) == len(set(records)) == count


def _run_child(url, directory, kill):
    """The exit code of a driver that is to be killed there, or nowhere."""
    order = directory / "kill"
    if kill:
        order.write_text(kill, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "CQUEUE_TEST_KILL": str(order),
        "CQUEUE_TEST_JVM": str(directory / "jvm"),
    }
    command = [sys.executable, "-m", "tests.spark.stream_child", url, str(directory), "250"]
    for _ in range(TRIES):
        with (directory / "child.log").open("ab") as out:
            code = subprocess.run(
                command, env=environment, cwd=ROOT, stdout=out, stderr=out, timeout=600, check=False
            ).returncode
        # On a busy machine Spark gives up on its own Python workers; the query just goes on then.
        if not order.exists() and (kill or code == 0):
            return code
    pytest.fail("the moment did not come: " + (directory / "child.log").read_text(encoding="utf-8")[-3000:])
