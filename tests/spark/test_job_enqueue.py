"""`cqueue.spark.jobs.enqueue`: files become messages, each once, and nothing unchecked is written."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.errors import BadInput, QueueNotFound
from cqueue.spark.jobs import target as targets
from cqueue.spark.jobs.enqueue import Enqueue, run
from cqueue.spark.jobs.target import Target

SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
LATER = SOON + timedelta(hours=1)


@pytest.fixture
def orders(tmp_path):
    """A file of JSON lines."""
    path = tmp_path / "orders.jsonl"
    path.write_text(
        "".join(json.dumps({"order": n, "eur": n % 7, "who": f"c{n % 3}"}) + "\n" for n in range(500))
    )
    return str(path)


@pytest.fixture
def queue(client, new_name):
    """An empty queue."""
    return client.create_queue(new_name("q"))


def messages(queue):
    return queue.peek(10_000)


def job(queue, *paths, where=None, format=None, options=None, **target):  # noqa: A002 - as in Enqueue
    return Enqueue(
        paths=paths,
        target=Target(queue=queue.name, **target),
        where=where,
        format=format,
        options=options or {},
    )


def test_each_row_is_a_message(spark, queue, url, orders):
    """By default the whole row as JSON; what Cassandra holds is what the summary says."""
    summary = run(spark, job(queue, orders, url=url))
    assert (summary.read, summary.written, summary.skipped) == (500, 500, 0)
    bodies = [json.loads(one.body) for one in messages(queue)]
    assert sorted(body["order"] for body in bodies) == list(range(500))
    assert queue.stats(exact=True).live == 500


def test_expressions_say_what_goes_where(spark, queue, url, orders):
    """Body, key, priority, headers and due are SQL over the row; rows that are filtered are counted."""
    columns = {
        "body": "cast(order as string)",
        "key": "who",
        "priority": "if(eur > 5, 0, 3)",
        "headers": "map('eur', cast(eur as string))",
        "due": f"timestamp'{SOON:%Y-%m-%d %H:%M:%S}'",
    }
    summary = run(spark, job(queue, orders, url=url, columns=columns, where="order < 20"))
    assert (summary.read, summary.written, summary.skipped) == (500, 20, 480)
    found = {int(one.body): one for one in messages(queue)}
    assert set(found) == set(range(20))
    assert (found[6].priority, found[5].priority) == (0, 3)
    assert found[9].headers == {"eur": "2"}
    assert all(abs(one.due - SOON) < timedelta(milliseconds=2) for one in found.values())


def test_a_rerun_makes_no_copies(spark, queue, url, orders):
    """With an id and a due time that is given again, two runs, and a row that comes twice, are one."""
    again = job(queue, orders, orders, url=url, id="order", at=SOON)
    for _ in range(2):
        assert run(spark, again).written == 1000
    assert queue.config.derived_sends
    found = messages(queue)
    assert len(found) == 500
    # Many at one µs would be a burden for consumers, so each has its own within that second.
    assert all(SOON <= one.due < SOON + timedelta(seconds=1) for one in found)
    assert len({one.due for one in found}) > 200


def test_a_due_time_without_an_id(spark, queue, url, orders):
    """Of rows that have none of their own."""
    columns = {"due": f"if(order = 3, timestamp'{LATER:%Y-%m-%d %H:%M:%S}', null)"}
    run(spark, job(queue, orders, url=url, at=SOON, columns=columns, where="order < 10"))
    due = sorted(one.due for one in messages(queue))
    assert all(SOON <= each < SOON + timedelta(seconds=1) for each in due[:9])
    assert due[9] >= LATER


def test_a_dry_run_writes_nothing(spark, queue, url, orders):
    """It checks the rows and counts them, and leaves the queue as it was."""
    summary = run(spark, job(queue, orders, url=url, id="order", at=SOON), dry_run=True)
    assert (summary.dry_run, summary.written) == (True, 500)
    assert queue.stats(exact=True).live == 0
    assert not queue.config.derived_sends


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"priority": "if(order = 7, 10, 0)"}, "1 with a priority not of 0 to 9"),
        ({"body": "if(order < 3, null, 'x')"}, "3 with no body"),
        ({"delay": "-1.0"}, "500 with a delay"),
        ({"key": "''"}, "500 with a key"),
        ({"body": "repeat('x', 1048577)"}, "above 1,048,576 bytes"),
        ({"body": "struct(order)"}, "takes binary or text"),
        ({"body": "nothing"}, "nothing"),
        ({"body": "to_json("}, "cannot be read so"),
        ({"topic": "'x'"}, "no column topic"),
    ],
)
def test_wrong_rows_are_told_before_anything_is_written(spark, queue, url, orders, *, columns, said):
    with pytest.raises(BadInput, match=said):
        run(spark, job(queue, orders, url=url, columns=columns))
    assert queue.stats(exact=True).live == 0


def test_an_id_needs_a_time_that_stays(spark, queue, url, orders):
    """Without one, a second run would derive other ids, and make copies."""
    with pytest.raises(BadInput, match="same in every run"):
        run(spark, job(queue, orders, url=url, id="order"))
    with pytest.raises(BadInput, match="1 with no id"):
        run(spark, job(queue, orders, url=url, id="nullif(order, 3)", at=SOON))


def test_what_cannot_be_read_is_bad_input(spark, queue, url, orders, tmp_path):
    """Files, formats, predicates and queues that are not there, and lines that are none."""
    with pytest.raises(BadInput, match="does not exist"):
        run(spark, job(queue, str(tmp_path / "none.parquet"), url=url))
    with pytest.raises(BadInput, match="does not tell its format"):
        run(spark, job(queue, str(tmp_path), url=url))
    with pytest.raises(BadInput, match="cannot be used"):
        run(spark, job(queue, orders, url=url, where="nobody = 1"))
    with pytest.raises(QueueNotFound):
        run(spark, Enqueue(paths=(orders,), target=Target(queue="nowhere", url=url)))
    broken = tmp_path / "broken.json"
    broken.write_text('{"order": 1}\n{"order": \n')
    with pytest.raises(BadInput, match="cannot be read"):
        run(spark, job(queue, str(broken), url=url))
    assert queue.stats(exact=True).live == 0


def test_csv_has_a_header(spark, queue, url, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("body,priority,key\nfirst,1,a\nsecond,2,b\n")
    run(spark, job(queue, str(path), url=url))
    assert sorted((one.body, one.priority) for one in messages(queue)) == [(b"first", 1), (b"second", 2)]


def test_to_a_log(spark, client, url, orders, new_name):
    """The same rows as records, with a topic that the target gives."""
    log = client.create_log(new_name("l"), cqueue.LogConfig(partitions=2))
    target = Target(log=log.name, url=url, columns={"topic": "'orders'", "key": "who"})
    summary = run(spark, Enqueue(paths=(orders,), target=target))
    assert summary.written == 500
    once = Enqueue(paths=(orders, orders), target=replace(target, id="order"))
    summary = run(spark, once, dry_run=True)
    assert (summary.read, summary.written, summary.skipped) == (1000, 500, 500)
    with log.follow("earliest", low_latency=True) as follower:
        found = []
        while len(found) < 500:
            found += follower.poll(timedelta(seconds=10))
    assert {(one.topic, one.key) for one in found} == {("orders", f"c{n}") for n in range(3)}
    assert sorted(json.loads(one.body)["order"] for one in found) == list(range(500))


def test_a_record_has_a_topic(spark, client, url, orders, new_name):
    """Rows that give none are refused before anything is written."""
    log = client.create_log(new_name("l"), cqueue.LogConfig(partitions=1))
    for columns, said in ({}, "has a topic"), ({"topic": "nullif(who, 'c1')"}, "with no topic"):
        with pytest.raises(BadInput, match=said):
            run(spark, Enqueue(paths=(orders,), target=Target(log=log.name, url=url, columns=columns)))
    assert log.stats().newest is None


@pytest.mark.parametrize("wrong", [{}, {"queue": "a", "log": "b"}, {"queue": "a", "rate": 0.0}])
def test_a_target_is_one_thing(wrong):
    with pytest.raises(BadInput):
        Target(**wrong)


def test_a_map_is_shaped_as_the_source_wants_it(spark):
    """Types are cast, so that a CSV's texts fit."""
    rows = spark.createDataFrame([("x", "3", "1.5")], "body string, priority string, delay string")
    shaped = targets.shaped(rows, Target(queue="q"))
    assert {one.name: one.dataType.simpleString() for one in shaped.schema} == {
        "body": "string",
        "priority": "int",
        "delay": "double",
    }
