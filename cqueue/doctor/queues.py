"""Queues: messages that are late, damaged rows, dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from cqueue import quarantine
from cqueue.client import Client, inside
from cqueue.dispatcher.service.membership import listed
from cqueue.doctor.doorbell import listeners_of
from cqueue.doctor.finding import Finding, Severity, Subject, not_checked
from cqueue.doctor.queue_figures import LATE_US, Figures, letters_since, read
from cqueue.doorbell.datagram import short_name
from cqueue.doorbell.directory import names_contain
from cqueue.errors import CqueueError
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.runtime.durations import show_age
from cqueue.runtime.sequences import grouped
from cqueue.store.control import ListenerRow
from cqueue.store.quarantine import MESSAGES, Damage

if TYPE_CHECKING:
    from cqueue.doctor.site import Site
    from cqueue.runtime.catalog import QueueEntry

SUBJECT: Final = Subject("queues")
RECENT: Final = timedelta(hours=1)
"""Age of a dead letter up to which it counts as recent: whatever made it is probably still at work."""
_US: Final = 1_000_000
_STRAGGLE: Final = (
    "They came late: from a data centre that was cut off, or by a restore. Consumers find them before they "
    "drop the partition, once all else in it is done."
)
_STUCK: Final = "Consumers are there and take nothing: Cassandra refuses them, or they hang."
_MAY_BE_LATE: Final = (
    "They came long after they were due, as from a batch that was executed late, and are found within 5 "
    "minutes; or consumers take nothing: Cassandra refuses them, or they hang."
)


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters of one queue.

    count, recent: how many there are, and how many of the last hour. oldest_s: age of the oldest in seconds.
    plus: there may be more.
    """

    count: int
    recent: int = 0
    oldest_s: float | None = None
    plus: bool = False


def check(site: Site) -> Iterator[Finding]:
    """Read the oldest wide rows of each queue, and its dead letters."""
    yield from of_client(site.client())


def of_client(client: Client) -> Iterator[Finding]:
    """Check the queues that a client sees."""
    # Those who wait for messages: listeners of the doorbell, and workers of dispatchers.
    listeners, (workers, _) = listeners_of(client), listed(client)
    entries = inside(client).catalog.all()
    names = {entry.row.name for entry in entries}
    dead_names = {name + DEAD_SUFFIX for name in names}  # looked at with their queues
    polling = grouped((name, worker.name) for worker in workers for name in worker.polled)
    own = [entry for entry in entries if entry.row.name not in dead_names]
    clean = 0
    for entry in own:
        found = list(_of_queue(client, entry, _serving(entry, listeners, polling), names))
        clean += not found
        yield from found
    quarantine.look(client)
    yield from damaged(inside(client).quarantine.of(MESSAGES, *quarantine.TABLES))
    if clean or not own:
        what = f"{clean:,} of {_counted(len(own), 'queue')}: nothing is late, nothing dead"
        yield SUBJECT.ok(what, figures={"clean": clean, "queues": len(own)})


def _of_queue(client: Client, entry: QueueEntry, serving: int, names: set[str]) -> Iterator[Finding]:
    name, dead_name = entry.row.name, entry.row.name + DEAD_SUFFIX
    try:
        figures = inside(client).driver.run(read(entry.spec))
        yield from late(name, figures, serving, paused=client.queue(name).paused)
        if dead_name in names:
            yield from dead(name, _letters(client, dead_name))
    except CqueueError as exc:
        yield not_checked(SUBJECT, f"{name}: {exc}")


def _serving(
    entry: QueueEntry, listeners: Iterable[ListenerRow], polling: Mapping[str, Sequence[str]]
) -> int:
    """Return how many processes are known to wait for a queue. A worker's listener has the worker's name.

    polling: the names of the workers that poll each queue.
    """
    short = short_name(entry.spec.partition)
    known = {one.listener for one in listeners if names_contain(one.names, short)}
    return len(known.union(polling.get(entry.row.name, ())))


def _letters(client: Client, dead_queue: str) -> Letters:
    queue = client.queue(dead_queue)
    stats = queue.stats()
    if not stats.live:
        return Letters(0)
    now: datetime = queue.now
    since_us = int((now - RECENT).timestamp() * _US)
    own = inside(client)
    recent, more = own.driver.run(letters_since(own.catalog.entry(dead_queue).spec, since_us))
    oldest_s = None if stats.oldest is None else (now - stats.oldest).total_seconds()
    return Letters(max(stats.live, recent), recent, oldest_s, plus=more or bool(stats.at_least))


def late(name: str, figures: Figures, serving: int, *, paused: bool = False) -> Iterator[Finding]:
    """Judge messages that are due and that nobody has. serving: processes known to wait for the queue."""
    told: dict[str, object] = {"queue": name, "late": figures.late, "waiting": serving, "held": figures.held}
    if figures.oldest_us is not None:
        age_s = (figures.now_us - figures.oldest_us) / _US
        plus = "+" if figures.partial else ""
        severity, why, reason, remedy = _why(name, figures, serving, paused=paused)
        yield SUBJECT.found(
            severity,
            f"{name}: {_counted(figures.late, 'message', plus)} due for up to {show_age(age_s)}; {why}",
            reason,
            remedy,
            {**told, "oldest_s": round(age_s), "stragglers": figures.stragglers},
        )
    if figures.implausible:
        yield SUBJECT.info(
            f"{name}: {_counted(figures.implausible, 'time')} further ahead than any client can have put it",
            reason="A wrong clock or a hand at CQL wrote it. It stops nobody; the next claim writes it anew.",
            remedy="See the finding on clocks",
            figures={**told, "implausible": figures.implausible},
        )


def _why(name: str, figures: Figures, serving: int, *, paused: bool) -> tuple[Severity, str, str, str]:
    """Return how bad it is that messages are late, why they are, why it matters, and the remedy."""
    claimed_us = figures.claimed_us
    since_us = None if claimed_us is None else max(0, figures.now_us - claimed_us)
    last = "nothing was ever claimed where the oldest stands"
    if since_us is not None:
        last = f"the last claim where the oldest stands was {show_age(since_us / _US)} ago"
    if paused:
        return Severity.INFO, "the queue is paused", "", f"cqueue queue resume {name}"
    if figures.stragglers == figures.late:
        return (
            Severity.WARNING,
            "they stand below the cursor of their partition",
            _STRAGGLE,
            f"cqueue peek {name}",
        )
    if since_us is not None and since_us <= LATE_US:
        remedy = f"More consumers, or quicker handlers; cqueue stats {name}"
        return Severity.INFO, last, "Consumers are at work, and behind.", remedy
    if figures.held:
        who = f"consumers have up to {_counted(figures.held, 'other message')} at work, and {last}"
        reason = "Their handlers take that long, or hang: a dispatcher extends what it runs for as long."
        return Severity.WARNING, who, reason, f"More consumers, if handlers take long; cqueue peek {name}"
    if serving:
        who = "1 process waits" if serving == 1 else f"{serving} processes wait"
        severity, reason = Severity.ERROR, _STUCK
        remedy = f"Look for receive_failed in their logs; cqueue workers; cqueue peek {name}"
        if figures.in_open_rows == figures.late:
            severity, reason, remedy = Severity.WARNING, _MAY_BE_LATE, f"Look again. {remedy}"
        return severity, f"{who} for it, and {last}", reason, remedy
    reason = "They wait until a consumer comes. Consumers with notify=off are not known here."
    remedy = "Start a consumer: cqueue dispatch MODULE:APP for tasks"
    return Severity.WARNING, f"nobody is known to wait for it, and {last}", reason, remedy


def _counted(count: int, noun: str, plus: str = "") -> str:
    return f"{count:,}{plus} {noun}" if count == 1 else f"{count:,}{plus} {noun}s"


def dead(name: str, letters: Letters) -> Iterator[Finding]:
    """Judge the dead letters of a queue."""
    if not letters.count:
        return
    plus = "+" if letters.plus else ""
    old = "" if letters.oldest_s is None else f"; the oldest died {show_age(letters.oldest_s)} ago"
    new = f", {letters.recent:,} of them in the last hour" if letters.recent else ""
    yield SUBJECT.found(
        Severity.WARNING if letters.recent else Severity.INFO,
        f"{name}: {_counted(letters.count, 'dead letter', plus)}{new}{old}",
        reason="Their messages are not tried any more.",
        remedy=f"cqueue dead list {name}",
        figures={
            "queue": name,
            "dead": letters.count,
            "recent": letters.recent,
            "oldest_s": None if letters.oldest_s is None else round(letters.oldest_s),
        },
    )


def damaged(found: Sequence[Damage]) -> Iterator[Finding]:
    """Judge rows that cannot be read, one finding for each queue, log or table."""
    by_owner = grouped((damage.owner.partition("@")[0] or damage.table, damage) for damage in found)
    for owner, some in by_owner.items():
        yield SUBJECT.error(
            f"{owner}: {_counted(len(some), 'row')} of table {some[0].table} cannot be read: "
            f"{some[0].reason}",
            reason="What such a row holds is not delivered until it is mended or dropped.",
            remedy=f"cqueue quarantine dump {some[0].address}",
            figures={"owner": owner, "rows": len(some), "table": some[0].table},
        )
