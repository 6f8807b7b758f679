"""A process that runs a dispatcher for months: its start, its signals, its end, and its reports.

The main thread only takes events (from signals, a parent, helper threads) and acts on them one by one. So no
signal handler does any work, and nothing is done twice.

`python -m cqueue.dispatcher.service.daemon FD` is a child of `cqueue dispatch --processes N`.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import multiprocessing
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from cqueue._version import __version__
from cqueue.dispatcher.application import import_string
from cqueue.dispatcher.execution.middleware import Middleware
from cqueue.dispatcher.service import health, logs, membership
from cqueue.dispatcher.service.health import Health
from cqueue.dispatcher.service.membership import Membership, Worker
from cqueue.dispatcher.service.metrics import Metrics, exposition
from cqueue.dispatcher.service.run_recorder import RunRecorder
from cqueue.dispatcher.service.supervisor import OBEYED, TICK_S, Exit, Signalled, received
from cqueue.dispatcher.service.systemd import Notifier
from cqueue.errors import LASTING, CqueueError, NotDone, OutcomeUnknown, SchemaMismatch
from cqueue.runtime import process
from cqueue.runtime.logs import describe
from cqueue.runtime.rendezvous import own_name

if TYPE_CHECKING:
    from cqueue.dispatcher.execution.dispatcher import Dispatcher
    from cqueue.dispatcher.execution.pollers import Poller
    from cqueue.dispatcher.service.launch import Launched
    from cqueue.protocol.poll import Share

FIRST_RETRY_S: Final = 0.5
"""Seconds before the second attempt to connect at the start; doubled each time."""
LONGEST_RETRY_S: Final = 10.0
"""Longest pause between two attempts to connect at the start, in seconds: soon after Cassandra is back."""
METRICS_PART: Final = 0.05
"""Part of its time that a child may spend on metrics for its parent: of 20,000 queues they take seconds."""
NAMED: Final = 20
"""Queues that a line of the log names: the names of thousands would be a line of a megabyte."""
LAST_CALLS_S: Final = 3.0
"""Seconds for what the application has registered with `atexit`: a child says nothing to its parent then."""
POOLS_S: Final = 1.0
"""Seconds of these in which jobs of a `ProcessPoolExecutor` may end."""
BUG: Final = 70
"""Exit code after an error of this library or the application: EX_SOFTWARE of sysexits.h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """What a process runs, and how.

    Attributes:
        target: `module:name` of an application, dispatcher, factory or handler.
        queues: names of queues; empty means all queues of an application. A handler function needs at least
            one.
        options: options of the dispatcher: threads, consumers, batch_size.
        grace_s: seconds that running handlers get at the end.
        drain: end when nothing is due.
        core: index of the CPU core to run on, among those that the process may use; None uses all.
        log: format of log lines, console or json.
        verbose: log more; see `logs.configure`.
        app_dir: folder to load `target` from; empty means the current folder.
    """

    target: str
    queues: Sequence[str] = ()
    options: Mapping[str, int] = field(default_factory=dict)
    grace_s: float = 30.0
    drain: bool = False
    core: int | None = None
    log: str = logs.Format.CONSOLE.value
    verbose: bool = False
    app_dir: str = ""


# ── Events of this process, besides signals ──


@dataclass(frozen=True, slots=True)
class Stopped:
    """The dispatcher has stopped."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """The process is to stop: the parent orders it or has gone, or nothing is due any more."""

    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """The application is loaded, or cannot be."""


Notice = Signalled | Stopped | Ordered | Loaded | Future["Launched"]
"""A future: an attempt to start the dispatcher has ended, whichever way."""
Inbox = queue.SimpleQueue[Notice]


class Daemon:
    """Runs one dispatcher in this process.

    Args:
        settings: what to run.
        inbox: events of signals and of the parent.
        notifier: tells systemd.
        tell: send a report to the parent; called once a second.
        health_address: host and port for probes; None: no server.
        hooks: middleware beside the application's.
    """

    def __init__(
        self,
        settings: DaemonSettings,
        inbox: Inbox,
        *,
        notifier: Notifier | None = None,
        tell: Callable[[dict[str, Any]], None] | None = None,
        health_address: tuple[str, int] | None = None,
        hooks: Sequence[Middleware] = (),
    ) -> None:
        self._hooks = hooks
        self._settings = settings
        self._inbox = inbox
        self._notifier = notifier or Notifier()
        self._tell = tell
        self._address = health_address
        self._log = logs.logger()
        self._started_s = time.time()
        self._stopping = False
        self._obstacle = ""  # what an operator must mend before the start can succeed
        self._metrics = Metrics(settings.target)
        self._metrics_at_s = 0.0  # when they are told to the parent next
        self._dispatcher: Dispatcher | None = None  # once it runs

    # ── start to end ──

    def run(self) -> int:
        """Run from the start to the end; return the exit code.

        Raises:
            TargetError, ConfigError, QueueNotFound, SchemaMismatch: there is nothing that could be run.
        """
        if self._settings.core is not None:
            process.keep_to_one_core(self._settings.core)  # before threads start, which inherit the core
        with health.serving(self._address, self.health, self.exposition):
            launched = self._launch()
            if launched is None:
                return Exit.DRAINED
            code = self._work(launched.dispatcher)
            if code == Exit.DRAINED:
                launched.close()
            return code

    def _launch(self) -> Launched | None:
        """Start the dispatcher, waiting for an outage to end; return None if a signal came first."""
        self._log.info(
            logs.DaemonEvent.STARTING, target=self._settings.target, version=__version__, pid=os.getpid()
        )
        app_dir = self._settings.app_dir
        folder = Path(app_dir) if app_dir else None
        found = self._unless_told(partial(import_string.load, self._settings.target, folder))
        from cqueue.dispatcher.service import launch  # noqa: PLC0415 - the health server answers while this imports

        pause_s, launched = 0.0, None
        while self._next(pause_s) is None:
            try:
                if launched is None:  # once: each launch, and each application made, has a client of its own
                    found = self._unless_told(partial(launch.made_by, found, self._settings))
                    hooks = [self._metrics, *self._hooks]
                    launched = self._attempt(partial(launch.launch, found, self._settings, hooks))
                return self._start(launched)
            except SchemaMismatch:
                raise
            except (NotDone, OutcomeUnknown) as exc:
                pause_s = min(2 * pause_s or FIRST_RETRY_S, LONGEST_RETRY_S)
                self._tell_of(exc, pause_s)
        if launched is not None:
            launched.close()
        return None

    def _unless_told(self, load: Callable[[], Any]) -> Any:
        """Load on this thread, as an application may expect the main one; leave the process if a signal or an
        order comes first. Nothing is reported meanwhile: a parent replaces a child whose import never ends.
        """
        loaded = Loaded()

        def watch() -> None:
            if self._inbox.get() is not loaded:
                leave(Exit.DRAINED)

        watcher = threading.Thread(target=watch, name="cqueue-loading", daemon=True)
        watcher.start()
        try:
            return load()
        finally:
            self._inbox.put(loaded)
            watcher.join()

    def _attempt(self, launch: Callable[[], Launched]) -> Launched:
        """Launch on a thread; leave the process if a signal comes first. Nodes that accept a connection and
        do not answer keep an attempt for many seconds, and the usual end of Python would wait for it.
        """
        attempt: Future[Launched] = Future()

        def run() -> bool:
            try:
                attempt.set_result(launch())
            except BaseException as exc:  # noqa: BLE001 - raised below
                attempt.set_exception(exc)
            return True

        self._after(run, attempt)
        if self._next(math.inf) is not attempt:
            leave(Exit.DRAINED)
        return attempt.result()

    def _tell_of(self, error: CqueueError, again_in_s: float) -> None:
        """Log why the start failed; a cause that lasts until an operator mends it is logged once."""
        before, self._obstacle = self._obstacle, describe(error) if isinstance(error, LASTING) else ""
        if not self._obstacle:
            self._log.warning(logs.DaemonEvent.NOT_CONNECTED, error=str(error), again_in_s=again_in_s)
        elif self._obstacle != before:
            self._log.error(logs.DaemonEvent.NOT_CONNECTED, error=str(error))

    def _start(self, launched: Launched) -> Launched:
        """Start the dispatcher; the parent hears first, because the first message may kill this process."""
        self._report(launched=True)
        process.settle_garbage()  # all imports are done
        launched.dispatcher.engine.depths.wanted = self._address is not None or self._tell is not None
        launched.dispatcher.start()
        return launched

    def _work(self, dispatcher: Dispatcher) -> int:
        pollers = dispatcher.engine.poll_schedule.pollers
        self._metrics.watch(dispatcher)
        if dispatcher.engine.depths.wanted:
            for poller in pollers:
                poller.consumer.driver.meter = self._metrics.calls
        self._dispatcher = dispatcher
        members = Membership(
            pollers[0].consumer.driver.ask,
            lambda: self._described(dispatcher),
            lambda names, share: _give_share(pollers, names, share),
            now_s=lambda: pollers[0].now_ms() / 1000,
        )
        members.start()
        self._tick()
        names = list(dispatcher.stats().queues)
        more = {"more": len(names) - NAMED} if len(names) > NAMED else {}
        self._log.info(logs.DaemonEvent.READY, worker=own_name(), queues=names[:NAMED], **more)
        self._after(dispatcher.join, Stopped())
        if self._settings.drain:
            self._after(dispatcher.drain, Ordered("drained"))
        return self._until_stopped(dispatcher, members)

    def _after(self, wait: Callable[[], bool], notice: Notice) -> None:
        """Put an event into the inbox once `wait` has returned true, on a thread."""

        def tell() -> None:
            if wait():
                self._inbox.put(notice)

        threading.Thread(target=tell, name="cqueue-waiting", daemon=True).start()

    # ── events ──

    def _until_stopped(self, dispatcher: Dispatcher, members: Membership) -> int:
        interrupted = 0
        while not isinstance(notice := self._next(math.inf), Stopped):
            if self._stopping and isinstance(notice, Signalled):
                self._log.warning(logs.DaemonEvent.LEFT, signal=notice.why)
                return 128 + notice.number
            if isinstance(notice, Signalled | Ordered) and not self._stopping:
                interrupted = dispatcher.stats().total.interrupted
                self._stop(dispatcher, notice.why)
                members.hurry()
        members.stop()
        self._report(is_last=True)
        total = dispatcher.stats().total
        if abandoned := total.interrupted - interrupted:
            self._log.warning(logs.DaemonEvent.GRACE_PASSED, handlers=abandoned)
            return Exit.GRACE_PASSED
        self._log.info(logs.DaemonEvent.STOPPED, **_counted(total))
        return Exit.DRAINED

    def _next(self, seconds: float) -> Notice | None:
        """Return the next event within `seconds`, or None; report once a second meanwhile."""
        until_s, tick_s = time.monotonic() + seconds, min(TICK_S, self._notifier.alive_every_s)
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            with contextlib.suppress(queue.Empty):
                return self._inbox.get(timeout=min(tick_s, left_s))
            if not left_s:
                return None
            self._tick()

    def _stop(self, dispatcher: Dispatcher, why: str) -> None:
        """Begin the stop; the dispatcher's own thread gives back at once what was not started."""
        self._stopping = True
        self._notifier.tell(self.health(), stopping=True)
        dispatcher.stop(timedelta(seconds=self._settings.grace_s), wait=False)
        self._log.info(logs.DaemonEvent.STOPPING, why=why, grace_s=self._settings.grace_s)

    # ── reports ──

    def health(self) -> Health:
        """Return the health, for probes, systemd and the parent."""
        if self._dispatcher is not None:
            return health.of(self._dispatcher)
        reason = f"starting: {self._obstacle}" if self._obstacle else "starting"
        return Health(alive=True, ready=False, reason=reason)

    def exposition(self) -> bytes:
        """Return the text for Prometheus."""
        return exposition(self._metrics.families())

    def _tick(self) -> None:
        now = self.health()
        if not now.alive:
            self._log.error(logs.DaemonEvent.STALLED, reason=now.reason)
        self._notifier.tell(now, stopping=self._stopping)
        self._report(now)

    def _report(self, now: Health | None = None, *, is_last: bool = False, **more: Any) -> None:
        """Tell the parent the health, and the metrics as often as they may be made."""
        if self._tell is None:
            return
        report, began_s = {**asdict(now or self.health()), **more}, time.monotonic()
        if is_last or began_s >= self._metrics_at_s:
            report["metrics"] = self._metrics.families()
            self._metrics_at_s = began_s + (time.monotonic() - began_s) / METRICS_PART
        self._tell(report)

    def _described(self, dispatcher: Dispatcher) -> Worker:
        stats = dispatcher.stats()
        return Worker(
            name=own_name(),
            host=socket.gethostname(),
            pid=os.getpid(),
            app=self._settings.target,
            queues=tuple(stats.queues),
            tasks=membership.told(dispatcher.tasks),
            threads=dispatcher.options.threads,
            version=__version__,
            started=self._started_s,
            state=membership.STOPPING if self._stopping else stats.state,
            running=stats.running,
            unstarted=stats.unstarted,
            counters=_counted(stats.total),
            finished={
                name: done
                for name, counts in stats.queues.items()
                if (done := counts.succeeded + counts.cancelled + counts.dead)
            },
        )


def _give_share(pollers: Sequence[Poller], names: Sequence[str], share: Share | None) -> None:
    wanted = frozenset(names)
    for poller in pollers:
        if poller.name in wanted:
            poller.divide(share)


def _counted(counts: Any) -> dict[str, int]:
    return {name: count for name, count in asdict(counts).items() if count}


# ── Signals ──


@contextlib.contextmanager
def signals_to(inbox: Inbox) -> Iterator[None]:
    """Put signals into the inbox during the block; an ignored signal, as under nohup, stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [number for number in OBEYED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda n, _: inbox.put(Signalled(n))) for number in wanted}
    end_forks_by_sigterm()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_forks_by_sigterm() -> None:
    """Let SIGTERM end what handlers fork, as multiprocessing expects: no fork reads the inbox.

    A Ctrl-C goes to all processes of a terminal, and handlers may need their forks until the grace is over.
    """
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


# ── A child ──


def child(fd: int, memory: int) -> int:
    """Run a child process; return its exit code.

    Args:
        fd: number of its end of the connection to the parent.
        memory: number of the file where it records what runs.
    """
    inbox: Inbox = queue.SimpleQueue()
    os.set_inheritable(fd, False)  # no process that a handler starts keeps it open
    parent = Connection(fd)
    settings = DaemonSettings(**parent.recv())

    def obey() -> None:
        for order in received(parent):
            inbox.put(Ordered(order))
        inbox.put(Ordered("the parent has gone"))

    def tell(report: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the parent has gone, and `obey` orders a stop
            parent.send(report)

    logs.configure(logs.Format(settings.log), verbose=settings.verbose)
    # The parent obeys what a terminal or systemd sends to all; SIGTERM may be meant for this child.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: inbox.put(Ordered("SIGTERM")))
    # A terminal with `stty tostop` would stop a process outside its foreground group at each line of the log.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    end_forks_by_sigterm()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OBEYED)  # blocked since the start of the process
    threading.Thread(target=obey, name="cqueue-parent", daemon=True).start()
    try:
        return Daemon(settings, inbox, tell=tell, hooks=[RunRecorder(memory)]).run()
    except CqueueError as exc:
        tell({"failed": str(exc)})
        return Exit.USAGE
    except Exception:  # noqa: BLE001 - the parent is told of every error
        tell({"failed": traceback.format_exc()})
        return BUG


def leave(code: int) -> NoReturn:
    """End the process, whatever its threads do: those that nobody can end delay no exit. Processes of pools
    end as well: without this one they would wait for work for ever.
    """
    try:
        _kill_pools()
        for stream in (sys.stdout, sys.stderr):
            # The process was started without it, a handler has closed it, or nobody reads it any more
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()
    finally:
        os._exit(code)


def _kill_pools() -> None:
    for worker in multiprocessing.active_children():
        with contextlib.suppress(OSError, ValueError):  # it has just ended, or was closed
            worker.kill()


def end_child(code: int) -> NoReturn:
    """End a child; one that has drained calls first what the application has registered for its end.

    The usual end of Python would wait for threads that nobody can end, too. What is registered may wait as
    well: a timer leaves then. A `ProcessPoolExecutor` registers with `threading`, and multiprocessing waits
    for its processes, so it goes first; those whose jobs last longer than `POOLS_S` are killed.
    """
    try:
        if code == Exit.DRAINED:
            timer = threading.Timer(LAST_CALLS_S, leave, [code])
            timer.daemon = True
            timer.start()
            if pools := sys.modules.get("concurrent.futures.process"):
                # As the usual end of Python does.
                ending = threading.Thread(target=pools._python_exit, daemon=True)  # noqa: SLF001
                ending.start()
                ending.join(POOLS_S)
                _kill_pools()
            atexit._run_exitfuncs()  # noqa: SLF001 - as multiprocessing ends its children
    finally:
        leave(code)


if __name__ == "__main__":
    end_child(child(*map(int, sys.argv[1:3])))
