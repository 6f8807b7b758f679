"""The thread that forwards a topic of a spool to Cassandra: pull, store, commit, and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import tenacity

from cqueue.errors import BadInput, Closed, CqueueError, NotDone, Refused, SpoolLocked
from cqueue.message import check_duration
from cqueue.runtime import logs
from cqueue.runtime.waiting import Condition, Signal, Thread
from cqueue.spool.forward_frame import ForeignPayload

if TYPE_CHECKING:
    from cqueue.spool import Spool, SpoolRecord

BATCH: Final = 1000
"""Records of one batch: enough to fill several wide rows. As many may be stored again after a crash."""
WAIT_S: Final = 0.2
"""Seconds that the thread sleeps while nothing comes, and so the longest that a close waits for it."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
"""Seconds of pause after a failed batch, doubled each time: forwarding starts at most 2 s after Cassandra."""
CLOSE_S: Final = 5.0
"""Seconds that a close goes on forwarding: a deployment waits for them, and the spools keep the rest."""
MAX_WAIT: Final = timedelta(days=1)

_log = logs.logger("cqueue.spool")


class Stored(NamedTuple):
    """The outcome of some records: the number of the first ones that are done, and the error of the next."""

    done: int
    error: CqueueError | None = None


Store = Callable[[Sequence["SpoolRecord"]], Stored]


class Forwarder:
    """Forwards one topic, in order, from its progress on. Thread-safe.

    Args:
        spool: holds the records.
        topic: the topic of the spool.
        store: stores records; storing them again must change nothing.

    Attributes:
        error: the error of the last batch; None if it was stored.
    """

    def __init__(self, spool: Spool, topic: str, store: Store) -> None:
        self.topic = topic
        self.error: CqueueError | None = None
        self._spool = spool
        self._store = store
        self._stop = Signal()
        self._moved = Condition()
        self._counts = spool.forwarding[topic]
        self._at = spool.progress(topic)
        self._thread: Thread | None = None
        self._retry = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda is_done: not is_done),
            wait=tenacity.wait_exponential(FIRST_PAUSE_S, LONGEST_PAUSE_S)
            + tenacity.wait_random(0, FIRST_PAUSE_S),
            stop=tenacity.stop_when_event_set(self._stop),
            sleep=tenacity.sleep_using_event(self._stop),
            retry_error_callback=lambda _: None,
        )

    @property
    def refusal(self) -> CqueueError | None:
        """The error that lasts until an operator acts, so that nothing more should be spooled; else None."""
        error = self.error  # read once: the forwarder's thread sets it
        return error if isinstance(error, Refused | BadInput) else None

    @property
    def waiting(self) -> int:
        """The number of records that are not yet in Cassandra."""
        return max(0, self._end() - self._at)

    def start(self) -> None:
        """Start a thread that forwards until `close`.

        Raises:
            SpoolLocked: another client forwards the topic; two would store it twice, and out of order.
        """
        if self._spool.forwarders.setdefault(self.topic, self) is not self:
            raise SpoolLocked(
                f"topic {self.topic!r} of the spool {self._spool.path} is forwarded by another client; "
                "use that one, or close it first"
            )
        self._at = self._spool.progress(self.topic)  # another one may have ended only now
        self._thread = Thread(target=self._run, name=f"cqueue-spool-{self.topic}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise unless what is spooled now will be forwarded.

        Raises:
            Closed: the client or the spool has been closed.
            Refused, BadInput: the error that lasts until an operator acts.
        """
        if self._stop.is_set():
            raise Closed("the client or its spool has been closed; nothing was spooled")
        if (refusal := self.refusal) is not None:
            raise refusal

    def drain(self, limit_s: float) -> bool:
        """Wait until all records of now are in Cassandra; return False after `limit_s`."""
        end = self._end()
        with self._moved:
            self._moved.wait_for(lambda: self._at >= end or self._has_ended(), limit_s)
            return self._at >= end

    def close(self, limit_s: float = CLOSE_S) -> None:
        """Forward for up to `limit_s`, and end. The rest stays in the spool."""
        drained = self.drain(limit_s)
        self._end_waits()
        # One that is not drained may wait for Cassandra, which ends with the client.
        if drained and self._thread is not None and self._thread.is_alive():
            self._thread.join()
        if self._spool.forwarders.get(self.topic) is self:
            del self._spool.forwarders[self.topic]

    def _end_waits(self) -> None:
        self._stop.set()
        with self._moved:
            self._moved.notify_all()

    def _end(self) -> int:
        """Return the offset behind the last record."""
        return self._spool.end(self.topic)

    def _has_ended(self) -> bool:
        """Return whether nothing more is forwarded, also because the spool is closed."""
        return self._stop.is_set() or not self._spool.is_open

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._spool.wait(self.topic, 0, self._at, WAIT_S):
                    self._retry(self._forward)
        except Closed:  # the spool or the client, in another order than it should be
            self._end_waits()

    def _forward(self) -> bool:
        """Forward one batch, and return whether all of it is done."""
        if not self._spool.is_open:  # the next process may forward it by now
            raise Closed("the spool is closed")
        try:
            end = self._end()
            records = self._spool.pull(self.topic, 0, self._at, BATCH)
            self._spool.check_held()  # else it could not be written down that they are forwarded
            done, error = self._store(records) if records else Stored(0)
            passed = done
            if isinstance(error, ForeignPayload):  # it would hold up all that stands behind it
                self._spool.set_aside(self.topic, records[done], str(error))
                passed, error = done + 1, None
            if passed or not records:  # else all that was there is lost, which the spool has reported
                self._move(records[passed - 1].offset + 1 if passed else end, done)
        except Closed:
            raise
        except CqueueError as exc:
            error = exc
        except Exception as exc:  # noqa: BLE001 - a disk that fails; the thread must not end unseen
            _log.error(
                "spool_forward_failed",
                topic=self.topic,
                error=logs.describe(exc),
                **logs.trace(exc, is_final=True),
            )
            error = NotDone(f"the spool cannot be forwarded: {logs.describe(exc)}")
        self._note(error)
        return error is None

    def _move(self, at: int, done: int) -> None:
        self._spool.commit(self.topic, at)
        with self._moved:
            self._at = at
            self._counts.forwarded += done
            self._moved.notify_all()

    def _note(self, error: CqueueError | None) -> None:
        """Count a failure; log when forwarding begins to fail, and when it goes on."""
        self._counts.failures += error is not None
        if error is not None and self.error is None:
            _log.warning("spool_waits", topic=self.topic, error=str(error))
        elif error is None and self.error is not None:
            _log.info("spool_goes_on", topic=self.topic)
        self.error = error


class Forwarded:
    """A queue or a log with a spool, whose forwarder runs from `start` until `close`."""

    def __init__(self, spool: Spool, topic: str, store: Store) -> None:
        self._spool = spool
        self._forwarder = Forwarder(spool, topic, store)

    def start(self) -> None:
        """Used inside, by the client: begin to forward."""
        self._forwarder.start()

    @property
    def waiting(self) -> int:
        """The number of messages or records in the spool that are not yet in Cassandra."""
        return self._forwarder.waiting

    @property
    def trouble(self) -> CqueueError | None:
        """The error that keeps messages or records from being forwarded; None if there is none."""
        return self._forwarder.error

    def flush(self, wait: timedelta) -> bool:
        """Wait until all that is spooled now is in Cassandra; False if that takes longer than `wait`.

        wait: up to a day.
        """
        return self._forwarder.drain(check_duration("wait", wait, timedelta(), MAX_WAIT))

    def close(self, limit_s: float = CLOSE_S) -> None:
        """Used inside, by the client: as `Forwarder.close`."""
        self._forwarder.close(limit_s)
