"""Real daemons for tests: `cqueue dispatch` in processes of their own, read by what they log."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import cqueue
from cqueue.client import inside
from tests.acceptance.journals import whole_lines
from tests.fix_dispatcher import until

PATIENCE_S = 120
VISIBILITY = timedelta(seconds=5)
ATTEMPTS = {"quick": 5, "slow": 5, "deadly": 3, "ticks": 10}
"""The queues of the application `work.py`, with how often their messages are tried."""


class Site:
    """A directory with the application `work.py`, its queues on a cluster, and the daemons that run it.

    Attributes:
        app: the application, in this process, to enqueue.
    """

    def __init__(self, directory, url, **config):
        self.directory, self.url = directory, url
        self.client = cqueue.connect(url)
        for name, attempts in ATTEMPTS.items():
            own = {"visibility": VISIBILITY, "max_attempts": attempts, **config}
            self.client.create_queue(name, cqueue.QueueConfig(**own))
        shutil.copy(Path(__file__).with_name("work.py"), directory)
        self.app = _load(directory / "work.py").app
        self.app._url = url
        self.daemons = []

    def start(self, *options, url=None, **more):
        """One more daemon."""
        self.daemons.append(Dispatch(self.directory, url or self.url, "work:app", *options, **more))
        return self.daemons[-1]

    def send(self, task, count):
        """Messages 0 to count - 1."""
        made = self.app.tasks[task]
        assert not made.enqueue_many(made.message(number) for number in range(count)).failed

    def live(self, queue):
        """What the queue holds, counted one by one."""
        return self.client.queue(queue).stats(exact=True).live

    def journal(self, what=None):
        """What handlers have written: (time, process, what, number)."""
        lines = [line.split() for line in whole_lines(self.directory / "journal")]
        rows = [(float(at_s), int(pid), name, int(number)) for at_s, pid, name, number in lines]
        return [row for row in rows if what in {None, row[2]}]

    def numbers(self, what):
        """Of the journal: which messages, by name."""
        return {row[3] for row in self.journal(what)}

    def logs(self):
        """What all daemons have said, for somebody who asks why."""
        return "\n".join(daemon.log.read_text() for daemon in self.daemons)

    def wait(self, condition, seconds=PATIENCE_S):
        """What the condition gives, once it gives something."""
        return until(condition, seconds, self.logs)

    def close(self):
        """Stop all, and delete the queues: the next test makes them anew."""
        for daemon in self.daemons:
            daemon.close()
        inside(self.client).is_alone()
        for name in ATTEMPTS:
            with suppress(cqueue.CqueueError):
                self.client.delete_queue(name)
        self.app.close()
        self.client.close()


def _load(path):
    """The module of that file, under no name that anybody else could find."""
    spec = importlib.util.spec_from_file_location("work", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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

        return until(matching, seconds, lambda: f"no {event}:\n{self.log.read_text()}")

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


def cpu_s(pid):
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
