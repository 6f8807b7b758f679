"""A process that runs a dispatcher for months: its start, its signals, its end, and what it says of itself.

The main thread does nothing but take news, from signals, from a parent, from helper threads, and act on
them one by one; so nothing here is done in a signal handler, and nothing twice.

`python -m cqueue.dispatcher.daemon FD` is a child of `cqueue dispatch --processes N`.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cqueue import cores, garbage
from cqueue._version import __version__
from cqueue.dispatcher import health, logs, members, target
from cqueue.dispatcher.events import describe
from cqueue.dispatcher.health import Health
from cqueue.dispatcher.members import Members, Worker
from cqueue.dispatcher.metrics import Meter, Metrics, exposition
from cqueue.dispatcher.middleware import Middleware
from cqueue.dispatcher.notify import Notifier
from cqueue.dispatcher.processes import TICK_S, Exit, Signalled, received
from cqueue.dispatcher.recorder import Recorder
from cqueue.errors import LASTING, CqueueError, NotDone, OutcomeUnknown, SchemaMismatch
from cqueue.rendezvous import own_name

if TYPE_CHECKING:
    from cqueue.dispatcher.dispatcher import Dispatcher
    from cqueue.dispatcher.launch import Launched
    from cqueue.protocol.poll import Share

FIRST_RETRY_S: Final = 0.5
LONGEST_RETRY_S: Final = 10.0
"""Between two attempts to connect at the start."""
BUG: Final = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a process is to do.

    Attributes:
        target: `module:name`.
        app_dir: the folder that it is looked for in; empty: the current one.
        queues: of an application all if empty; for a handler function at least one.
        options: of the dispatcher: threads, consumers, batch_size.
        grace_s: how long running handlers are waited for at the end.
        drain: end when nothing is due.
        core: keep to one core, the how-manieth of those that may be used; None: use all.
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


# ── News of this process, besides signals ──


@dataclass(frozen=True, slots=True)
class Stopped:
    """The dispatcher has stopped."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """It is to stop: the parent says so or has gone, or nothing is due any more."""

    why: str


News = Signalled | Stopped | Ordered
Inbox = queue.SimpleQueue[Any]
Tell = Callable[[dict[str, Any]], None]


class Daemon:
    """Runs one dispatcher in this process.

    Args:
        settings: what to do.
        inbox: news of signals and of the parent.
        notifier: to systemd.
        tell: to a parent, once a second.
        health_address: where to answer probes; None for nowhere.
        hooks: middleware beside the application's.
    """

    def __init__(
        self,
        settings: Settings,
        inbox: Inbox,
        *,
        notifier: Notifier | None = None,
        tell: Tell | None = None,
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
        self._hindrance = ""  # what an operator has to mend before it can start
        self._metrics = Metrics(settings.target)
        self._dispatcher: Dispatcher | None = None  # once it runs

    # ── the whole life ──

    def run(self) -> int:
        """From the start to the end; the exit code.

        Raises:
            TargetError, ConfigError, QueueNotFound, SchemaMismatch: there is nothing that could be run.
        """
        if self._settings.core is not None:
            cores.keep_to_one(self._settings.core)  # before there are threads that do the work
        with health.serving(self._address, self.health, self.exposition):
            launched = self._launch()
            if launched is None:
                return Exit.DRAINED
            code = self._work(launched.dispatcher)
            if code == Exit.DRAINED:
                launched.close()
            return code

    def _launch(self) -> Launched | None:
        """The dispatcher, started; None if a signal came first. An outage at the start is waited out."""
        self._log.info(
            logs.Event.STARTING, target=self._settings.target, version=__version__, pid=os.getpid()
        )
        app_dir = self._settings.app_dir
        found = target.load(self._settings.target, Path(app_dir) if app_dir else None)
        pause_s = FIRST_RETRY_S
        while True:
            try:
                return self._start(found)
            except SchemaMismatch:
                raise
            except (NotDone, OutcomeUnknown) as exc:
                self._tell_of(exc, pause_s)
            if self._next(pause_s) is not None:
                return None
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)

    def _tell_of(self, error: CqueueError, again_in_s: float) -> None:
        """Log why it cannot start; what lasts until an operator mends it, once."""
        before, self._hindrance = self._hindrance, describe(error) if isinstance(error, LASTING) else ""
        if not self._hindrance:
            self._log.warning(logs.Event.NOT_CONNECTED, error=str(error), again_in_s=again_in_s)
        elif self._hindrance != before:
            self._log.error(logs.Event.NOT_CONNECTED, error=str(error))

    def _start(self, found: Any) -> Launched:
        """The parent is told before: the first message may kill this process, which has come up then."""
        from cqueue.dispatcher import launch  # noqa: PLC0415 - the health server answers while this imports

        hooks = [Meter(self._metrics), *self._hooks]
        launched = launch.launch(found, self._settings, hooks)
        self._report(launched=True)
        garbage.settle()  # all that it needs is imported
        launched.dispatcher.engine.depths.wanted = self._address is not None or self._tell is not None
        launched.dispatcher.start()
        return launched

    def _work(self, dispatcher: Dispatcher) -> int:
        engine = dispatcher.engine
        self._metrics.watch(dispatcher.stats, engine.quarantined, lambda: engine.depths.latest)
        self._dispatcher = dispatcher
        members = Members(
            dispatcher.lanes[0].consumer.driver.ask,
            lambda: self._described(dispatcher),
            lambda name, share: _give_share(dispatcher, name, share),
            now_s=lambda: dispatcher.lanes[0].now_ms() / 1000,
        )
        members.start()
        self._notifier.ready()
        self._report()
        self._log.info(logs.Event.READY, worker=own_name(), queues=list(_queues(dispatcher)))
        self._after(dispatcher.join, Stopped())
        if self._settings.drain:
            self._after(dispatcher.drain, Ordered("drained"))
        return self._until_stopped(dispatcher, members)

    def _after(self, wait: Callable[[], bool], news: News) -> None:
        """Put news into the inbox after what the main thread must not wait for."""

        def tell() -> None:
            if wait():
                self._inbox.put(news)

        threading.Thread(target=tell, name="cqueue-waiting", daemon=True).start()

    # ── news ──

    def _until_stopped(self, dispatcher: Dispatcher, members: Members) -> int:
        interrupted = 0
        while not isinstance(news := self._next(math.inf), Stopped):
            if self._stopping and isinstance(news, Signalled):
                self._log.warning(logs.Event.LEFT, signal=news.why)
                return 128 + news.number
            if news is not None and not self._stopping:
                interrupted = dispatcher.stats().total.interrupted
                self._stop(dispatcher, news.why)
                members.hurry()
        members.stop()
        self._report()
        total = dispatcher.stats().total
        if abandoned := total.interrupted - interrupted:
            self._log.warning(logs.Event.GRACE_PASSED, handlers=abandoned)
            return Exit.GRACE_PASSED
        self._log.info(logs.Event.STOPPED, **_counted(total))
        return Exit.DRAINED

    def _next(self, seconds: float) -> News | None:
        """The next news, if it comes within so many seconds; until then this says how it is."""
        until_s, tick_s = time.monotonic() + seconds, min(TICK_S, self._notifier.alive_every_s or TICK_S)
        while (left_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                news: News = self._inbox.get(timeout=min(tick_s, left_s))
                return news
            self._tick()
        return None

    def _stop(self, dispatcher: Dispatcher, why: str) -> None:
        """What was not started is given back at once, in the dispatcher's own thread."""
        self._stopping = True
        self._notifier.stopping()
        dispatcher.stop(timedelta(seconds=self._settings.grace_s), wait=False)
        self._log.info(logs.Event.STOPPING, why=why, grace_s=self._settings.grace_s)

    # ── what it says of itself ──

    def health(self) -> Health:
        """How it is, for probes, systemd, and the parent."""
        if self._dispatcher is not None:
            return health.of(self._dispatcher)
        reason = f"starting: {self._hindrance}" if self._hindrance else "starting"
        return Health(alive=True, ready=False, reason=reason)

    def exposition(self) -> bytes:
        """The text for Prometheus."""
        return exposition(self._metrics.families())

    def _tick(self) -> None:
        now = self.health()
        if now.alive:
            self._notifier.alive()
        else:
            self._log.error(logs.Event.STALLED, reason=now.reason)
        self._notifier.status(now.reason)
        self._report(now)

    def _report(self, now: Health | None = None, **more: Any) -> None:
        if self._tell is not None:
            self._tell({**asdict(now or self.health()), **more, "metrics": self._metrics.families()})

    def _described(self, dispatcher: Dispatcher) -> Worker:
        stats = dispatcher.stats()
        return Worker(
            name=own_name(),
            host=members.host_name(),
            pid=os.getpid(),
            app=self._settings.target,
            queues=_queues(dispatcher),
            tasks=members.told(dispatcher.tasks),
            threads=dispatcher.options.threads,
            version=__version__,
            started=self._started_s,
            state=members.STOPPING if self._stopping else stats.state,
            running=stats.running,
            unstarted=stats.unstarted,
            counters=_counted(stats.total),
        )


def _queues(dispatcher: Dispatcher) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lane.name for lane in dispatcher.lanes))


def _give_share(dispatcher: Dispatcher, name: str, share: Share | None) -> None:
    for lane in dispatcher.lanes:
        if lane.name == name:
            lane.divide(share)


def _counted(counts: Any) -> dict[str, int]:
    return {name: count for name, count in asdict(counts).items() if count}


# ── Signals ──

OBEYED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def signals_to(inbox: Inbox) -> Iterator[None]:
    """Put signals into the inbox while this lasts. One that is ignored, as under nohup, stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [number for number in OBEYED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda n, _: inbox.put(Signalled(n))) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ── A child ──


def child(fd: int, memory: int) -> int:
    """The life of a child process; its exit code.

    Args:
        fd: the number of its end of the connection to its parent.
        memory: the number of the file where it writes down what runs.
    """
    inbox: Inbox = queue.SimpleQueue()
    os.set_inheritable(fd, False)  # no process of a handler keeps it open
    parent = Connection(fd)
    settings = Settings(**parent.recv())

    def obey() -> None:
        for order in received(parent):
            inbox.put(Ordered(order))
        inbox.put(Ordered("the parent has gone"))

    def tell(report: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the parent has gone: this is told to stop
            parent.send(report)

    logs.configure(logs.Format(settings.log), verbose=settings.verbose)
    # What a terminal or systemd sends to all is the parent's to obey; SIGTERM may be meant for this one.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: inbox.put(Ordered("SIGTERM")))
    threading.Thread(target=obey, name="cqueue-parent", daemon=True).start()
    try:
        return Daemon(settings, inbox, tell=tell, hooks=[Recorder(memory)]).run()
    except CqueueError as exc:
        tell({"failed": str(exc)})
        return Exit.USAGE
    except Exception:  # noqa: BLE001 - the place where all errors of a child end
        tell({"failed": traceback.format_exc()})
        return BUG


def leave(code: int) -> None:
    """End the process though handlers may still be running: threads that nobody can end hold up no exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(child(*map(int, sys.argv[1:3])))
