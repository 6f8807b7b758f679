"""`cqueue demo` on a real Cassandra: a shared one, and one that it starts and stops itself."""

import json
import os
import signal
import subprocess
import sys

import pytest

from cqueue.dev import ClusterState, DevCluster

pytestmark = pytest.mark.cassandra

COMMAND = [sys.executable, "-W", "error", "-m", "cqueue"]


@pytest.mark.feature
def test_it_balances_on_cassandra(new_keyspace):
    """Applies the schema to a keyspace that does not exist, and accounts for 2,000 messages."""
    url = new_keyspace(schema=False).url
    done = subprocess.run(
        [*COMMAND, "--url", url, "demo", "--messages", "2000", "--json"],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    assert report["sent"] == 2000 == report["acked"] + report["ack_unknown"] + report["dead"]
    assert report["dead"] == 5
    assert report["lost"] == report["left"] == report["altered"] == 0
    assert report["ticks"] >= 1
    assert report["ticks_missed"] == 0
    left = subprocess.run(
        [*COMMAND, "--url", url, "queue", "list", "--all", "--json"], capture_output=True, check=True
    )
    assert json.loads(left.stdout) == []


def test_interrupted_it_stops_the_cassandra_that_it_started(tmp_path):
    """The account so far is printed, and nothing runs on; a SIGTERM is as a Ctrl-C."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CQUEUE_")}
    with subprocess.Popen(
        [*COMMAND, "demo", "--dir", tmp_path / "dev", "--rate", "100"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environ,
    ) as process:
        try:
            lines = iter(process.stderr)
            seen = next(line for line in lines if line.startswith("sent ") and "done 0 " not in line)
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=120)
        finally:
            process.kill()
            status = DevCluster(tmp_path / "dev").status()
            DevCluster(tmp_path / "dev").wipe()
    assert "depth" in seen
    assert process.returncode == 130
    assert "Interrupted: this is how far it came." in out
    assert status.state is ClusterState.STOPPED
