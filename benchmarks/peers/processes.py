"""Child processes that never outlive the benchmark: servers and workers.

Each has a session of its own, so that Ctrl-C reaches only the benchmark, which stops them in order.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.workload import PeerError

START_S = 90.0
GRACE_S = 20.0
_LOG_LINES = 8
_MORE_PATHS = ("/usr/sbin", "/usr/local/sbin", "/usr/lib/rabbitmq/bin")


def find_program(name: str) -> str | None:
    """Find a server's program; Debian keeps some off PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: _version(path.parent.name))
    paths = [*map(str, reversed(debian)), os.environ.get("PATH", ""), *_MORE_PATHS]
    return shutil.which(name, path=os.pathsep.join(paths))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def program(name: str) -> str:
    """Find a server's program.

    Raises:
        PeerError: it is not installed.
    """
    found = find_program(name)
    if found is None:
        raise PeerError(f"no program {name}")
    return found


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Child:
    """A running program, with its output in a file."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        directory: Path | None = None,
        pipes: bool = False,
    ) -> None:
        self.log = log
        self.name = Path(command[0]).name
        owner = pwd.getpwnam(user) if user else None
        identity: dict[str, Any] = (
            {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if owner else {}
        )
        with log.open("ab") as output:
            self.process: subprocess.Popen[str] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                env={**os.environ, **(env or {})},
                cwd=directory,
                start_new_session=True,
                text=True,
                **identity,
            )

    def check(self) -> None:
        """Look whether the program runs.

        Raises:
            PeerError: the program has ended; the message has the end of its output.
        """
        if self.process.poll() is not None:
            raise PeerError(f"{self.name} ended with code {self.process.returncode}: {self.tail()}")

    def tail(self) -> str:
        """Return the last lines of the program's output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def wait_until(self, ready: Callable[[], bool], limit_s: float = START_S) -> None:
        """Wait until the program answers.

        Raises:
            PeerError: the program ended, or took too long.
        """
        deadline = time.monotonic() + limit_s
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise PeerError(f"{self.name} did not answer in {limit_s:.0f} s: {self.tail()}")
            time.sleep(0.1)

    def stop(self, sig: signal.Signals = signal.SIGTERM, grace_s: float = GRACE_S) -> None:
        """Ask the program to stop; then kill what is left of its process group."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def answers(port: int) -> bool:
    """Return whether a server listens on a loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
