"""Runs clients in processes, ends them, drains what is left, and has the history judged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import cqueue
from cqueue.testing import check, recording

ROOT = Path(__file__).parents[2]
END_S = 60


class Child:
    """A client process. Its history is whole whatever happens to it."""

    def __init__(self, plan, environ, prefix):
        self.history = Path(plan["history"])
        self.plan = plan
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.faults.child", json.dumps(plan)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            env={**os.environ, **environ},
        )

    def ready(self):
        """Wait until it is connected."""
        assert self.process.stdout.readline() == b"ready\n", "a client did not come up"

    def signal(self, sig):
        self.process.send_signal(sig)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def is_stopped(self):
        """Whether it has been stopped by a signal."""
        status = Path(f"/proc/{self.process.pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0] in {"T", "t"}

    @property
    def was_killed(self):
        """Whether SIGKILL has ended it."""
        return self.process.returncode == -signal.SIGKILL

    def end(self, timeout_s=END_S):
        """Ask it to end, and wait. It must not end with an error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        self.join(timeout_s)

    def join(self, timeout_s=END_S):
        """Wait until it ends by itself."""
        assert self.process.wait(timeout_s) in {0, -signal.SIGKILL}, "a client ended with an error"

    def destroy(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Run:
    """One run of a queue under load: children, their histories, the verdict."""

    def __init__(self, url, directory, name="work", **config):
        self.url = url
        self.directory = directory
        self.name = name
        self.children = []
        self.histories = []
        self.client = cqueue.connect(url)
        self.config = cqueue.QueueConfig(**config)
        self.queue = self.client.create_queue(name, self.config)
        self.began = time.monotonic()

    def start(self, role, *, ready=True, environ=None, prefix=(), **plan):
        """A client process. prefix: of its command, e.g. to run it in a network namespace."""
        number = len(self.children)
        history = self.directory / f"history-{number}-{role}"
        plan = {"url": self.url, "queue": self.name, "seed": number, "label": f"p{number}", **plan}
        child = Child({**plan, "role": role, "history": str(history)}, environ or {}, prefix)
        self.children.append(child)
        self.histories.append(history)
        if ready:
            child.ready()
        return child

    def start_all(self, clients, role, **plan):
        """Several at once."""
        children = [self.start(role, ready=False, **plan) for _ in range(clients)]
        for child in children:
            child.ready()
        return children

    def await_empty(self, limit_s=120):
        """Wait until the queue holds nothing."""
        deadline = time.monotonic() + limit_s
        while live := self._live():
            assert time.monotonic() < deadline, f"not drained: {live} messages"
            time.sleep(0.3)

    def _live(self):
        """How many messages there are; "unknown" as long as this client is not connected again."""
        try:
            return self.queue.stats(exact=True).live
        except cqueue.Unavailable:
            return "unknown"

    def finish(self, *, drain_s=120):
        """End all clients, drain the rest, note what is left, judge."""
        for child in self.children:
            if child.plan["role"] == "produce":
                child.end()
        for child in self.children:
            child.end()
        path = self.directory / "history-last"
        with recording(self.queue, path) as recorded:
            self._drain(recorded, drain_s)
            recorded.left(self.client.queue(self.queue.dead_letter_name))
        return check(*self._files(), path)

    def _drain(self, recorded, limit_s):
        deadline = time.monotonic() + limit_s
        with recorded.consumer() as consumer:
            while time.monotonic() < deadline:
                messages = consumer.receive(200, wait=timedelta(seconds=1))
                consumer.ack(messages)
                if not messages and not self.queue.stats(exact=True).live:
                    return

    def _files(self):
        return [path for path in self.histories if path.exists()]

    def close(self):
        for child in self.children:
            child.destroy()
        self.client.close()
