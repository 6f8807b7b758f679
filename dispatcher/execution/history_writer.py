"""Tells a queue's history of what became of its messages, for queues that keep one.

A batcher appends events twice a second. No worker waits for it, and what cannot be appended, or would be one
event too many, is dropped, counted and logged: a history must not delay messages.

A run that ends within about a second is one event. A longer one is told twice, as it runs and as it has
ended, so that the history says who had a message whose worker was killed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from cqueue.dispatcher.execution.actions import Cancel
from cqueue.dispatcher.execution.delivery import RELEASED, SUCCEEDED, UNDECIDED, Delivery, Settlement, Verb
from cqueue.dispatcher.execution.events import Event, Events, Trouble
from cqueue.dispatcher.execution.runner import trace_of
from cqueue.dispatcher.schedules.definition import FiringId
from cqueue.errors import Closed
from cqueue.history import Told
from cqueue.message import MessageId
from cqueue.runtime.batcher import Batcher, Bounds
from cqueue.runtime.logs import text_of
from cqueue.runtime.rendezvous import own_name
from cqueue.runtime.texts import storable

if TYPE_CHECKING:
    from cqueue.dispatcher.execution.delivery import LeasedBatch
    from cqueue.queue import Queue

Entry = tuple["Queue", tuple[Any, ...], dict[str, Any] | None]
"""A queue, what was told of a message, and what is told besides."""

EVERY_S: Final = 0.5
"""Seconds between two appends."""
FULL: Final = 5_000
"""Events that are appended at once, without waiting for EVERY_S."""
MOST: Final = 50_000
"""Events that wait, at most: some ten seconds of a busy dispatcher."""
LONG_S: Final = 1.0
"""Seconds after which a handler that runs is told of."""
MAX_TRACE: Final = 8_000
"""Characters kept of a traceback, its end: that names the place of the error."""


class HistoryWriter:
    """Collects events, and appends them. Thread-safe.

    Args:
        events: log events.

    Attributes:
        put: takes an event, and returns at once.
    """

    def __init__(self, events: Events) -> None:
        self._trouble = Trouble(events, Event.HISTORY_LOST, Event.HISTORY_RESUMED)
        bounds = Bounds(FULL, linger_s=EVERY_S)
        self._batcher: Batcher[Entry, None] = Batcher(self.append, bounds, name="cqueue-history", daemon=True)
        self.put: Callable[[Entry], object] = self._batcher.put
        self._dropped = 0
        self._watched_s = 0.0

    # ── on the threads of workers ──

    def decided(self, delivery: Delivery, settlement: Settlement) -> None:
        """Tell of a decision. What was given back without a start is not told."""
        if settlement is SUCCEEDED:
            self._tell(delivery, "succeeded")
        elif settlement is not RELEASED:
            is_skipped = isinstance(delivery.override, Cancel)
            self._tell(delivery, "skipped" if is_skipped else settlement.outcome, settlement)

    def lost(self, delivery: Delivery) -> None:
        """Tell that another consumer may have the message."""
        self._tell(delivery, "lost")

    def watch(self, batches: Iterable[LeasedBatch]) -> None:
        """Tell of handlers that run for a while and were not told of, once a second. Called often."""
        now_s = time.monotonic()
        if now_s - self._watched_s < LONG_S:
            return
        self._watched_s = now_s
        for batch in batches:
            if batch.poller.keeps_history:
                for delivery in batch.deliveries:
                    is_long = now_s - delivery.begun_s >= LONG_S
                    if is_long and not delivery.is_told and delivery.settlement is UNDECIDED:
                        delivery.is_told = True
                        self._tell(delivery, "running")

    def _tell(self, delivery: Delivery, state: str, decided: Settlement | None = None) -> None:
        """Note an event. Whatever can be done later is left to the batcher's thread."""
        row, lease, poller = delivery.message.row, delivery.message.lease, delivery.poller
        now_ms = poller.driver.clock.guess_us() // 1000  # asks no node: a handler's thread waits
        began_ms = None
        if delivery.begun_s < math.inf:
            began_ms = now_ms - round((time.monotonic() - delivery.begun_s) * 1000)
        at_ms = began_ms if state == "running" and began_ms is not None else now_ms
        more: dict[str, Any] | None = None
        if decided is not None or row.trigger is not None:
            more = _more(delivery, decided, now_ms)
        place = (lease.wide_row, row.priority, row.id)
        told = (at_ms, state, place, row.task, row.key, lease.attempt, lease.fence, row.sent_at, began_ms)
        if self._batcher.queued >= MOST:
            self._dropped += 1
            return
        with suppress(Closed):
            self.put((poller.queue, told, more))

    def close(self, seconds: float) -> None:
        """Append what waits, for `seconds` at most."""
        self._batcher.close(wait_s=seconds)

    # ── on the batcher's thread ──

    def append(self, entries: Sequence[Entry]) -> list[None]:
        """Append events. Never raises, so that none is tried again."""
        by_queue: dict[Queue, list[Told]] = {}
        for queue, (at_ms, state, place, *rest), more in entries:
            told = Told(at_ms, state, MessageId.of(*place), *rest)
            by_queue.setdefault(queue, []).append(told if more is None else told._replace(**more))
        dropped, self._dropped = self._dropped, 0
        for queue, events in by_queue.items():
            try:
                lost, error = queue._history.append(own_name(), events)  # noqa: SLF001 - of the library
            except Exception as exc:  # noqa: BLE001 - whatever it was, the thread goes on
                lost, error = len(events), exc
            if error is not None or dropped:
                error = error or OverflowError("more events came than were appended")
                self._trouble.failed(queue.name, error, queue=queue.name, events=lost + dropped)
                dropped = 0
            else:
                self._trouble.succeeded(queue.name, queue=queue.name)
        return [None] * len(entries)


def _more(delivery: Delivery, decided: Settlement | None, now_ms: int) -> dict[str, Any]:
    """Return why a message was not done, when it comes again, and which firing it is."""
    found: dict[str, Any] = {}
    if decided is not None:
        found |= _why(delivery, decided)
        if decided.verb in {Verb.NACK, Verb.SNOOZE}:
            found["next_at"] = now_ms + round(decided.delay.total_seconds() * 1000)
    if (firing := FiringId.parse(delivery.message.trigger)) is not None:
        found |= {"schedule": firing.key, "fired_at": firing.time_ms}
    return found


def _why(delivery: Delivery, decided: Settlement) -> dict[str, Any]:
    """Return why a message was not done; the texts are kept whole, as in dead letters."""
    error = delivery.error
    if error is None and not decided.reason:
        return {}
    trace = decided.traceback or (trace_of(error) if error is not None else "")
    reason = decided.reason or (text_of(error) if error is not None else "")
    return {
        "error": None if error is None else type(error).__name__,
        "reason": storable(reason)[:MAX_TRACE] or None,
        "traceback": storable(trace)[-MAX_TRACE:] or None,
    }
