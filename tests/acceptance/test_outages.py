"""The only node comes back: after a long outage, and under another address, as a pod does."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta

import pytest
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

import cqueue
from cqueue.store import connection, driver
from tests.faults.clusters import running_cluster, url_of

pytestmark = [pytest.mark.cassandra, pytest.mark.acceptance, pytest.mark.timeout(300)]

NAME = "cassandra.test"
until_it_is_found = retry(
    retry=retry_if_exception_type(cqueue.NotDone),
    stop=stop_after_delay(60),
    wait=wait_fixed(0.2),
    reraise=True,
)


@pytest.fixture
def addresses(monkeypatch):
    """Addresses of names, for this process; nobody else answers for them."""
    known, look_up = {}, socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *args, **kwargs: look_up(known.get(host, host), *args, **kwargs)
    )
    return known


@pytest.fixture
def pauses(monkeypatch):
    """A semaphore that each pause between two attempts to reconnect releases; they are short."""
    taken, schedule = threading.Semaphore(0), driver.Reconnection.new_schedule

    def noted(policy):
        for pause_s in schedule(policy):
            taken.release()
            yield pause_s

    monkeypatch.setattr(connection, "RECONNECT_S", (0.01, 0.02))
    monkeypatch.setattr(driver.Reconnection, "new_schedule", noted)
    return taken


def test_a_client_outwaits_an_outage(tmp_path, pauses):
    """A driver that is left to itself gives up after 64 attempts, of the node and of its control connection.

    Those take five minutes with the pauses that are not shortened here.
    """
    with running_cluster(tmp_path) as cluster, cqueue.connect(url_of(cluster)) as client:
        queue = client.create_queue("outage")
        queue.send(b"before")
        cluster.kill(1)
        for _ in range(2 * 64 + 5):
            assert pauses.acquire(timeout=60), "it has given up"
        cluster.start()
        until_it_is_found(queue.send)(b"after")
        assert queue.stats(exact=True).live == 2


def test_a_client_goes_on_after_the_node_has_got_another_address(tmp_path, addresses):
    with running_cluster(tmp_path) as cluster:
        url = url_of(cluster)
        (node,) = cluster.status().nodes
        addresses[NAME] = node.address
        with cqueue.connect(url.replace(node.address, NAME)) as client:
            queue = client.create_queue("moved")
            queue.send(b"before")
            cluster.kill(1)
            with socket.create_server((node.address, node.port)):  # so that the node takes another address
                cluster.start()
            (moved,) = cluster.status().nodes
            assert moved.address != node.address
            with pytest.raises(cqueue.Unavailable):
                queue.send(b"not found yet")
            addresses[NAME] = moved.address
            until_it_is_found(queue.send)(b"after")
            with queue.consumer() as consumer:
                received = [consumer.receive(1, wait=timedelta(seconds=10))[0].body for _ in range(2)]
            assert sorted(received) == [b"after", b"before"]
