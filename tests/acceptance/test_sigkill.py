"""A consumer killed in the middle loses nothing, delays nothing for long, and revives nothing."""

import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

import cqueue
from tests.acceptance.journals import whole_lines

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(480)]

COUNT = 20_000
VISIBILITY = timedelta(seconds=5)
NOISE_S = 20.0
"""What other tests beside this one may add; `make faults` allows nothing."""
CHILD = Path(__file__).with_name("consuming_child.py")


def test_a_killed_consumer_loses_delays_and_revives_nothing(client, keyspace, tmp_path):
    """SIGKILL in the middle of 20,000 messages: all are delivered, redelivery begins within the
    visibility timeout and 2 s, and no message that was acked comes back.
    """
    queue = client.create_queue("work", cqueue.QueueConfig(visibility=VISIBILITY))
    bodies = [b"%d" % index for index in range(COUNT)]
    for start in range(0, COUNT, 1000):
        assert not queue.send_many([cqueue.Message(body) for body in bodies[start : start + 1000]]).failed

    journal = tmp_path / "journal"
    killed_at = _kill_in_the_middle(keyspace.url, queue.name, journal)
    before = _read(journal)
    held = before["received"].keys() - before["acked"].keys()
    assert COUNT // 10 <= len(before["acked"]) < COUNT, "the child was not in the middle"

    received, first_held_at = _drain(queue, held)

    assert received.keys() | before["acked"].keys() | held == set(bodies), "lost"
    assert not received.keys() & before["acked"].keys(), "came back after its ack"
    assert max(received.values()) == 1, "delivered twice without a timeout"
    # What was held at the kill may have been acked just before the journal could say so.
    if received.keys() & held:
        assert first_held_at - killed_at <= VISIBILITY.total_seconds() + 2 + NOISE_S
    assert queue.stats(exact=True).live == 0


def _kill_in_the_middle(url, name, journal):
    """Start the child, kill it while it holds messages; when that was."""
    with subprocess.Popen([sys.executable, str(CHILD), url, name, str(journal)]) as child:
        try:
            deadline = time.monotonic() + 150
            while _size(journal) < COUNT * 6:  # bytes: somewhere around a third of the journal
                assert child.poll() is None, "the child died by itself"
                assert time.monotonic() < deadline, "the child is too slow"
                time.sleep(0.005)
            while True:  # in a moment when it has received what it has not acked
                child.send_signal(signal.SIGSTOP)
                counts = _read(journal)
                if len(counts["received"]) > len(counts["acked"]):
                    break
                assert len(counts["acked"]) < COUNT, "the child had done all before it was stopped"
                child.send_signal(signal.SIGCONT)
                time.sleep(0.001)
        finally:
            child.kill()
        return time.monotonic()


def _drain(queue, held):
    """Receive and ack until the queue is empty and stays so; how often each came, and when a held one did."""
    received = Counter()
    first_held_at = float("inf")
    with queue.consumer() as consumer:
        quiet_since = time.monotonic()
        deadline = quiet_since + 150
        while time.monotonic() - quiet_since < VISIBILITY.total_seconds() + 2 or (
            queue.stats(exact=True).live and time.monotonic() < deadline
        ):
            messages = consumer.receive(500, wait=timedelta(seconds=1))
            if messages:
                quiet_since = time.monotonic()
                received.update(message.body for message in messages)
                if any(message.body in held for message in messages):
                    first_held_at = min(first_held_at, quiet_since)
                consumer.ack(messages)
    return received, first_held_at


def _size(journal):
    return journal.stat().st_size if journal.exists() else 0


def _read(journal):
    """Bodies by what the journal says of them."""
    said = {"received": Counter(), "acked": Counter()}
    for line in whole_lines(journal):
        what, body = line.split()
        said[what][body.encode()] += 1
    return said
