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
_LAUNCH = """
log=$1; slack=$2; shift 2
{ echo "$slack" >/proc/self/timerslack_ns; } 2>/dev/null
"$@" >"$log" 2>&1 & echo $!
"""

# Cassandra's idle workers sleep for 10 µs at a time, again and again, as long as there is any load. By the
# kernel's default of 50 µs that alone takes a quarter of a core; a node that shares two of them with its
# clients cannot spare it.
TIMER_SLACK_NS = 150_000


def spawn(command: Sequence[str], *, home: Path, log: Path, environ: Mapping[str, str]) -> int:
    """Start `command` in a session of its own, with its output in `log`; return its pid."""
    done = subprocess.run(
        ["/bin/sh", "-c", _LAUNCH, "sh", str(log), str(TIMER_SLACK_NS), *command],
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
    may well look at the directory with an editor. For a moment after its exec a process has no arguments,
    but is in the node's directory already.
    """
    try:
        if arguments := (entry / "cmdline").read_bytes():
            return os.fsencode(MARKER + str(home)) in arguments.split(b"\0")
        return (entry / "cwd").readlink() == home
    except OSError:
        return False  # gone meanwhile, or hidden from us


def is_ours(home: Path) -> bool:
    """Return whether the node that lives in `home` runs, and belongs to this user."""
    pid = find(home)
    try:
        return pid is not None and (PROC / str(pid)).stat().st_uid == os.getuid()
    except OSError:  # gone meanwhile
        return False


def send_signal(home: Path, number: signal.Signals) -> int | None:
    """Signal the node that lives in `home`; return its pid, None if it does not run."""
    pid = find(home)
    if pid is None:
        return None
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return None
    except PermissionError as exc:
        raise DevError(f"Process {pid} of {home} belongs to another user. Stop it as that user.") from exc
    return pid


def signal_all(homes: Sequence[Path], number: signal.Signals) -> list[int]:
    """Signal the nodes that run; return their pids."""
    return [pid for home in homes if (pid := send_signal(home, number)) is not None]


def terminate(homes: Sequence[Path], grace: timedelta) -> None:
    """Ask the nodes to stop, and kill those that have not after `grace`."""
    signal_all(homes, signal.SIGCONT)  # a stopped process would not see the request
    wait_gone(signal_all(homes, signal.SIGTERM), grace)
    kill(homes)


def kill(homes: Sequence[Path]) -> list[int]:
    """Kill the nodes and wait until nothing is left of them; return the pids they had.

    Raises:
        DevError: the kernel does not let one go.
    """
    pids: list[int] = []
    while found := signal_all(homes, signal.SIGKILL):  # a child that a node has just forked looks like it
        if left := wait_gone(found, timedelta(seconds=30)):
            raise DevError(f"Process {left[0]} does not die, even by SIGKILL. Its disk may hang; look there.")
        pids += found
    return pids


def wait_gone(pids: Sequence[int], limit: timedelta) -> list[int]:
    """Wait until nothing is left of the processes; return those of which there is after `limit`."""
    deadline = time.monotonic() + limit.total_seconds()
    while left := [pid for pid in pids if not is_gone(pid)]:
        if time.monotonic() >= deadline:
            return left
        time.sleep(_POLL_SECONDS)
    return []


def is_gone(pid: int, proc: Path = PROC) -> bool:
    """True if the process has let go of everything, its ports above all.

    A dying process loses its command line first and closes its sockets later, so `find` is too quick
    here. A zombie has closed them, but the first thread may be one while others still end.
    """
    try:
        state = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        threads = len(list((proc / str(pid) / "task").iterdir()))
    except (OSError, IndexError):
        return True
    return state in {"Z", "X"} and threads <= 1
