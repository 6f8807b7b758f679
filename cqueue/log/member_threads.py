"""Run a subscription member's two threads: one works, the other sends heartbeats."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, suppress
from threading import Lock
from typing import Final

from cqueue.errors import LASTING, Closed, CqueueError, LogNotFound, NotDone, OutcomeUnknown, SchemaMismatch
from cqueue.log.member import Member
from cqueue.log.member_loop import MemberLoop
from cqueue.runtime import logs
from cqueue.runtime.waiting import Condition, Event, Thread

TROUBLE_S: Final = 0.3
"""Seconds to wait after a failure that may be over soon: short, as a heartbeat is due every 1.5 s."""
LASTING_S: Final = 5.0
"""Seconds to wait after a failure that lasts until an operator mends something."""
REPEAT_S: Final = 60.0
"""Seconds after which an error of one text is logged again. A step that asked Cassandra nothing may lie
between two failures, so its success does not show that the trouble is over."""
SHORTEST_WAIT_S: Final = 0.02
"""Seconds between two reads of the subscription at least, so that a wrong time cannot make a thread spin."""

LOGGER: Final = "cqueue.log"


class MemberThreads:
    """Runs a member once.

    wake: ends a pause between two steps. listening: a context that is entered while the member runs.
    """

    def __init__(
        self,
        name: str,
        member: Member,
        loop: MemberLoop,
        wake: Event,
        *,
        listening: AbstractContextManager[None],
    ) -> None:
        self.thread: Thread | None = None
        self._name = name
        self._member = member
        self._loop = loop
        self._wake = wake
        self._listening = listening
        self._stop = loop.stopping
        self._mutex = Lock()
        self._began = False
        self._running = Condition()  # held by the thread that the member runs on
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Run on this thread until `stop`; raise the error that ended the member earlier."""
        self._begin()
        self._run()
        if self._failure is not None:
            raise self._failure

    def start(self) -> None:
        """Run on a thread of its own."""
        self._begin()
        self.thread = Thread(target=self._run, name=f"cqueue-{self._name}", daemon=True)
        try:
            self.thread.start()
        except BaseException:  # after a Ctrl-C the thread may run all the same
            self._stop.set()
            self._wake.set()
            raise

    def stop(self, timeout_s: float | None) -> bool:
        """Ask the member to end; return whether it ended within `timeout_s`.

        Raises:
            BaseException: the error that ended the member's thread.
        """
        self._stop.set()
        self._wake.set()
        if self._running.is_held():  # by this thread: a listener calls
            return False
        try:
            has_ended = self._running.acquire(timeout=-1 if timeout_s is None else timeout_s)
        finally:
            with suppress(RuntimeError):  # the time passed, or a Ctrl-C came before the lock was taken
                self._running.release()
        if has_ended and self.thread is not None and self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return has_ended

    def _begin(self) -> None:
        with self._mutex:
            if self._began or self._stop.is_set():
                raise Closed(f"subscription {self._name!r} has been run already; subscribe again")
            self._began = True

    def _run(self) -> None:
        with self._running:
            if not self._stop.is_set():  # else `stop` may have returned already
                self._run_both()

    def _run_both(self) -> None:
        living = Thread(target=self._send_heartbeats, name=f"cqueue-{self._name}-member", daemon=True)
        try:
            living.start()
            with self._listening:
                self._run_loop()
        except BaseException as exc:  # noqa: BLE001 - raised again by run, or by stop
            self._failure = exc
        finally:
            self._stop.set()
            if living.is_alive():
                living.join()
            self.leave()

    def _run_loop(self) -> None:
        told_s: dict[str, float] = {}  # when each error was told, by its text
        while not self._stop.is_set():
            self._wake.clear()
            try:
                wait_s = self._loop.step()
            except (Closed, SchemaMismatch):
                raise
            except (NotDone, OutcomeUnknown) as exc:
                wait_s, trouble, now_s = _pause_s(exc), str(exc), time.monotonic()
                if now_s - told_s.get(trouble, -REPEAT_S) >= REPEAT_S:
                    told_s = {text: at_s for text, at_s in told_s.items() if now_s - at_s < REPEAT_S}
                    told_s[trouble] = now_s
                    _tell("subscription_trouble", self._name, trouble, is_lasting=isinstance(exc, LASTING))
            if wait_s > 0 and not self._stop.is_set():
                self._wake.wait(wait_s)

    def _send_heartbeats(self) -> None:
        """Send heartbeats and read the subscription until the member stops."""
        while not self._stop.is_set():
            try:
                wait_s = self._member.beat_and_read()
            except (NotDone, OutcomeUnknown) as exc:
                wait_s = _pause_s(exc)
            except Exception as exc:  # noqa: BLE001 - a member must not work on without heartbeats
                self._failure = exc
                self._stop.set()
                return
            finally:
                self._wake.set()
            self._stop.wait(max(SHORTEST_WAIT_S, wait_s))

    def leave(self) -> None:
        """Release all partitions, and remove the member."""
        try:
            with suppress(LogNotFound):  # deleted: no position is left, but perhaps another subscription
                self._loop.release_all()
            self._member.leave()
        except CqueueError as exc:
            _tell("subscription_left_late", self._name, str(exc))


def _pause_s(error: CqueueError) -> float:
    return LASTING_S if isinstance(error, LASTING) else TROUBLE_S


def _tell(event: str, subscription: str, error: str, *, is_lasting: bool = False) -> None:
    log = logs.logger(LOGGER)
    say = log.error if is_lasting else log.info
    say(event, subscription=subscription, error=error)
