"""Messages are cancelled, rescheduled and extended by id while another process consumes them."""

import secrets
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

import cqueue
from tests.acceptance.journals import whole_lines
from tests.fix_dispatcher import until

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(240)]

CHILD = Path(__file__).with_name("controlled_child.py")
COUNT = 200
"""Messages of a round: they are cancelled and put off from the end, while the child comes from the front."""
FOR_S = 8
"""Seconds for which there are rounds; longer, if too few messages were found before the child had them."""
ENOUGH = 10
LATER = timedelta(seconds=6)
SKEW_NS = 500_000_000


@pytest.fixture
def queue(client):
    config = cqueue.QueueConfig(visibility=timedelta(seconds=5), shards=1)
    return client.create_queue(f"work-{secrets.token_hex(4)}", config)


@pytest.fixture
def journal(keyspace, queue, tmp_path):
    """What the child has written so far, as (what, ns of the call, ns of the note, body)."""
    path = tmp_path / "journal"
    child = subprocess.Popen([sys.executable, str(CHILD), keyspace.url, queue.name, str(path)])

    def read():
        assert child.poll() is None, "the child died by itself"
        parts = (line.encode().split(b" ", 3) for line in whole_lines(path))
        return [(what, int(began), int(at), body) for what, began, at, body in parts]

    yield read
    child.kill()
    child.wait()


def test_a_busy_consumer_gets_neither_what_was_cancelled_nor_what_was_put_off(queue, journal):
    """Nothing else is lost, and what was put off comes in its time, under its id, once."""
    wanted: set[bytes] = set()
    cancelled: dict[bytes, int] = {}
    put_off: dict[bytes, int] = {}
    end_s = time.monotonic() + FOR_S
    while time.monotonic() < end_s or min(len(cancelled), len(put_off)) <= ENOUGH:
        bodies = [b"%d" % n for n in range(len(wanted), len(wanted) + COUNT)]
        wanted.update(bodies)
        ids = zip(bodies, _sent(queue, bodies), strict=True)
        for n, (body, id_) in enumerate(reversed(list(ids))):
            at = time.time_ns()
            if n % 2:
                if queue.cancel(id_):
                    cancelled[body] = time.time_ns()
                continue
            try:
                moved = queue.reschedule(id_, LATER)
            except cqueue.MessageHeld:
                moved = None
            if moved != id_:  # the child has it, and those before it
                break
            put_off[body] = at + LATER // timedelta(microseconds=1) * 1000
    until(lambda: queue.stats(exact=True).live == 0, 120)
    received = [(began, at, body) for what, began, at, body in journal() if what == b"received"]
    bodies = [body for *_, body in received]
    assert len(bodies) == len(set(bodies)), "delivered twice"
    assert wanted - set(bodies) <= set(cancelled), "lost"
    for began, at, body in received:
        assert began <= cancelled.get(body, began), "was received after its cancel"
        assert at >= put_off.get(body, at) - SKEW_NS, "early"


def _sent(queue, bodies):
    result = queue.send_many([cqueue.Message(body) for body in bodies])
    assert not result.failed
    return result.ids


def test_a_holder_learns_that_its_message_was_cancelled(queue, journal):
    """With its next extension; others that it holds stay, and are kept for it by id."""
    ids = {b"hold %d" % n: queue.send(b"hold %d" % n) for n in range(3)}

    def held():
        return {body for what, *_, body in journal() if what == b"received"}

    until(lambda: held() == set(ids))
    with pytest.raises(cqueue.MessageHeld):
        queue.reschedule(ids[b"hold 0"], LATER)
    assert queue.cancel(ids[b"hold 1"])
    assert queue.extend(ids[b"hold 2"], timedelta(minutes=1))
    until(lambda: [body for what, *_, body in journal() if what == b"cancelled"] == [b"hold 1"])
    time.sleep(6)  # longer than the visibility timeout: the others are still held, and extended
    assert len([1 for what, *_ in journal() if what == b"received"]) == 3
    assert len([1 for what, *_ in journal() if what == b"cancelled"]) == 1
    assert queue.find(ids[b"hold 1"]) is None
    assert {queue.find(ids[body]).state for body in (b"hold 0", b"hold 2")} == {"claimed"}
