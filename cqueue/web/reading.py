"""What pages read, and under which key it is shared. Only what the command line reads as well.

`Site.shared` calls these on its threads; each returns plain values, so a page is made without further reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cqueue.dead_letters import kind_of
from cqueue.dispatcher.schedules.definition import ACTIVE
from cqueue.dispatcher.schedules.triggers import Cron, Repeating, Trigger
from cqueue.dispatcher.service.membership import Worker, is_orphan, listed
from cqueue.errors import BadInput, CqueueError, DamagedRow, LogNotFound, QueueNotFound
from cqueue.message import MessageId, to_datetime
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.runtime.durations import show_duration
from cqueue.web.shared import Known, Shared

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.config import QueueConfig
    from cqueue.dead_letters import DeadLetter
    from cqueue.dispatcher.schedules.store import ScheduleStore
    from cqueue.log.config import LogConfig
    from cqueue.log.log import Log
    from cqueue.log.stats import LogStats
    from cqueue.log.subscription import Lag
    from cqueue.queue import Queue, QueueStats, StoredMessage
    from cqueue.store.control import ScheduleRow

PEEKED: Final = 20
"""Messages that a queue's page shows."""
MOST_LETTERS: Final = 1000
"""Letters that a page reads, and that one redrive or drop takes: the oldest ones."""
LISTED: Final = 100
"""Letters that a list shows; its filters find the others."""
CAUSES: Final = 12
"""Causes of death that a page shows: the most frequent ones."""
REASON: Final = 300
"""Characters of a reason that a list shows."""
RECENT: Final = timedelta(minutes=10)
"""Age of a firing up to which the history is read for it: a queue's whole history since then."""
LATE_S: Final = 15
"""Seconds after its time at which a schedule counts as overdue: a running handler fires it when it ends."""


# ── Queues ──


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as lists show it. oldest_s: seconds since the oldest ready message became due, or None."""

    name: str
    paused: bool
    stats: QueueStats
    oldest_s: float | None

    @property
    def depth(self) -> int:
        """Messages that are not dead: ready, delayed, held by consumers, and waiting to be tried again."""
        return self.stats.live


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message as a list shows it; without the body, which would fill the memory. size: bytes."""

    id: str
    state: str
    task: str | None
    attempts: int
    sent_at: datetime
    next_at: datetime
    size: int


@dataclass(frozen=True, slots=True)
class QueueDetail:
    """What a queue's page shows beside its state."""

    config: QueueConfig
    messages: Sequence[MessageRow]


def names(client: Client) -> list[str]:
    """Return the names of all queues but dead-letter queues."""
    return [name for name in client.queues() if not name.endswith(DEAD_SUFFIX)]


def queue_state(client: Client, name: str) -> QueueState:
    """Count one queue, by an estimate with a bounded number of reads.

    Raises:
        QueueNotFound: there is no such queue (any more).
    """
    queue = client.queue(name)
    stats = queue.stats()
    oldest_s = None if stats.oldest is None else max(0.0, (queue.now - stats.oldest).total_seconds())
    return QueueState(name, queue.paused, stats, oldest_s)


def queue_detail(client: Client, name: str) -> QueueDetail:
    """Read a queue's configuration and its first messages."""
    queue = client.queue(name)
    return QueueDetail(queue.config, [_message(one) for one in queue.peek(PEEKED)])


def _message(one: StoredMessage) -> MessageRow:
    size = len(one.body)
    return MessageRow(one.id, one.state, one.task, one.attempts, one.sent_at, one.next_at, size)


def queue_states(
    client: Client, shared: Shared, wanted: Sequence[str]
) -> dict[str, Known[QueueState] | None]:
    """Return what is known of these queues; None: not counted yet. Deleted ones are left out."""
    reads = {("state", name): partial(queue_state, client, name) for name in wanted}
    found = shared.get_list(reads, wait_s=2.0)
    states: dict[str, Known[QueueState] | None] = {}
    for name in wanted:
        known = found["state", name]
        if not isinstance(known, BadInput):
            states[name] = None if isinstance(known, CqueueError) else known
    return states


# ── Messages ──


def queue_of(id_: str) -> str:
    """Return the name of the queue whose message has this id.

    Raises:
        InvalidMessageId: the text is no message id.
    """
    return MessageId(id_.strip()).locate().wide_row.queue.partition("@")[0]


# ── Dead letters ──


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A letter as a list shows it; without the body, and with the beginning of its reason."""

    id: str
    died_at: datetime
    task: str | None
    attempts: int | None
    reason: str
    held: bool


@dataclass(frozen=True, slots=True)
class Letters:
    """The oldest letters of a queue that fit a filter.

    letters: the first 100 of them; number: of all that were read, 1,000 at most.
    causes: (kind of reason, task, number) of the letters read, the most frequent first.
    more: there may be more letters than were read.
    """

    letters: Sequence[LetterRow]
    number: int
    causes: Sequence[tuple[str, str | None, int]]
    more: bool


class LetterFilter(NamedTuple):
    """Which letters a page shows: those that fit what is given. A kind stands alone or with a task."""

    task: str | None = None
    reason: str | None = None
    kind: str | None = None


ALL_LETTERS: Final = LetterFilter()


def letters(client: Client, queue: str, wanted: LetterFilter = ALL_LETTERS) -> Letters:
    """Read the oldest letters that fit, and group them."""
    found = client.queue(queue).dead_letters.list(MOST_LETTERS, **wanted._asdict())
    groups = Counter((kind_of(letter.reason), letter.task) for letter in found)
    causes = [(what, whose, number) for (what, whose), number in groups.most_common()]
    rows = [_letter(letter) for letter in found[:LISTED]]
    return Letters(rows, len(found), causes[:CAUSES], len(found) == MOST_LETTERS)


def _letter(one: DeadLetter) -> LetterRow:
    return LetterRow(one.id, one.died_at, one.task, one.attempts, one.reason[:REASON], one.held)


# ── Schedules and workers ──


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A schedule as the page shows it.

    state: active, paused, done, or orphan: no worker knows its task. overdue_s: seconds since a time that
    should have fired and has not; 0 for less than `LATE_S`. last_id, next_id: of the firings' messages.
    """

    queue: str
    key: str
    state: str
    when: str
    task: str | None
    next_at: datetime | None
    previous: datetime | None
    fired: int
    overdue_s: float
    last_id: MessageId | None
    next_id: MessageId | None


def schedules(client: Client) -> list[ScheduleState]:
    """Read the schedules of all queues."""
    living, now_s = listed(client)
    found = []
    for name in names(client):
        with suppress(QueueNotFound):  # deleted since it was listed
            store = client.queue(name).schedules.store
            for row in store.rows():
                with suppress(DamagedRow):
                    found.append(_schedule(store, row, living, now_s))
    return found


def _schedule(store: ScheduleStore, row: ScheduleRow, living: list[Worker], now_s: float) -> ScheduleState:
    definition = store.definition(row)
    is_active = row.state == ACTIVE
    late_s = now_s - row.next_at / 1000 if row.next_at and is_active else 0.0
    return ScheduleState(
        queue=store.queue,
        key=row.key,
        state="orphan" if is_active and is_orphan(definition.task, store.queue, living) else row.state,
        when=_when(definition.trigger),
        task=definition.task,
        next_at=to_datetime(row.next_at) if row.next_at else None,
        previous=to_datetime(row.previous) if row.previous else None,
        fired=row.fired,
        overdue_s=late_s if late_s > LATE_S else 0.0,
        last_id=store.last_message_id(row),
        next_id=store.message_id(row),
    )


def _when(trigger: Trigger) -> str:
    match trigger:
        case Cron(expression=expression, timezone=timezone):
            return f"{expression} {timezone}"
        case Repeating(interval=interval):
            return f"every {show_duration(interval)}"
    return "once"


HELD, WAITING, GONE = "held", "waiting", "gone"
ENDS: Final = {
    "running": HELD, "retried": WAITING, "snoozed": WAITING, "succeeded": "done", "failed": "dead",
    "dead": "dead", "cancelled": "cancelled", "skipped": "skipped",
}  # fmt: skip
"""What a history, or a kept result, says of a message, and how the page of schedules says it."""


class Firings(NamedTuple):
    """What is known of a schedule's last firing, and whether a consumer holds the one that it waits for.

    last: held, waiting (to be tried, or tried again), done, dead, cancelled or skipped. Gone: no message and
    no letter has its id. None: there was no firing, or too many letters would have to be read.
    """

    last: str | None
    is_held: bool


def firings(client: Client, wanted: Sequence[ScheduleState]) -> dict[tuple[str, str], Firings]:
    """Return what is known of the firings of these schedules, by queue and key.

    Reads both messages of each schedule, and of a last firing that is gone its result. Of each queue, once,
    if such a firing is left over: the oldest 1,000 letters.
    """
    found: dict[tuple[str, str], Firings] = {}
    for name, some in groupby(wanted, key=lambda one: one.queue):
        with suppress(QueueNotFound):
            found |= _firings(client.queue(name), list(some))
    return found


def _firings(queue: Queue, wanted: Sequence[ScheduleState]) -> dict[tuple[str, str], Firings]:
    stored = queue.find_many({id_ for one in wanted for id_ in (one.last_id, one.next_id) if id_ is not None})
    known = {one.key: _end(queue, one, stored) for one in wanted}
    is_over = any(one.last_id is not None and known[one.key] is None for one in wanted)
    letters = queue.dead_letters.list(MOST_LETTERS) if is_over else []
    dead = {letter.original_id for letter in letters}
    left = GONE if len(letters) < MOST_LETTERS else None
    found = {}
    for one in wanted:
        last = known[one.key] or ("dead" if one.last_id in dead else left if one.last_id else None)
        is_held = one.next_id in stored and stored[one.next_id].state == "claimed"
        found[one.queue, one.key] = Firings(last, is_held)
    return found


def _end(queue: Queue, one: ScheduleState, stored: Mapping[MessageId, StoredMessage]) -> str | None:
    """Return what the queue tells of a schedule's last firing, apart from its letters."""
    if one.last_id is None:
        return None
    if one.last_id in stored:
        return HELD if stored[one.last_id].state == "claimed" else WAITING
    if queue.config.history is not None and one.previous and queue.now - one.previous < RECENT:
        told = queue.history(schedule=one.key, since=one.previous, limit=PEEKED)
        # A late firing has the time of its message; one that somebody asked for since has a later time.
        ends = [ENDS.get(event.state) for event in told if event.fired_at and event.fired_at <= one.previous]
        if ends:
            return ends[-1]
    result = queue.result(one.last_id)
    return None if result is None else ENDS.get(result.state)


@dataclass(frozen=True, slots=True)
class Workers:
    """The living workers, and the cluster's time at the read in seconds since 1970."""

    workers: Sequence[Worker]
    now_s: float


def workers(client: Client) -> Workers:
    """Read which processes run handlers: one small table."""
    return Workers(*listed(client))


# ── Logs ──


@dataclass(frozen=True, slots=True)
class LogState:
    """A log as lists show it."""

    name: str
    config: LogConfig
    stats: LogStats
    subscriptions: Sequence[str]


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """A subscription: its members, and for each partition its lag and who reads it."""

    name: str
    paused: bool
    members: Sequence[str]
    lags: Sequence[tuple[int, Lag, str | None]]

    @property
    def count(self) -> int:
        """Records not done yet, in all partitions."""
        return sum(lag.count for _, lag, _ in self.lags)

    @property
    def behind_s(self) -> float:
        """Age of the oldest record that is not done, in seconds; 0 if there is none."""
        return max((lag.seconds for _, lag, _ in self.lags), default=0.0)


def own_log(client: Client, name: str, config: LogConfig) -> Log:
    """Open a log that the dashboard keeps, which is created with this configuration at its first use.

    Raises:
        NotDone, OutcomeUnknown: Cassandra does not answer, or refuses it.
    """
    try:
        return client.log(name)
    except LogNotFound:
        return client.create_log(name, config, exist_ok=True)


def log_state(client: Client, name: str) -> LogState:
    """Describe a log by a few short scans."""
    log = client.log(name)
    return LogState(name, log.config, log.stats(), client.subscriptions(name))


def log_states(client: Client, shared: Shared, wanted: Sequence[str]) -> list[Known[LogState]]:
    """Return the states of these logs, as far as they are known by now."""
    reads = {("log", name): partial(log_state, client, name) for name in wanted}
    found = shared.get_list(reads)
    return [known for known in found.values() if isinstance(known, Known)]


def subscription(client: Client, log: str, name: str) -> Any:
    """Open a subscription that exists, to look at it or change it; nobody becomes a member.

    Raises:
        LogNotFound: the log has none of that name.
    """
    if name not in client.subscriptions(log):
        raise LogNotFound(f"log {log!r} has no subscription {name!r}")
    return client.subscribe(log, name=name, listeners=[_nobody])


def subscription_state(client: Client, log: str, name: str) -> SubscriptionState:
    """Read how far a subscription is. Counts the records it is behind, which takes long if those are many.

    Raises:
        LogNotFound: it was deleted.
        DamagedRow: its definition cannot be read.
    """
    opened = subscription(client, log, name)
    owners = opened.owners()
    lags = [(partition, lag, owners.get(partition)) for partition, lag in sorted(opened.lag().items())]
    return SubscriptionState(name, opened.paused, opened.members(), lags)


def _nobody(_record: Any) -> None:
    """Ignore a record: the listener of a member that never starts."""
