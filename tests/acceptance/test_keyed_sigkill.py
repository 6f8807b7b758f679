"""A process that is killed between the two writes of a keyed message leaves nothing for ever."""

import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

import cqueue
from cqueue.store.keys import KeyPlace, ReadKey
from tests.acceptance.keyed_child import COUNT, bury, send

pytestmark = pytest.mark.cassandra

ROOT = Path(__file__).parents[2]
KEYS = [f"k{number}" for number in range(5)]


@pytest.fixture
def queue(client, request):
    name = request.node.name.translate(str.maketrans("[] ", "---"))
    config = cqueue.QueueConfig(keyed=True, shards=1, visibility=timedelta(seconds=3))
    return client.create_queue(name, config)


@pytest.mark.parametrize(
    ("when", "leaves"),
    [
        ("send InsertKeys 1", True),
        ("send InsertKeys 7", True),
        ("send InsertMessages 7", False),
        ("ack DeleteMessages 1", True),
        ("ack DeleteKeys 3", False),
        ("bury InsertKeys 3", True),
        ("bury InsertMessages 3", False),
        ("redrive InsertKeys 1", True),
        ("redrive InsertMessages 1", False),
        ("redrive DeleteMessages 1", True),
    ],
)
def test_a_kill_between_two_writes_leaves_no_orphan(keyspace, client, queue, when, leaves):
    """SIGKILL: each message that is there has its key, at once; after the healing time each key has its
    message.
    """
    what = when.split()[0]
    if what != "send":
        send(queue)
    if what == "redrive":
        bury(queue)
    child = [sys.executable, "-m", "tests.acceptance.keyed_child", keyspace.url, queue.name, *when.split()]
    assert subprocess.run(child, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert missing(client, queue) == set(), "a message without its key"
    assert bool(orphans(client, queue)) is leaves

    deployment = client._catalog.deployment()
    time.sleep((deployment.settle_ms + deployment.skew_ms) / 1000 + 0.1)
    look_up_all(client, queue)
    assert orphans(client, queue) == set()
    assert missing(client, queue) == set()

    if what in {"bury", "redrive"}:  # what was cut off is done again, and found by its key
        time.sleep(3)  # longer than the visibility timeout of what the dead process held
        if what == "bury":
            bury(queue)
        else:
            queue.dead_letters.redrive(everything=True)
        states = {one.state for key in KEYS for one in queue.list_by_key(key)}
        assert states == ({"dead"} if what == "bury" else {"ready"})
        assert sum(len(queue.list_by_key(key)) for key in KEYS) == COUNT
        look_up_all(client, queue)
        assert missing(client, queue) == orphans(client, queue) == set()


def both(client, queue):
    return queue, client.queue(queue.dead_letter_name)


def messages(client, queue):
    """All messages and letters that there are, as (key, id)."""
    return {(one.key, one.id.locate()[1:]) for each in both(client, queue) for one in each.peek(10_000)}


def keyed(client, queue):
    """All rows of the look-up table, whether they have messages or not."""
    found = set()
    for each in both(client, queue):
        partition = client._catalog.entry(each.name).spec.partition
        for key in KEYS:
            rows = client._driver.ask(ReadKey(KeyPlace(partition, key), (0, -1), 1000))
            found |= {(key, (row.priority, row.id)) for row in rows}
    return found


def missing(client, queue):
    return messages(client, queue) - keyed(client, queue)


def orphans(client, queue):
    return keyed(client, queue) - messages(client, queue)


def look_up_all(client, queue):
    for each in both(client, queue):
        for key in KEYS:
            each.list_by_key(key)
