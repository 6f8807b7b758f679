"""The only node comes back under another address, as a pod does: clients find it by its name."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

import cqueue
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
