"""Two data centres, with clients where none may be, and with one of them lost: row 22."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

import cqueue
from cqueue.cli.main import main
from cqueue.errors import WrongDataCentre
from cqueue.schema import newest_centre
from cqueue.settings import load
from cqueue.store.connection import open_session
from tests.faults.centres import running_centres
from tests.fix_dispatcher import until

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(900)]

TIME_SHARD = timedelta(seconds=5)
CONFIG = cqueue.QueueConfig(time_shard=TIME_SHARD, shards=1, visibility=timedelta(seconds=10))
OVER_S = 5 + 2 + 0.5  # a time shard, W and ε
LARGE = b"x" * 20_000


@pytest.fixture(scope="module")
def centres(tmp_path_factory):
    with running_centres(tmp_path_factory.mktemp("centres")) as made:
        yield made


@pytest.mark.row(22, "consumers in both data centres at once")
def test_consumers_of_two_centres_hold_no_message_together(centres, row):
    """Clients of the second one are refused when they connect."""
    centres.bootstrap("together")
    with cqueue.connect(centres.url(1)) as client:
        queue = client.create_queue("q", CONFIG)
        for _ in range(4):
            assert not queue.send_many([cqueue.Message(b"m")] * 500).failed
        received = {1: [], 2: []}
        refused = {}
        threads = [
            threading.Thread(target=_consume, args=(centres, number, received[number], refused))
            for number in (1, 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    both = set(received[1]) & set(received[2])
    row(
        messages=2000,
        received_in_dc1=len(received[1]),
        received_in_dc2=len(received[2]),
        held_by_both=len(both),
    )
    assert not both, f"{len(both)} messages were held in both data centres"
    assert len(set(received[1])) == 2000
    assert refused == {2: WrongDataCentre}


def _consume(centres, number, received, refused):
    """Receive, and ack nothing, until nothing comes any more."""
    try:
        client = cqueue.connect(centres.url(number))
    except cqueue.BadInput as error:
        refused[number] = type(error)
        return
    with client, client.queue("q").consumer() as consumer:
        while messages := consumer.receive(50, wait=timedelta(seconds=2)):
            received += [str(message.id) for message in messages]
            consumer.extend(messages, timedelta(minutes=5))


@pytest.mark.row(22, "the link between two data centres cut, sends in both")
def test_no_send_is_acknowledged_that_the_home_may_drop(centres, row):
    """What is sent elsewhere while the link is cut is refused, not lost."""
    centres.bootstrap("cut")
    acknowledged, delivered, refused = set(), set(), 0
    with cqueue.connect(centres.url(1)) as home:
        queue = home.create_queue("q", CONFIG)
        with queue.consumer() as consumer:
            elsewhere = None
            with suppress(cqueue.BadInput):
                elsewhere = cqueue.connect(centres.url(2))
            centres.network.part()
            for number in range(180):
                acknowledged.add(queue.send(b"home"))
                if elsewhere is None:
                    refused += 1
                else:
                    acknowledged.add(elsewhere.queue("q").send(str(number).encode()))
                delivered |= _drained(consumer, 0.1)
            deadline = time.monotonic() + 2 * OVER_S
            while time.monotonic() < deadline:
                delivered |= _drained(consumer, 1)
            centres.network.join()
            centres.repair()
            deadline = time.monotonic() + 3 * OVER_S
            while acknowledged - delivered and time.monotonic() < deadline:
                delivered |= _drained(consumer, 1)
    lost = acknowledged - delivered
    row(acknowledged=len(acknowledged), refused=refused, lost=len(lost))
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged sends were lost"
    assert refused == 180


def _drained(consumer, wait_s):
    """Ids of what is received until nothing comes for `wait_s`; each message is acked."""
    found = set()
    while messages := consumer.receive(100, wait=timedelta(seconds=wait_s)):
        consumer.ack(messages)
        found |= {message.id for message in messages}
    return found


@pytest.mark.row(22, "a switch while clients go on in the old data centre")
def test_clients_that_nobody_stopped_are_stopped_by_the_switch(centres, row):
    """Nothing that they had acknowledged is lost, and nobody in the new home receives beside them."""
    centres.bootstrap("forgotten")
    acknowledged, received, stopped = set(), [], []
    with cqueue.connect(centres.url(1)) as old:
        queue = old.create_queue("q", CONFIG)
        threads = [
            threading.Thread(target=_until_refused, args=(work, stopped))
            for work in (partial(_send_on, queue, acknowledged), partial(_receive_on, queue, received))
        ]
        for thread in threads:
            thread.start()
        until(lambda: len(acknowledged) > 50 and received, 60, "nothing was sent")
        began = time.monotonic()
        assert main(["--url", centres.url(2), "dc", "switch", "dc2", "--yes"]) == 0
        switched = time.monotonic()
        with cqueue.connect(centres.url(2)) as client, client.queue("q").consumer() as consumer:
            opened = time.monotonic()
            assert len(stopped) == 2, "a client of the old home goes on"
            last_stopped = max(stopped)
            centres.repair()
            delivered = {id_ for _, id_ in received}
            deadline = time.monotonic() + 60
            while acknowledged - delivered and time.monotonic() < deadline:
                delivered |= _drained(consumer, 1)
    lost = acknowledged - delivered
    row(
        messages=len(acknowledged),
        stopped_after=f"{last_stopped - switched:.1f} s",
        new_home_open_after=f"{opened - switched:.1f} s",
        switch_took=f"{switched - began:.1f} s",
        lost=len(lost),
    )
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged sends were lost"
    assert last_stopped < opened
    assert max(at for at, _ in received) < opened


def _until_refused(work, stopped):
    while True:
        try:
            work()
        except WrongDataCentre:
            stopped.append(time.monotonic())
            return


def _send_on(queue, acknowledged):
    acknowledged.add(queue.send(b"m"))


def _receive_on(queue, received):
    with queue.consumer() as consumer:
        while True:
            messages = consumer.receive(10, wait=timedelta(seconds=1))
            received += [(time.monotonic(), message.id) for message in messages]
            consumer.ack(messages)


@pytest.mark.row(22, "the home killed with 100 acknowledged, uncopied messages; fail-over and back")
def test_what_the_lost_home_acknowledged_is_delivered_after_its_repair(centres, row):
    """Although the new home was through with those partitions. Clients of the old one are refused."""
    centres.bootstrap("failover")
    with cqueue.connect(centres.url(1)) as home:
        queue = home.create_queue("q", CONFIG)
        due = _next_shard(12)
        copied = _send(queue, due, 50)
        until(lambda: centres.stored(1) == centres.stored(2), 10, "the second data centre gets no copies")
        centres.network.part()
        alone = _send(queue, due + timedelta(seconds=1), 50)  # in a partition that both know
        alone |= _send(queue, due + 2 * TIME_SHARD, 50)  # and in one that only the old home knows
        centres.kill(1)
    centres.network.join()
    assert main(["--url", centres.url(2), "dc", "switch", "dc2", "--old-centre-lost", "--yes"]) == 0
    with cqueue.connect(centres.url(2)) as client, client.queue("q").consumer() as consumer:
        delivered = set()
        end = due + 3 * TIME_SHARD + timedelta(seconds=3 * OVER_S)
        while datetime.now(UTC) < end:
            delivered |= _drained(consumer, 1)
        assert delivered >= copied
        before = len(delivered & alone)
        assert before == 0, "the messages were copied: the test shows nothing"
        centres.cluster.start_node(1)
        until(lambda: _home_in(centres.url(1)) == "dc2", 60, "the old home does not learn of the switch")
        with pytest.raises(WrongDataCentre):
            cqueue.connect(centres.url(1))
        centres.repair()
        assert main(["--url", centres.url(2), "dc", "resume-retiring", "--repaired", "--yes"]) == 0
        resumed = time.monotonic()
        while alone - delivered and time.monotonic() < resumed + 60:
            delivered |= _drained(consumer, 0.5)
        took = time.monotonic() - resumed
    lost = (alone | copied) - delivered
    row(
        uncopied=len(alone),
        delivered_before_repair=before,
        lost=len(lost),
        all_there_after=f"{took:.1f} s",
    )
    assert not lost, f"{len(lost)} of {len(alone | copied)} acknowledged messages were lost"


def _next_shard(after_s):
    """The start of a time shard, some seconds from now."""
    now_s = datetime.now(UTC).timestamp() + after_s
    return datetime.fromtimestamp((now_s // 5 + 1) * 5, UTC)


def _send(queue, due, count):
    """Send `count` messages, due one a millisecond, a few of them large, and return their ids."""
    messages = [
        cqueue.Message(LARGE if number % 10 == 0 else b"m", due=due + timedelta(milliseconds=number))
        for number in range(count)
    ]
    result = queue.send_many(messages)
    assert not result.failed, result.failed
    return set(result.ids)


def _home_in(url):
    """Where the home is, as `cqueue dc show` says there; None while it cannot."""
    settings = load(url)
    try:
        with open_session(settings, use_keyspace=False) as connection:
            return newest_centre(connection, settings).deployment.home_dc
    except cqueue.NotDone:
        return None
