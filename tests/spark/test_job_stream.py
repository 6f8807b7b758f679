"""`cqueue.spark.jobs.stream`: each record once at the sink, whatever breaks and whatever reads it."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import cqueue
from cqueue.errors import BadInput, LogNotFound, OutcomeUnknown, PriorityOutOfRange, QueueNotFound
from cqueue.spark.jobs import stream
from cqueue.spark.jobs.files import Files
from cqueue.spark.jobs.stream import Stream
from cqueue.spark.jobs.target import Target

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def log(client, new_name):
    """A log with two partitions."""
    return client.create_log(new_name("l"), cqueue.LogConfig(partitions=2))


@pytest.fixture
def put(log, wait_until_stable):
    """A function that appends records whose bodies are numbers, and waits until they can be read."""

    def append(first, count):
        records = [cqueue.Record(f"t{n % 2}", str(first + n).encode(), key=f"k{n}") for n in range(count)]
        assert not log.append_many(records).failed
        wait_until_stable(log)

    return append


@pytest.fixture
def job(log, url, tmp_path):
    """A function that makes the job: to Parquet files unless it says otherwise."""

    def make(**options):
        common = {"log": log.name, "url": url, "checkpoint": str(tmp_path / "checkpoint")}
        sink = {} if "target" in options else {"path": str(tmp_path / "sink")}
        return Stream(**{**common, **sink, **options})

    return make


def plain(spark, tmp_path):
    """What a reader finds that knows of no `_spark_metadata`, nor of batches."""
    if not list((tmp_path / "sink").glob("batch=*")):
        return []
    rows = spark.read.parquet(str(tmp_path / "sink")).select("body").collect()
    return sorted(int(bytes(row.body)) for row in rows)


def test_each_run_goes_on_where_the_last_one_ended(spark, put, job, tmp_path):
    """To files, in batches, each record once; a run without news adds nothing."""
    put(0, 250)
    first = stream.run(spark, job(batch_rows=100))
    assert (first.read, first.written) == (250, 250)
    assert first.details["batches"] >= 3
    assert plain(spark, tmp_path) == list(range(250))
    assert stream.run(spark, job()).written == 0
    put(250, 50)
    again = stream.run(spark, job())
    assert (again.written, again.details["query"]) == (50, first.details["query"])
    assert plain(spark, tmp_path) == list(range(300))
    assert not list((tmp_path / "sink").glob("_spark_metadata"))
    assert spark.conf.get("spark.sql.streaming.numRecentProgressUpdates") == "100"


@pytest.mark.parametrize("waits", [0, 1, 7, 400])
def test_all_batches_are_counted_of_which_spark_remembers_the_last(waits):
    """Trap: Spark was told to remember 100,000, which are 500 MB, and no more were counted."""
    now_s, recent = [0.0], deque(maxlen=99)
    counts = stream._Counts(lambda: now_s[0])
    query = SimpleNamespace(recentProgress=recent, lastProgress=None)

    def done(number, rows):
        observed = {stream.COUNTED: {"rows": rows // 2}} if rows else {}
        query.lastProgress = SimpleNamespace(batchId=number, numInputRows=rows, observedMetrics=observed)
        recent.append(query.lastProgress)

    for number in range(1000, 1260):
        for _ in range(waits):  # while it waits for records, it tells of the batch to come every 10 s
            now_s[0] += 10
            done(number, 0)
            counts.look(query)
        done(number, 10)
        counts.look(query)
    counts.look(query, at_end=True)
    assert (counts.read, counts.written, counts.batches) == (2600, 1300, 260)


class Broken(Exception):
    """The process ends here."""


@pytest.mark.parametrize("step", ["create", "exists", "move", "moved"])
def test_a_batch_that_breaks_comes_once(spark, put, job, tmp_path, *, step):
    """At each step of a batch; other readers never see a record twice, and in the end each once."""
    put(0, 120)
    with pytest.MonkeyPatch.context() as patch:
        _break(patch, step)
        with pytest.raises(OutcomeUnknown, match="same checkpoint"):
            stream.run(spark, job(batch_rows=50))
    seen = plain(spark, tmp_path)
    assert len(seen) == len(set(seen))
    assert bool(seen) == (step == "moved")
    done = stream.run(spark, job(batch_rows=50))
    assert plain(spark, tmp_path) == list(range(120))
    assert done.written + done.skipped == 120
    assert (done.skipped > 0) == (step == "moved")


def _break(patch, step):
    name = "move" if step == "moved" else step
    real = getattr(Files, name)

    def broken(*args):
        if step == "moved":
            real(*args)
        raise Broken

    patch.setattr(Files, name, broken)


KILLED = """
import os, signal, sys
from cqueue.spark.jobs import opening, stream
from cqueue.spark.jobs.files import Files
log, url, place, at = sys.argv[1:]
move, left = Files.move, [int(at)]
def killed(*args):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    move(*args)
Files.move = killed
with opening.opened("killed", "local[1]") as spark:
    places = {"checkpoint": f"{place}/checkpoint", "path": f"{place}/sink"}
    stream.run(spark, stream.Stream(log=log, url=url, batch_rows=40, **places))
"""


def test_a_killed_driver_loses_and_doubles_nothing(spark, put, job, log, *, url, tmp_path):
    """SIGKILL between writing a batch and naming it; another process goes on from the checkpoint."""
    put(0, 100)
    args = [sys.executable, "-c", KILLED, log.name, url, str(tmp_path), "2"]
    done = subprocess.run(args, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    first = plain(spark, tmp_path)
    assert 0 < len(first) == len(set(first)) < 100
    _wait_for_the_jvm(tmp_path)
    stream.run(spark, job(batch_rows=40))
    assert plain(spark, tmp_path) == list(range(100))


def _wait_for_the_jvm(place):
    """The JVM of a killed driver ends a moment after it."""
    deadline = time.monotonic() + 60
    while any(str(place) in path.read_text(errors="replace") for path in _command_lines()):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _command_lines():
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]


class Rows:
    """A data frame that is written by these steps, each called with the directory to write to."""

    def __init__(self, spark, *steps):
        self.sparkSession, self.write, self._steps = spark, self, steps

    def observe(self, *_):
        return self

    def parquet(self, path):
        for step in self._steps:
            step(Path(path.removeprefix("file:")))


def test_a_run_beside_another_takes_nothing_from_it(spark, tmp_path, monkeypatch):
    """As where a timetable starts a run before the last one has ended: both write the same batch.

    Trap: the second one took what the first one had written for leftovers, and half a batch became a whole.
    """
    monkeypatch.setattr(stream, "Observation", lambda: SimpleNamespace(get={"rows": 2}))
    one, other = (stream.Batches(Files(spark, str(tmp_path)), "l") for _ in range(2))

    def part(name):
        return lambda directory: directory.mkdir(parents=True, exist_ok=True) or (directory / name).touch()

    def killed(_):
        raise Broken

    def meanwhile(_):
        with pytest.raises(Broken):
            other(Rows(spark, part("c"), killed), 7)

    one(Rows(spark, part("a"), meanwhile, part("b")), 7)
    assert sorted(path.name for path in (tmp_path / "batch=000000000007").iterdir()) == ["a", "b"]
    one(Rows(spark, part("d")), 8)
    assert not list((tmp_path / "_cqueue" / "staging").iterdir())
    one(Rows(spark, lambda _: other(Rows(spark, part("e")), 9), part("f")), 9)  # the other one is quicker
    assert [path.name for path in (tmp_path / "batch=000000000009").iterdir()] == ["e"]
    assert (one.written, one.skipped, other.written) == (4, 2, 2)


def test_to_a_queue(spark, client, put, job, new_name, *, url):
    """A message for each record of a topic, with the columns that the target says."""
    queue = client.create_queue(new_name("q"))
    put(0, 80)
    target = Target(queue=queue.name, url=url, columns={"priority": "if(key = 'k2', 0, 5)"})
    summary = stream.run(spark, job(target=target, topics=("t0",)))
    assert summary.written == 40
    found = queue.peek(1000)
    assert sorted(int(one.body) for one in found) == list(range(0, 80, 2))
    assert {one.priority for one in found} == {0, 5}
    assert stream.run(spark, job(target=target, topics=("t0",))).written == 0


def test_a_batch_that_broke_off_may_be_repeated_with_another_predicate(
    spark, client, put, job, new_name, *, url
):
    """Rows are known by their records' ids.

    Trap: by their numbers, a row of the repeat was taken for another one, which the first try had stored.
    """
    queue = client.create_queue(new_name("q"))
    put(0, 200)
    wrong = Target(queue=queue.name, url=url, columns={"priority": "if(int(string(body)) < 100, 5, 10)"})
    size = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(size)
    spark.conf.set(size, "10")
    try:
        with pytest.raises(PriorityOutOfRange, match="same checkpoint"):
            stream.run(spark, job(target=wrong, where="int(string(body)) >= 20"))
    finally:
        spark.conf.set(size, before)
    assert 0 < queue.stats(exact=True).live < 100
    stream.run(spark, job(target=replace(wrong, columns={"priority": "5"})))
    assert sorted(int(one.body) for one in queue.peek(1000)) == list(range(200))


def test_to_another_log(spark, client, put, job, new_name, *, url, wait_until_stable):
    """What a predicate picks, with topic, key and body as they were."""
    other = client.create_log(new_name("other"), cqueue.LogConfig(partitions=1))
    put(0, 60)
    target = Target(log=other.name, url=url)
    summary = stream.run(spark, job(target=target, where="int(string(body)) < 30"))
    assert (summary.read, summary.written, summary.skipped) == (60, 30, 30)
    wait_until_stable(other)
    found = list(other.scan())
    assert Counter(int(one.body) for one in found) == Counter(range(30))
    assert {one.topic for one in found} == {"t0", "t1"}


def test_a_stream_that_is_asked_to_end(spark, put, job, tmp_path):
    """It goes on for ever, reads what comes, and ends when asked."""
    put(0, 10)
    began = time.monotonic()

    def stopped():
        return plain(spark, tmp_path) == list(range(20)) or time.monotonic() - began > 240

    more = iter([True])

    def feeding():
        if plain(spark, tmp_path) == list(range(10)) and next(more, False):
            put(10, 10)
        return stopped()

    summary = stream.run(spark, job(every_s=0.5), stopped=feeding)
    assert summary.written == 20
    assert summary.seconds < 240


def test_a_directory_belongs_to_one_stream(spark, put, job, tmp_path):
    """With another checkpoint it would get everything again."""
    put(0, 10)
    stream.run(spark, job())
    with pytest.raises(BadInput, match="another stream"):
        stream.run(spark, job(checkpoint=str(tmp_path / "other")))
    assert plain(spark, tmp_path) == list(range(10))


def test_a_dry_run_counts(spark, put, job, tmp_path):
    put(0, 10)
    assert stream.run(spark, job(where="topic = 't1'"), dry_run=True).written == 5
    assert not (tmp_path / "sink").exists()
    assert not (tmp_path / "checkpoint").exists()


def test_what_cannot_be_is_refused(spark, log, job, url):
    with pytest.raises(QueueNotFound):
        stream.run(spark, job(target=Target(queue="nowhere", url=url)))
    with pytest.raises(LogNotFound):
        stream.run(spark, job(log="nowhere"))
    with pytest.raises(BadInput, match="cannot be used"):
        stream.run(spark, job(where="nobody = 1"))
    with pytest.raises(BadInput, match="to itself"):
        job(target=Target(log=log.name, url=url))
    for wrong in (
        {"checkpoint": ""},
        {"every_s": 0},
        {"batch_rows": 0},
        {"path": None},
        {"resend_stale": True},
    ):
        with pytest.raises(BadInput):
            job(**wrong)
