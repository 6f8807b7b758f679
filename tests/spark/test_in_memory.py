"""What Spark calls, on a store in memory and a clock that a test moves; no Cassandra."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import re
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pyarrow as pa
import pytest
import tenacity
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import types as T  # noqa: N812 - its usual name
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

import cqueue
from cqueue import LogConfig, QueueConfig, ids
from cqueue.log import Record
from cqueue.message import datetime_us
from cqueue.spark import ledger, pace, split, stream
from cqueue.spark import session as sessions
from cqueue.spark.jobs import archive, dedup, failures, manifest, redrive, report_log, report_queue
from cqueue.spark.jobs import target as targets
from cqueue.spark.jobs.files import Files
from cqueue.spark.jobs.report import Report
from cqueue.spark.jobs.target import Target
from cqueue.spark.options import read_options, write_options
from cqueue.spark.rows import JOB_ID, check_schema
from cqueue.spark.sink import PART, STEP_US, LogSink, QueueSink, Written, write
from cqueue.spark.source import DefaultSource
from cqueue.spark.views import LOG, spark_schema
from cqueue.store.log_operations import AppendRecords, RecordRow
from cqueue.store.record_page import ReadRecordPage
from cqueue.testing import MemoryClient

URL = "cassandra://nowhere/memory"
S = timedelta(seconds=1)
NO_TEXT = pa.array([b"\xffa"]).view(pa.string())


@pytest.fixture
def client(monkeypatch):
    """A client in memory, whose store Spark's side finds under `URL`."""
    with MemoryClient(now=datetime(2031, 5, 1, tzinfo=UTC)) as opened:
        side = sessions.SparkSide(None, opened._driver, opened._catalog, opened._logs)
        monkeypatch.setitem(sessions._opened, (os.getpid(), cqueue.settings.load(URL)), side)
        yield opened


@pytest.fixture
def side():
    """Spark's side of that client."""
    return sessions.session(cqueue.settings.load(URL))


@pytest.fixture
def log(client):
    """A log of one partition with the default ttl, a week."""
    return client.create_log("events", LogConfig(partitions=1))


@pytest.fixture
def queue(client):
    """A queue that takes derived ids."""
    return client.create_queue("work", QueueConfig(derived_sends=True))


def reader(log, **options):
    """What plans a stream's batches."""
    source = DefaultSource(CaseInsensitiveDict({"url": URL, "log": log.name, **options}))
    return source.streamReader(source.schema())


def bodies(reader, start, end):
    """What a batch holds."""
    return [
        body
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for body in batch.column("body").to_pylist()
    ]


def fill(client, log, *numbers):
    for number in numbers:
        log.append("t", str(number).encode())
        client.advance(S)


# ── options ──


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("20310501", datetime(2031, 5, 1, tzinfo=UTC)),
        ("2031-05-01T08:00", datetime(2031, 5, 1, 8, tzinfo=UTC)),
        ("2031-05-01T08:00+02:00", datetime(2031, 5, 1, 6, tzinfo=UTC)),
        ("1935360000.5", datetime(2031, 5, 1, 0, 0, 0, 500_000, tzinfo=UTC)),
        ("0", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_eight_digits_are_a_date_other_numbers_seconds(text, at):
    """Trap: 20310501 was a time in 1970, so a read of what is due then showed everything."""
    assert read_options({"url": URL, "queue": "q", "since": text}).since_us == datetime_us(at)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "q", "since": "1700000000000"}, "seconds since 1970, not milliseconds"),
        ({"queue": "q", "until": "1e300"}, "until='1e300'; it takes a time"),
        (
            {"queue": "q", "since": "oldest"},
            "'oldest'; it takes earliest, of a stream latest, a time such as",
        ),
        ({"queue": "q", "until": "latest"}, "until='latest'; it takes a time"),
        ({"queue": "q", "idColumn": "id"}, "a read has no option 'idColumn'"),
        ({"queue": "q", "columns": ","}, "columns=',' names none"),
        ({"queue": "q", "priorities": " , "}, "priorities=',' names none"),
        ({"log": "l", "topics": ","}, "topics=',' names none"),
        ({"queue": "q", "topics": "t"}, "option topics is for a log; 'q' is a queue"),
        ({"log": "l", "priorities": "1"}, "option priorities is for a queue; 'l' is a log"),
        ({"queue": "q", "view": "shards", "asOf": "0"}, "asOf does not go with view 'shards'"),
        ({"queue": "q", "path": "orders"}, "'orders' has no effect; the options queue and log say"),
        ({"log": "l", "since": "2031-02-01", "until": "2031-01-01"}, "is later than until='2031-01-01'"),
    ],
)
def test_options_that_would_be_misread_are_refused(options, said):
    """Trap: a list of nothing, a time in milliseconds, and bounds the wrong way round gave no rows at all; of
    `.load("orders")` beside the option queue nothing was said.
    """
    with pytest.raises(cqueue.ConfigError, match=re.escape(said)):
        read_options({"url": URL, **options})


@pytest.mark.parametrize(
    ("since", "from_latest"), [("Earliest", False), ("earliest", False), ("LATEST", True)]
)
def test_where_a_stream_begins_may_be_written_in_any_case(since, from_latest):
    """As the values of all options that take one of several words."""
    found = read_options({"url": URL, "log": "events", "since": since})
    assert (found.since_us, found.from_latest) == (None, from_latest)


def test_a_column_named_twice_is_given_once():
    """Trap: two columns of one name are no rows that Spark can take, and it says so in its own words."""
    assert read_options({"url": URL, "queue": "q", "columns": "id, body,id"}).columns == ("id", "body")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "work", "topic": "t"}, "option topic is for a log; 'work' is a queue"),
        ({"log": "events", "due": "0"}, "option due is for a queue; 'events' is a log"),
        ({"queue": "work", "idColumn": "id", "rerunSince": "0"}, "option rerunSince is for a log"),
        ({"log": "events", "topic": "t", "rerunSince": "0"}, "rerunSince goes with idColumn"),
        ({"log": "events", "topic": "t", "staleBatch": "resend"}, "option staleBatch is for a queue"),
        ({"log": "events", "topic": "x" * 1001}, "option topic is 'xxx"),
        ({"log": "events", "since": "latest"}, "a write has no option 'since'"),
    ],
)
def test_options_of_a_write_that_would_have_no_effect_are_refused(options, said):
    with pytest.raises(cqueue.BadInput, match=re.escape(said)):
        write_options({"url": URL, **options}, overwrite=False)


@pytest.mark.usefixtures("log", "queue")
def test_a_batch_has_no_options_of_streams_and_a_stream_none_of_batches():
    """Trap: a batch with maxRowsPerBatch read everything."""
    schema = T.StructType().add("body", "string").add("id", "string")

    def source(**options):
        return DefaultSource(CaseInsensitiveDict({"url": URL, **options}))

    reads = source(log="events", maxRowsPerBatch="1")
    with pytest.raises(cqueue.ConfigError, match="option maxRowsPerBatch is for a stream"):
        reads.reader(reads.schema()).partitions()
    reads = source(log="events", partitionRows="1")
    with pytest.raises(cqueue.ConfigError, match="option partitionRows is for a batch"):
        reads.streamReader(reads.schema()).initialOffset()
    with pytest.raises(cqueue.ConfigError, match="option staleBatch is for a stream"):
        source(queue="work", staleBatch="resend").writer(schema, overwrite=False)
    writes = source(log="events", topic="t", idColumn="id", rerunSince="0")
    with pytest.raises(cqueue.ConfigError, match="option rerunSince is for a batch"):
        writes.streamWriter(schema, overwrite=False)
    with pytest.raises(cqueue.ConfigError, match=r'outputMode\("append"\)'):
        source(queue="work").streamWriter(schema, overwrite=True)


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"body": T.StructType()}, {}, "column 'body' is struct<>; it takes binary or string, such as"),
        ({"priority": T.DecimalType(10, 0)}, {}, "it takes a whole number: cast it"),
        ({"due": T.TimestampNTZType()}, {}, "it takes timestamp: cast it"),
        ({"headers": T.MapType(T.StringType(), T.LongType())}, {}, "it takes map<string,string>: cast it"),
        ({"key": T.LongType()}, {"idColumn": "key"}, "'key' is bigint; it takes string: cast"),
        ({"id": T.DoubleType()}, {"idColumn": "id"}, "it takes string, binary or a whole number"),
    ],
)
def test_a_column_of_another_type_is_told_what_it_takes(columns, options, said):
    """Trap: a key that is no text passed where it was the idColumn too, and a task died at it."""
    schema = T.StructType()
    for name, type_ in {"body": T.StringType(), **columns}.items():
        schema = schema.add(name, type_)
    with pytest.raises(cqueue.ConfigError, match=re.escape(said)):
        check_schema(schema, write_options({"url": URL, "queue": "work", **options}, overwrite=False))


def test_a_schema_beside_option_columns_names_the_same_ones(log):
    """Trap: the schema won, and nothing was said of the option."""
    schema = T.StructType().add("id", "string")
    for columns, refused in (("topic", True), ("id,topic", True), ("id", False)):
        source = DefaultSource(CaseInsensitiveDict({"url": URL, "log": log.name, "columns": columns}))
        says = pytest.raises(cqueue.ConfigError, match=f"names id, and option columns {columns[:2]}")
        with says if refused else nullcontext():
            source.reader(schema)
        with says if refused else nullcontext():
            source.streamReader(schema).initialOffset()


def test_a_schema_of_others_is_refused_where_a_stream_plans(log):
    """Trap: raised sooner, Spark told of a variable `reader` of its own that has no value."""
    for given, schema, said in (
        ({}, T.StructType().add("id", "long"), "column 'id' of view 'log' is string, not bigint"),
        ({"topcs": "t"}, T.StructType().add("id", "string"), "Did you mean 'topics'"),
    ):
        made = DefaultSource(CaseInsensitiveDict({"url": URL, "log": log.name, **given})).streamReader(schema)
        with pytest.raises(cqueue.ConfigError, match=said):
            made.initialOffset()


def test_tasks_are_cut_by_pieces_of_all_partitions():
    """Trap: of every 16th piece of a log with 16 partitions, one partition spoke for all."""
    pieces = [split.Piece(number % 16, 0, 1, 0.0) for number in range(16 * split.SAMPLES)]
    dense = {place: [1] * 1000 for place in range(1, 16)}
    groups = split.tasks(pieces, lambda place: lambda *_: dense.get(place, []), 100_000, None)
    assert len(groups) > 10


# ── where a stream begins ──


def test_a_first_batch_read_again_has_the_same_rows(client, log):
    """Although the oldest records expire meanwhile; once one of the batch has, a repeat is refused.

    Trap: a sink tells rows apart by their numbers, so one that is missing at the head moves all others.
    """
    fill(client, log, *range(20))
    client.advance(timedelta(days=7) - 5400 * S)
    fill(client, log, *range(20, 30))
    client.advance(5400 * S - 30 * S)  # the oldest records are 7 days old
    one = reader(log)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    before = bodies(one, start, end)
    assert before == [str(number).encode() for number in range(20, 30)]
    client.advance(1800 * S)
    restarted = reader(log)  # Spark has stored the end alone, and asks for the beginning again
    assert bodies(restarted, restarted.initialOffset(), end) == before
    client.advance(1801 * S)
    restarted = reader(log)
    with pytest.raises(cqueue.PositionExpired, match="failOnDataLoss=false"):
        bodies(restarted, restarted.initialOffset(), end)


@pytest.mark.parametrize("since", ["earliest", "2020-01-01"])
def test_a_young_log_is_read_from_its_first_record(client, log, since):
    """Until it has forgotten that one: then the batch cannot be repeated either."""
    fill(client, log, 0, 1)
    client.advance(timedelta(days=6))
    one = reader(log, since=since)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    assert bodies(one, start, end) == [b"0", b"1"]
    client.advance(timedelta(hours=23, minutes=30))  # a new query would begin behind them already
    restarted = reader(log, since=since)
    assert bodies(restarted, restarted.initialOffset(), end) == [b"0", b"1"]
    client.advance(timedelta(minutes=30))
    with pytest.raises(cqueue.PositionExpired):
        bodies(restarted, restarted.initialOffset(), end)


@pytest.mark.parametrize("longer", [timedelta(days=30), None])
def test_after_a_ttl_was_made_longer_what_has_the_earlier_one_is_read(client, longer):
    """Of an hour, a tenth is left out: a margin by the present ttl would leave out all that is there."""
    log = client.create_log("short", LogConfig(partitions=1, ttl=timedelta(hours=1)))
    client.advance(timedelta(hours=2))
    fill(client, log, 0)
    log.alter(ttl=longer)
    client.advance(timedelta(minutes=50))
    one = reader(log)
    start = one.initialOffset()
    assert bodies(one, start, one.latestOffset(start, ReadAllAvailable())) == [b"0"]


def test_a_log_without_a_ttl_is_read_from_its_first_record(client):
    log = client.create_log("kept", LogConfig(partitions=1, ttl=None))
    fill(client, log, 0)
    client.advance(timedelta(days=1000))
    one = reader(log)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    client.advance(timedelta(days=1000))
    assert bodies(one, start, end) == [b"0"]


def test_records_that_expire_before_a_task_reads_them_end_the_stream(client, log):
    """Trap: a batch was checked where it was planned. Its tasks may wait for hours for their turn, and what
    expired meanwhile was passed over, silently; the offsets went on behind it.
    """
    fill(client, log, 0)
    client.advance(3 * S)
    strict, lenient = reader(log), reader(log, failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    planned = {each: each.partitions(start, end) for each in (strict, lenient)}
    client.advance(timedelta(days=7))
    with pytest.raises(cqueue.PositionExpired, match="failOnDataLoss=false"):
        list(strict.read(*planned[strict]))
    assert list(lenient.read(*planned[lenient])) == []


def test_a_task_that_has_read_the_oldest_records_goes_on(client, log):
    """Each page is checked from where it begins, and not from where the task began."""
    one = reader(log, since="latest")
    start = one.initialOffset()
    fill(client, log, *range(400))
    client.advance(timedelta(days=7) - 410 * S)
    (part,) = one.partitions(start, one.latestOffset(start, ReadAllAvailable()))
    seen = []
    for batch in one.read(part):
        if not seen:
            client.advance(40 * S)
        seen += map(int, batch.column("body").to_pylist())
    assert seen == list(range(400))


def test_a_partition_that_is_added_does_not_end_a_stream(client):
    """Its first time shard began before anything that the log remembers, and so does the read of it."""
    log = client.create_log(
        "short", LogConfig(partitions=1, ttl=timedelta(minutes=20), time_shard=timedelta(hours=1))
    )
    client.advance(timedelta(minutes=25))
    one = reader(log, since="latest")
    start = one.initialOffset()
    log.alter(partitions=2)
    log.append("t", b"0", partition=1)
    client.advance(3 * S)
    assert bodies(reader(log), start, reader(log).latestOffset(start, ReadAllAvailable())) == [b"0"]


def test_available_now_reads_what_was_acknowledged_by_any_clock(client, monkeypatch):
    """Trap: it ended at the time of the planner's clock; a record of one that is ahead came a run later."""
    with_one_clock = client._catalog.deployment()
    monkeypatch.setattr(client._logs, "_deployment", lambda: with_one_clock._replace(skew_ms=500))
    log = client.create_log("events", LogConfig(partitions=1))
    one = reader(log)
    start = one.initialOffset()
    log.append("t", b"0")
    now_us = client.clock.now_us
    monkeypatch.setattr(client.clock, "now_us", lambda **_: now_us() - 500_000)
    monkeypatch.setattr(stream.time, "sleep", client.clock.pause)
    one.prepareForTriggerAvailableNow()
    assert bodies(one, start, one.latestOffset(start, ReadAllAvailable())) == [b"0"]


@pytest.mark.parametrize("ms", [1100, 900])
def test_a_position_counts_as_forgotten_before_its_ttl_is_over(client, side, log, ms):
    """By 1 s and ε, as for members and followers: Cassandra counts the ttl from a write's whole second."""
    spec = side.logs.entry(log.name).spec
    one = reader(log, since="latest")
    client.advance(3 * S)
    start = one.initialOffset()
    early = timedelta(microseconds=spec.settle_us + 2 * spec.skew_us, milliseconds=ms)
    client.advance(timedelta(days=7) - early)
    with pytest.raises(cqueue.PositionExpired) if ms < 1000 else nullcontext():
        one.latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("age", [timedelta(), timedelta(hours=1)])
def test_offsets_of_a_quiet_log_do_not_expire(client, age):
    """Trap: a log may forget within a minute, sooner than offsets used to move on without records."""
    log = client.create_log("short", LogConfig(partitions=1, ttl=timedelta(minutes=1)))
    client.advance(age)
    one = reader(log)
    at = one.initialOffset()
    for _ in range(20):
        end = one.latestOffset(at, ReadAllAvailable())
        assert bodies(one, at, end) == []
        at = end
        client.advance(10 * S)


def test_a_quiet_stream_goes_on_after_the_logs_ttl_became_shorter(client, log):
    """Trap: its offsets may be ten minutes old, which a ttl of five minutes called forgotten at once."""
    one = reader(log)
    fill(client, log, 0)
    client.advance(5 * S)
    at = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    client.advance(timedelta(minutes=9))
    log.append("t", b"1")
    client.advance(5 * S)
    log.alter(ttl=timedelta(minutes=5))
    end = one.latestOffset(at, ReadAllAvailable())
    assert bodies(one, at, end) == [b"1"]
    for _ in range(10):
        at = end
        client.advance(timedelta(minutes=1))
        end = one.latestOffset(at, ReadAllAvailable())
        assert bodies(one, at, end) == []


def test_a_repeat_finds_marks_from_before_the_logs_ttl_became_shorter(client, side, log):
    """Trap: they were older than the new ttl, so what they mark was stored again. Readers may have both."""
    log.append("t", b"x", headers={ledger.MARK: "m"})
    client.advance(timedelta(hours=2))
    log.alter(ttl=timedelta(minutes=5))
    client.advance(timedelta(hours=2))
    spec = side.logs.entry(log.name).spec
    assert ledger.marks(side, spec, 0, client.clock.now_us(), "") == {ledger.digest_of("m")}


def test_a_checkpoint_of_another_log_says_which(client, log):
    """Also where that log had more partitions, and the caller wants what is left."""
    other = client.create_log("other", LogConfig(partitions=3))
    fill(client, other, 0, 1, 2)
    one = reader(other)
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    fill(client, log, 3)
    with pytest.raises(cqueue.PositionExpired, match="is of log 'other', not 'events'"):
        reader(log).partitions(end, end)
    assert bodies(reader(log, failOnDataLoss="false"), start, end) == []


@pytest.mark.parametrize("offset", [{"logOffset": 0}, 5])
def test_a_checkpoint_of_another_kind_of_source_is_refused(log, offset):
    """Trap: that of files was taken for one of a log without partitions, which is read from its beginning."""
    one = reader(log)
    start = one.initialOffset()
    for plan in (
        lambda: one.latestOffset(offset, ReadAllAvailable()),
        lambda: one.partitions(start, offset),
        lambda: one.partitions(offset, start),
    ):
        with pytest.raises(cqueue.PositionExpired, match="the checkpoint is of another source"):
            plan()


# ── what a repeat looks for ──


def test_marks_are_looked_for_in_pages_of_a_bounded_size(client, side, log, monkeypatch):
    """Trap: each task of a job reads back all records since the first run, and bodies may be 1 MiB large."""
    for start in range(0, 400, 50):
        records = [Record("t", bytes(100_000), headers={ledger.MARK: f"m{start + n}"}) for n in range(50)]
        log.append_many(records)
    client.advance(S)
    sizes = []
    execute = client.store.execute

    def measured(operation):
        answer = execute(operation)
        if isinstance(operation, ReadRecordPage):
            sizes.append(len(answer.data))
        return answer

    monkeypatch.setattr(client.store, "execute", measured)
    spec = client._logs.entry(log.name).spec
    found = ledger.marks(side, spec, 0, client.clock.now_us(), "m")
    assert found == {ledger.digest_of(f"m{number}") for number in range(400)}
    assert max(sizes) < 8 << 20


class Context:
    """What Spark tells a task."""

    attempts = itertools.count()

    def __init__(self, partition):
        self.partitionId = lambda: partition
        self.taskAttemptId = partial(next, self.attempts)
        self.getLocalProperty = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "1"}.get


def test_a_batch_that_broke_off_long_ago_says_what_to_do(client, queue, monkeypatch):
    """Its messages may be done. A driver that a weekend kept from going on needs a way out."""
    monkeypatch.setattr(TaskContext, "get", partial(Context, 0))

    def write(**options):
        source = DefaultSource(CaseInsensitiveDict({"url": URL, "queue": queue.name, **options}))
        writer = source.streamWriter(T.StructType().add("body", "string"), overwrite=False)
        return writer.write(iter([pa.RecordBatch.from_pydict({"body": ["x"]})]))

    write()
    client.advance(timedelta(days=2))
    with pytest.raises(cqueue.DelayOutOfRange, match=r"a batch that was first tried .*\(--resend-stale\)"):
        write()
    assert write(staleBatch="resend").stored == 1


def test_rows_keep_their_time_though_an_earlier_note_is_stored_late(client, queue, side, monkeypatch):
    """Trap: tasks of a batch begin together. One took its own note for the first, and stored rows by it;
    an earlier one of another task was stored only then. A repeat of the batch gave the rows other ids.
    """
    monkeypatch.setattr(TaskContext, "get", partial(Context, 0))
    source = DefaultSource(CaseInsensitiveDict({"url": URL, "queue": queue.name}))
    target, early_us = side.queues.entry(queue.name).spec.partition, client.clock.now_us()
    client.advance(S)
    for _ in range(2):
        writer = source.streamWriter(T.StructType().add("body", "string"), overwrite=False)
        assert writer.write(iter([pa.RecordBatch.from_pydict({"body": ["x"]})])).stored == 1
        late = RecordRow(ids.lowest_at(early_us), "of another task", None, None, b"")
        side.driver.ask(AppendRecords(ledger.hidden(target, f"{target} q/1"), (late,), 1000))
    client.advance(S)
    assert queue.stats(exact=True).live == 1


def test_attempts_of_a_task_that_begin_together_take_one_time(client, queue, side, monkeypatch):
    """Trap: where Spark speculates, both found no note, and took what they saw of the other tasks' notes."""
    target, early_us = side.queues.entry(queue.name).spec.partition, client.clock.now_us()
    client.advance(S)
    real, took = ledger.first_try, []

    def first_try(*args):
        monkeypatch.setattr(ledger, "first_try", real)
        took.append(ledger.due_us(side, target, "q/1", "q/1/0", "run"))  # the other attempt, meanwhile
        late = RecordRow(ids.lowest_at(early_us), "of another task", None, None, b"")
        side.driver.ask(AppendRecords(ledger.hidden(target, f"{target} q/1"), (late,), 1000))
        client.advance(S)
        return real(*args)

    monkeypatch.setattr(ledger, "first_try", first_try)
    took.append(ledger.due_us(side, target, "q/1", "q/1/0", "run"))
    assert took[0] == took[1] > early_us


def test_a_rerun_waits_for_what_tasks_of_the_run_before_have_sent(client, log, monkeypatch):
    """Once for all tasks of a process, which read the marks once, however many tasks there are.

    Trap: of a job that failed, other tasks go on for a moment; run again at once, it stored their rows twice.
    """
    schema = T.StructType().add("body", "string").add("id", "string")
    options = {"url": URL, "log": log.name, "topic": "t", "idColumn": "id"}
    writer = DefaultSource(CaseInsensitiveDict(options)).writer(schema, overwrite=False)

    late = iter([Record("t", b"by a task of the run before", headers={ledger.MARK: "1"})])

    def sleep(seconds):
        log.append_many(late)
        client.clock.pause(seconds)

    monkeypatch.setattr(ledger.time, "sleep", sleep)
    reads = []
    marks = ledger.marks
    monkeypatch.setattr(ledger, "marks", lambda *args: reads.append(args) or marks(*args))
    for partition in range(3):
        monkeypatch.setattr(TaskContext, "get", partial(Context, partition))
        rows = pa.RecordBatch.from_pydict({"body": ["b"] * 2, "id": ["1", str(partition + 2)]})
        assert copy.deepcopy(writer).write(iter([rows])).stored == 1
    assert len(reads) == 1


@pytest.mark.parametrize("options", [{}, {"idColumn": "id"}], ids=["numbers", "ids"])
def test_of_two_runs_that_have_one_checkpoint_one_stores_a_batch(client, log, monkeypatch, options):
    """As where a timetable starts a run before the last one has ended: the later one goes on.

    Trap: it looked once for what the other had stored, which went on; the log had rows of both.
    """
    monkeypatch.setattr(TaskContext, "get", partial(Context, 0))
    monkeypatch.setattr(ledger.time, "sleep", client.clock.pause)
    stored, store = Event(), LogSink.store
    monkeypatch.setattr(LogSink, "store", lambda *args: (store(*args), stored.set())[0])
    source = DefaultSource(CaseInsensitiveDict({"url": URL, "log": log.name, "topic": "t", **options}))
    schema = T.StructType().add("body", "string")
    schema = schema.add("id", "string") if options else schema
    first, second = (source.streamWriter(schema, overwrite=False) for _ in range(2))

    def rows(*numbers):
        texts = [str(number) for number in numbers]
        return pa.RecordBatch.from_pydict(dict.fromkeys(schema.names, texts))

    def overtaken():
        yield rows(0)
        stored.wait()
        client.advance(S)
        assert second.write(iter([rows(0), rows(1)])) == Written(2, 1)
        yield rows(1)

    with pytest.raises(cqueue.OwnershipLost, match="one run at a time"):
        first.write(overtaken())
    client.advance(3 * S)
    assert [record.body for record in log.scan()] == [b"0", b"1"]


# ── an outage ──


@pytest.fixture
def away(client, monkeypatch):
    """A function that lets every request fail for some seconds, by a clock that only waiting moves."""
    timer = SimpleNamespace(monotonic=lambda: client.clock.now_us() / 1e6, sleep=client.clock.pause)
    monkeypatch.setattr(tenacity, "time", timer)
    monkeypatch.setattr(tenacity.nap, "time", timer)
    execute = client.store.execute

    def go(seconds, error=cqueue.Unavailable):
        back_us = client.clock.now_us() + int(seconds * 1e6)

        def refusing(operation):
            if client.clock.now_us() < back_us:
                raise error("as if")
            return execute(operation)

        monkeypatch.setattr(client.store, "execute", refusing)

    return go


LONG = pytest.mark.parametrize("seconds", [40, 70])


def gives_up(seconds, error=cqueue.Unavailable):
    """After a minute."""
    return pytest.raises(error) if seconds > 60 else nullcontext()


@LONG
@pytest.mark.parametrize("error", [cqueue.Unavailable, cqueue.OutcomeUnknown])
@pytest.mark.usefixtures("log")
def test_a_task_that_begins_in_an_outage_waits(away, monkeypatch, seconds, error):
    """Trap: rows were tried for a minute; what a task notes before its first row was tried once."""
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    context = Context(0)
    context.taskAttemptId = lambda: 1
    source = DefaultSource(CaseInsensitiveDict({"url": URL, "log": "events", "topic": "t"}))
    writer = source.streamWriter(T.StructType().add("body", "string"), overwrite=False)
    away(seconds, error)
    with gives_up(seconds, error):
        assert writer.write(iter([pa.RecordBatch.from_pydict({"body": ["x"]})])) == Written(1, 1)


@LONG
@pytest.mark.parametrize("view", ["messages", "shards", "inflight", "log"])
def test_a_task_that_reads_in_an_outage_waits(client, queue, log, away, *, seconds, view):
    """Trap: on a local master, where Spark tries a task once, a restart of a node ended a read of hours."""
    fill(client, log, 0, 1)
    queue.send(b"x")
    queue.consumer().receive()
    client.advance(3 * S)
    target = {"log": log.name} if view == "log" else {"queue": queue.name, "view": view}
    source = DefaultSource(CaseInsensitiveDict({"url": URL, **target}))
    one = source.reader(source.schema())
    (part,) = one.partitions()
    away(seconds)
    with gives_up(seconds):
        assert sum(batch.num_rows for batch in one.read(part)) == (2 if view == "log" else 1)


@LONG
def test_a_stream_waits_in_an_outage(client, log, away, seconds):
    """Where it looks for news, and where it plans a batch."""
    fill(client, log, 0, 1)
    client.advance(3 * S)
    one = reader(log)
    start = one.initialOffset()
    away(seconds)
    with gives_up(seconds):
        end = one.latestOffset(start, ReadAllAvailable())
        away(seconds)
        assert bodies(one, start, end) == [b"0", b"1"]


def test_a_read_that_has_ended_waits_for_no_page():
    """As one with a limit. Trap: while Cassandra was away it waited for a minute, for a page of no use."""
    come = Event()

    def pages():
        yield 1
        come.wait()

    one = split.ahead(pages())
    assert next(one) == 1
    ending = Thread(target=one.close)
    ending.start()
    ending.join(10)
    is_waiting = ending.is_alive()
    come.set()
    ending.join()
    assert not is_waiting


# ── writing ──


@pytest.mark.parametrize(
    "options", [{"queue": "work"}, {"log": "events", "topic": "t"}], ids=["queue", "log"]
)
@pytest.mark.usefixtures("log", "queue")
def test_a_task_without_rows_asks_nothing(client, monkeypatch, options):
    """Trap: each of a thousand tasks noted its beginning, three to six requests, for nothing."""
    monkeypatch.setattr(TaskContext, "get", partial(Context, 0))
    source = DefaultSource(CaseInsensitiveDict({"url": URL, "idColumn": "id", **options}))
    schema = T.StructType().add("body", "string").add("id", "string")
    writer = source.streamWriter(schema, overwrite=False)
    rows = pa.RecordBatch.from_pydict({"body": ["x"], "id": ["1"]})
    asked = []
    execute = client.store.execute
    monkeypatch.setattr(client.store, "execute", lambda one: asked.append(one) or execute(one))
    assert writer.write(iter([])) == writer.write(iter([rows.slice(0, 0)])) == Written(0, 0)
    assert not asked
    assert writer.write(iter([rows.slice(0, 0), rows])) == Written(1, 1)


@pytest.mark.parametrize("named", [{"key": "k"}, {"partition": 0}], ids=["key", "partition"])
def test_records_of_one_key_keep_their_order(client, side, log, monkeypatch, named):
    """Also where Cassandra refuses the first of them for a moment.

    Trap: two parts were stored side by side, so the second could overtake the first.
    """
    refused = []
    store = LogSink.store

    def refusing(self, entries, state):
        if not refused:
            refused.append(entries)
            return [(place, cqueue.Unavailable("as if")) for place in range(len(entries))]
        return store(self, entries, state)

    monkeypatch.setattr(LogSink, "store", refusing)
    options = write_options({"url": URL, "log": log.name, "topic": "t"}, overwrite=False)
    count = 2 * PART + 5
    columns = {"body": [str(number) for number in range(count)]}
    columns |= {name: [value] * count for name, value in named.items()}
    write(partial(LogSink, side, options), iter([pa.RecordBatch.from_pydict(columns)]), "job")
    client.advance(3 * S)
    assert [int(record.body) for record in log.scan()] == list(range(count))


@pytest.mark.parametrize(
    ("errors", "kind", "said"),
    [
        ([cqueue.SendUnknown("as if")], cqueue.SendUnknown, "Another attempt makes copies .* idColumn"),
        ([cqueue.Unavailable("as if"), cqueue.Refused("as if")], cqueue.Refused, "2 rows were not stored"),
    ],
)
def test_a_task_that_gives_up_says_what_is_stored(log, side, monkeypatch, *, errors, kind, said):
    """And what another attempt does with what may be."""
    monkeypatch.setattr(LogSink, "store", lambda _self, _entries, _state: list(enumerate(errors)))
    options = write_options({"url": URL, "log": log.name, "topic": "t"}, overwrite=False)
    batch = pa.record_batch({"body": list("abcd")})  # two a lane
    with pytest.raises(kind, match=said):
        write(lambda: LogSink(side, options), [batch], "job")


def test_rows_of_unknown_outcome_are_not_told_as_not_stored(queue, side, monkeypatch):
    """Also where their ids are derived, so that they were sent again until Cassandra refused."""
    errors = [(0, cqueue.SendUnknown("as if")), (1, cqueue.Refused("as if"))]
    monkeypatch.setattr(QueueSink, "store", lambda _self, _entries, _state: errors)
    options = write_options({"url": URL, "queue": queue.name, "idColumn": "key"}, overwrite=False)
    batch = pa.record_batch({"body": list("abcd"), "key": list("abcd")})
    sink = QueueSink(side, options, due_us=datetime_us(queue.now))
    with pytest.raises(cqueue.SendUnknown, match="2 rows are not known to be stored"):
        write(lambda: sink, [batch], "job")


def test_a_task_of_hours_follows_changes_of_its_queue(client, side, queue):
    """Trap: into a queue that was deleted meanwhile, rows were stored and acknowledged, for nobody."""
    sink = QueueSink(side, write_options({"url": URL, "queue": queue.name}, overwrite=False))
    entries = sink.entries(pa.RecordBatch.from_pydict({"body": ["x"]}), 0)
    client.delete_queue(queue.name)
    with pytest.raises(cqueue.QueueNotFound):
        sink.store(entries, sink.state())


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"expires": [datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)]},
            "expires in more than 10 years; null is",
        ),
        ({"due": [datetime(2041, 5, 1, tzinfo=UTC)]}, "is due in more than 10 years"),
        ({"key": NO_TEXT}, "has a key that is not UTF-8"),
        (
            {"headers": pa.MapArray.from_arrays([0, 1], pa.array(["a"]), NO_TEXT)},
            "a header that is not UTF-8",
        ),
    ],
)
def test_what_no_reader_could_read_is_refused(queue, side, columns, said):
    """Trap: a message that expires after the year 9999 was stored, and set aside as damaged; text that is
    none ended the task with an error of Python's.
    """
    sink = QueueSink(side, write_options({"url": URL, "queue": queue.name}, overwrite=False))
    with pytest.raises(cqueue.BadInput, match=re.escape(said)):
        sink.entries(pa.RecordBatch.from_pydict({"body": ["x"], **columns}), 0)


def test_a_task_that_waits_long_is_counted_all_the_time(client, side, monkeypatch):
    """Trap: at a low rate a task waits longer for its turn than a task without a heartbeat is counted."""
    clock, counted = client.clock, []
    one, other = pace.Pace(side, "job", 0.1), pace.Pace(side, "job", 0.1)
    timer = SimpleNamespace(monotonic=lambda: clock.now_us() / 1e6, sleep=clock.pause)
    monkeypatch.setattr(pace, "time", timer)
    one._free_s = other._free_s = timer.monotonic()
    one.wait(1)
    other.wait(1)

    def sleep(seconds):
        clock.pause(seconds)
        other._beat()
        counted.append(other._tasks)

    timer.sleep = sleep
    begun_s = timer.monotonic()
    one.wait(1)
    assert timer.monotonic() - begun_s > 5
    assert set(counted) == {2}


def test_a_heartbeat_that_is_not_stored_does_not_end_the_task(client, side, monkeypatch):
    """Cassandra may be away for a moment. Trap: rows are tried again for a minute; heartbeats were not."""
    one = pace.Pace(side, "job", 1e6)

    def refuse(*_):
        raise cqueue.Unavailable("as if")

    with monkeypatch.context() as patch:
        patch.setattr(pace, "note", refuse)
        one.wait(1)
    monkeypatch.setattr(pace.time, "sleep", client.clock.pause)
    one.wait(1)
    assert one._beat_s > 0


def test_a_delay_counts_from_now_whatever_the_option_due_says(client, side, queue):
    """The option is for rows without a time of their own. In a stream, now is when the batch came first."""
    now_us, far_us = client.clock.now_us(), client.clock.now_us() + 30 * 86_400_000_000
    options = write_options({"url": URL, "queue": queue.name}, overwrite=False)
    options = replace(options, due_us=far_us)
    batch = pa.record_batch({"body": pa.array([b"x", b"y"]), "delay": pa.array([60.0, None])})
    client.advance(S)
    due = [one.due_us for one in QueueSink(side, options).entries(batch, 0)]
    assert due == [now_us + 61_000_000, far_us]
    due = [one.due_us for one in QueueSink(side, options, work="w", due_us=now_us).entries(batch, 0)]
    assert due == [now_us + 60_000_000, far_us + STEP_US]


@pytest.mark.parametrize(("column", "are_one"), [(JOB_ID, False), ("number", True)])
def test_two_streams_that_send_the_same_record_at_the_same_time_send_two_messages(
    client, side, queue, column, are_one
):
    """By the id that the job gives. One of a column that the caller names is the caller's, as in a batch."""
    now_us = client.clock.now_us()
    options = write_options({"url": URL, "queue": queue.name, "idColumn": column}, overwrite=False)
    due = datetime.fromtimestamp(now_us / 1e6 + 60, UTC)
    batch = pa.RecordBatch.from_pydict({"body": ["x"], column: ["r1"], "due": [due]})
    sources = {
        QueueSink(side, options, work=work, due_us=now_us).entries(batch, 0)[0].source
        for work in ("one/1/0", "one/1/0", "two/7/3")
    }
    assert len(sources) == (1 if are_one else 2)


def test_a_repeat_does_not_fail_at_a_row_that_has_expired_meanwhile(client, side, queue):
    """The first try may have stored it in time. Nobody receives it; its neighbours are stored."""
    now_us = client.clock.now_us()
    options = write_options({"url": URL, "queue": queue.name}, overwrite=False)
    expires = [datetime.fromtimestamp(now_us / 1e6 + at_s, UTC) for at_s in (-1, 60)]
    batch = pa.RecordBatch.from_pydict({"body": ["over", "young"], "expires": expires})
    sink = QueueSink(side, options, work="w", due_us=now_us)
    assert sink.store(sink.entries(batch, 0), sink.state()) == []
    client.advance(S)
    with queue.consumer() as consumer:
        assert [message.body for message in consumer.receive(10)] == [b"young"]
    with pytest.raises(cqueue.BadInput, match="has expired already"):
        QueueSink(side, options).entries(batch, 0)


def test_columns_of_rows_are_known_in_any_case(spark):
    """As in Spark's SQL. Trap: of a file with a column `Key` messages had no key."""
    rows = spark.sql("select 'x' as Body, 'k' as KEY, 3 as Priority")
    shaped = targets.shaped(rows, Target(queue="work", url=URL, columns={"priority": "priority + 1"}))
    assert [row.asDict() for row in shaped.collect()] == [{"body": "x", "key": "k", "priority": 4}]


def test_a_row_expires_at_its_time_however_long_it_has_waited(client, side, queue):
    """As with a rate, or while Cassandra does not answer. Trap: the time went on with the row's wait."""
    expires = datetime.fromtimestamp(client.clock.now_us() / 1e6 + 60, UTC)
    sink = QueueSink(side, write_options({"url": URL, "queue": queue.name}, overwrite=False))
    entries = sink.entries(pa.RecordBatch.from_pydict({"body": ["x"], "expires": [expires]}), 0)
    client.advance(40 * S)
    assert sink.store(entries, sink.state()) == []
    client.advance(21 * S)
    with queue.consumer() as consumer:
        assert not consumer.receive(10)


def test_of_rows_with_one_id_a_log_gets_one(spark):
    """A queue gets them all: the same id is the same message, and headers do not matter. A dry run too."""
    rows = spark.sql(
        "select 'x' as body, 't' as topic, string(id % 3) as number, map('a', 'b') as headers from range(10)"
    )
    to_log = Target(log="events", url=URL, id="number")
    to_queue = Target(queue="work", url=URL, id="number", at=datetime(2031, 5, 1, tzinfo=UTC))
    assert targets.write(targets.shaped(rows, to_log), to_log, dry_run=True) == 3
    assert targets.write(targets.shaped(rows, to_queue), to_queue, dry_run=True) == 10


def many(count):
    """SQL of a map with that many headers."""
    return f"map_from_arrays(sequence(1, {count}), sequence(1, {count})) as headers"


def checked(spark, columns, options):
    target = Target(**{"url": URL, "queue": None if "log" in options else "work", **options})
    rows = spark.sql(f"select 'x' as body, {columns}")
    return targets.check(targets.shaped(rows, target), target)


@pytest.mark.parametrize(
    ("columns", "options", "what"),
    [
        ("timestamp'2031-04-30 23:59:59' as expires", {}, "an expires in the past"),
        ("timestamp'2041-05-01 00:00:00' as due", {}, "a due in more than 10 years"),
        ("timestamp'2031-05-01 00:00:00' as due, 1.0 as delay", {}, "both due and delay"),
        ("map('a', string(null)) as headers", {}, "a header that is null"),
        (many(65), {}, "more than 64 headers"),
        ("map('ab', repeat('ü', 8192)) as headers", {}, "headers above 16,384 bytes"),
        ("timestamp'9999-12-31' as expires", {}, "an expires in more than 10 years"),
        ("cast(X'ff' as string) as key", {}, "a key that is not UTF-8"),
        ("map('a', cast(X'ff' as string)) as headers", {}, "a header that is not UTF-8"),
        ("timestamp'2031-05-01 00:00:00' as due", {"id": "repeat('x', 1001)"}, "an id above 1,000"),
        ("timestamp'2031-04-29 00:00:00' as due", {"id": "'x'"}, "a due longer ago than gc_grace"),
        ("'t' as topic, 1 as partition", {"log": "events"}, "a partition not of 0 to 0"),
        (f"'t' as topic, {many(64)}", {"log": "events", "id": "'x'"}, "more than 63 headers"),
    ],
)
@pytest.mark.usefixtures("log", "queue")
def test_what_a_sink_refuses_is_told_before_anything_is_written(spark, columns, options, what):
    """Trap: a task stores a batch of rows before it checks the next, so a wrong row left a part written."""
    with pytest.raises(cqueue.BadInput, match=f"of 1 rows, 1 with {what}[^,]*: nothing was written"):
        checked(spark, columns, options)


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (f"{many(64)}, timestamp'2031-05-01 00:01:00' as expires", {}),
        ("timestamp'2041-04-28 00:00:00' as due, double(null) as delay", {}),
        ("timestamp'2031-04-30 01:00:00' as due", {"id": "repeat('x', 1000)"}),
        (  # a run that completes an earlier one
            "timestamp'2031-05-01' as due, timestamp'2031-04-30 23:59:59' as expires",
            {"id": "'x'"},
        ),
        (f"'t' as topic, 0 as partition, {many(63)}", {"log": "events", "id": "'x'"}),
    ],
)
@pytest.mark.usefixtures("log", "queue")
def test_what_a_sink_takes_is_taken(spark, columns, options):
    """Up to each limit."""
    assert checked(spark, columns, options) == 1


@pytest.mark.parametrize("ansi", [True, False])
@pytest.mark.parametrize("columns", ["'yesterday' as due", "'high' as priority", "'soon' as delay"])
@pytest.mark.usefixtures("queue")
def test_a_value_that_is_none_of_its_type_is_told(spark, ansi, columns):
    """Trap: without Spark's ANSI mode it was null, so a message was due at once, or had priority 0."""
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        with pytest.raises(cqueue.BadInput, match=columns.split("'")[1]):
            checked(spark, columns, {})
    finally:
        spark.conf.set("spark.sql.ansi.enabled", True)


def test_a_job_that_broke_off_says_so_in_sentences():
    """Trap: what broke it and what to do ran into one another where the first ended without a full stop."""
    broken = PySparkException("…\ncqueue.errors.OwnershipLost: another run has begun\n…")
    told = pytest.raises(cqueue.OutcomeUnknown, match=r"begun\. Part of it may be stored\. Run it again\.")
    with told, failures.writing("the stream", "Run it again."):
        raise broken


# ── reports ──


def test_a_report_counts_partitions_without_records(client, spark, monkeypatch):
    """Trap: of a log whose records all have one key, that one partition would be called even."""
    client.create_log("many", LogConfig(partitions=4))
    records = spark.sql("select 2 as partition, now() as time, 't' as topic, 'k' as key from range(8)")
    monkeypatch.setattr(report_log, "_records", lambda *_: records)
    _, found = report_log.tables(spark, Report(log="many", url=URL))
    (table,) = [each for each in found if each.title == "How evenly records lie in partitions"]
    assert dict(zip(table.columns, table.rows[0], strict=True)) == {
        "partitions": 4, "mean": 2.0, "least": 0, "most": 8, "partition with most": 2, "most / mean": 4.0,
    }  # fmt: skip


def test_a_report_counts_shards_without_messages(client, spark, monkeypatch):
    queue = client.create_queue("many")
    queue.alter(shards=4)
    client.advance(S)
    wide_rows = spark.sql(
        "select false as open, 2 as shard, 0 as in_flight, now() as oldest_due, 8 as messages"
    )
    monkeypatch.setattr(report_queue, "view", lambda *_, **__: wide_rows)
    table = report_queue._shards(spark, Report(queue=queue.name, url=URL))[1]
    assert dict(zip(table.columns, table.rows[0], strict=True)) == {
        "shards": 4, "mean": 2.0, "least": 0, "most": 8, "shard with most": 2, "most / mean": 4.0,
    }  # fmt: skip


# ── archives ──


def test_two_runs_finish_one_manifest(spark, tmp_path, monkeypatch):
    """Trap: the second one found the file neither here nor there, and called it gone."""
    files = Files(spark, str(tmp_path))
    (tmp_path / "staged").touch()
    part = manifest.Part("staged", "day=2031-05-01/1.parquet", "2031-05-01", 1, 1, "")
    one = manifest.Manifest(1, "l", None, datetime.now(UTC), gap=False, parts=(part,))

    def look(*_):
        monkeypatch.undo()
        assert manifest.finish(files, one) == 1  # the other run, a moment later
        return False

    monkeypatch.setattr(Files, "exists", look)
    assert manifest.finish(files, one) == 0
    (tmp_path / part.path).unlink()
    with pytest.raises(cqueue.BadInput, match="is gone"):
        manifest.finish(files, one)


def test_an_archive_of_a_quiet_log_has_no_gap(client, log, spark, tmp_path, monkeypatch):
    """Trap: a run without news left no trace, and a week later records might have come and expired."""
    spec = client._logs.entry(log.name).spec
    fill(client, log, 0)
    files = Files(spark, str(tmp_path / "archive"))
    manifest.commit(files, manifest.Manifest(1, spec.partition, None, client.now, gap=False))
    rows = spark.createDataFrame([], spark_schema(LOG)).selectExpr("*", "current_date() as day")
    monkeypatch.setattr(archive, "_read", lambda *_: rows)
    gaps = []
    for _ in range(6):
        client.advance(timedelta(days=2))
        job = archive.Archive(log=log.name, path=files.root, url=URL)
        gaps.append(archive.run(spark, job).details["gap"])
    assert gaps == [False] * 6
    assert [len(one.parts) for one in manifest.load(files)] == [0] * 4
    assert archive.load(spark, files.root).count() == 0
    client.advance(timedelta(days=8))
    assert archive.run(spark, job).details["gap"]
    assert not archive.run(spark, job).details["gap"]


def read_here(spark, before, **options):
    """A view of the store in memory, which Spark's workers do not see. before: called first."""
    before()
    given = {name: value for name, value in options.items() if value is not None}
    source = DefaultSource(CaseInsensitiveDict({"url": URL, **given}))
    schema = source.schema()
    one = source.reader(schema)
    rows = [row for part in one.partitions() for batch in one.read(part) for row in batch.to_pylist()]
    for row in rows:
        row.update({name: dict(value) for name, value in row.items() if isinstance(value, list)})  # a map
    return spark.createDataFrame(rows, schema)


def test_an_archive_ends_where_all_is_stable_by_any_clock(client, side, spark, tmp_path, monkeypatch):
    """Trap: it ended where all was stable by the job's clock. Where that of the process that plans was behind
    by less than ε, this one left out the last records, and the next run began after them.
    """
    deployment = client._catalog.deployment()._replace(skew_ms=500)  # in memory there is one clock
    monkeypatch.setattr(client._logs, "_deployment", lambda: deployment)
    log = client.create_log("events", LogConfig(partitions=1))
    spec = side.logs.entry(log.name).spec
    job = archive.Archive(log=log.name, path=str(tmp_path / "archive"), url=URL)
    fill(client, log, 0)
    log.append("t", b"1")
    client.advance(timedelta(microseconds=spec.settle_us + spec.skew_us + 1000))
    now_us = client.clock.now_us

    def lag():
        monkeypatch.setattr(client.clock, "now_us", lambda **_: now_us() - spec.skew_us)

    monkeypatch.setattr(archive, "source", lambda _, **options: read_here(spark, lag, **options))
    archive.run(spark, job)
    monkeypatch.setattr(client.clock, "now_us", now_us)
    client.advance(5 * S)
    archive.run(spark, job)
    assert sorted(bytes(row.body) for row in archive.load(spark, job.path).collect()) == [b"0", b"1"]


def test_what_expires_while_an_archive_reads_is_a_gap(client, log, spark, tmp_path, monkeypatch):
    """Trap: the gap was looked for before the read, which may take hours."""
    job = archive.Archive(log=log.name, path=str(tmp_path / "archive"), url=URL)
    wait = timedelta()
    monkeypatch.setattr(
        archive,
        "source",
        lambda _, **options: read_here(spark, lambda: client.advance(wait), **options),
    )
    fill(client, log, 0)
    client.advance(5 * S)
    assert not archive.run(spark, job).details["gap"]
    fill(client, log, 1)
    client.advance(timedelta(days=7) - 10 * S)
    fill(client, log, 2)
    client.advance(5 * S)
    wait = 10 * S
    assert archive.run(spark, job).details["gap"]
    assert [one.gap for one in manifest.load(Files(spark, job.path))] == [False, True]


@pytest.fixture
def place(tmp_path):
    """The directory of an archive."""
    return str(tmp_path / "archive")


@pytest.fixture
def archiving(log, spark, place, monkeypatch):
    """A function that archives the log. before: called where the read is planned. Others are options."""

    def run(*, before=lambda: None, place=place, **options):
        monkeypatch.setattr(archive, "source", lambda _, **given: read_here(spark, before, **given))
        return archive.run(spark, archive.Archive(log=log.name, path=place, url=URL), **options)

    return run


def test_an_archive_has_all_from_before_the_logs_ttl_became_shorter(client, log, spark, place, archiving):
    """Trap: what was older than the new ttl was left out at once, and told as a gap."""
    fill(client, log, 0)
    client.advance(5 * S)
    archiving()
    fill(client, log, 1)
    client.advance(timedelta(hours=2))
    fill(client, log, 2)
    client.advance(5 * S)
    log.alter(ttl=timedelta(minutes=5))
    assert not archiving().details["gap"]
    rows = archive.load(spark, place).collect()
    assert sorted(bytes(row.body) for row in rows) == [b"0", b"1", b"2"]
    fill(client, log, 3)
    client.advance(timedelta(minutes=6))
    assert archiving().details["gap"]


@pytest.mark.parametrize("name", ["of [a] {b,c}", "*", r"\d?"])
def test_a_directory_may_have_any_name(client, log, spark, tmp_path, archiving, *, name):
    """Trap: Spark's readers took it for a pattern, which found nothing, or what another archive holds."""
    place = str(tmp_path / name)
    fill(client, log, 0)
    client.advance(5 * S)
    found = archiving(place=place, check=True)
    assert (found.written, found.details["damaged"]) == (1, [])
    assert archive.load(spark, place).count() == 1


def test_a_run_that_another_one_outran_leaves_no_files(client, log, spark, place, archiving):
    """Trap: they stayed until the next run that added something, which a quiet log may never have."""
    fill(client, log, 0)
    client.advance(5 * S)
    with pytest.raises(cqueue.NotDone, match="another run"):
        archiving(before=archiving)
    assert not [*Path(place, manifest.STAGING).glob("*")]
    assert archive.load(spark, place).count() == 1


@pytest.mark.parametrize("is_own", [True, False])
def test_a_commit_whose_outcome_is_unknown_deletes_nothing(log, spark, place, archiving, *, is_own):
    """A file system may repeat a rename whose first try was done: it finds a manifest there, its own."""
    create = Files.create

    def unreadable(*_):
        raise cqueue.BadInput("as if")

    def repeated(files, path, text):
        assert create(files, path, text)
        if not is_own:
            patch.setattr(Files, "read", unreadable)
        return False

    log.append("t", b"x")
    log._driver.clock.pause(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Files, "create", repeated)
        with nullcontext() if is_own else pytest.raises(cqueue.OutcomeUnknown, match="Run it again"):
            archiving()
    assert archive.load(spark, place).count() == 1


def test_a_file_system_that_fails_is_told_in_errors_of_ours(spark, tmp_path):
    """Trap: Java's own came through, of which nobody could say whether something was written."""
    (tmp_path / "file").write_text("x")
    files = Files(spark, str(tmp_path / "file"))
    with pytest.raises(cqueue.NotDone, match="cannot be written"):
        files.create("a/b", "x")
    with pytest.raises(cqueue.NotDone, match="cannot be written"):
        files.move("a", "b/c")
    files.delete("a")
    with pytest.raises(cqueue.BadInput, match="cannot be used"):
        Files(spark, "nowhere:/a")


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("org.apache.hadoop.security.AccessControlException", cqueue.NotDone),
        ("java.nio.file.AccessDeniedException", cqueue.OutcomeUnknown),
        ("java.io.IOException", cqueue.OutcomeUnknown),
    ],
)
def test_a_rename_that_was_refused_is_not_done(spark, place, *, kind, error):
    """Where the file system looks before it renames; one that copies may be denied behind the copy."""

    class Context:
        def rename(self, *_):
            cause = functools.reduce(getattr, kind.split("."), spark._jvm)("Permission denied")
            raise Py4JJavaError("An error occurred while calling o1.rename.\n", cause)

    files = Files(spark, place)
    files._context = Context()
    with pytest.raises(error, match="Permission denied"):
        files.create("a", "x")


@pytest.mark.parametrize("adds", ["nothing", "dry run", "some"])
def test_a_check_that_fails_says_whether_something_was_added(client, log, archiving, monkeypatch, *, adds):
    """Trap: it said so of a dry run and a run without news, too, and came through raw behind a commit."""
    fill(client, log, 0)
    client.advance(5 * S)
    archiving()
    if adds != "nothing":
        fill(client, log, 1)
        client.advance(5 * S)
    real = Files.sha256

    def failing(files, paths):
        if not any(path.startswith("day=") for path in paths):
            return real(files, paths)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Files, "pattern", lambda _, path: f"nowhere:/{path}")
            return real(files, paths)

    error = cqueue.OutcomeUnknown if adds == "some" else cqueue.NotDone
    monkeypatch.setattr(Files, "sha256", failing)
    with pytest.raises(error, match="cannot be read") as told:
        archiving(check=True, dry_run=adds == "dry run")
    assert ("was added" in str(told.value)) == (adds == "some")


@pytest.mark.parametrize(
    "where", ["headers['n'] = '1'", "headers['n'] in (select n from values ('1') as t(n))"]
)
def test_letters_that_go_while_a_redrive_counts_them_are_not_below_zero(
    client, queue, spark, monkeypatch, *, where
):
    """Trap: all letters were counted after those that it wants, and some may be gone by then."""
    queue.send_many([cqueue.Message(b"x", headers={"n": str(number)}) for number in range(3)])
    client.advance(S)
    with queue.consumer() as consumer:
        for message in consumer.receive(10):
            message.dead("no")
    client.advance(S)
    reads = itertools.count()
    monkeypatch.setattr(redrive, "_ready", lambda *_, **__: None)

    def look():
        if next(reads):
            queue.dead_letters.drop(everything=True)

    monkeypatch.setattr(redrive, "source", lambda _, **options: read_here(spark, look, **options))
    job = redrive.Redrive(queue=queue.name, url=URL, where=where)
    found = redrive.run(spark, job, dry_run=True)
    assert (found.read, found.written, found.skipped) == (3, 1, 2)


def test_a_letter_that_a_consumer_has_received_since_the_job_began_stays(client, queue, side):
    """Trap: who holds letters was read once, and with a rate a job may last for days."""
    queue.send_many([cqueue.Message(b"x")] * 2)
    client.advance(S)
    with queue.consumer() as consumer:
        for message in consumer.receive(10):
            message.dead("no")
    dead = client.queue(queue.dead_letter_name)
    client.advance(S)
    letters = [one.id for one in dead.peek(10)]
    settings, now_us = cqueue.settings.load(URL), client.clock.now_us()
    task = redrive.Redriver(settings, queue.name, queue.name, now_us, 3_600_000_000)
    with dead.consumer() as consumer:
        (held,) = consumer.receive(1)
        errors = {one.letter_id: one.error for one in task.redrive(side, letters)}
    assert {id_ for id_, error in errors.items() if error is None} == set(letters) - {held.id}
    assert "holds it" in str(errors[held.id])


def test_dedup_knows_the_keys_of_a_run_before_it(client, log, spark, monkeypatch):
    """Also of one that has just ended. Trap: the log is read up to its stable horizon, so a run repeated at
    once did not find what the first had written, and wrote it again.
    """
    monkeypatch.setattr(ledger.time, "sleep", client.clock.pause)
    monkeypatch.setattr(dedup, "source", lambda _, **options: read_here(spark, lambda: None, **options))
    log.append("t", b"x", key="new")
    client.advance(timedelta(milliseconds=1))
    found = dedup.known_keys(spark, dedup.Dedup(target=Target(log=log.name, url=URL)))
    assert [row[0] for row in found.collect()] == ["new"]


def test_dedup_knows_the_keys_of_a_queue_whose_senders_clock_was_ahead(client, queue, spark, monkeypatch):
    """Trap: a read of a queue shows what was sent until its own time. Where the clock of the process that
    plans it was behind the sender's, a run repeated at once did not find what the first had written.
    """
    now_us = client.clock.now_us
    queue.send(b"x", key="new")

    def lag():
        monkeypatch.setattr(client.clock, "now_us", lambda **_: now_us() - 500_000)

    monkeypatch.setattr(dedup, "source", lambda _, **options: read_here(spark, lag, **options))
    found = dedup.known_keys(spark, dedup.Dedup(target=Target(queue=queue.name, url=URL)))
    assert [row[0] for row in found.collect()] == ["new"]
