"""`cqueue.spark.jobs.archive`: each record once, whatever breaks and whatever reads the files."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import cqueue
from cqueue.errors import BadInput, LogNotFound, NotDone
from cqueue.spark.jobs import archive, manifest
from cqueue.spark.jobs.archive import Archive
from cqueue.spark.jobs.files import Files


@pytest.fixture
def log(client, new_name):
    """A log with two partitions."""
    return client.create_log(new_name("l"), cqueue.LogConfig(partitions=2))


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "an archive")


@pytest.fixture
def put(log, wait_until_stable):
    """A function that appends records whose bodies are numbers, and waits until they can be read."""

    def append(first, count):
        records = [cqueue.Record("t", str(first + n).encode(), key=f"k{n % 9}") for n in range(count)]
        assert not log.append_many(records).failed
        wait_until_stable(log)

    return append


@pytest.fixture
def run(spark, log, url, place):
    """A function that runs the job with these options."""
    return lambda *, dry_run=False, **options: archive.run(
        spark, Archive(**{"log": log.name, "path": place, "url": url, **options}), dry_run=dry_run
    )


@pytest.fixture
def live(spark, log, url, wait_until_stable):
    """A function that gives the log's records, all of them."""

    def read():
        wait_until_stable(log)
        return spark.read.format("cqueue").options(url=url, log=log.name).load()

    return read


def bodies(rows):
    return sorted(int(bytes(row.body)) for row in rows.select("body").collect())


def tree(place):
    return sorted(str(path.relative_to(place)) for path in Path(place).rglob("*"))


def test_each_run_adds_what_is_new(spark, run, put, place):
    """A second run adds nothing, a later one what came since; plain readers and `load` see the same."""
    put(0, 700)
    first = run()
    assert (first.written, sum(first.details["days"].values())) == (700, 700)
    before = tree(place)
    assert run().written == 0
    assert tree(place) == before
    put(700, 300)
    assert run().written == 300
    assert bodies(archive.load(spark, place)) == list(range(1000))
    assert bodies(spark.read.parquet(place)) == list(range(1000))
    assert archive.verify(spark, place).details == {
        "files": len(list(Path(place).glob("day=*/*.parquet"))),
        "damaged": [],
    }


def test_records_come_back_as_they_were(spark, log, run, place, live):
    """Every column of the view, to the µs and the byte."""
    log.append("orders", b"\x00\xff", key="k", headers={"a": "1"}, partition=1)
    log.append("orders", b"", partition=0)
    live = live()
    run()
    kept = archive.load(spark, place)
    assert kept.schema == live.schema
    assert sorted(map(str, kept.collect())) == sorted(map(str, live.collect()))
    assert kept.count() == 2


def test_a_day_is_a_day_in_utc(spark, run, put):
    """Whatever the session's time zone."""
    put(0, 10)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")
    try:
        summary = run()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    now = datetime.now(UTC)
    assert set(summary.details["days"]) <= {f"{now:%Y-%m-%d}", f"{now - timedelta(minutes=5):%Y-%m-%d}"}


class Broken(Exception):
    """The process ends here."""


@pytest.mark.parametrize(
    ("where", "committed"),
    [("create", False), ("sha256", False), ("move", True), ("move 2", True), ("clear", True)],
)
def test_a_run_that_breaks_is_completed(spark, run, put, place, *, where, committed):
    """At each step: readers never see a record twice, and the next run makes it whole."""
    put(0, 300)
    with pytest.MonkeyPatch.context() as patch:
        _break(patch, where)
        with pytest.raises(Broken):
            run(file_rows=50)
    seen = bodies(spark.read.parquet(place)) if list(Path(place).glob("day=*")) else []
    assert len(seen) == len(set(seen))
    assert bool(seen) == (where in {"move 2", "clear"})
    again = run()
    assert again.written == (0 if committed else 300)
    assert bodies(spark.read.parquet(place)) == list(range(300))
    assert bodies(archive.load(spark, place)) == list(range(300))
    assert archive.verify(spark, place).details["damaged"] == []


def _break(patch, where):
    step, _, at = where.partition(" ")
    left = [int(at or 1)]
    owner, name = (manifest, "clear_staging") if step == "clear" else (Files, step)
    real = getattr(owner, name)

    def broken(*args):
        left[0] -= 1
        if not left[0]:
            raise Broken
        return real(*args)

    patch.setattr(owner, name, broken)


def test_of_two_runs_at_a_time_one_adds(spark, run, put, place, monkeypatch):
    """The one that comes second to the commit adds nothing, and says so."""
    put(0, 50)
    commit = manifest.commit

    def late(files, own):
        monkeypatch.setattr(manifest, "commit", commit)
        assert run().written == 50
        commit(files, own)

    monkeypatch.setattr(manifest, "commit", late)
    with pytest.raises(NotDone, match="another run"):
        run()
    assert bodies(spark.read.parquet(place)) == list(range(50))
    assert bodies(archive.load(spark, place)) == list(range(50))


def test_damage_is_found(spark, run, put, place):
    """A byte that changed, whether or not the file system notices, and a file that is gone."""
    put(0, 100)
    run(file_rows=20)
    first, second, third, *_ = sorted(Path(place).glob("day=*/*.parquet"))
    for changed in (first, second):
        changed.write_bytes(changed.read_bytes()[:-1] + b"\x00")
    second.with_name(f".{second.name}.crc").unlink(missing_ok=True)
    third.unlink()
    damaged = archive.verify(spark, place).details["damaged"]
    assert damaged == sorted(str(path.relative_to(place)) for path in (first, second, third))
    with pytest.raises(BadInput, match="is gone"):
        archive.load(spark, place)


def test_a_dry_run_writes_nothing(run, put, place):
    put(0, 20)
    summary = run(dry_run=True)
    assert (summary.written, summary.details["files"]) == (20, 0)
    assert not Path(place).exists()


def test_until_ends_it(spark, log, run, put, place):
    """Records from that time on come with the next run."""
    put(0, 20)
    put(20, 20)
    middle = sorted(record.time for record in log.scan())[20]  # by the cluster's clock, as records have it
    assert run(until=middle).written == 20
    assert run().written == 20
    assert bodies(archive.load(spark, place)) == list(range(40))


def test_what_cannot_be_is_refused(spark, client, run, put, place):
    """Another log's directory, a log or archive that is not there, times without a zone."""
    put(0, 5)
    run()
    other = client.create_log(f"other-{Path(place).parent.name}")
    with pytest.raises(BadInput, match="holds the archive of"):
        run(log=other.name)
    with pytest.raises(LogNotFound):
        run(log="nowhere")
    with pytest.raises(BadInput, match="not an archive"):
        archive.load(spark, str(Path(place).parent))
    with pytest.raises(BadInput, match="time zone"):
        Archive(log="l", path=place, until=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the test
    found = next(Path(place).glob("_cqueue/manifest-*"))
    found.write_text(json.dumps({"format": 2}))
    with pytest.raises(BadInput, match="cannot be read"):
        archive.load(spark, place)
    found.with_name(f".{found.name}.crc").unlink()
    with pytest.raises(BadInput, match="this version knows 1"):
        archive.load(spark, place)
