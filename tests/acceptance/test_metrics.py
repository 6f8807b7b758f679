"""`cqueue metrics` as a process of its own beside a real Cassandra."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import cqueue
from tests.fix_dispatcher import until

pytestmark = pytest.mark.cassandra


@pytest.fixture
def exporter():
    """A function: start `cqueue metrics` on this URL, and return how to read its page."""
    running = []

    def start(url, *options):
        command = [sys.executable, "-m", "cqueue", "--url", url, "metrics", "--port", "0", "--log", "json"]
        process = subprocess.Popen(
            [*command, *options],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        running.append(process)
        port = next(
            found[1]
            for line in process.stderr
            if (found := re.search(r'"port": (\d+).*health_listening', line))
        )

        def get(path="/metrics"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return answer.read().decode()

        return process, get

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.feature
def test_queues_that_no_daemon_serves_are_shown(keyspace, exporter):
    """Also those that are made later, and how far subscriptions are behind; a signal ends it."""
    with cqueue.connect(keyspace.url) as client:
        client.create_queue("shown").send_many([cqueue.Message(b"x")] * 3)
        log = client.create_log("followed")
        log.append_many([cqueue.Record("t", b"x")] * 3)
        client.subscribe("followed", name="billing", listeners=[print])
        with log.follow("earliest") as follower:
            for _ in zip(range(3), follower, strict=False):
                pass  # now they can be read
        process, get = exporter(keyspace.url, "--subscriptions")

        def answered():
            page = get()
            return page if "cqueue_up 1.0" in page else None

        page = until(answered)
        assert 'cqueue_subscription_lag_records{log="followed",subscription="billing"} 3.0' in page
        assert 'cqueue_queue_depth{queue="shown"} 3.0' in page
        assert 'cqueue_queue_dead{queue="shown"} 0.0' in page
        assert 'queue="shown.dead"' not in page
        client.create_queue("later")
        until(lambda: 'queue="later"' in get())
        client.delete_queue("later")
        client.delete_queue("shown")
        client.delete_subscription("followed", "billing")
        client.delete_log("followed")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_without_cassandra_it_starts_and_says_so(exporter):
    _, get = exporter("cassandra://127.0.0.1:1/cqueue?local_dc=datacenter1&connect_timeout=1")
    assert [line for line in get().splitlines() if not line.startswith("#")] == ["cqueue_up 0.0"]
    with pytest.raises(urllib.error.HTTPError) as caught:
        get("/readyz")
    assert caught.value.code == 503
    caught.value.close()
