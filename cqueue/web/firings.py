"""Schedules, and what became of their last firings, as the page of schedules shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from cqueue.dispatcher.schedules.definition import ACTIVE, OVERDUE_MS
from cqueue.dispatcher.schedules.schedules import of_all_queues
from cqueue.dispatcher.schedules.triggers import described
from cqueue.dispatcher.service.membership import Worker, is_orphan, listed
from cqueue.errors import BadInput, DamagedRow, QueueNotFound
from cqueue.message import MessageId, to_datetime
from cqueue.web import reading

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.dispatcher.schedules.store import ScheduleStore
    from cqueue.queue import Queue, StoredMessage
    from cqueue.store.control import ScheduleRow

RECENT: Final = timedelta(minutes=10)
"""Age of a firing up to which the history is read for it: a queue's whole history since then."""
EVENTS: Final = 5000
"""Events of that history that are read, at most: the last ones."""


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A schedule as the page shows it.

    state: active, paused, done, or orphan: no worker knows its task. overdue_s: seconds since a time that
    should have fired and has not; 0 for less than 15. last_id, next_id: of the firings' messages.
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
    for schedules, rows in of_all_queues(client):
        for row in rows:
            with suppress(DamagedRow, QueueNotFound):  # the queue is deleted meanwhile
                found.append(_schedule(schedules.store, row, living, now_s))
    return found


def _schedule(store: ScheduleStore, row: ScheduleRow, living: list[Worker], now_s: float) -> ScheduleState:
    definition = store.definition(row)
    is_active = row.state == ACTIVE
    late_ms = now_s * 1000 - row.next_at if row.next_at and is_active else 0.0
    return ScheduleState(
        queue=store.queue,
        key=row.key,
        state="orphan" if is_active and is_orphan(definition.task, store.queue, living) else row.state,
        when=described(definition.trigger),
        task=definition.task,
        next_at=to_datetime(row.next_at) if row.next_at else None,
        previous=to_datetime(row.previous) if row.previous else None,
        fired=row.fired,
        overdue_s=late_ms / 1000 if late_ms > OVERDUE_MS else 0.0,
        last_id=store.last_message_id(row),
        next_id=store.message_id(row),
    )


HELD, WAITING, GONE = "held", "waiting", "gone"
WORDS: Final = {
    "running": HELD, "retried": WAITING, "snoozed": WAITING, "succeeded": "done", "failed": "dead",
    "dead": "dead", "cancelled": "cancelled", "skipped": "skipped",
}  # fmt: skip
"""The page's word for each state of a message that a history or a kept result tells."""


class Firing(NamedTuple):
    """What is known of one schedule's last firing, and whether a consumer holds the one that it waits for.

    last: held, waiting (to be tried, or tried again), done, dead, cancelled or skipped. Gone: no message and
    no letter has its id. None: there was no firing, or too many letters would have to be read.
    """

    last: str | None
    is_held: bool


def last(client: Client, wanted: Sequence[ScheduleState]) -> dict[tuple[str, str], Firing]:
    """Return what is known of the firings of these schedules, by queue and key.

    Reads both messages of each schedule, and of a last firing that is gone its result. Of each queue with
    such a firing, once: the end of its history, if it keeps one, and the oldest 1,000 letters. A queue of
    which one of these cannot be read is left out.
    """
    found: dict[tuple[str, str], Firing] = {}
    for name, some in groupby(wanted, key=lambda one: one.queue):
        # Deleted since, a damaged result, or more schedules than one call takes.
        with suppress(BadInput, DamagedRow):
            found |= _firings(client.queue(name), list(some))
    return found


def _firings(queue: Queue, wanted: Sequence[ScheduleState]) -> dict[tuple[str, str], Firing]:
    stored = queue.find_many({id_ for one in wanted for id_ in (one.last_id, one.next_id) if id_ is not None})
    gone = [one for one in wanted if one.last_id is not None and one.last_id not in stored]
    told = _told(queue, gone)
    unknown = [one for one in gone if one.key not in told]
    letters = queue.dead_letters.list(reading.MOST_LETTERS) if unknown else []
    dead = {letter.original_id for letter in letters}
    rest = GONE if len(letters) < reading.MOST_LETTERS else None
    told |= {one.key: "dead" if one.last_id in dead else rest for one in unknown}
    return {
        (one.queue, one.key): Firing(
            told.get(one.key) or _state(one.last_id, stored),
            is_held=_state(one.next_id, stored) == HELD,
        )
        for one in wanted
    }


def _state(id_: MessageId | None, stored: Mapping[MessageId, StoredMessage]) -> str | None:
    """Return how a stored message is shown; None if it is not stored."""
    message = None if id_ is None else stored.get(id_)
    return None if message is None else HELD if message.state == "claimed" else WAITING


def _told(queue: Queue, gone: Sequence[ScheduleState]) -> dict[str, str | None]:
    """Return by key what a history or a kept result tells of last firings that are not stored any more."""
    told: dict[str, str | None] = {}
    recent = {one.key: one.previous for one in gone if one.previous and queue.now - one.previous < RECENT}
    if recent and queue.config.history is not None:
        for event in queue.history(since=min(recent.values()), limit=EVENTS):
            key = event.schedule or ""
            fired = recent.get(key)
            # A late firing has the time of its message; one that somebody asked for since has a later time.
            # What was told before the last firing is of an earlier one.
            if fired and event.fired_at and event.fired_at <= fired <= event.at:
                told[key] = WORDS.get(event.state)
    for one in gone:
        if one.last_id is not None and told.get(one.key) is None:
            result = queue.result(one.last_id)
            if result is not None:
                told[one.key] = WORDS.get(result.state)
    return {key: end for key, end in told.items() if end is not None}
