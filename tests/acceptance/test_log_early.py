"""Low-latency readers of a log whose appender is another process: told by datagrams, or by polling alone."""

import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

import cqueue
from cqueue.store.control import ReadDigests, ReadListeners
from tests.fix_dispatcher import until

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(240)]

CHILD = Path(__file__).with_name("appending_child.py")
RATE, COUNT = 20, 120
PARTITIONS = 16  # so many that both members have some, whatever their names
STABLE_MS = 20_000
"""When records become stable, in ms after their append: a slow machine as well has them long before."""
NOWHERE = "&notify_host=192.0.2.1"  # an address kept for documentation: datagrams to it are lost


@pytest.fixture(scope="module")
def keyspace(new_keyspace):
    """A keyspace in which records become stable late."""
    return new_keyspace(settle_ms=STABLE_MS)


class Readers:
    """A follower and a subscription with two members, and how old records were when each had them, in ms."""

    def __init__(self, url, log):
        self.ages = {"follower": {}, "subscription": {}}
        self.again = Counter()
        self._clients = [cqueue.connect(url), cqueue.connect(url)]
        self._follower = self._clients[0].log(log).follow(low_latency=True)
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()
        self.members = [
            client.subscribe(log, name="b", listeners=[self._handle], start="latest", low_latency=True)
            for client in self._clients
        ]
        for member in self.members:
            member.start()

    def _follow(self):
        for record in self._follower:
            self._saw("follower", record)

    def _handle(self, record):
        self._saw("subscription", record)

    def _saw(self, reader, record):
        if record.id in self.ages[reader]:
            self.again[reader] += 1
        self.ages[reader].setdefault(record.id, age_ms(record))

    def close(self):
        for member in self.members:
            member.stop()
        self._follower.close()
        self._thread.join()
        for client in self._clients:
            client.close()

    def share_all(self):
        """Whether both members have partitions: one that comes later has some records delivered again."""
        mine = [len(member.partitions) for member in self.members]
        return all(mine) and sum(mine) == PARTITIONS

    @property
    def received(self):
        return sum(client._doorbell.counts.received for client in self._clients)


def age_ms(record):
    return (time.time_ns() - int(record.body)) / 1e6


def listeners(client):
    """The rows of all processes that wait."""
    ask = client._driver.ask
    return ask(ReadListeners(tuple(ask(ReadDigests()))))


@pytest.mark.parametrize("dropped", [False, True])
def test_readers_in_another_process_have_records_early(keyspace, dropped):
    """Each reader each record once, long before it is stable: told by datagrams, or by polling alone.

    On an idle machine the medians are 3 ms and 60 ms.
    """
    name = f"events-{uuid.uuid4().hex[:8]}"
    url = keyspace.url + (NOWHERE if dropped else "")
    command = [sys.executable, str(CHILD), keyspace.url, name, str(RATE), str(COUNT)]
    with cqueue.connect(keyspace.url) as client:
        client.create_log(name, cqueue.LogConfig(partitions=PARTITIONS))
        readers = Readers(url, name)
        try:
            until(readers.share_all)
            until(lambda: sum(bool(row.names) for row in listeners(client)) == 2)
            subprocess.run(command, check=True, timeout=120)
            until(lambda: all(len(ages) >= COUNT for ages in readers.ages.values()))
            until(lambda: all(lag.count == 0 for lag in readers.members[0].lag().values()))
        finally:
            readers.close()
    assert (readers.received > 0) is not dropped
    assert not readers.again
    for ages in readers.ages.values():
        assert len(ages) == COUNT
        assert sorted(ages.values())[COUNT // 2] < STABLE_MS / 2
