"""Daemons cut off, killed by their handlers, and asked to end: rows 9, 18 and 19 for `cqueue dispatch`."""

from __future__ import annotations

import signal
import time
from collections import Counter
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from cqueue.settings import load
from tests.acceptance.daemons import Site, at, cpu_s
from tests.faults.proxy import Proxy
from tests.fix_cassandra import PATIENT

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(400)]

NAME = "cqueue dispatch"
CUT_S = 60
COUNT = 200
GRACE_S = 5


@pytest.fixture
def site(tmp_path, keyspace):
    site = Site(tmp_path, keyspace.url)
    yield site
    site.close()


@pytest.fixture
def proxied(keyspace):
    """A proxy before the node, and the URL of the keyspace through it."""
    parts = urlsplit(keyspace.url)
    query = parts.query.replace(PATIENT, "connect_timeout=5")  # the default, by which clients try again
    proxy = Proxy(load(keyspace.url).hosts[0], ("127.0.0.1", 0))
    there = f"{proxy.address[0]}:{proxy.address[1]}"
    yield proxy, f"{parts.scheme}://{there}{parts.path}?{query}&request_timeout=3"
    proxy.close()


@pytest.mark.parametrize("how", ["cut", "stall"])
@pytest.mark.row(9, "a daemon cut from all nodes")
def test_a_daemon_reconnects_by_itself(site, proxied, row, how):
    """What others send meanwhile is handled when the network is back; waiting costs next to nothing."""
    proxy, url = proxied
    daemon = site.start("--queues", "quick,slow", url=url)
    daemon.until("daemon_ready")
    site.send("quick", COUNT)
    site.wait(lambda: len(site.numbers("quick")) == COUNT)
    site.app.tasks["slow"].enqueue(1, 5.0)  # its handler runs while the network goes, and comes to its end
    site.wait(lambda: site.journal("began"))
    getattr(proxy, how)()
    began, spent_s = time.monotonic(), cpu_s(daemon.pid)
    for number in range(COUNT, 2 * COUNT):
        site.app.tasks["quick"].enqueue(number)
    time.sleep(max(0.0, began + CUT_S - time.monotonic()))
    share = (cpu_s(daemon.pid) - spent_s) / (time.monotonic() - began)
    proxy.resume()
    resumed = time.time()
    site.wait(lambda: len(site.numbers("quick")) == 2 * COUNT, 90)
    back_s = min(one[0] for one in site.journal("quick") if one[3] >= COUNT) - resumed
    site.wait(lambda: site.live("quick") == site.live("slow") == 0, 30)
    daemon.signal()
    assert daemon.end() == 0
    assert share < 0.05, f"{share:.1%} of a core"
    runs = Counter(one[3] for one in site.journal("quick"))
    row(
        worker=NAME,
        how=f"{how} for {CUT_S} s",
        messages=2 * COUNT + 1,
        lost=2 * COUNT - len(runs),
        duplicates=sum(runs.values()) - len(runs),
        back_after=f"{back_s:.1f} s",
        cpu_of_the_daemon=f"{share:.1%}",
    )


@pytest.mark.row(18, "a message whose handler kills its process, under --processes 2")
def test_what_kills_its_process_is_buried_and_its_neighbours_are_not(site, row):
    """Dead-lettered after exactly `max_attempts`, by processes that are replaced within two seconds."""
    site.send("deadly", 100)
    daemon = site.start("--processes", 2, "--queues", "deadly", "--threads", 4)
    site.wait(lambda: site.live("deadly.dead") == 1, 120)
    site.wait(lambda: site.live("deadly") == 0)
    daemon.until("child_started", count=5)  # two at the start, and one for each kill
    daemon.signal()
    assert daemon.end() == 0
    killed = [line for line in daemon.lines("child_ended") if line["code"] == -signal.SIGKILL]
    began = Counter(one[3] for one in site.journal("began"))
    assert site.numbers("deadly") == set(range(100)) - {7}
    assert began[7] == len(killed) == 3
    assert max(count for number, count in began.items() if number != 7) <= 3
    gaps = replaced_after(daemon)
    assert max(gaps) < 2
    row(
        worker=NAME,
        attempts=began[7],
        processes_killed=len(killed),
        dead_letters=1,
        neighbours_handled=len(site.numbers("deadly")),
        replaced_after=f"{max(gaps):.1f} s",
    )


def replaced_after(daemon):
    """From each end of a killed child to the start of the next one in its place, in seconds."""
    gaps = []
    for ended in daemon.lines("child_ended"):
        if ended["code"] == -signal.SIGKILL:
            later = [at(line) for line in daemon.lines("child_started") if line["child"] == ended["child"]]
            gaps.append(min(start for start in later if start > at(ended)) - at(ended))
    return gaps


@pytest.mark.row(19, "SIGTERM with 100 in flight")
def test_a_daemon_that_is_asked_to_end_drains_and_gives_the_rest_back(site, row):
    """What runs ends within the grace; the rest is available at once, and no attempt is used."""
    site.send("slow", 100)
    daemon = site.start("--queues", "slow", "--threads", 10, "--grace", f"{GRACE_S}s")
    site.wait(lambda: len(site.numbers("began")) >= 15)
    asked = time.monotonic()
    daemon.signal()
    assert daemon.end() == 0
    ended = time.monotonic()
    drained = site.numbers("slow")
    rest = receive_all(site.client.queue("slow"), 100 - len(drained))
    there_s = time.monotonic() - ended
    assert site.numbers("began") == drained
    assert {message.attempt for message in rest} == {1}, "an attempt was used"
    assert ended - asked <= GRACE_S
    assert there_s < 4, "they came by their timeout"
    row(
        worker=NAME,
        in_flight=100,
        drained=len(drained),
        ended_after=f"{ended - asked:.1f} s of {GRACE_S} s",
        given_back=len(rest),
        there_again_after=f"{there_s:.1f} s",
        attempts_used=0,
    )


def receive_all(queue, count):
    """Receive and ack `count` messages."""
    found = []
    with queue.consumer() as consumer:
        while len(found) < count:
            messages = consumer.receive(100, wait=timedelta(seconds=10))
            assert messages, f"{count - len(found)} did not come"
            consumer.ack(messages)
            found += messages
    return found
