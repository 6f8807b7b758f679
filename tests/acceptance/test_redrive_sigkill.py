"""A redrive that is killed half way loses no letter, and repeated it makes no copy."""

import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

import cqueue

pytestmark = pytest.mark.cassandra

ROOT = Path(__file__).parents[2]
COUNT = 40
SOON = timedelta(seconds=60)


@pytest.mark.parametrize("acked_between", [False, True])
@pytest.mark.parametrize(("point", "nth"), [("sent", 1), ("deleted", 1), ("sent", 3), ("deleted", 3)])
def test_a_killed_redrive_is_repeated_without_a_copy(client, keyspace, point, nth, acked_between):
    """SIGKILL after some messages are stored, or some letters deleted: each letter is in one of the queues
    or in both, and after a second redrive each message comes once, acked before it or not.
    """
    queue = client.create_queue(f"{point}-{nth}-{acked_between}", cqueue.QueueConfig(shards=1))
    bodies = [b"%d" % number for number in range(COUNT)]
    bury(queue, bodies)
    child = [
        sys.executable,
        "-m",
        "tests.acceptance.redriving_child",
        keyspace.url,
        queue.name,
        point,
        str(nth),
    ]
    assert subprocess.run(child, cwd=ROOT, check=False).returncode == -signal.SIGKILL

    dead = [letter.body for letter in queue.dead_letters]
    back = [message.body for message in queue.peek(COUNT)]
    assert {*dead, *back} == {*bodies}, "lost"
    assert dead, "it was through before it was killed"
    assert back, "nothing was sent before it was killed"

    came = Counter(drain(queue, len(back))) if acked_between else Counter()
    result = queue.dead_letters.redrive(everything=True)
    assert (len(result.done), result.failed) == (len(dead), ())
    came.update(drain(queue, COUNT - came.total()))
    assert came == Counter(bodies)
    assert queue.dead_letters.list() == []


def bury(queue, bodies):
    assert not queue.send_many([cqueue.Message(body) for body in bodies]).failed
    left = len(bodies)
    with queue.consumer() as consumer:
        while left:
            messages = consumer.receive(left, wait=SOON)
            assert messages, f"{left} did not come"
            consumer.dead(messages, "why")
            left -= len(messages)


def drain(queue, count):
    """Ack `count` messages and return their bodies; fail if fewer or more come."""
    found = []
    with queue.consumer() as consumer:
        while len(found) < count:
            messages = consumer.receive(count, wait=SOON)
            assert messages, f"only {len(found)} came"
            found += [message.body for message in messages]
            consumer.ack(messages)
        assert consumer.receive(10, wait=timedelta(milliseconds=300)) == []
    return found
