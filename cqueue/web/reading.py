"""What pages read, and under which key it is shared. Only what the command line reads as well.

`Site.shared` calls these on its threads; each returns plain values, so a page is made without further reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from cqueue.client import inside
from cqueue.dead_letters import kind_of
from cqueue.errors import BadInput, CqueueError, LogNotFound
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.web.shared import Known, Shared
from cqueue.where import Where

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.config import QueueConfig
    from cqueue.dead_letters import DeadLetter
    from cqueue.log.config import LogConfig
    from cqueue.log.stats import LogStats
    from cqueue.log.subscription import ExistingSubscription, Lag
    from cqueue.queue import QueueStats, StoredMessage

PEEKED: Final = 20
"""Messages that a queue's page shows."""
ALL: Final = "all"
"""In place of a state: messages in any one."""
SAMPLE: Final = 200
"""Newest records of a log that are counted by topic; with the largest bodies these are 200 MiB."""
MOST_LETTERS: Final = 1000
"""Letters that a page reads, and that one redrive or drop takes: the oldest ones."""
LISTED: Final = 100
"""Letters that a list shows; its filters find the others."""
CAUSES: Final = 12
"""Causes of death that a page shows: the most frequent ones."""
REASON: Final = 300
"""Characters of a reason that a list shows."""


# ── Queues ──


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as lists show it. oldest_s: seconds since the oldest message to claim was due, or None."""

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


def queue_detail(client: Client, name: str) -> tuple[QueueConfig, list[MessageRow]]:
    """Read a queue's configuration and its first messages."""
    queue = client.queue(name)
    return queue.config, [_message(one) for one in queue.peek(PEEKED)]


def _message(one: StoredMessage) -> MessageRow:
    size = len(one.body)
    return MessageRow(one.id, one.state, one.task, one.attempts, one.sent_at, one.next_at, size)


class Listed(NamedTuple):
    """Some messages of a state, and the token of the next page; None after the last one. read: messages."""

    messages: Sequence[MessageRow]
    token: str | None
    read: int


def listed_messages(client: Client, name: str, state: str, token: str | None) -> Listed:
    """Read on from a token: 1,000 messages at most, until 20 of the state are found.

    state: one of `STATES`, or `ALL`.

    Raises:
        InvalidToken: the token is damaged, or of another queue.
    """
    where = Where(state=None if state == ALL else state)
    page = client.queue(name).list(where, limit=PEEKED, token=token)
    return Listed([_message(one) for one in page.messages], page.token, page.rows_read)


def queue_states(
    client: Client, shared: Shared, wanted: Sequence[str]
) -> dict[str, Known[QueueState] | CqueueError | None]:
    """Return what is known of these queues, or why one cannot be counted; None: not counted yet.

    Deleted ones are left out.
    """
    reads = {("state", name): partial(queue_state, client, name) for name in wanted}
    found = shared.get_list(reads, wait_s=2.0)
    return {name: known for (_, name), known in found.items() if not isinstance(known, BadInput)}


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


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics among the newest records of a log: (topic, records, time of the newest).

    read: records. is_all: there are no others.
    """

    counts: Sequence[tuple[str, int, datetime]]
    read: int
    is_all: bool


def topics(client: Client, name: str) -> Topics:
    """Count the newest 200 records of a log by topic; those of the last 2.5 seconds or so are missing."""
    with client.log(name).scan(reverse=True, limit=SAMPLE, on_expired="earliest") as records:
        found = [(record.topic, record.time) for record in records]
    counts = Counter(topic for topic, _ in found)
    newest = dict(reversed(found))
    rows = [(topic, number, newest[topic]) for topic, number in counts.most_common()]
    return Topics(rows, len(found), len(found) < SAMPLE)


def log_state(client: Client, name: str) -> LogState:
    """Describe a log by a few short scans."""
    log = client.log(name)
    return LogState(name, log.config, log.stats(), client.subscriptions(name))


def log_states(client: Client, shared: Shared, wanted: Sequence[str]) -> list[Known[LogState]]:
    """Return the states of these logs, as far as they are known by now."""
    reads = {("log", name): partial(log_state, client, name) for name in wanted}
    found = shared.get_list(reads)
    return [known for known in found.values() if isinstance(known, Known)]


def subscription(client: Client, log: str, name: str) -> ExistingSubscription:
    """Open a subscription that exists, to look at it or change it.

    Raises:
        LogNotFound: the log has none of that name.
    """
    if name not in client.subscriptions(log):
        raise LogNotFound(f"log {log!r} has no subscription {name!r}")
    return inside(client).subscription(log, name)


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
