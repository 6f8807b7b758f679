"""examples/access_log.py: every alert that the lines call for is handled, and handled once."""

import importlib.util
import re
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import cqueue

EXAMPLE = Path(__file__).parents[2] / "examples" / "access_log.py"
BEGAN = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
LINES = 3000
WAIT_S = 240

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def example(client, url, monkeypatch):
    """The example as a module of this process, on the keyspace of the tests."""
    monkeypatch.setenv("CQUEUE_URL", url)
    spec = importlib.util.spec_from_file_location("access_log", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    client.create_queue(module.QUEUE, cqueue.QueueConfig(derived_sends=True), exist_ok=True)
    with module.app:
        yield module


def expected(lines, upto):
    """(Minute, path, errors, requests) of each alert, counted without Spark; of minutes that end by then."""
    requests, errors = Counter(), Counter()
    for line in lines:
        stamp, path, status = re.search(r'\[(.+?)\] "GET (\S+) .*?" (\d+) ', line).groups()
        minute = datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z").replace(second=0)
        if minute + timedelta(minutes=1) <= upto:
            requests[minute, path] += 1
            errors[minute, path] += int(status) >= 500
    return sorted(
        (f"{minute:%H:%M}", path, count, requests[minute, path])
        for (minute, path), count in errors.items()
        if count >= 20 and count >= 0.2 * requests[minute, path]
    )


def handled(example, capsys):
    """What the task printed while a dispatcher handled all there was."""
    with example.app.dispatcher() as dispatcher:
        assert dispatcher.drain(timedelta(seconds=60))
    found = re.findall(
        r"^(\S+) (\S+): (\d+) of (\d+) requests failed$", capsys.readouterr().out, re.MULTILINE
    )
    return sorted((minute, path, int(errors), int(count)) for minute, path, errors, count in found)


def test_from_lines_to_handled_alerts(spark, client, example, url, tmp_path, *, capsys, wait_until_stable):
    """In two pieces, with a new query for each, as after a restart; the second tells nothing twice."""
    lines = list(example.lines(BEGAN, LINES, over=timedelta(minutes=10)))
    first, second = lines[: LINES // 3], lines[LINES // 3 :]
    wanted = expected(lines, BEGAN + timedelta(minutes=9))
    assert {path for _, path, *_ in wanted} == {"/checkout"}
    assert len(wanted) >= 2
    seen = []
    for piece in (first, ["no line of a web server", *second]):
        assert example.ship(client, piece) == len(piece)
        wait_until_stable(client.log(example.LOG))
        query = example.watch(spark, str(tmp_path), end=True, url=url)
        assert query.awaitTermination(WAIT_S)
        seen += handled(example, capsys)
    assert sorted(seen) == wanted
    assert example.watch(spark, str(tmp_path), end=True, url=url).awaitTermination(WAIT_S)
    assert handled(example, capsys) == []
    assert client.queue(f"{example.QUEUE}.dead").stats(exact=True).live == 0


def test_the_query_ends_when_it_is_stopped(spark, client, example, url, tmp_path):
    """`watch` without an end goes on until somebody stops it."""
    example.ship(client, example.lines(BEGAN, 10))
    query = example.watch(spark, str(tmp_path), end=False, url=url)
    deadline = time.monotonic() + WAIT_S
    while query.lastProgress is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert query.isActive
    query.stop()
    assert query.exception() is None
