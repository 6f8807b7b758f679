"""Which workers are alive, and which wide rows each of them polls first: rendezvous hashing over their names.

Every worker computes the same owner of a wide row from the same list, so no worker has to lead or agree. If
lists differ for a moment, a wide row has two first pollers or none. Both are harmless: locks decide who
claims, and every worker polls every row now and then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from threading import Event, Thread
from typing import Any, Final

from cqueue.client import Client, inside
from cqueue.dispatcher.service import logs
from cqueue.errors import CqueueError
from cqueue.protocol.poll import Share
from cqueue.runtime.logs import describe
from cqueue.runtime.rendezvous import Names
from cqueue.runtime.sequences import grouped
from cqueue.store.control import Heartbeat, ReadWorkers, RemoveWorker, WorkerRow
from cqueue.store.decode import LAST_MS
from cqueue.store.operations import WideRow

BEAT_EVERY_S: Final = 5.0
"""Seconds between two heartbeats: one small write and one read a worker."""
TTL_S: Final = 15
"""Seconds for which one of those counts: three beats, so that one may be lost and one late."""
MANY: Final = 1000
"""Queues of which a heartbeat comes every BEAT_EVERY_S: it has their names, and every worker reads it."""
SELDOM: Final = 4
"""Times BEAT_EVERY_S between heartbeats at most: a killed worker counts for three of them."""
GOODBYE_S: Final = 2.0
"""Longest wait for the removal of the worker's row at a stop, in seconds; the row expires anyway."""
STOPPING: Final = "stopping"
"""State of a worker that receives no more."""
LARGEST_NUMBER: Final = 1 << 53
"""Largest number taken from another worker's row; a larger or infinite one counts as 0."""
MAX_NAMES: Final = 32 << 10
"""Characters of all task names in a heartbeat (32 Ki), which is written every 5 s."""
REMEMBERED: Final = 10_000
"""Wide rows whose owner is cached, because every poll asks for each."""


# ── Shares of wide rows ──


def share_of(me: str, workers: Iterable[str]) -> Share | None:
    """Return which wide rows are this worker's, among these workers; None (all of them) if it is alone."""
    fleet = frozenset(workers) | {me}
    if len(fleet) == 1:
        return None
    names = Names(fleet)

    @lru_cache(maxsize=REMEMBERED)  # asked for every wide row at every poll
    def is_mine(wide_row: WideRow) -> bool:
        place = f"{wide_row.queue}\0{wide_row.time_shard}\0{wide_row.shard}".encode()
        return names.first(place) == me

    return is_mine


# ── Workers ──


@dataclass(frozen=True, slots=True)
class Worker:
    """One process that runs handlers, as `cqueue workers` shows it.

    Attributes:
        name: unique name: host, process id and a random part.
        host, pid: where the process runs.
        app: `module:name` of the application.
        queues: names of the queues that the worker receives from.
        threads: number of its worker threads.
        version: version of cqueue.
        started, seen: start, and last heartbeat, in seconds since 1970.
        state: starting, new, running, stopping or stopped.
        running, unstarted: messages whose handlers run, and messages held and not started.
        counters: messages by outcome since the start.
        finished: messages by queue that succeeded, were cancelled or died here since the start.
        tasks: names of the tasks that the worker can run, None for messages that name no task. None for the
            whole: its handlers take any task, or there are too many names for a heartbeat.
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
    finished: Mapping[str, int] = field(default_factory=dict)
    tasks: tuple[str | None, ...] | None = None
    seen: float = 0.0

    @property
    def polled(self) -> tuple[str, ...]:
        """Names of the queues that the worker receives from: none once it is stopping."""
        return () if self.state == STOPPING else self.queues

    def polls(self, queue: str) -> bool:
        """Return whether the worker receives from this queue."""
        return queue in self.polled

    @property
    def every_s(self) -> float:
        """Seconds between two heartbeats; of very many queues four times as many."""
        return BEAT_EVERY_S * min(max(1, len(self.queues) // MANY), SELDOM)

    @property
    def ttl_s(self) -> int:
        """Seconds for which a heartbeat counts."""
        return round(TTL_S * self.every_s / BEAT_EVERY_S)

    def is_late(self, now_s: float) -> bool:
        """Return whether the last heartbeat is late: the process was killed, hangs, or is cut off."""
        return now_s - self.seen > 1.5 * self.every_s

    def row(self) -> WorkerRow:
        """Return the row that is stored."""
        info = asdict(self)
        del info["name"], info["seen"]
        return WorkerRow(self.name, json.dumps(info), int(self.seen * 1000))


def told(tasks: Iterable[str | None] | None) -> tuple[str | None, ...] | None:
    """Return the tasks as a heartbeat carries them; None if the names are too long."""
    names = None if tasks is None else tuple(tasks)
    return names if names is not None and len(json.dumps(names)) <= MAX_NAMES else None


def is_orphan(task: str | None, queue: str, workers: Iterable[Worker]) -> bool:
    """Return whether the queue has workers, all say which tasks they know, and none knows this one."""
    serving = [each for each in workers if each.polls(queue)]
    return bool(serving) and all(each.tasks is not None and task not in each.tasks for each in serving)


def parse(row: WorkerRow) -> Worker:
    """Return the worker of a row; a value that is missing, or of another version's form, is left empty."""
    try:
        info = json.loads(row.info)
    except (ValueError, RecursionError):
        info = {}
    known = info if isinstance(info, dict) else {}
    said = {name: _like(empty, known.get(name)) for name, empty in _EMPTY.items()}
    said["started"] = min(max(0.0, said["started"]), LAST_MS / 1000)
    tasks = tuple(known["tasks"]) if isinstance(known.get("tasks"), list) else None
    return Worker(row.worker, tasks=tasks, seen=row.seen / 1000, **said)


_EMPTY: Final[Mapping[str, Any]] = {
    "host": "", "pid": 0, "app": "", "queues": (), "threads": 0, "version": "", "started": 0, "state": "",
    "running": 0, "unstarted": 0, "counters": {}, "finished": {},
}  # fmt: skip


def _like(empty: Any, value: Any) -> Any:
    """Return the value if it is of the same kind as the empty one; other versions may write anything."""
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
    """Return all living workers, by name, and the cluster's time now in seconds since 1970."""
    driver = inside(client).driver
    return [parse(row) for row in driver.ask(ReadWorkers())], driver.clock.now_us() / 1e6


# ── Heartbeats ──


class Membership:
    """Keeps this worker's row alive, and knows which other workers poll the same queues.

    Args:
        ask: performs operations of the store.
        describe: return this worker as it is now.
        changed: called with the names of queues whose workers have changed, and are the same now, and with
            this worker's share of each.
        now_s: the cluster's time, so that every machine can compute ages.
    """

    def __init__(
        self,
        ask: Callable[[Any], Any],
        describe: Callable[[], Worker],
        changed: Callable[[Sequence[str], Share | None], None],
        *,
        now_s: Callable[[], float],
    ) -> None:
        self._ask = ask
        self._describe = describe
        self._changed = changed
        self._now_s = now_s
        self._fleets: dict[str, frozenset[str]] = {}
        self._is_over = False
        self._every_s = BEAT_EVERY_S
        self._wake = Event()
        self._log = logs.logger()
        self._failing = False
        self._thread = Thread(target=self._run, name="cqueue-members", daemon=True)

    def start(self) -> None:
        """Start sending heartbeats."""
        self._thread.start()

    def hurry(self) -> None:
        """Send a heartbeat now, because the worker's state has changed."""
        self._wake.set()

    def stop(self) -> None:
        """Remove the worker's row, for 2 s at most. If the removal fails, the row expires after 15 s."""
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
            self._wake.wait(self._every_s)

    def leave(self) -> None:
        """Remove the worker's row."""
        try:
            self._ask(RemoveWorker(self._describe().name))
        except CqueueError as exc:
            self._log.info(logs.DaemonEvent.HEARTBEAT_FAILED, error=describe(exc))

    def beat(self) -> None:
        """Send a heartbeat, and read the other workers; after a failure everything stays as it was."""
        try:
            me = replace(self._describe(), seen=self._now_s())
            self._every_s = me.every_s
            self._ask(Heartbeat(me.row(), me.ttl_s))
            self._see(me, [parse(row) for row in self._ask(ReadWorkers())])
        except Exception as exc:  # noqa: BLE001 - without its heartbeat nobody would know of the worker
            if not self._failing:  # log once for each outage
                self._log.warning(logs.DaemonEvent.HEARTBEAT_FAILED, error=describe(exc))
            self._failing = True
        else:
            self._failing = False

    def _see(self, me: Worker, others: list[Worker]) -> None:
        """Tell of queues whose workers have changed: there may be 20,000, which mostly have the same ones."""
        names = grouped((queue, each.name) for each in others for queue in each.polled)
        fleets = {queue: frozenset((*names.get(queue, ()), me.name)) for queue in me.queues}
        known, self._fleets = self._fleets, fleets
        changed = grouped((fleet, queue) for queue, fleet in fleets.items() if fleet != known.get(queue))
        for fleet, queues in changed.items():
            self._log.info(logs.DaemonEvent.MEMBERS, queue=queues[0], queues=len(queues), workers=len(fleet))
            self._changed(queues, share_of(me.name, fleet))
