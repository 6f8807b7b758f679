"""`cqueue.spark.jobs.report`: its figures are the store's own, and all of them are on the page."""

import base64
import os
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.errors import BadInput, QueueNotFound
from cqueue.spark.jobs import report, report_page, report_tables
from cqueue.spark.jobs.report import Report, Table
from cqueue.testing import recording

HOUR = timedelta(hours=1)


@pytest.fixture
def queue(client, new_name):
    """90 ready messages of three priorities, 40 delayed, 3 held and 2 dead."""
    made = client.create_queue(new_name("q"), cqueue.QueueConfig(shards=2))
    ready = [
        cqueue.Message(b"x", priority=n % 3, key=f"k{n % 10}", task=f"t{n % 2}" if n < 50 else None)
        for n in range(95)
    ]
    assert not made.send_many(ready).failed
    assert not made.send_many([cqueue.Message(b"y", delay=HOUR * (n + 1)) for n in range(40)]).failed
    with made.consumer() as consumer:
        held = []
        while len(held) < 5:
            held += consumer.receive(5 - len(held), wait=timedelta(seconds=5))
        for message in held[:2]:
            message.dead("no such $customer <b>")
        yield made


def tables(found):
    return {table.title.partition(",")[0]: table for table in found.tables}


def test_a_queue(spark, queue, url):
    """Backlog, shards, what is held and what died: as `stats` counts them."""
    found = report.run(spark, Report(queue=queue.name, url=url))
    stats = queue.stats(exact=True)
    assert found.read == stats.live == 133
    by_title = tables(found)
    *_, everything = by_title["Backlog"].rows
    assert everything[:3] == ("all", 93, 40)
    assert everything[4] == 133
    assert sum(row[-1] for row in by_title["Shards"].rows if row[1] == "normal") == 133
    (even,) = by_title["How evenly messages lie in shards"].rows
    assert even[3] / even[1] == pytest.approx(even[5], abs=0.001)
    assert sum(row[-1] for row in by_title["In flight"].rows) == 3
    assert by_title["Dead letters by reason"].rows == (("no such $customer <b>", 100.0, 2),)
    assert sum(row[-1] for row in by_title["Due times"].rows) == 133
    tasks = {row[0]: row[2] for row in by_title["Top tasks"].rows}
    assert sum(tasks.values()) in range(48, 51)
    ages = dict(by_title["Age of ready messages: seconds since they were due"].rows)
    assert 0 <= ages["p50"] <= ages["p99"] <= ages["max"] < 300


def test_spread_says_how_even_shards_are():
    """Shards without rows count as well, as they are what makes others full."""
    table = report_tables.spread({0: 30, 1: 0, 2: 60}, "shard", "Spread")
    assert dict(zip(table.columns, table.rows[0], strict=True)) == {
        "shards": 3,
        "mean": 30.0,
        "least": 0,
        "most": 60,
        "shard with most": 2,
        "most / mean": 2.0,
    }
    assert report_tables.spread({}, "shard", "Spread").rows == ()


def test_top_is_a_limit(spark, queue, url):
    found = report.run(spark, Report(queue=queue.name, url=url, top=3))
    assert len(tables(found)["Top keys"].rows) == 3


def test_a_log(spark, client, url, new_name, wait_until_stable):
    """Partitions, topics, records over time, and percentiles of what the caller computes."""
    log = client.create_log(new_name("l"), cqueue.LogConfig(partitions=3))
    sent = [(f"topic-{n % 4}", n) for n in range(200)]
    records = [
        cqueue.Record(topic, b"x", key=str(n % 5), headers={"took": str(n / 100)}) for topic, n in sent
    ]
    assert not log.append_many(records).failed
    wait_until_stable(log)
    latency = "double(headers['took'])"
    found = report.run(spark, Report(log=log.name, url=url, latency=latency))
    by_title = tables(found)
    assert found.read == sum(row[-1] for row in by_title["Partitions"].rows) == 200
    assert {row[0]: row[2] for row in by_title["Top topics"].rows} == Counter(topic for topic, _ in sent)
    assert sum(row[-1] for row in by_title["Records by time"].rows) == 200
    percentiles = dict(by_title[f"Latency: {latency}"].rows)
    assert percentiles["p50"] == pytest.approx(1.0, abs=0.02)
    assert percentiles["max"] == 1.99
    later = datetime.now(UTC) + HOUR
    assert report.run(spark, Report(log=log.name, url=url, since=later)).read == 0


def test_histories(spark, client, new_name, tmp_path):
    """Calls with their outcomes, and the way of messages, as a recorder saw them; a cut line is none."""
    made = client.create_queue(new_name("q"))
    file = tmp_path / "client.jsonl"
    with recording(made, file) as recorded:
        for n in range(5):
            recorded.send(str(n).encode())
        recorded.send_many([cqueue.Message(b"wrong", priority=99)])
        with recorded.consumer() as consumer:
            found = []
            while len(found) < 5:
                found += consumer.receive(5 - len(found), wait=timedelta(seconds=5))
            consumer.ack(found[:3])
            consumer.nack(found[3:], delay=HOUR)
    with file.open("ab") as sink:
        sink.write(b'{"operation":"ack","phase":"inv')
    report_found = report.run(spark, Report(history=(str(file),)))
    by_title = tables(report_found)
    calls = {(row[0], row[1]): row[-1] for row in by_title["Calls"].rows}
    assert calls["send", "ok"] == 6
    assert (calls["ack", "ok"], calls["nack", "ok"]) == (1, 1)
    assert report_found.read == len(file.read_text().splitlines()) - 1
    delivered = dict(by_title["From the send's answer to the first delivery"].rows)
    acked = dict(by_title["From delivery to the first ack"].rows)
    assert 0 < delivered["p50"] <= delivered["max"] < 120
    assert 0 <= acked["p50"] <= acked["max"] < 120
    (tmp_path / "none.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(BadInput, match="no history"):
        report.run(spark, Report(history=(str(tmp_path / "none.jsonl"),)))


def test_an_empty_queue_has_no_tables_but_its_shards(spark, client, url, new_name):
    """Nothing is divided by nothing."""
    found = report.run(spark, Report(queue=client.create_queue(new_name("q")).name, url=url))
    assert found.read == 0
    assert "Backlog" not in tables(found)


def test_the_page_holds_all_tables_and_plots(spark, queue, url, tmp_path):
    """One file, with each table's cells escaped, and a PNG where matplotlib is."""
    pytest.importorskip("matplotlib")
    found = report.run(spark, Report(queue=queue.name, url=url))
    file = tmp_path / "report.html"
    assert report_page.write(found, file)
    text = file.read_text()
    assert text.count("<h2>") == len(found.tables)
    assert "no such $customer &lt;b&gt;" in text
    images = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", text)
    assert len(images) == sum(table.chart and len(table.rows) > 1 for table in found.tables) > 0
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)


def test_a_page_without_matplotlib(tmp_path, monkeypatch):
    """The tables alone."""
    monkeypatch.setattr(report_page.importlib.util, "find_spec", lambda _: None)
    rows = (("a", 1), ("b", 2000))
    found = report.Reported(
        job="report", dry_run=False, title="T", tables=(Table("One", ("x", "n"), rows, chart=True),)
    )
    assert not report_page.write(found, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "2,000" in text
    assert "<img" not in text
    with pytest.raises(BadInput, match="cannot be written"):
        report_page.write(found, tmp_path / "none" / "r.html")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="no regular file"):
        report_page.write(found, tmp_path / "pipe")


def test_json_has_the_tables(spark, queue, url):
    """A script finds rows by the names of their columns."""
    data = report.run(spark, Report(queue=queue.name, url=url)).to_dict()
    (backlog,) = [table for table in data["tables"] if table["title"] == "Backlog"]
    assert backlog["rows"][-1]["messages"] == 133
    assert (data["job"], data["queue"]) == ("report", queue.name)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"queue": "a", "log": "b"}, {"queue": "a", "latency": "1"}, {"queue": "a", "top": 0},
     {"log": "a", "since": datetime(2026, 1, 1)}],  # noqa: DTZ001 - that is the test
)  # fmt: skip
def test_what_cannot_be_asked(wrong):
    with pytest.raises(BadInput):
        Report(**wrong)


def test_what_is_not_there(spark, client, url, new_name):
    with pytest.raises(QueueNotFound):
        report.run(spark, Report(queue="nowhere", url=url))
    log = client.create_log(new_name("l"))
    with pytest.raises(BadInput, match="nobody"):
        report.run(spark, Report(log=log.name, url=url, latency="nobody"))
    with pytest.raises(BadInput, match="must give seconds"):
        report.run(spark, Report(log=log.name, url=url, latency="topic"))
