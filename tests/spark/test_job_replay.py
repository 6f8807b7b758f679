"""`cqueue.spark.jobs.replay`: records of an archive are sent again, each once however often it is run."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import cqueue
from cqueue.errors import BadInput, OutcomeUnknown, QueueNotFound
from cqueue.spark.jobs import archive, replay, target
from cqueue.spark.jobs.archive import Archive
from cqueue.spark.jobs.replay import Replay
from cqueue.spark.jobs.target import Target


@pytest.fixture(scope="module")
def place(spark, client, url, wait_until_stable, tmp_path_factory):
    """An archive of 300 records with three topics."""
    log = client.create_log("archived", cqueue.LogConfig(partitions=2))
    records = [
        cqueue.Record(f"t{n % 3}", str(n).encode(), key=f"k{n % 7}", headers={"n": str(n)} if n % 2 else None)
        for n in range(300)
    ]
    assert not log.append_many(records).failed
    wait_until_stable(log)
    path = str(tmp_path_factory.mktemp("archive") / "a")
    assert archive.run(spark, Archive(log="archived", path=path, url=url)).written == 300
    return path


@pytest.fixture
def queue(client, new_name):
    return client.create_queue(new_name("q"))


def test_to_a_queue(spark, queue, url, place):
    """Body, key and headers are the record's, and a header tells its topic; a rerun makes no copies."""
    job = Replay(path=place, target=Target(queue=queue.name, url=url), where="topic != 't0'")
    summary = replay.run(spark, job)
    assert (summary.read, summary.written, summary.skipped) == (300, 200, 100)
    found = queue.peek(1000)
    assert sorted(int(one.body) for one in found) == [n for n in range(300) if n % 3]
    for one in found:
        n = int(one.body)
        wanted = {"cqueue-topic": f"t{n % 3}"} | ({"n": str(n)} if n % 2 else {})
        assert one.headers == wanted
    assert replay.run(spark, job).details["at"] == summary.details["at"]
    assert queue.stats(exact=True).live == 200


def test_messages_that_were_acked_do_not_come_back(spark, queue, url, place):
    """A rerun after consumers have begun."""
    job = Replay(path=place, target=Target(queue=queue.name, url=url), where="key = 'k1'")
    count = replay.run(spark, job).written
    with queue.consumer() as consumer:
        done = 0
        while done < count:
            found = consumer.receive(count - done, wait=timedelta(seconds=5))
            consumer.ack(found)
            done += len(found)
        replay.run(spark, job)
        assert consumer.receive(10, wait=timedelta(seconds=1)) == []


def test_a_run_that_broke_off_is_completed(spark, queue, url, place, monkeypatch):
    """It had sent a part; the next run sends the rest under the same ids."""
    job = Replay(path=place, target=Target(queue=queue.name, url=url))
    write = target.write

    def break_off(rows, where, **options):
        write(rows.where("cast(cast(body as string) as int) < 120"), where, **options)
        raise OutcomeUnknown("broken")

    monkeypatch.setattr(target, "write", break_off)
    with pytest.raises(OutcomeUnknown):
        replay.run(spark, job)
    assert queue.stats(exact=True).live == 120
    monkeypatch.undo()
    assert replay.run(spark, job).written == 300
    assert Counter(int(one.body) for one in queue.peek(1000)) == Counter(range(300))


def test_another_name_is_another_replay(spark, queue, url, place):
    """A user who wants everything again gives another name."""
    for name in ("monday", "monday", "tuesday"):
        job = Replay(path=place, target=Target(queue=queue.name, url=url), where="topic = 't1'", name=name)
        assert replay.run(spark, job).details["name"] == name
    assert queue.stats(exact=True).live == 200


def test_to_a_log(spark, client, url, place, new_name, *, wait_until_stable):
    """Topic, key, body and headers are the record's; a rerun makes no copies."""
    log = client.create_log(new_name("l"), cqueue.LogConfig(partitions=3))
    job = Replay(path=place, target=Target(log=log.name, url=url))
    for _ in range(2):
        replay.run(spark, job)
        wait_until_stable(log)
    found = list(log.scan())
    assert Counter(int(one.body) for one in found) == Counter(range(300))
    assert all(one.topic == f"t{int(one.body) % 3}" and one.key == f"k{int(one.body) % 7}" for one in found)


def test_a_rate_is_kept(spark, queue, url, place):
    """Rows a second over all tasks together."""
    job = Replay(path=place, target=Target(queue=queue.name, url=url, rate=50.0), where="topic = 't2'")
    assert replay.run(spark, job).seconds > 1.5
    assert queue.stats(exact=True).live == 100


def test_a_dry_run_writes_nothing(spark, queue, url, place):
    """Not even when the replay began."""
    before = {str(path) for path in Path(place).rglob("*")}
    job = Replay(path=place, target=Target(queue=queue.name, url=url), check=True)
    assert replay.run(spark, job, dry_run=True).written == 300
    assert queue.stats(exact=True).live == 0
    assert {str(path) for path in Path(place).rglob("*")} == before


def test_what_cannot_be_is_refused(spark, queue, url, place):
    goes_to = Target(queue=queue.name, url=url)
    with pytest.raises(QueueNotFound):
        replay.run(spark, Replay(path=place, target=Target(queue="nowhere", url=url)))
    with pytest.raises(BadInput, match="cannot be used"):
        replay.run(spark, Replay(path=place, target=goes_to, where="nobody = 1"))
    with pytest.raises(BadInput, match="name"):
        replay.run(spark, Replay(path=place, target=goes_to, name="../x"))
    old = (datetime.now(UTC) - timedelta(hours=13)).isoformat()
    (Path(place) / "_cqueue" / "replays" / "old.json").write_text(f'{{"at": "{old}"}}')
    with pytest.raises(BadInput, match="give another name"):
        replay.run(spark, Replay(path=place, target=goes_to, name="old"))
    assert queue.stats(exact=True).live == 0
