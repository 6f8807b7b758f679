"""The cluster's time, asked of several coordinators at once."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from threading import Event
from typing import Any, Final

from cassandra.cluster import ExecutionProfile, Session
from cassandra.policies import HostDistance
from cassandra.pool import Host

from cqueue.errors import Unavailable
from cqueue.store.statements import READ_TIME

SAMPLED_HOSTS: Final = 5
TIMEOUT_S: Final = 2.0
"""An answer that takes longer says nothing about the time."""

PATIENCE_S: Final = 0.1
"""Once somebody has answered, the others are waited for no longer: one may be cut off."""

_HALF_MS_US: Final = 500  # the answer is a whole number of ms, so on average half of one too early


def sample_time_us(session: Session, profile: ExecutionProfile) -> list[tuple[int, int]]:
    """(Cluster time at the moment of return, round trip) of each coordinator that answered, in µs.

    Raises:
        Unavailable: none of them did.
    """
    asked = [_Question(session, profile, host) for host in _hosts(session, profile)]
    answered = _await(asked)
    if not answered:
        first = next((question.failure for question in asked), None)
        raise Unavailable(f"None of {len(asked)} coordinators told the time: {first}") from first
    now_ns = time.monotonic_ns()
    return [question.sample_us(now_ns) for question in answered]


def _await(asked: Sequence[_Question]) -> list[_Question]:
    """Those that answer soon; or, if none does, the first that does at all."""
    end_s = time.monotonic() + PATIENCE_S
    for question in asked:
        question.ended.wait(max(0.0, end_s - time.monotonic()))
    soon = [question for question in asked if question.answered]
    return soon or next(([question] for question in asked if question.await_answer()), [])


def _hosts(session: Session, profile: ExecutionProfile) -> list[Host]:
    known = session.cluster.metadata.all_hosts()
    near = [h for h in known if h.is_up and profile.load_balancing_policy.distance(h) == HostDistance.LOCAL]
    return random.sample(near, min(SAMPLED_HOSTS, len(near)))


class _Question:
    """One coordinator asked for its time."""

    def __init__(self, session: Session, profile: ExecutionProfile, host: Host) -> None:
        self.failure: Exception | None = None
        self._server_ms = 0
        self._received_ns = 0
        self._sent_ns = time.monotonic_ns()
        self.answered = False
        self.ended = Event()
        future = session.execute_async(READ_TIME.cql, host=host, timeout=TIMEOUT_S, execution_profile=profile)
        # Noted where the answer arrives: this thread may be waiting for another one.
        future.add_callbacks(self._receive, self._fail)

    def _receive(self, rows: Any) -> None:
        self._received_ns = time.monotonic_ns()
        self._server_ms = rows[0][0]
        self.answered = True
        self.ended.set()

    def _fail(self, failure: Exception) -> None:
        self.failure = failure  # whatever it is, another coordinator may answer
        self.ended.set()

    def await_answer(self) -> bool:
        """Wait to the end, which the driver makes after `TIMEOUT_S`; whether there was an answer."""
        self.ended.wait()
        return self.answered

    def sample_us(self, now_ns: int) -> tuple[int, int]:
        middle_ns = (self._sent_ns + self._received_ns) // 2
        server_us = self._server_ms * 1000 + _HALF_MS_US
        return server_us + (now_ns - middle_ns) // 1000, (self._received_ns - self._sent_ns) // 1000
