"""Who else is at work, and whose wide rows are whose: rendezvous hashing over the names of workers.

Every worker computes the same owner for a wide row from the same list, so nobody has to lead or to
agree. When lists differ for a moment, a wide row has two first lookers or none: both are harmless,
because locks decide who claims and everybody looks at everything now and then.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from cqueue.dispatcher import logs
from cqueue.errors import CqueueError
from cqueue.protocol.poll import Share
from cqueue.rendezvous import Names
from cqueue.store.control import Heartbeat, ReadWorkers, RemoveWorker, WorkerRow
from cqueue.store.decode import LAST_MS
from cqueue.store.operations import WideRow

if TYPE_CHECKING:
    from cqueue.client import Client

BEAT_EVERY_S: Final = 5.0
TTL_S: Final = 15
"""Three heartbeats: one may be lost, and one late."""
GOODBYE_S: Final = 2.0
STOPPING: Final = "stopping"
LARGEST_NUMBER: Final = 1 << 53
"""Of what others say of themselves; what is beyond it, or infinite, counts as 0."""
MAX_NAMES: Final = 32 << 10
"""Characters of all names of tasks in a heartbeat, which is written every 5 s."""
REMEMBERED: Final = 10_000
"""Wide rows whose owner need not be found out again."""


# ── Whose is a wide row? ──


def share_of(me: str, workers: Iterable[str]) -> Share | None:
    """Which wide rows are this worker's among these; None (all) if it is alone."""
    fleet = frozenset(workers) | {me}
    if len(fleet) == 1:
        return None
    names = Names(fleet)

    @lru_cache(maxsize=REMEMBERED)  # asked for every wide row at every poll
    def is_mine(wide_row: WideRow) -> bool:
        place = f"{wide_row.queue}\0{wide_row.time_shard}\0{wide_row.shard}".encode()
        return names.first(place) == me

    return is_mine


# ── What a worker says of itself ──


@dataclass(frozen=True, slots=True)
class Worker:
    """One process that runs handlers, as `cqueue workers` shows it.

    Attributes:
        name: unique; host, process id and a random part.
        queues: which it receives from.
        tasks: the names of those that it can run, None for messages that name none; None: it does not say,
            because its handlers take any, or there are too many to be told every few seconds.
        started, seen: seconds since 1970: its start, and its last heartbeat.
        running, unstarted: messages whose handlers run, and those that it holds and has not started.
        counters: messages by outcome since its start.
    """

    name: str
    host: str
    pid: int
    app: str
    queues: tuple[str, ...]
    threads: int
    version: str
    started: float
    state: str = "starting"
    running: int = 0
    unstarted: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    tasks: tuple[str | None, ...] | None = None
    seen: float = 0.0

    def polls(self, queue: str) -> bool:
        """Whether it receives from this queue; not any more once it is stopping."""
        return queue in self.queues and self.state != STOPPING

    def row(self) -> WorkerRow:
        """As it is stored."""
        info = asdict(self)
        del info["name"], info["seen"]
        return WorkerRow(self.name, json.dumps(info), int(self.seen * 1000))


def host_name() -> str:
    """This machine, for people to find it."""
    return socket.gethostname()


def told(tasks: Iterable[str | None] | None) -> tuple[str | None, ...] | None:
    """The tasks as a worker tells them; None if they are too many."""
    names = None if tasks is None else tuple(tasks)
    return names if names is not None and len(json.dumps(names)) <= MAX_NAMES else None


def is_orphan(task: str | None, queue: str, workers: Iterable[Worker]) -> bool:
    """Whether workers serve the queue, all say which tasks they know, and none of them knows this one."""
    serving = [each for each in workers if each.polls(queue)]
    return bool(serving) and all(each.tasks is not None and task not in each.tasks for each in serving)


def parse(row: WorkerRow) -> Worker:
    """What a row says; what it does not say, or says in a form of another version, is left empty."""
    try:
        info = json.loads(row.info)
    except ValueError:
        info = {}
    known = info if isinstance(info, dict) else {}
    said = {name: _like(empty, known.get(name)) for name, empty in _EMPTY.items()}
    said["started"] = min(max(0.0, said["started"]), LAST_MS / 1000)
    tasks = tuple(known["tasks"]) if isinstance(known.get("tasks"), list) else None
    return Worker(row.worker, tasks=tasks, seen=row.seen / 1000, **said)


_EMPTY: Final[Mapping[str, Any]] = {
    "host": "", "pid": 0, "app": "", "queues": (), "threads": 0, "version": "", "started": 0, "state": "",
    "running": 0, "unstarted": 0, "counters": {},
}  # fmt: skip


def _like(empty: Any, value: Any) -> Any:
    """The value, if it is of the same kind as the empty one; others may say anything of themselves."""
    if isinstance(empty, str):
        return "" if value is None else str(value)
    if isinstance(empty, tuple):
        return tuple(map(str, value)) if isinstance(value, list) else ()
    if isinstance(empty, dict):
        return (
            {str(name): _like(0, count) for name, count in value.items()} if isinstance(value, dict) else {}
        )
    return int(value) if isinstance(value, int | float) and abs(value) < LARGEST_NUMBER else 0


def listed(client: Client) -> tuple[list[Worker], float]:
    """Who is at work, by name; and the cluster's time now, in seconds since 1970."""
    driver = client._driver  # noqa: SLF001 - the library's own
    rows: list[WorkerRow] = driver.ask(ReadWorkers())
    return [parse(row) for row in rows], driver.clock.now_us() / 1e6


# ── Telling and asking ──

Ask = Callable[[Any], Any]
"""Performs one operation of the store."""


class Members:
    """Keeps this worker's row alive, and knows who else polls the same queues.

    Args:
        ask: performs operations.
        describe: what to say of this worker now.
        changed: called with the names of the workers of a queue when they are others than before.
        now_s: the cluster's time, so that ages can be told on any machine.
    """

    def __init__(
        self,
        ask: Ask,
        describe: Callable[[], Worker],
        changed: Callable[[str, Share | None], None],
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._ask = ask
        self._describe = describe
        self._changed = changed
        self._now_s = now_s
        self._fleets: dict[str, frozenset[str]] = {}
        self._is_over = False
        self._wake = Event()
        self._log = logs.logger()
        self._failing = False
        self._thread = Thread(target=self._run, name="cqueue-members", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def hurry(self) -> None:
        """What there is to say has changed: say it now."""
        self._wake.set()

    def stop(self) -> None:
        """Say good-bye, for 2 s at most. If that fails the row goes by itself, after 15 s."""
        self._is_over = True
        self._wake.set()
        self._thread.join(GOODBYE_S)

    def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._is_over:
                self.leave()
                return
            self.beat()
            self._wake.wait(BEAT_EVERY_S)

    def leave(self) -> None:
        """Remove the row."""
        try:
            self._ask(RemoveWorker(self._describe().name))
        except CqueueError as exc:
            self._log.info(logs.Event.HEARTBEAT_FAILED, error=str(exc))

    def beat(self) -> None:
        """Say that this worker lives, and see who else does; a failure changes nothing until the next."""
        try:
            me = replace(self._describe(), seen=self._now_s())
            self._ask(Heartbeat(me.row(), TTL_S))
            self._see(me, [parse(row) for row in self._ask(ReadWorkers())])
        except CqueueError as exc:
            if not self._failing:  # once for each outage
                self._log.warning(logs.Event.HEARTBEAT_FAILED, error=str(exc))
            self._failing = True
        else:
            self._failing = False

    def _see(self, me: Worker, others: list[Worker]) -> None:
        for queue in me.queues:
            fleet = frozenset(each.name for each in others if each.polls(queue)) | {me.name}
            if fleet != self._fleets.get(queue):
                self._fleets[queue] = fleet
                self._log.info(logs.Event.MEMBERS, queue=queue, workers=len(fleet))
                self._changed(queue, share_of(me.name, fleet))
