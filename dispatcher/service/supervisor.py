"""Several processes of one daemon: a parent that starts them, supervises them, and replaces those that die.

Children are started as new interpreters, never forked: the driver has threads and sockets, which do not
survive a fork. The parent imports nothing of the application, so it stays small, and a child that is started
again has the current code.

Parent and child talk over a connection of `multiprocessing`. If the parent dies, the child sees the end of
the connection, and drains. Only the parent obeys signals: systemd sends its own to all processes, so a child
that counted signals would take the parent's order for a second one. A terminal's go to the parent alone, as
each child has a process group of its own; what is left of the group is killed if the child dies.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Final

from cqueue.dispatcher.service import logs, run_recorder
from cqueue.dispatcher.service.health import Health

FIRST_PAUSE_S: Final = 0.1
"""Seconds before a child that died is replaced; doubled with each further death."""
LONGEST_PAUSE_S: Final = 30.0
"""Longest pause, in seconds, between two starts of a child that did not come up: failed starts cost little.
"""
LONGEST_RUNNING_PAUSE_S: Final = 1.0
"""Longest pause, in seconds, after the death of a child that had come up: it has shown that it can work."""
FORGIVEN_AFTER_S: Final = 60.0
"""Seconds of life after which a death counts as the first of its slot again."""
SILENT_AFTER_S: Final = 30.0
"""Seconds of silence after which a child hangs, and is killed: 30 reports have failed to come."""
STARTED_WITHIN_S: Final = 120.0
"""The same before it has come up: it says nothing while it imports a large application, or while a function
of it that makes the application connects, for some 45 s if three nodes accept connections and do not answer.
"""
BEYOND_GRACE_S: Final = 14.0
"""Seconds beyond the grace after which a child that has not ended by itself is killed. If Cassandra does not
answer, a child that has nothing to run any more takes up to 13 s to settle and to close what it has open.
"""
TICK_S: Final = 1.0
"""Seconds between two reports of a child, and between two checks of the parent."""
LAST_WORDS_S: Final = 1.0
"""Seconds to wait for the last reports of a dead child: a process that it forked may hold the socket."""
MOST_TOLD: Final = 20
"""Messages that the log line about a dead child names."""
JUMP_S: Final = 5.0
"""Seconds for which the parent itself must have been held up before it blames no child for its silence."""


OBEYED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that stop or reload a daemon."""


class Exit(IntEnum):
    """Exit codes of `cqueue dispatch`; 128 plus the signal's number after a second signal."""

    DRAINED = 0
    GRACE_PASSED = 1
    USAGE = 2


# ── Events for the parent ──


@dataclass(frozen=True, slots=True)
class Signalled:
    """The process got a signal."""

    number: int

    @property
    def why(self) -> str:
        """Name of the signal, for the log."""
        return signal.Signals(self.number).name


@dataclass(frozen=True, slots=True)
class Reported:
    """A child has sent a report."""

    pid: int
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """A child has ended.

    Attributes:
        pid: its process id.
        code: exit code; below 0 the signal that killed the child.
        running: the messages that it was handling, as fields for the log.
    """

    pid: int
    code: int
    running: Sequence[Mapping[str, Any]] = ()


Notice = Signalled | Reported | Ended
Inbox = queue.SimpleQueue[Notice]
"""Events for the parent. Threads and signal handlers fill it: `put` is safe in both."""


# ── Decisions ──


def pause_s(deaths: int, *, came_up: bool) -> float:
    """Return the seconds before a child is replaced after `deaths` deaths in a row in its slot."""
    longest = LONGEST_RUNNING_PAUSE_S if came_up else LONGEST_PAUSE_S
    return float(min(longest, FIRST_PAUSE_S * 2 ** min(deaths - 1, 20)))


@dataclass(slots=True, eq=False)
class Child:
    """A child process, from its start to its end. Times are monotonic seconds.

    Attributes:
        process: the process.
        started_s: its start.
        hear_by_s: the child is killed if no report comes by then.
        kill_at_s: the child is killed then, because its grace has passed.
        came_up: the child has loaded its application and reached Cassandra.
        was_ready: the child has received messages at some time.
        outdated: the child is to be replaced, in its turn.
        replaced: the child was told to stop so that a new one can start.
        health: the last report's health; None before the first report.
        failure: the error that ends it, if it has told one.
    """

    process: ChildProcess
    started_s: float
    hear_by_s: float
    kill_at_s: float = math.inf
    came_up: bool = False
    was_ready: bool = False
    outdated: bool = False
    replaced: bool = False
    health: Health | None = None
    failure: str = ""

    @property
    def is_up(self) -> bool:
        """Whether the child has come up and is to go on. It need not be ready: one queue may be damaged."""
        return self.came_up and not self.replaced


@dataclass(slots=True, eq=False)
class Slot:
    """One of the daemon's places for a child, and the child in it."""

    index: int
    child: Child | None = None
    start_at_s: float = 0.0  # when the next child starts; infinite: never
    deaths: int = 0  # in a row; whatever ends without having been told to, has died


class Supervisor:
    """Decides when children start, stop, and are killed; `ParentProcess` passes the events on.

    Args:
        start: start a child for a slot; the child's events go into the inbox.
        count: how many children.
        grace_s: seconds that children may take to drain.
        drain: children end by themselves when nothing is left to do.
        patient: keep trying when even the first child cannot load the application, until its code changes.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        start: Callable[[int], ChildProcess],
        count: int,
        *,
        grace_s: float,
        drain: bool = False,
        patient: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = [Slot(index) for index in range(count)]
        self.stopping = False
        self.deaths = 0  # of children that were replaced without having been told to stop
        self.failure = ""  # error of a child that could not start
        self.code = 0
        self.looked_s = clock()
        self._start = start
        self._grace_s = grace_s
        self._drain = drain
        self._patient = patient
        self._clock = clock
        self._was_ready = False  # whether any child ever was ready
        self._log = logs.logger()

    def is_over(self) -> bool:
        """Return whether all children have ended, and none is to be started."""
        return all(slot.child is None and slot.start_at_s == math.inf for slot in self.slots)

    def patience_s(self) -> float:
        """Return how many seconds to wait for events before something is due."""
        times = [slot.start_at_s if slot.child is None else slot.child.kill_at_s for slot in self.slots]
        return max(0.0, min(TICK_S, min(times) - self._clock()))

    def healths(self) -> dict[str, Health]:
        """Return the health of each child that has reported, by slot. Called on any thread."""
        children = [(str(slot.index), slot.child) for slot in self.slots]
        said = {index: child.health for index, child in children if child is not None}
        return {index: health for index, health in said.items() if health is not None}

    # ── events ──

    def take(self, notice: Notice) -> Slot | None:
        """Act on an event; return the slot of the child that sent it, if the slot still has that child."""
        if isinstance(notice, Signalled):
            self._signalled(notice)
            return None
        for slot in self.slots:
            child = slot.child
            if child is not None and child.process.pid == notice.pid:
                if isinstance(notice, Reported):
                    self._reported(slot, child, notice.report)
                else:
                    self._ended(slot, child, notice)
                return slot
        return None

    def _signalled(self, notice: Signalled) -> None:
        if notice.number == signal.SIGHUP:
            self.reload(signal=notice.why)
        elif self.stopping:
            self._log.warning(logs.DaemonEvent.LEFT, signal=notice.why)
            self._leave(128 + notice.number)
        else:
            self._log.info(logs.DaemonEvent.STOPPING, why=notice.why, grace_s=self._grace_s)
            self._stop()
            for child in self._children():
                self._tell_to_stop(child)

    def _stop(self) -> None:
        self.stopping = True
        for slot in self.slots:
            slot.start_at_s = math.inf

    def _leave(self, code: int) -> None:
        """Kill all children at once: what was not started has been given back since the first signal."""
        self.code = code
        self._stop()
        for child in self._children():
            child.process.kill()

    def _reported(self, slot: Slot, child: Child, report: dict[str, Any]) -> None:
        if "failed" in report:
            child.failure = str(report["failed"])
            return
        child.came_up = child.came_up or bool(report.get("launched") or report.get("ready"))
        if report.get("ready") and not child.was_ready:
            self._was_ready = child.was_ready = True
            self._log.info(logs.DaemonEvent.CHILD_READY, child=slot.index, pid=child.process.pid)
        # Until the child has come up, what makes its application may keep it from reporting
        child.hear_by_s = self._clock() + (SILENT_AFTER_S if child.came_up else STARTED_WITHIN_S)
        child.health = Health(report["alive"], report["ready"], str(report.get("reason", "")))
        if not child.health.alive:
            self._kill(slot, child, child.health.reason)

    def _ended(self, slot: Slot, child: Child, notice: Ended) -> None:
        # The application could never be loaded: only its author can help.
        is_hopeless = notice.code == Exit.USAGE and not self._was_ready and not self._patient
        if is_hopeless:  # the parent ends, and raises it
            self.failure = child.failure
        elif child.failure:
            self._log.error(logs.DaemonEvent.CHILD_FAILED, child=slot.index, error=child.failure)
        say = self._log.info if notice.code == 0 else self._log.error
        fields = (
            {"running": notice.running[:MOST_TOLD], "handlers": len(notice.running)} if notice.running else {}
        )
        say(logs.DaemonEvent.CHILD_ENDED, child=slot.index, pid=notice.pid, code=notice.code, **fields)
        slot.child = None
        if self.stopping:
            if notice.code != 0 and self.code == 0:
                self.code = Exit.GRACE_PASSED  # the worst that any child came to
        elif is_hopeless:
            self._leave(Exit.USAGE)
        elif notice.code != Exit.DRAINED or child.replaced or not self._drain:
            slot.start_at_s = self._clock() + (0 if child.replaced else self._pause_s(slot, child))

    def _pause_s(self, slot: Slot, child: Child) -> float:
        has_lived = self._clock() - child.started_s > FORGIVEN_AFTER_S
        self.deaths += 1
        slot.deaths = 1 if has_lived else slot.deaths + 1
        return pause_s(slot.deaths, came_up=child.came_up)

    # ── what is due ──

    def due(self) -> None:
        """Start, check, kill and replace children as the clock demands. Call it once a second at least."""
        now_s = self._clock()
        if now_s - self.looked_s > JUMP_S:  # held up itself, the parent has heard nobody
            for child in self._children():
                child.hear_by_s = max(child.hear_by_s, now_s + SILENT_AFTER_S)
        self.looked_s = now_s
        for slot in self.slots:
            if slot.child is not None:
                self._watch(slot, slot.child, now_s)
            elif slot.start_at_s <= now_s:
                self._begin(slot, now_s)
        self._replace_next()

    def _begin(self, slot: Slot, now_s: float) -> None:
        try:
            process = self._start(slot.index)
        except (OSError, RuntimeError) as exc:  # nothing is free for it: the other children go on
            slot.deaths += 1
            slot.start_at_s = now_s + pause_s(slot.deaths, came_up=False)
            self._log.error(logs.DaemonEvent.CHILD_FAILED, child=slot.index, error=str(exc))
            return
        slot.child = Child(process, now_s, now_s + STARTED_WITHIN_S)
        slot.start_at_s = math.inf
        self._log.info(logs.DaemonEvent.CHILD_STARTED, child=slot.index, pid=process.pid)

    def _watch(self, slot: Slot, child: Child, now_s: float) -> None:
        if child.kill_at_s <= now_s:
            child.kill_at_s = math.inf
            self._kill(slot, child, "did not end within its grace")
        elif child.hear_by_s < now_s:
            child.hear_by_s = now_s + SILENT_AFTER_S
            self._kill(slot, child, "has never reported" if child.health is None else "is silent")

    def _kill(self, slot: Slot, child: Child, why: str) -> None:
        self._log.error(logs.DaemonEvent.CHILD_STALLED, child=slot.index, pid=child.process.pid, why=why)
        child.process.kill()

    def _tell_to_stop(self, child: Child) -> None:
        if child.kill_at_s == math.inf:
            child.kill_at_s = self._clock() + self._grace_s + BEYOND_GRACE_S
            child.process.tell("stop")

    # ── reload ──

    def reload(self, **why: Any) -> None:
        """Replace all children, one after the other; start those that are not running at once."""
        self._log.info(logs.DaemonEvent.RELOADING, **why)
        if self.stopping:
            return
        for slot in self.slots:
            slot.deaths = 0
            if slot.child is not None:
                slot.child.outdated = True
            elif not self._drain:
                slot.start_at_s = self._clock()

    def _replace_next(self) -> None:
        """Tell the next outdated child to stop: one that is not up at once, others once all are up."""
        children = self._children()
        old = min(
            (child for child in children if child.outdated), key=lambda child: child.is_up, default=None
        )
        is_one_to_come = any(slot.child is None and slot.start_at_s < math.inf for slot in self.slots)
        if old is None or self.stopping or is_one_to_come:
            return
        if not old.is_up or all(child.is_up for child in children):
            old.outdated, old.replaced = False, True
            self._tell_to_stop(old)

    def _children(self) -> list[Child]:
        return [slot.child for slot in self.slots if slot.child is not None]


# ── Real processes ──


def received(connection: Connection) -> Iterator[Any]:
    """Yield what the other end sends, until it closes the connection."""
    with suppress(EOFError, OSError):
        while True:
            yield connection.recv()


@contextmanager
def _blocked(numbers: Sequence[int]) -> Iterator[None]:
    """Block signals in this thread, and in a process that the block starts until it unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ChildProcess:
    """A child interpreter, with the threads that listen to it and wait for its end.

    Args:
        module: module that the child runs. Its arguments are the numbers of its end of the socket and of the
            file that records its runs.
        options: the first object sent to the child.
        inbox: where the child's events go.

    Raises:
        OSError, RuntimeError: no process, memory, file or thread is free.
    """

    def __init__(self, module: str, options: dict[str, Any], inbox: Inbox) -> None:
        self._inbox = inbox
        with ExitStack() as undo:  # an attempt that the system refuses leaves nothing open
            self.connection, theirs = Pipe()
            undo.callback(self.connection.close)
            self._memory = run_recorder.shared_file()
            undo.callback(os.close, self._memory)
            with theirs:
                handed = (theirs.fileno(), self._memory)
                # -P: no file of the current folder hides a module.
                args = [sys.executable, "-P", "-m", module, *map(str, handed)]
                with _blocked(OBEYED):  # a Ctrl-C would end a child that does not handle it yet
                    # A process group of its own: what the child leaves behind can be told from all else.
                    self._process = subprocess.Popen(
                        args, stdin=subprocess.DEVNULL, pass_fds=handed, process_group=0
                    )
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self.tell(options)
            self._listener = Thread(target=self._listen, name=f"cqueue-child-{self.pid}", daemon=True)
            self._listener.start()
            Thread(target=self._wait, name=f"cqueue-child-{self.pid}-end", daemon=True).start()
            undo.pop_all()

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    def tell(self, order: Any) -> None:
        """Send an order; ignored if the child has just died."""
        with suppress(OSError):
            self.connection.send(order)

    def kill(self) -> None:
        """Send SIGKILL, unless the child has ended."""
        self._process.kill()

    def _listen(self) -> None:
        for report in received(self.connection):
            self._inbox.put(Reported(self.pid, report))

    def _wait(self) -> None:
        code = self._process.wait()
        if code:  # one that has drained ends by itself what its application has started
            with suppress(OSError):  # there is nothing of it any more
                os.killpg(self.pid, signal.SIGKILL)
        self._listener.join(LAST_WORDS_S)  # so that `Ended` comes after all reports
        self._inbox.put(Ended(self.pid, code, run_recorder.unfinished_runs(self._memory)))
        os.close(self._memory)
        self.connection.close()
