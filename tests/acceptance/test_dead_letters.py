"""Dead letters on Cassandra and processes that are killed: redrives go on, and a lost holder is told."""

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
from tests.acceptance.test_redrive_sigkill import bury, drain

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
COUNT = 120
SOON = timedelta(seconds=10)
CLI = [sys.executable, "-m", "cqueue"]


def test_a_paced_redrive_that_is_killed_goes_on(client, keyspace):
    """`cqueue dead redrive --rate 5`, killed twice at whatever it does: each message comes once, counted
    once. The last one holds its own rate from the first letter to the last.
    """
    queue = client.create_queue("paced", cqueue.QueueConfig(shards=1))
    bodies = [b"%d" % number for number in range(COUNT)]
    bury(queue, bodies)
    command = [*CLI, "--url", keyspace.url, "dead", "redrive", queue.name, "--all", "--rate", "5"]
    for _ in range(2):
        least = queue.stats(exact=True).live + COUNT // 12  # far from all: killing it may take a while
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as child:
            try:
                _wait_for(lambda least=least: queue.stats(exact=True).live >= least, child)
            finally:
                child.kill()
        dead = [letter.body for letter in queue.dead_letters]
        back = [message.body for message in queue.peek(COUNT)]
        assert {*dead, *back} == {*bodies}, "lost"
        assert dead, "it was through before it was killed"
    left, began = len(dead), time.monotonic()
    result = queue.dead_letters.redrive(everything=True, rate=20)
    assert (len(result.done), result.failed) == (left, ())
    assert time.monotonic() - began >= (left - 2) / 20
    assert {message.headers["cqueue-redrives"] for message in queue.peek(COUNT)} == {"1"}
    assert Counter(drain(queue, COUNT)) == Counter(bodies)
    assert queue.dead_letters.list() == []


def test_a_limit_of_redrives_holds_across_kills(client, keyspace):
    """A redrive that is killed between its send and its deletion, and repeated, counts once."""
    queue = client.create_queue("limited", cqueue.QueueConfig(shards=1))
    bury(queue, [b"poison"])
    module = "tests.acceptance.redriving_child"
    child = [sys.executable, "-m", module, keyspace.url, queue.name, "sent", "1"]
    for _ in range(2):
        assert subprocess.run(child, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert len(queue.dead_letters.list()) == 1
    assert len(queue.dead_letters.redrive(everything=True, max_redrives=1).done) == 1
    with queue.consumer() as consumer:
        (message,) = consumer.receive(10, wait=SOON)
        assert message.headers["cqueue-redrives"] == "1"
        message.dead("again")
        assert consumer.receive(10, wait=timedelta(seconds=1)) == []
    (letter,) = queue.dead_letters
    for _ in range(2):
        ((id_, error),) = queue.dead_letters.redrive(everything=True, max_redrives=1).failed
        assert (id_, type(error)) == (letter.id, cqueue.RedriveLimit)


def test_a_letter_says_that_its_holder_was_killed(client, keyspace, tmp_path):
    """SIGKILL of the process that holds a message at its last attempt; the one that refuses its is named."""
    config = cqueue.QueueConfig(shards=1, visibility=timedelta(seconds=3), max_attempts=2)
    queue = client.create_queue("held", config)
    queue.send_many([cqueue.Message(b"killer", task="kill"), cqueue.Message(b"bad", task="refuse")])
    journal, killed = tmp_path / "journal", 0
    child = [sys.executable, "-m", "tests.acceptance.dying_child", keyspace.url, queue.name, str(journal)]
    while len(queue.dead_letters.list()) < 2:
        assert killed < 10, "they do not die"
        killed += subprocess.run(child, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    letters = {letter.task: letter for letter in queue.dead_letters}
    lost, refused = letters["kill"], letters["refuse"]
    assert (lost.reason, lost.holder, lost.fence, lost.holder_lost) == (
        "not acked in 2 attempts", None, None, True,
    )  # fmt: skip
    assert not refused.holder_lost
    assert f"refused by {refused.holder} with fence {refused.fence}" in whole_lines(journal)
    groups = {group.task: (group.count, group.reason) for group in queue.dead_letters.groups()}
    assert groups == {"kill": (1, "not acked in 2 attempts"), "refuse": (1, "ValueError")}


def test_a_queue_is_listed_while_consumers_are_killed(client, keyspace, tmp_path):
    """Page by page, by what holds and what waits: no message that stays is missed or comes twice."""
    # The killed process holds its messages for ten minutes, so they are still claimed at the end of the test.
    queue = client.create_queue("listed", cqueue.QueueConfig(visibility=timedelta(minutes=10)))
    stays = [
        cqueue.Message(b"%d" % n, delay=timedelta(hours=1), headers={"n": str(n % 2)}) for n in range(900)
    ]
    assert not queue.send_many(stays).failed
    queue.send_many([cqueue.Message(b"killer", task="kill")])
    child = [
        sys.executable,
        "-m",
        "tests.acceptance.dying_child",
        keyspace.url,
        queue.name,
        str(tmp_path / "j"),
    ]
    with subprocess.Popen(child, cwd=ROOT) as process:
        found, token = [], None
        while True:
            page = queue.list({"headers": {"n": "1"}, "state": "delayed"}, limit=50, token=token)
            found += [message.body for message in page.messages]
            token = page.token
            if token is None:
                break
        assert process.wait(60) == -signal.SIGKILL
    assert Counter(found) == Counter(message.body for message in stays if message.headers["n"] == "1")
    assert queue.exists(cqueue.Where(task="kill", state="claimed"))


def _wait_for(what, child):
    deadline = time.monotonic() + 150
    while not what():
        assert child.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline, "it is too slow"
        time.sleep(0.02)
