"""Clients whose data centre is not the home of their keyspace, or is so no more."""

import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

import cqueue
from cqueue.client import Client
from cqueue.runtime.home import check_home
from cqueue.store.memory import MemoryStore
from tests.faulty_store import FaultyStore


@pytest.fixture
def store(monkeypatch):
    """Of a keyspace whose home is dc1; its clients look at each call."""
    monkeypatch.setattr("cqueue.runtime.catalog.MAX_AGE_S", 0.0)
    made = MemoryStore()
    made._deployment = made._deployment._replace(home_dc="dc1")
    return made


def switch(store, home_dc):
    now = store._deployment
    store._deployment = now._replace(home_dc=home_dc, centre_epoch=now.centre_epoch + 1, retiring=False)


def stored(store):
    """Everything in the store that calls could change."""
    return repr((store._partitions, store._shards, store._queues, store._schedules))


def test_the_error_says_where_clients_work_and_what_to_do():
    """Both ways out stand in it: the other data centre, or a switch."""
    with pytest.raises(cqueue.WrongDataCentre, match=r"local_dc=dc1.*`cqueue dc switch dc2`"):
        check_home("dc1", "dc2")
    check_home("dc1", "dc1")
    check_home(None, "dc2")  # serial: all data centres agree on each mutation


def test_a_client_does_nothing_after_its_home_was_moved(store):
    """Sends, receives, settlements, queues, logs, schedules: each call is refused, and changes nothing."""
    client = Client(store, local_dc="dc1")
    queue = client.create_queue("q")
    log = client.create_log("l")
    queue.send_many([cqueue.Message(b"held"), cqueue.Message(b"left")])
    consumer = queue.consumer()
    (held,) = consumer.receive(1)
    follower = log.follow()
    switch(store, "dc2")
    before = stored(store)
    calls = (
        lambda: queue.send(b"late"),
        lambda: queue.send_many([cqueue.Message(b"late")]),
        lambda: consumer.receive(10),
        lambda: consumer.receive(10, wait=timedelta(seconds=5)),
        held.ack,
        held.nack,
        lambda: held.snooze(timedelta(seconds=1)),
        lambda: held.extend(timedelta(minutes=1)),
        lambda: held.dead("no"),
        lambda: queue.alter(shards=8),
        queue.pause,
        queue.purge,
        queue.stats,
        queue.peek,
        lambda: client.create_queue("other"),
        lambda: client.delete_queue("q"),
        client.queues,
        lambda: log.append("t", b"late"),
        lambda: follower.poll(timedelta()),
        lambda: list(log.scan()),
        lambda: client.delete_log("l"),
        queue.schedules.list,
    )
    for call in calls:
        with pytest.raises(cqueue.WrongDataCentre, match="work in data centre dc2"):
            call()
    consumer.close()
    client.close()
    assert stored(store) == before


def test_a_client_of_before_stays_refused_when_the_home_comes_back(store):
    """Away and back: what it had registered may be lost there. A new client works."""
    with Client(store, local_dc="dc1") as client:
        queue = client.create_queue("q")
        switch(store, "dc2")
        switch(store, "dc1")
        with pytest.raises(cqueue.WrongDataCentre, match="connect again"):
            queue.send(b"late")
    with Client(store, local_dc="dc1") as again:
        assert again.queue("q").send(b"in time")


def test_a_client_in_the_home_goes_on(store):
    """Another change of what clients agree on, such as the retiring of wide rows, refuses nobody."""
    with Client(store, local_dc="dc1") as client:
        queue = client.create_queue("q")
        store._deployment = store._deployment._replace(retiring=False, changes=7)
        queue.send(b"x")
        store._deployment = store._deployment._replace(retiring=True, changes=8)
        with queue.consumer() as consumer:
            assert [message.body for message in consumer.receive()] == [b"x"]


def test_a_client_that_cannot_read_where_the_home_is_goes_on(store, monkeypatch):
    """One row out of reach stops nobody: what was known stands."""
    with Client(store, local_dc="dc1") as client:
        queue = client.create_queue("q")
        execute = store.execute

        def refuse(operation):
            if type(operation).__name__ == "ReadDeployment":
                raise cqueue.Unavailable("too few replicas")
            return execute(operation)

        monkeypatch.setattr(store, "execute", refuse)
        monkeypatch.setattr("cqueue.runtime.driver.WAITS_S", [(0.0, 0.0)])
        assert queue.send(b"x")


def test_a_client_whose_first_look_failed_stays_refused_when_the_home_comes_back(store, monkeypatch):
    """It opened its queue by a second look, and remembers since then what the new home may lack."""
    monkeypatch.setattr("cqueue.runtime.driver.WAITS_S", [])
    failing = FaultyStore(store, trouble=lambda _: left.pop() if left else None)
    left = [cqueue.Unavailable("too few replicas")]
    with Client(failing, local_dc="dc1") as client:
        client.create_queue("q")
        assert not left
        switch(store, "dc2")
        switch(store, "dc1")
        for when in ("_polled_s", "_failed_s"):
            monkeypatch.setattr(client._catalog, when, float("-inf"))
        with pytest.raises(cqueue.WrongDataCentre, match="connect again"):
            client.queue("q").send(b"late")


def test_a_look_that_failed_while_the_row_was_young_excuses_no_later_one(monkeypatch):
    """One look beside the calls fails; two seconds after the last good one a call looks before all else."""
    monkeypatch.setattr("cqueue.runtime.driver.WAITS_S", [])
    store = MemoryStore()
    store._deployment = store._deployment._replace(home_dc="dc1")
    failing = FaultyStore(store, trouble=lambda _: left.pop() if left else None)
    left = []
    with Client(failing, local_dc="dc1") as client:
        queue, catalog = client.create_queue("q"), client._catalog
        left.append(cqueue.Unavailable("too few replicas"))
        catalog._poll()
        assert not left
        switch(store, "dc2")
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 2.0, sleep=time.sleep)
        monkeypatch.setattr("cqueue.runtime.catalog.time", later)
        with pytest.raises(cqueue.WrongDataCentre):
            queue.send(b"late")
