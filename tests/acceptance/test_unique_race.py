"""Fifty producers in five processes that race for one key send one message, also when one is killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
PROCESSES, THREADS = 5, 10


@pytest.mark.parametrize(
    ("point", "while_"),
    [
        pytest.param("reserved", "running", marks=pytest.mark.feature),
        ("reserved", "ever"),
        ("none", "running"),
        ("inserted", "running"),
        ("inserted", "ever"),
    ],
)
def test_fifty_racing_producers_send_one_message(client, keyspace, point, while_):
    """Killed between reservation and insert, a producer has sent nothing, and one of the others sends; killed
    after the insert, it has sent, and none of the others does.
    """
    queue = client.create_queue(f"{point}-{while_}")
    racing = [start(keyspace.url, queue.name, while_, "none") for _ in range(PROCESSES)]
    if point != "none":
        dying = start(keyspace.url, queue.name, while_, point, threads=1)
        assert dying.communicate("go\n", timeout=60) == ("", None)
        assert dying.returncode == -signal.SIGKILL
    for child in racing:
        child.stdin.write("go\n")
        child.stdin.flush()
    outcomes = [line for child in racing for line in child.communicate(timeout=120)[0].splitlines()]
    assert len(outcomes) == PROCESSES * THREADS
    sent = [line for line in outcomes if line.startswith("sent")]
    assert len(sent) == (0 if point == "inserted" else 1), outcomes
    (message,) = queue.peek()
    assert {line.split()[1] for line in outcomes} == {message.id}


def start(url, name, while_, point, threads=THREADS):
    arguments = [url, name, str(threads), while_, point]
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.acceptance.racing_child", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    return child
