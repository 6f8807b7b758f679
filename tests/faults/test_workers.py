"""Handlers and the processes that run them: rows 18 and 19. What runs them is chosen in `worker.py`."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

import pytest

from cqueue.testing.events import OK, calls, read
from tests.faults.clusters import S
from tests.faults.worker import NAME
from tests.fix_dispatcher import until

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(300)]

ATTEMPTS = 3
POISON = "p0-7"  # the eighth message of producer 0


@pytest.mark.row(18, "a message whose handler kills its process")
def test_what_kills_its_worker_is_buried_and_its_neighbours_are_not(start_run, row):
    """Dead-lettered after exactly `max_attempts`; all others are handled, whatever came beside them."""
    run = start_run(
        visibility=timedelta(seconds=3), lease=timedelta(seconds=2), max_attempts=ATTEMPTS, shards=1
    )
    run.start("produce", batch=100, count=100).join()
    dead = run.client.queue(run.queue.dead_letter_name)
    workers = [run.start("work", batch=20, poison=POISON)]

    def is_over():
        if workers[-1].process.poll() == -signal.SIGKILL:  # as whatever supervises it would
            workers.append(run.start("work", batch=20, poison=POISON))
        return dead.stats(exact=True).live and not run.queue.stats(exact=True).live

    until(is_over, 90, "the queue did not come to rest")
    letters = dead.peek(10)
    report = run.finish()
    (sent,) = (call for call in _calls(run.histories, "send"))
    poison = sent.answered[int(POISON.rpartition("-")[2])]["ids"][0]
    received = [one["id"] for call in _calls(run.histories, "receive") for one in call.answered]
    acked = {one["id"] for call in _calls(run.histories, "ack") for one in call.asked}
    assert report.clean, str(report)
    assert [letter.body for letter in letters] == [POISON.encode()]
    assert received.count(poison) == ATTEMPTS
    assert len(workers) == ATTEMPTS + 1, "a process died of something else"
    assert len(acked) == 99
    most = max(received.count(id_) for id_ in acked)
    assert most < ATTEMPTS
    row(
        worker=NAME,
        attempts=received.count(poison),
        processes_killed=len(workers) - 1,
        dead_letters=len(letters),
        neighbours_handled=len(acked),
        most_deliveries_of_a_neighbour=most,
    )


@pytest.mark.row(19, "SIGTERM with 100 in flight")
def test_a_worker_that_is_asked_to_end_gives_back_what_it_cannot_handle(start_run, row):
    """It drains in the grace time; the rest is available at once, and no attempt is used."""
    grace_s, handle_s = 2.0, 0.05
    run = start_run(visibility=timedelta(seconds=30), shards=1, time_shard=timedelta(hours=1))
    run.start("produce", count=100).join()
    first = run.start("work", batch=100, handle_s=handle_s, grace_s=grace_s)
    until(lambda: _count(first, "receive") == 100, 30, "the worker did not receive all of them")
    asked = time.monotonic()
    first.end()
    ended = time.monotonic()
    drained = _count(first, "ack")
    second = run.start("work", batch=100)
    until(lambda: _count(second, "ack") == 100 - drained, 30, "the rest was not available")
    report = run.finish()
    again = [call for call in _calls([second.history], "receive") if call.answered]
    assert report.clean, str(report)
    assert drained < 100, "the grace time was long enough for all: nothing was tested"
    assert ended - asked <= grace_s + 5
    assert {one["attempt"] for call in again for one in call.answered} == {1}, "an attempt was used"
    assert again[-1].ended_ns / S - ended <= 10, "they came by their timeout"
    row(
        worker=NAME,
        in_flight=100,
        drained=drained,
        ended_after=f"{ended - asked:.1f} s of {grace_s:g} s",
        given_back=100 - drained,
        there_again_after=f"{again[-1].ended_ns / S - ended:.1f} s",
        attempts_used=0,
    )


def _calls(histories, operation):
    return [call for call in calls(read(histories)) if call.operation == operation and call.outcome == OK]


def _count(child, operation):
    """How many messages a worker has received, or acked."""
    return sum(len(call.answered or call.asked) for call in _calls([child.history], operation))
