"""Finds schedules whose next firing is gone: purged, buried, held by somebody else, or never sent.

A schedule goes on because its firing is delivered, so a missing firing would stop it for ever. Every
dispatcher checks, and all act alike, so it does not matter which is first. The first remedy is to send the
firing again: it is the same message, so this helps if it was never sent, and changes nothing if it was acked
or purged.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from typing import Final

from cqueue.dispatcher.schedules.definition import ScheduleDefinition, moved_on, next_firing
from cqueue.dispatcher.schedules.store import ScheduleStore, due_ms
from cqueue.errors import BadInput, Closed, CqueueError, DamagedRow
from cqueue.runtime.logs import DISPATCHER, describe, logger, trace
from cqueue.store.control import ScheduleRow

INTERVAL_S: Final = 30.0
"""Seconds between two checks, ±25 % to spread dispatchers: one read a queue that may have schedules, and half
a minute's delay."""
MARGIN_MS: Final = 10_000
"""Ms of lateness of a firing before its schedule counts as stopped: more than a usual delivery takes."""


def restart_stalled(store: ScheduleStore) -> list[str]:
    """Check all schedules of a queue once; return the keys of those that had stopped, and go on now.

    Raises:
        NotDone, OutcomeUnknown: Cassandra does not answer; the next check goes on.
    """
    restarted: list[str] = []
    if not store.spec.derived_sends:  # a queue gets it with its first schedule, and keeps it
        return restarted
    for row in store.rows():
        try:
            if _is_overdue(store, row) and _restart(store, row.key):
                restarted.append(row.key)
        except (DamagedRow, BadInput) as exc:  # of this schedule only; the others are checked
            logger(DISPATCHER).warning(
                "schedule_unwatched", queue=store.queue, schedule=row.key, error=describe(exc)
            )
    return restarted


def overdue_ms(row: ScheduleRow) -> int | None:
    """Return from when the schedule counts as stopped, in ms since 1970; None if it waits for no firing."""
    return None if next_firing(row) is None else due_ms(row) + MARGIN_MS + 1


def _is_overdue(store: ScheduleStore, row: ScheduleRow) -> bool:
    """Return whether the firing should have moved the row on already."""
    try:
        from_ms = overdue_ms(row)
    except BadInput:  # a newer version's schedule: its dispatchers check it
        return False
    return from_ms is not None and store.now_us() // 1000 >= from_ms


def _restart(store: ScheduleStore, key: str) -> bool:
    """Restart a schedule if it has stopped; on a paused or slow queue its firing still exists."""
    row = store.read(key)
    if row is None or not _is_overdue(store, row):
        return False
    if store.is_live(row):
        if not store.is_old(row):  # who sent it may have died before consumers could find it
            store.send_next(row)
        return False
    if store.read(key) != row:  # it fired, and was acked, between the two reads
        return False
    store.send_next(row)
    if store.is_live(row):
        return True
    # The firing was acked or purged, and will not come again
    next_ms = ScheduleDefinition.from_json(row.definition).timetable.next_after(row.next_at)
    return store.go_on(moved_on(row, None, next_ms)) is not None


class ScheduleMonitor:
    """A thread that checks the schedules of some queues twice a minute.

    Args:
        stores: schedules of the queues.
        interval_s: seconds between two checks.
    """

    def __init__(
        self,
        stores: Iterable[ScheduleStore],
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._stores = tuple(stores)
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._log = logger(DISPATCHER)
        self.thread = threading.Thread(target=self._run, name="cqueue-schedule-monitor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def close(self) -> None:
        """End the thread. A check under way is not waited for: it may stop after any of its operations."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s * random.uniform(0.75, 1.25)):
            self.check_all()

    def check_all(self) -> None:
        """Check all queues once."""
        for store in self._stores:
            try:
                for key in restart_stalled(store):
                    self._log.warning("schedule_restarted", queue=store.queue, schedule=key)
            except Closed:
                return
            except CqueueError as exc:
                self._log.warning("schedules_unwatched", queue=store.queue, error=describe(exc))
            except Exception as exc:  # noqa: BLE001 - the thread must survive every error
                self._log.error(
                    "schedules_unwatched",
                    queue=store.queue,
                    error=describe(exc),
                    **trace(exc, is_final=True),
                )
