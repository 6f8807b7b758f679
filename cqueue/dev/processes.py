"""Start, find and signal the processes of nodes.

There are no pid files: they go stale, and a pid in one may belong to a stranger by now. A node's
command line names its directory, so the process table is asked, every time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from cqueue.dev.jvm import MARKER
from cqueue.errors import DevError

PROC = Path("/proc")

_POLL_SECONDS = 0.05

# The shell in between makes init the parent: the node outlives us, leaves no zombie when killed, and
# no Popen object stays behind to complain. Its `&` also gives the node /dev/null as standard input.
_LAUNCH = 'log=$1; shift; "$@" >"$log" 2>&1 & echo $!'


def spawn(command: Sequence[str], *, home: Path, log: Path, environ: Mapping[str, str]) -> int:
    """Start `command` in a session of its own, with its output in `log`; return its pid."""
    done = subprocess.run(
        ["/bin/sh", "-c", _LAUNCH, "sh", str(log), *command],
        cwd=home,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        check=True,
    )
    return int(done.stdout)


def find(home: Path, proc: Path = PROC) -> int | None:
    """The pid of the node that lives in `home`, None if it does not run."""
    mine = (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit() and owns(entry, home))
    # Right after the start there may be a shell as well; the node is its younger child.
    return max(mine, default=None)


def owns(entry: Path, home: Path) -> bool:
    """True if the process at `entry` (`/proc/<pid>`) is the node that lives in `home`.

    One whole argument must match: a directory may be the beginning of another's name, and somebody
    may well look at the directory with an editor.
    """
    try:
        arguments = (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # gone meanwhile, or hidden from us
    return os.fsencode(MARKER + str(home)) in arguments


def send_signal(home: Path, number: signal.Signals) -> bool:
    """Signal the node that lives in `home`; False if it does not run."""
    pid = find(home)
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError as exc:
        raise DevError(f"Process {pid} of {home} belongs to another user. Stop it as that user.") from exc
    return True


def wait_gone(homes: Sequence[Path], limit: timedelta) -> list[Path]:
    """Wait until none of the nodes runs; return those that still do after `limit`."""
    deadline = time.monotonic() + limit.total_seconds()
    while left := [home for home in homes if find(home) is not None]:
        if time.monotonic() >= deadline:
            return left
        time.sleep(_POLL_SECONDS)
    return []


def terminate(homes: Sequence[Path], grace: timedelta) -> None:
    """Ask the nodes to stop, and kill those that have not after `grace`."""
    for home in homes:
        # A stopped process would not see the request.
        send_signal(home, signal.SIGCONT)
        send_signal(home, signal.SIGTERM)
    kill(wait_gone(homes, grace))


def kill(homes: Sequence[Path]) -> None:
    """Kill the nodes and wait until they are gone.

    Raises:
        DevError: the kernel does not let one go.
    """
    for home in homes:
        send_signal(home, signal.SIGKILL)
    left = wait_gone(homes, timedelta(seconds=30))
    if left:
        raise DevError(f"The node in {left[0]} does not die, even by SIGKILL. Its disk may hang; look there.")
