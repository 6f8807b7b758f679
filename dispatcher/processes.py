"""Several processes of one daemon: a parent that starts them, watches over them, and replaces what dies.

Children are started as new interpreters, never forked: the driver has threads and sockets, and neither
survives a fork. The parent imports nothing of the application, so that it stays small, and so that
a child which is started again has the code of that moment.

Parent and child talk by lines of JSON over a socket. If the parent dies the child sees the socket's end, and
drains. Signals are for the parent alone: a terminal and systemd send theirs to all processes, so that a
child which counted signals would take the parent's order for a second one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from threading import Lock, Thread
from typing import Any, Final, Protocol

from cqueue.dispatcher import logs, recorder

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
"""Between two starts of a child that did not come up."""
LONGEST_RUNNING_PAUSE_S: Final = 1.0
"""Between two starts of one that was at work: its messages wait for nobody else's sake."""
FORGIVEN_AFTER_S: Final = 60.0
"""Deaths that long ago are not counted any more."""
SILENT_AFTER_S: Final = 30.0
"""A child reports every second; one that is silent so long hangs, and is killed."""
STARTED_WITHIN_S: Final = 120.0
"""A child's first report may take as long as its imports do."""
BEYOND_GRACE_S: Final = 5.0
"""A child ends itself when the grace has passed; if not, it is killed so much later."""
SETTLED_AFTER_S: Final = 30.0
"""A replacement of all children waits so long for each new one to be at work."""
TICK_S: Final = 1.0
LAST_WORDS_S: Final = 1.0
"""How long the last reports of a child that has ended are waited for: what it forked may hold the socket."""
MOST_TOLD: Final = 20
"""Messages that the line about a dead child names."""
JUMP_S: Final = 5.0
"""If the parent itself was held up for so long, no child is to blame for its silence."""


class Exit(IntEnum):
    """Exit codes of `cqueue dispatch`; 128 and the signal's number after a second signal."""

    DRAINED = 0
    GRACE_PASSED = 1
    USAGE = 2


# ── What the parent is told ──


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal has come."""

    number: int


@dataclass(frozen=True, slots=True)
class Said:
    """A child's report."""

    child: int
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """A child has ended; below 0: by that signal. running: what it was handling, as fields for the log."""

    child: int
    code: int
    running: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Changed:
    """Code has changed."""

    files: tuple[str, ...]


News = Signalled | Said | Ended | Changed
Inbox = queue.SimpleQueue[News]
"""May be filled by threads, and by signal handlers: its `put` is safe in both."""


class Child(Protocol):
    """A process, as the parent sees it."""

    @property
    def pid(self) -> int:
        """Its number, by which its news are known."""

    def tell(self, order: str) -> None:
        """`stop`: drain within the grace."""

    def kill(self) -> None:
        """End it at once."""


# ── Decisions ──


def pause_s(deaths: int, *, came_up: bool) -> float:
    """How long to wait before a child is replaced that has died for the n-th time within a minute."""
    longest = LONGEST_RUNNING_PAUSE_S if came_up else LONGEST_PAUSE_S
    return float(min(longest, FIRST_PAUSE_S * 2 ** min(deaths - 1, 20)))


@dataclass(slots=True, eq=False)
class Slot:
    """One place of the daemon, and who has it now."""

    index: int
    child: Child | None = None
    started_s: float = 0.0
    heard_s: float | None = None
    came_up: bool = False  # this child has loaded its application and reached Cassandra
    was_ready: bool = False  # and was at work, once
    deaths: deque[float] = field(default_factory=deque)
    start_at_s: float | None = 0.0  # None: not to be started
    kill_at_s: float | None = None
    outdated: bool = False  # to be replaced, in its turn
    replaced: bool = False  # told to stop so that another one can start

    def begin(self, child: Child, now_s: float) -> None:
        """A new child has it."""
        self.child, self.started_s, self.start_at_s = child, now_s, None
        self.heard_s, self.came_up, self.was_ready = None, False, False

    def end(self) -> None:
        """Its child has gone."""
        self.child, self.kill_at_s, self.heard_s, self.outdated = None, None, None, False

    def is_up(self, now_s: float) -> bool:
        """Whether its child is at work, or has had long enough for it that nobody waits any more."""
        return (
            self.child is not None
            and not self.replaced
            and (self.was_ready or now_s - self.started_s > SETTLED_AFTER_S)
        )


class Audience:
    """Who is told what children say; does nothing."""

    def heard(self, index: int, report: dict[str, Any]) -> None:
        """The child of this slot has reported."""

    def gone(self, index: int) -> None:
        """The child of this slot has ended."""

    def looked(self) -> None:
        """All news are taken; called once a second at least."""


class Supervisor:
    """Starts children and keeps them running until it is told to stop.

    Args:
        start: makes a child for a slot, which puts its news into the inbox.
        count: how many.
        inbox: news of signals, children, and files.
        audience: is told what children say.
        grace_s: how long children may take to drain.
        drain: children end by themselves when there is nothing left to do.
        patient: a child that cannot be loaded is started again when code changes, also the first one.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        start: Callable[[int], Child],
        count: int,
        inbox: Inbox,
        *,
        audience: Audience | None = None,
        grace_s: float,
        drain: bool = False,
        patient: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = [Slot(index) for index in range(count)]
        self.stopping: int | None = None  # the signal that said so
        self.failure = ""  # what a child said that could not be started
        self._start = start
        self._inbox = inbox
        self._audience = audience or Audience()
        self._grace_s = grace_s
        self._drain = drain
        self._patient = patient
        self._clock = clock
        self._code = 0
        self._was_ready = False  # any child, ever
        self._looked_s = clock()
        self._log = logs.logger()

    # ── its life ──

    def run(self) -> int:
        """Until all children have ended and none is to be started; the exit code."""
        while not self._over():
            self._step()
        return self._code

    def _step(self) -> None:
        """What is due, then all news, or a second of none."""
        self._due()
        with contextlib.suppress(queue.Empty):
            self._take(self._inbox.get(timeout=self._patience_s()))
            while True:
                self._take(self._inbox.get_nowait())
        self._audience.looked()

    def _over(self) -> bool:
        return all(slot.child is None and slot.start_at_s is None for slot in self.slots)

    def _patience_s(self) -> float:
        times = [time_s for slot in self.slots for time_s in (slot.start_at_s, slot.kill_at_s)]
        now_s = self._clock()
        return max(0.0, min([TICK_S, *(time_s - now_s for time_s in times if time_s is not None)]))

    def _forgive_own_absence(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s > JUMP_S:
            for slot in self.slots:
                slot.started_s = now_s
                slot.heard_s = None if slot.heard_s is None else now_s
        self._looked_s = now_s

    # ── news ──

    def _take(self, news: News) -> None:
        if isinstance(news, Said):
            self._said(news)
        elif isinstance(news, Ended):
            self._ended(news)
        elif isinstance(news, Changed):
            self.reload(files=list(news.files[:5]))
        elif news.number == signal.SIGHUP:
            self.reload(signal="SIGHUP")
        else:
            self._signalled(news.number)

    def _signalled(self, number: int) -> None:
        if self.stopping is not None:
            self._log.warning(logs.Event.LEFT, signal=signal.Signals(number).name)
            self._leave(number, 128 + number)
            return
        self.stopping = number
        self._log.info(logs.Event.STOPPING, signal=signal.Signals(number).name, grace_s=self._grace_s)
        for slot in self.slots:
            slot.start_at_s = None
            self._tell_to_stop(slot)

    def _leave(self, number: int, code: int) -> None:
        """At once: what was not started has been given back since the first signal, or never was taken."""
        self.stopping, self._code = number, code
        for slot in self.slots:
            slot.start_at_s = None
            if slot.child is not None:
                slot.child.kill()

    def _said(self, news: Said) -> None:
        slot = self._slot_of(news.child)
        if slot is None:
            return
        if "failed" in news.report:
            self._failed(slot, str(news.report["failed"]))
            return
        slot.came_up = slot.came_up or bool(news.report.get("launched") or news.report.get("ready"))
        if news.report.get("ready") and not slot.was_ready:
            self._was_ready = slot.was_ready = True
            self._log.info(logs.Event.CHILD_READY, child=slot.index, pid=news.child)
        slot.heard_s = self._clock()
        self._audience.heard(slot.index, news.report)
        if news.report.get("alive") is False:
            self._kill_stalled(slot, str(news.report.get("reason")))

    def _failed(self, slot: Slot, why: str) -> None:
        """It could not be started: told once by whoever asked for it, or logged where work goes on."""
        self.failure = why
        if self._was_ready or self._patient:
            self._log.error(logs.Event.CHILD_FAILED, child=slot.index, error=why)

    def _ended(self, news: Ended) -> None:
        slot = self._slot_of(news.child)
        if slot is None:
            return
        say = self._log.info if news.code == 0 else self._log.error
        fields = {"running": news.running[:MOST_TOLD], "handlers": len(news.running)} if news.running else {}
        say(logs.Event.CHILD_ENDED, child=slot.index, pid=news.child, code=news.code, **fields)
        slot.end()
        self._audience.gone(slot.index)
        replaced, slot.replaced = slot.replaced, False
        if self.stopping is not None:
            if news.code != 0 and self._code == 0:
                self._code = Exit.GRACE_PASSED  # the worst that any child came to
        elif news.code == Exit.USAGE and not self._was_ready and not self._patient:
            # The application cannot be loaded, and never could: nobody but its author can help.
            self._leave(signal.SIGTERM, Exit.USAGE)
        elif news.code == Exit.DRAINED and self._drain and not replaced:
            return
        else:
            self._replace(slot, died=news.code != 0 and not replaced)

    def _replace(self, slot: Slot, *, died: bool) -> None:
        now_s = self._clock()
        if not died:
            slot.start_at_s = now_s
            return
        slot.deaths.append(now_s)
        while now_s - slot.deaths[0] > FORGIVEN_AFTER_S:
            slot.deaths.popleft()
        slot.start_at_s = now_s + pause_s(len(slot.deaths), came_up=slot.came_up)

    # ── what is due ──

    def _due(self) -> None:
        self._forgive_own_absence()
        now_s = self._clock()
        for slot in self.slots:
            if slot.child is None and slot.start_at_s is not None and slot.start_at_s <= now_s:
                self._begin(slot, now_s)
            elif slot.child is not None:
                self._watch(slot, now_s)
        self._replace_next()

    def _begin(self, slot: Slot, now_s: float) -> None:
        child = self._start(slot.index)
        slot.begin(child, now_s)
        self._log.info(logs.Event.CHILD_STARTED, child=slot.index, pid=child.pid)

    def _watch(self, slot: Slot, now_s: float) -> None:
        if slot.kill_at_s is not None and slot.kill_at_s <= now_s:
            slot.kill_at_s = None
            self._kill_stalled(slot, "did not end within its grace")
        elif slot.heard_s is None and now_s - slot.started_s > STARTED_WITHIN_S:
            slot.started_s = now_s
            self._kill_stalled(slot, "has never reported")
        elif slot.heard_s is not None and now_s - slot.heard_s > SILENT_AFTER_S:
            slot.heard_s = now_s
            self._kill_stalled(slot, "is silent")

    def _kill_stalled(self, slot: Slot, why: str) -> None:
        if slot.child is not None:
            self._log.error(logs.Event.CHILD_STALLED, child=slot.index, pid=slot.child.pid, why=why)
            slot.child.kill()

    def _tell_to_stop(self, slot: Slot) -> None:
        if slot.child is not None and slot.kill_at_s is None:
            slot.kill_at_s = self._clock() + self._grace_s + BEYOND_GRACE_S
            slot.child.tell("stop")

    # ── reload ──

    def reload(self, **why: Any) -> None:
        """Replace all children, one after the other; those that are not running at once."""
        self._log.info(logs.Event.RELOADING, **why)
        if self.stopping is not None:
            return
        for slot in self.slots:
            slot.deaths.clear()
            slot.outdated = slot.child is not None
            if slot.child is None and not self._drain:
                slot.start_at_s = self._clock()

    def _replace_next(self) -> None:
        """Tell the next one to stop, once all others are at work or on their way."""
        now_s, slot = self._clock(), next((slot for slot in self.slots if slot.outdated), None)
        others = [one for one in self.slots if not one.outdated]
        if slot is None or self.stopping is not None or not all(one.is_up(now_s) for one in others):
            return
        slot.outdated, slot.replaced = False, True
        self._tell_to_stop(slot)

    def _slot_of(self, child: int) -> Slot | None:
        return next((slot for slot in self.slots if slot.child is not None and slot.child.pid == child), None)


# ── Real processes ──


class Wire:
    """Lines of JSON over a socket, from both ends. Thread-safe."""

    def __init__(self, ours: socket.socket) -> None:
        self.socket = ours
        self.lines = ours.makefile("rb")
        self._mutex = Lock()

    def send(self, value: dict[str, Any]) -> None:
        """Send a line; where the other end has gone, it is lost."""
        with contextlib.suppress(OSError), self._mutex:
            self.socket.sendall(json.dumps(value).encode() + b"\n")

    def close(self) -> None:
        """Say and hear nothing any more."""
        self.lines.close()
        self.socket.close()

    def __iter__(self) -> Iterator[Any]:
        """Lines until the other end has gone."""
        with contextlib.suppress(OSError, ValueError):
            for line in self.lines:
                yield json.loads(line)


class Process:
    """A child interpreter, with the threads that listen to it and wait for its end.

    Args:
        module: what it runs; it is given the numbers of its end of the socket and of the file for its runs.
        options: its first line.
        inbox: where its news go.
    """

    def __init__(self, module: str, options: dict[str, Any], inbox: Inbox) -> None:
        self._inbox = inbox
        ours, theirs = socket.socketpair()
        self._wire = Wire(ours)
        self._memory = recorder.shared_file()
        with theirs:
            self._process = _spawn(module, theirs.fileno(), self._memory)
        self._wire.send(options)
        self._listener = Thread(target=self._listen, name=f"cqueue-child-{self.pid}", daemon=True)
        self._listener.start()
        Thread(target=self._wait, name=f"cqueue-child-{self.pid}-end", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, order: str) -> None:
        """Send an order; one that has just died hears nothing."""
        self._wire.send({"order": order})

    def kill(self) -> None:
        """SIGKILL, and nothing to a process that has been reaped."""
        self._process.kill()

    def _listen(self) -> None:
        for report in self._wire:
            self._inbox.put(Said(self.pid, report))

    def _wait(self) -> None:
        code = self._process.wait()
        self._listener.join(LAST_WORDS_S)  # its end comes after all that it said
        self._inbox.put(Ended(self.pid, code, recorder.running(self._memory)))
        os.close(self._memory)
        self._wire.close()


def _spawn(module: str, *keep: int) -> subprocess.Popen[bytes]:
    """Start it with more file descriptors than usual. -P: no file here hides one of the library."""
    args = [sys.executable, "-P", "-m", module, *map(str, keep)]
    return subprocess.Popen(args, stdin=subprocess.DEVNULL, pass_fds=keep)
