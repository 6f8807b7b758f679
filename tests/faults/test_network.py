"""Clients cut from their nodes: row 9. Partitions between nodes are row 8."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cqueue.settings import load
from tests.faults.clusters import sends_of
from tests.faults.proxy import Proxy
from tests.faults.worker import NAME
from tests.fix_cassandra import PATIENT

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(300)]

TICKS_PER_S = 100
CUT_S = 60


@pytest.fixture
def proxied(keyspace):
    """A proxy before the node, and the URL of the keyspace through it."""
    parts = urlsplit(keyspace.url)
    query = parts.query.replace(PATIENT, "connect_timeout=5")  # the default, by which clients try again
    proxy = Proxy(load(keyspace.url).hosts[0], ("127.0.0.1", 0))
    at = f"{proxy.address[0]}:{proxy.address[1]}"
    yield proxy, f"{parts.scheme}://{at}{parts.path}?{query}&request_timeout=3"
    proxy.close()


@pytest.mark.parametrize("how", ["cut", "stall"])
@pytest.mark.row(9, "client cut from all nodes")
def test_clients_reconnect_by_themselves(start_run, proxied, row, how):
    """Errors are typed meanwhile; when the network is back, sends and receives go on without help.

    A consumer that waits for the network costs next to nothing.
    """
    proxy, url = proxied
    run = start_run(visibility=timedelta(seconds=8), lease=timedelta(seconds=2))
    consumer = run.start("work", batch=20, url=url)
    producer = run.start("produce", rate=50, url=url)
    time.sleep(4)
    getattr(proxy, how)()
    began, cpu_s = time.monotonic(), _cpu_s(consumer)
    time.sleep(CUT_S)
    share = (_cpu_s(consumer) - cpu_s) / (time.monotonic() - began)
    proxy.resume()
    resumed = time.monotonic()
    while not any(ok and at > resumed for at, _, ok in sends_of([producer.history])):
        assert time.monotonic() < resumed + 45, "the producer did not come back"
        time.sleep(0.2)
    back_s = time.monotonic() - resumed
    run_on = time.monotonic() + 3
    while time.monotonic() < run_on:
        assert consumer.process.poll() is None
        assert producer.process.poll() is None
        time.sleep(0.2)
    report = run.finish()
    assert report.clean, str(report)
    assert share < 0.05, f"{share:.1%} of a core"
    row(
        worker=NAME,
        how=f"{how} for {CUT_S} s",
        messages=report.sends,
        unknown_sends=report.unknown_sends,
        duplicates=len(report.duplicated),
        back_after=f"{back_s:.1f} s",
        cpu_of_the_worker=f"{share:.1%}",
    )


def _cpu_s(child):
    fields = Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
