"""docs/tutorial-on-call.md, typed from top to bottom: three nodes, dispatcher, dashboard, two deaths."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

import pytest

from cqueue.dev import DevCluster, own_network
from tests.fix_dispatcher import until
from tests.unit import markdown_pages as markdown

pytestmark = [
    pytest.mark.cassandra,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("CQUEUE_DRILL"), reason="takes minutes: make on-call"),
]

FIRST = (
    "dev start", "schema apply", "dispatch", "web", "schedule list", "send", "doctor", "dev status", "kill",
    "doctor", "kill", "doctor", "dev start", "doctor", "schedule list", "dev wipe",
)  # fmt: skip
"""What the page has one type, in order."""


class Desk:
    """Three terminals, in a folder with the example; the cluster is where `cqueue dev` looks for it."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copy(markdown.ROOT / "examples" / "shop.py", folder)
        data = folder / "data"
        self.cluster = DevCluster(
            data / "cqueue" / "dev",
            nodes=3,
            first_address=own_network(folder),
            jvm_options=["-XX:TieredStopAtLevel=1"],  # cheaper starts
        )
        ours = {name: value for name, value in os.environ.items() if not name.startswith("CQUEUE_")}
        self.environ = {**ours, "XDG_DATA_HOME": str(data), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        self.running = []

    def run(self, words, code=0):
        """What the command says."""
        done = subprocess.run(
            [sys.executable, "-m", "cqueue", *words],
            cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert code in {None, done.returncode}, (words, done.stdout, done.stderr)
        return done.stdout

    def start(self, words, log):
        """Leave the command running; it says what it says in a file."""
        with (self.folder / log).open("w") as out:
            command = [sys.executable, "-m", "cqueue", *words]
            self.running.append(
                subprocess.Popen(command, cwd=self.folder, env=self.environ, stdout=out, stderr=out)
            )

    def said(self, log):
        return (self.folder / log).read_text(encoding="utf-8")

    def ticks_on(self):
        """Wait for one more tick."""
        before = self.said("dispatch").count("orders_counted")
        until(
            lambda: self.said("dispatch").count("orders_counted") > before, 90, lambda: self.said("dispatch")
        )

    def close(self):
        for process in self.running:
            process.kill()
            process.wait()
        self.cluster.wipe()


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def test_a_newcomer_finds_out_why(desk):
    """The page's commands, in its order, do what the page says."""
    words = [list(each.words) for each in markdown.commands(markdown.ROOT / "docs" / "tutorial-on-call.md")]
    typed = [each[1:] if each[0] == "cqueue" else each for each in words if each[0] not in {".", "cd"}]
    assert len(typed) == len(FIRST)
    assert all(" ".join(each).startswith(name) for each, name in zip(typed, FIRST, strict=True)), typed
    desk.cluster.start()
    (start, apply, dispatch, web, schedules, send, doctor, status, *_) = typed
    assert "running" in desk.run(start)
    desk.run(apply)
    desk.start([*dispatch, "--log", "json"], "dispatch")
    desk.start([*web, "--port", "0"], "web")
    desk.ticks_on()
    found = until(lambda: re.search(r'"(http://[^"]+)"', desk.said("web")))
    with urllib.request.urlopen(f"{found[1]}schedules", timeout=60) as page:  # noqa: S310
        assert "shop:count" in page.read().decode()
    assert "shop:count  active" in desk.run(schedules)
    desk.run(send)
    until(lambda: "receipt_sent" in desk.said("dispatch"), why=lambda: desk.said("dispatch"))
    until(lambda: "error" not in desk.run(doctor, code=None))
    nodes = json.loads(desk.run([*status, "--json"]))["nodes"]

    os.kill(nodes[1]["pid"], signal.SIGKILL)
    desk.ticks_on()
    told = desk.run(doctor, code=1)
    assert f"nodes: {nodes[1]['address']} does not answer" in told
    assert "has a quorum without them" in told

    os.kill(nodes[2]["pid"], signal.SIGKILL)
    told = desk.run(doctor, code=1)
    assert re.search(r"^error +nodes: 3 of 3 token ranges have no quorum", told, re.MULTILINE), told

    assert "running" in desk.run(["dev", "start"])
    desk.ticks_on()
    until(lambda: "nodes: all answer: 3 in" in desk.run(doctor, code=None))
    assert "shop:count  active" in desk.run(schedules)
    desk.run(["dev", "wipe", "--yes"])
