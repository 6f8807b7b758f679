"""Several processes of one daemon: a parent that starts them, watches over them, and replaces what dies.

Children are started as new interpreters, never forked: the driver has threads and sockets, and neither
survives a fork. The parent imports nothing of the application, so that it stays small, and so that
a child which is started again has the code of that moment.

Parent and child talk over a connection of `multiprocessing`. If the parent dies the child sees the end of the
connection, and drains. Signals are for the parent alone: a terminal and systemd send theirs to all processes,
so that a child which counted signals would take the parent's order for a second one.
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
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Final

from cqueue.dispatcher import logs, recorder
from cqueue.dispatcher.health import Health

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
"""Between two starts of a child that did not come up."""
LONGEST_RUNNING_PAUSE_S: Final = 1.0
"""Between two starts of one that was at work: its messages wait for nobody else's sake."""
FORGIVEN_AFTER_S: Final = 60.0
"""The death of a child that has lived so long is the first of its slot again."""
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

    @property
    def why(self) -> str:
        """Its name, for the log."""
        return signal.Signals(self.number).name


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


News = Signalled | Said | Ended
Inbox = queue.SimpleQueue[News]
"""May be filled by threads, and by signal handlers: its `put` is safe in both."""


# ── Decisions ──


def pause_s(deaths: int, *, came_up: bool) -> float:
    """How long to wait before a child is replaced whose slot has seen so many deaths one after the other."""
    longest = LONGEST_RUNNING_PAUSE_S if came_up else LONGEST_PAUSE_S
    return float(min(longest, FIRST_PAUSE_S * 2 ** min(deaths - 1, 20)))


@dataclass(slots=True, eq=False)
class Life:
    """A child, from its start to its end.

    Attributes:
        hear_by_s: it is killed if it has said nothing by then.
        kill_at_s: it is killed then, because its grace has passed.
        came_up: it has loaded its application and reached Cassandra.
        was_ready: it was at work, once.
        outdated: it is to be replaced, in its turn.
        replaced: it was told to stop so that another one can start.
        health: what it said last of itself.
    """

    child: Process
    started_s: float
    hear_by_s: float
    kill_at_s: float = math.inf
    came_up: bool = False
    was_ready: bool = False
    outdated: bool = False
    replaced: bool = False
    health: Health | None = None

    def is_up(self, now_s: float) -> bool:
        """Whether it is at work, or has had long enough for it that nobody waits any more."""
        return not self.replaced and (self.was_ready or now_s - self.started_s > SETTLED_AFTER_S)


@dataclass(slots=True, eq=False)
class Slot:
    """One place of the daemon, and who has it now."""

    index: int
    life: Life | None = None
    start_at_s: float = 0.0  # when the next one starts; infinite: never
    deaths: int = 0  # one after the other


class Supervisor:
    """Decides when children start, stop, and are killed, until it is told to stop; `Fleet` gives it the news.

    Args:
        start: makes a child for a slot, which puts its news into the inbox.
        count: how many.
        grace_s: how long children may take to drain.
        drain: children end by themselves when there is nothing left to do.
        patient: a child that cannot be loaded is started again when code changes, also the first one.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        start: Callable[[int], Process],
        count: int,
        *,
        grace_s: float,
        drain: bool = False,
        patient: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = [Slot(index) for index in range(count)]
        self.stopping = False
        self.failure = ""  # what a child said that could not be started
        self.code = 0
        self.looked_s = clock()
        self._start = start
        self._grace_s = grace_s
        self._drain = drain
        self._patient = patient
        self._clock = clock
        self._was_ready = False  # any child, ever
        self._log = logs.logger()

    def is_over(self) -> bool:
        """Whether all children have ended, and none is to be started."""
        return all(slot.life is None and slot.start_at_s == math.inf for slot in self.slots)

    def patience_s(self) -> float:
        """How long to wait for news before something is due."""
        times = [slot.start_at_s if slot.life is None else slot.life.kill_at_s for slot in self.slots]
        return max(0.0, min(TICK_S, min(times) - self._clock()))

    def healths(self) -> dict[str, Health]:
        """What children say of themselves, by slot. Called on any thread."""
        lives = [(str(slot.index), slot.life) for slot in self.slots]
        said = {index: life.health for index, life in lives if life is not None}
        return {index: health for index, health in said.items() if health is not None}

    # ── news ──

    def take(self, news: News) -> Slot | None:
        """Act on news; the slot whose child they are of, if it still has it."""
        if isinstance(news, Signalled):
            self._signalled(news)
            return None
        for slot in self.slots:
            life = slot.life
            if life is not None and life.child.pid == news.child:
                if isinstance(news, Said):
                    self._said(slot, life, news.report)
                else:
                    self._ended(slot, life, news)
                return slot
        return None

    def _signalled(self, news: Signalled) -> None:
        if news.number == signal.SIGHUP:
            self.reload(signal=news.why)
        elif self.stopping:
            self._log.warning(logs.Event.LEFT, signal=news.why)
            self._leave(128 + news.number)
        else:
            self._log.info(logs.Event.STOPPING, signal=news.why, grace_s=self._grace_s)
            self._stop()
            for life in self._lives():
                self._tell_to_stop(life)

    def _stop(self) -> None:
        self.stopping = True
        for slot in self.slots:
            slot.start_at_s = math.inf

    def _leave(self, code: int) -> None:
        """At once: what was not started has been given back since the first signal, or never was taken."""
        self.code = code
        self._stop()
        for life in self._lives():
            life.child.kill()

    def _said(self, slot: Slot, life: Life, report: dict[str, Any]) -> None:
        if "failed" in report:
            self._failed(slot, str(report["failed"]))
            return
        life.came_up = life.came_up or bool(report.get("launched") or report.get("ready"))
        if report.get("ready") and not life.was_ready:
            self._was_ready = life.was_ready = True
            self._log.info(logs.Event.CHILD_READY, child=slot.index, pid=life.child.pid)
        life.hear_by_s = self._clock() + SILENT_AFTER_S
        life.health = Health(report["alive"], report["ready"], str(report.get("reason", "")))
        if not life.health.alive:
            self._kill(slot, life, life.health.reason)

    def _failed(self, slot: Slot, why: str) -> None:
        """It could not be started: told once by whoever asked for it, or logged where work goes on."""
        self.failure = why
        if self._was_ready or self._patient:
            self._log.error(logs.Event.CHILD_FAILED, child=slot.index, error=why)

    def _ended(self, slot: Slot, life: Life, news: Ended) -> None:
        say = self._log.info if news.code == 0 else self._log.error
        fields = {"running": news.running[:MOST_TOLD], "handlers": len(news.running)} if news.running else {}
        say(logs.Event.CHILD_ENDED, child=slot.index, pid=news.child, code=news.code, **fields)
        slot.life = None
        if self.stopping:
            if news.code != 0 and self.code == 0:
                self.code = Exit.GRACE_PASSED  # the worst that any child came to
        elif news.code == Exit.USAGE and not self._was_ready and not self._patient:
            # The application cannot be loaded, and never could: nobody but its author can help.
            self._leave(Exit.USAGE)
        elif news.code != Exit.DRAINED or life.replaced or not self._drain:
            died = news.code != 0 and not life.replaced
            slot.start_at_s = self._clock() + (self._pause_s(slot, life) if died else 0)

    def _pause_s(self, slot: Slot, life: Life) -> float:
        has_lived = self._clock() - life.started_s > FORGIVEN_AFTER_S
        slot.deaths = 1 if has_lived else slot.deaths + 1
        return pause_s(slot.deaths, came_up=life.came_up)

    # ── what is due ──

    def due(self) -> None:
        """Do what is due by the clock; to be called once a second at least."""
        self._forgive_own_absence()
        now_s = self._clock()
        for slot in self.slots:
            if slot.life is not None:
                self._watch(slot, slot.life, now_s)
            elif slot.start_at_s <= now_s:
                self._begin(slot, now_s)
        self._replace_next()

    def _forgive_own_absence(self) -> None:
        now_s = self._clock()
        if now_s - self.looked_s > JUMP_S:
            for life in self._lives():
                life.hear_by_s = max(life.hear_by_s, now_s + SILENT_AFTER_S)
        self.looked_s = now_s

    def _begin(self, slot: Slot, now_s: float) -> None:
        child = self._start(slot.index)
        slot.life = Life(child, now_s, now_s + STARTED_WITHIN_S)
        slot.start_at_s = math.inf
        self._log.info(logs.Event.CHILD_STARTED, child=slot.index, pid=child.pid)

    def _watch(self, slot: Slot, life: Life, now_s: float) -> None:
        if life.kill_at_s <= now_s:
            life.kill_at_s = math.inf
            self._kill(slot, life, "did not end within its grace")
        elif life.hear_by_s < now_s:
            life.hear_by_s = now_s + SILENT_AFTER_S
            self._kill(slot, life, "has never reported" if life.health is None else "is silent")

    def _kill(self, slot: Slot, life: Life, why: str) -> None:
        self._log.error(logs.Event.CHILD_STALLED, child=slot.index, pid=life.child.pid, why=why)
        life.child.kill()

    def _tell_to_stop(self, life: Life) -> None:
        if life.kill_at_s == math.inf:
            life.kill_at_s = self._clock() + self._grace_s + BEYOND_GRACE_S
            life.child.tell("stop")

    # ── reload ──

    def reload(self, **why: Any) -> None:
        """Replace all children, one after the other; those that are not running at once."""
        self._log.info(logs.Event.RELOADING, **why)
        if self.stopping:
            return
        for slot in self.slots:
            slot.deaths = 0
            if slot.life is not None:
                slot.life.outdated = True
            elif not self._drain:
                slot.start_at_s = self._clock()

    def _replace_next(self) -> None:
        """Tell the next one to stop, once all others are at work or on their way."""
        now_s, lives = self._clock(), self._lives()
        old = next((life for life in lives if life.outdated), None)
        if old is None or self.stopping or len(lives) < len(self.slots):
            return
        if all(life.outdated or life.is_up(now_s) for life in lives):
            old.outdated, old.replaced = False, True
            self._tell_to_stop(old)

    def _lives(self) -> list[Life]:
        return [slot.life for slot in self.slots if slot.life is not None]


# ── Real processes ──


def received(connection: Connection) -> Iterator[Any]:
    """What the other end says, until it has gone."""
    with suppress(EOFError, OSError):
        while True:
            yield connection.recv()


class Process:
    """A child interpreter, with the threads that listen to it and wait for its end.

    Args:
        module: what it runs; it is given the numbers of its end of the socket and of the file for its runs.
        options: the first that it is told.
        inbox: where its news go.
    """

    def __init__(self, module: str, options: dict[str, Any], inbox: Inbox) -> None:
        self._inbox = inbox
        self.connection, theirs = Pipe()
        self._memory = recorder.shared_file()
        with theirs:
            self._process = _spawn(module, theirs.fileno(), self._memory)
        self.tell(options)
        self._listener = Thread(target=self._listen, name=f"cqueue-child-{self.pid}", daemon=True)
        self._listener.start()
        Thread(target=self._wait, name=f"cqueue-child-{self.pid}-end", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, order: Any) -> None:
        """Send an order; one that has just died hears nothing."""
        with suppress(OSError):
            self.connection.send(order)

    def kill(self) -> None:
        """SIGKILL, and nothing to a process that has been reaped."""
        self._process.kill()

    def _listen(self) -> None:
        for report in received(self.connection):
            self._inbox.put(Said(self.pid, report))

    def _wait(self) -> None:
        code = self._process.wait()
        self._listener.join(LAST_WORDS_S)  # its end comes after all that it said
        self._inbox.put(Ended(self.pid, code, recorder.running(self._memory)))
        os.close(self._memory)
        self.connection.close()


def _spawn(module: str, *keep: int) -> subprocess.Popen[bytes]:
    """Start it with more file descriptors than usual. -P: no file here hides one of the library."""
    args = [sys.executable, "-P", "-m", module, *map(str, keep)]
    return subprocess.Popen(args, stdin=subprocess.DEVNULL, pass_fds=keep)
