"""Notices schedules whose next firing is gone: purged, buried, taken by somebody else, or never sent.

Nothing else would: a schedule goes on because its firing is delivered. Every dispatcher looks, and all do the
same, so it matters little who is first. Sending the firing again comes before every other remedy: it is the
same message, so that this helps where it was never sent and does nothing where it was acked or purged.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from typing import Final

from cqueue.dispatcher.definition import Definition, next_ticket, waiting_for
from cqueue.dispatcher.events import describe, logger
from cqueue.dispatcher.ledger import Ledger, due_ms
from cqueue.errors import BadInput, Closed, CqueueError, DamagedRow
from cqueue.store.control import ScheduleRow

INTERVAL_S: Final = 30.0
MARGIN_MS: Final = 10_000
"""A firing may be so late before anybody asks where it is."""


def look(ledger: Ledger) -> list[str]:
    """Look at all schedules of a queue once; the keys of those that had stopped.

    Raises:
        NotDone, OutcomeUnknown: Cassandra does not answer; the next look goes on.
    """
    return [row.key for row in ledger.rows() if _got_going(ledger, row)]


def _got_going(ledger: Ledger, row: ScheduleRow) -> bool:
    try:
        return is_overdue(ledger, row) and _help(ledger, row.key)
    except (DamagedRow, BadInput) as exc:  # of this one; the others are looked at all the same
        logger().warning("schedule_unwatched", queue=ledger.queue, schedule=row.key, error=describe(exc))
        return False


def is_overdue(ledger: Ledger, row: ScheduleRow) -> bool:
    """Whether its firing should have moved the row on already."""
    try:
        return next_ticket(row) is not None and ledger.now_us() // 1000 > due_ms(row) + MARGIN_MS
    except BadInput:  # of a newer version: its dispatchers look after it
        return False


def _help(ledger: Ledger, key: str) -> bool:
    """Get a schedule going if it has stopped; where a queue is paused or behind, its firing is there."""
    row = ledger.read(key)
    if row is None or not is_overdue(ledger, row) or ledger.is_live(row):
        return False
    if ledger.read(key) != row:  # it fired, and was acked, between the two reads
        return False
    ledger.send_next(row)
    if ledger.is_live(row):
        return True
    # That firing has been, in some way: it will not come again
    next_ms = Definition.from_json(row.definition).timetable.next_after(row.next_at)
    return ledger.go_on(waiting_for(next_ms, row)) is not None


class Watcher:
    """A thread that looks at the schedules of some queues twice a minute.

    beside: what else to do then, and once at the beginning. It raises nothing.
    """

    def __init__(
        self,
        ledgers: Iterable[Ledger],
        *,
        beside: Callable[[], None] = lambda: None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._ledgers = tuple(ledgers)
        self._beside = beside
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._log = logger()
        self.thread = threading.Thread(target=self._run, name="cqueue-watcher", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def close(self) -> None:
        """End; a look under way is not waited for, as it may end at any of its operations."""
        self._stopping.set()

    def _run(self) -> None:
        self._beside()
        while not self._stopping.wait(self._interval_s * random.uniform(0.75, 1.25)):
            self.look()
            self._beside()

    def look(self) -> None:
        """Look at all queues once."""
        for ledger in self._ledgers:
            try:
                for key in look(ledger):
                    self._log.warning("schedule_restarted", queue=ledger.queue, schedule=key)
            except Closed:
                return
            except CqueueError as exc:
                self._log.warning("schedules_unwatched", queue=ledger.queue, error=describe(exc))
            except Exception as exc:  # noqa: BLE001 - the thread must outlive whatever one look meets
                self._log.exception("schedules_unwatched", queue=ledger.queue, error=describe(exc))
