"""A producer that is killed while it forwards loses nothing, and the next one makes no copy. On Cassandra."""

import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

import cqueue
from cqueue.cli.main import main
from cqueue.spool import Spool
from cqueue.spool.forwarder import Stored

pytestmark = pytest.mark.cassandra

ROOT = Path(__file__).parents[2]
COUNT = 40
SOON = timedelta(seconds=60)
MOMENT = timedelta(milliseconds=500)
POINTS = [
    f"{point} {nth}" for point in ("inserting", "inserted", "committing", "committed") for nth in (1, 3)
]


@pytest.mark.parametrize("between", ["left", "acked", "held"])
@pytest.mark.parametrize("where", POINTS)
def test_a_spool_whose_producer_was_killed_is_forwarded_without_a_copy(
    client, keyspace, tmp_path, where, between
):
    """SIGKILL at each step between Cassandra and the progress; then what is there is acked, held by a
    consumer or left alone; then `cqueue spool forward`, twice: each message comes once.
    """
    point, nth = where.split()
    queue = client.create_queue(f"{point}-{nth}-{between}", cqueue.QueueConfig(derived_sends=True))
    path = str(tmp_path / "spool")
    child = [sys.executable, "-m", "tests.acceptance.spooling_child", keyspace.url, path, queue.name]
    child += [str(COUNT), point, nth]
    assert subprocess.run(child, cwd=ROOT, check=False).returncode == -signal.SIGKILL

    came = Counter()
    with queue.consumer() as consumer:
        there = queue.stats(exact=True).live
        held = [] if between == "left" else receive(consumer, there)
        if between == "acked":
            consumer.ack(held)
        for _ in range(2):
            assert main(["--url", keyspace.url, "spool", "forward", path]) == 0
        rest = receive(consumer, COUNT - len(held))
        assert consumer.receive(100, wait=MOMENT) == []
        consumer.ack(rest if between == "acked" else [*held, *rest])
        came.update(message.body for message in [*held, *rest])
    assert came == Counter(b"%d" % number for number in range(COUNT))
    assert queue.stats(exact=True).live == 0


@pytest.mark.feature
def test_what_was_cancelled_buried_or_acked_stays_so(client, tmp_path):
    """However a message left the queue, forwarding its record again does not bring it back."""
    client.create_queue("leaving")
    with Spool(tmp_path / "spool") as spool:
        queue = client.queue("leaving", spool=spool)
        ids = [queue.send(b"%d" % number) for number in range(6)]
        assert queue.flush(SOON)
        assert queue.cancel(ids[0])
        with queue.consumer() as consumer:
            messages = {message.id: message for message in receive(consumer, 5)}
            messages[ids[1]].dead("why")
            consumer.ack([messages[ids[2]]])
            messages[ids[3]].nack(timedelta(seconds=1))
            target = client._spools._queue_target(spool, "leaving")
            assert target.store(list(spool.records("queue.leaving", offset=0))) == Stored(6)
            again = receive(consumer, 1)
            assert [message.id for message in again] == [ids[3]]
            assert consumer.receive(100, wait=MOMENT) == []
            consumer.ack([*again, messages[ids[4]], messages[ids[5]]])
    assert queue.stats(exact=True).live == 0
    assert [letter.original_id for letter in queue.dead_letters] == [ids[1]]


def receive(consumer, count):
    """Receive `count` messages; raise if fewer come."""
    found = []
    while len(found) < count:
        more = consumer.receive(min(1000, count - len(found)), wait=SOON)
        assert more, f"only {len(found)} of {count} came"
        found += more
    return found
