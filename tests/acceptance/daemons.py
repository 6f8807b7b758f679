"""Real daemons for tests: `cqueue dispatch` in processes of their own, read by what they log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime

PATIENCE_S = 60


class Dispatch:
    """One `cqueue dispatch`, started in a directory that has its application.

    options: of the command line.
    """

    def __init__(self, directory, url, *options, env=None):
        self.log = directory / f"daemon-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cqueue", "dispatch", *map(str, options), "--log", "json"],
                cwd=directory,
                env={**os.environ, "CQUEUE_URL": url, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self):
        return self.process.pid

    def lines(self, event=None):
        """What it has logged; text that is no JSON under `text`."""
        found = []
        for line in self.log.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"event": "", "text": line})
        return [line for line in found if event is None or line["event"] == event]

    def until(self, event, count=1, seconds=PATIENCE_S, **fields):
        """The count-th line of that event with these fields, once it is there."""

        def matching():
            found = [line for line in self.lines(event) if fields.items() <= line.items()]
            return found[count - 1] if len(found) >= count else None

        return wait_for(matching, seconds, lambda: f"no {event}:\n{self.log.read_text()}")

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def end(self, seconds=PATIENCE_S):
        """Its exit code."""
        return self.process.wait(seconds)

    def close(self):
        """Whatever state it is in: gone, children as well."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.end(20)
            except subprocess.TimeoutExpired:
                self.process.kill()  # children see that, and drain
                self.end()


def at(line):
    """When a line was logged, in seconds since 1970."""
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def wait_for(condition, seconds=PATIENCE_S, why=lambda: "waited in vain"):
    """What the condition gives, once it gives something."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)
    return found
