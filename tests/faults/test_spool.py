"""Cassandra away under a producer that has a spool: row 23."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial

import pytest

from cqueue.testing.events import OK, calls, read
from tests.faults.clusters import running_cluster, url_of
from tests.faults.lengths import full
from tests.fix_dispatcher import until

pytestmark = [
    pytest.mark.cassandra,
    pytest.mark.fault,
    pytest.mark.quick,
    pytest.mark.timeout(full(3000, 480)),
]

# Longer than Cassandra is away, so that what consumers hold meanwhile is not given to somebody else.
VISIBILITY = timedelta(minutes=10)
BATCH = 20


@pytest.mark.row(23, "Cassandra stopped under a producer with a spool, which is killed twice meanwhile")
def test_what_a_spool_took_arrives_once_although_cassandra_and_the_producer_end(
    start_run, tmp_path, tmp_path_factory, row
):
    """Every message for which `send` returned arrives, under the id that it returned, and exactly once."""
    rate, away_s = full(2000, 200), full(120.0, 9.0)
    with running_cluster(tmp_path_factory.mktemp("cluster")) as own:
        run = start_run(url_of(own, request_timeout=3), visibility=VISIBILITY)
        run.start_all(2, "consume", batch=200)
        plan = {"spool": str(tmp_path / "spool"), "rate": rate, "batch": BATCH}
        producers = [run.start("spool", **plan)]
        time.sleep(full(10, 2))
        own.stop()
        stopped = time.monotonic()
        for _ in range(2):
            _await_taken(producers[-1], rate * away_s / 3, stopped)
            producers[-1].kill()
            producers.append(run.start("spool", **plan))
        _await_taken(producers[-1], rate * away_s / 3, stopped)
        own.start()
        back = time.monotonic()
        time.sleep(full(10, 2))
        producers[-1].end(full(1200, 120))
        forwarded = time.monotonic()
        run.await_empty(full(1200, 120))
        drained = time.monotonic()
        report = run.finish()
    taken = [_taken(child.history, stopped, back) for child in producers]
    assert report.clean, str(report)
    assert report.duplicated == [], str(report)
    row(
        messages=report.sends,
        taken_while_away=sum(taken),
        away=f"{back - stopped:.0f} s",
        unknown_sends=report.unknown_sends,
        duplicates=len(report.duplicated),
        forwarded_after=f"{forwarded - back:.0f} s",
        handled_after=f"{drained - back:.0f} s",
    )


def _await_taken(producer, messages, since):
    """Wait until the producer has put this number of messages into its spool."""
    took = partial(_taken, producer.history, since)
    until(lambda: took(time.monotonic()) >= messages, full(600, 120), "it took too little")


def _taken(history, since, end):
    """Messages for which a send returned in that time."""
    return sum(
        len(call.asked)
        for call in calls(read([history]))
        if call.operation == "send" and call.outcome == OK
        if since <= call.began_ns / 1e9 and call.ended_ns / 1e9 <= end
    )
