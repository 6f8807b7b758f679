"""The cluster's time, asked of several coordinators at once."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from threading import Condition
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
    news = Condition()
    asked = [_Question(session, profile, host, news) for host in _hosts(session, profile)]
    answered = _await(asked, news)
    if not answered:
        first = next((question.failure for question in asked), None)
        raise Unavailable(f"None of {len(asked)} coordinators told the time: {first}") from first
    now_ns = time.monotonic_ns()
    return [question.sample_us(now_ns) for question in answered]


def _await(asked: Sequence[_Question], news: Condition) -> list[_Question]:
    """Those that answer soon; or, if none does, those that answered when the first did."""
    with news:
        news.wait_for(lambda: all(question.ended for question in asked), PATIENCE_S)
        news.wait_for(
            lambda: any(question.answered for question in asked) or all(question.ended for question in asked),
            TIMEOUT_S,
        )
        return [question for question in asked if question.answered]


def _hosts(session: Session, profile: ExecutionProfile) -> list[Host]:
    known = session.cluster.metadata.all_hosts()
    near = [h for h in known if h.is_up and profile.load_balancing_policy.distance(h) == HostDistance.LOCAL]
    return random.sample(near, min(SAMPLED_HOSTS, len(near)))


class _Question:
    """One coordinator asked for its time."""

    def __init__(self, session: Session, profile: ExecutionProfile, host: Host, news: Condition) -> None:
        self._news = news
        self.failure: Exception | None = None
        self._server_ms = 0
        self._received_ns = 0
        self._sent_ns = time.monotonic_ns()
        self.answered = self.ended = False
        future = session.execute_async(READ_TIME.cql, host=host, timeout=TIMEOUT_S, execution_profile=profile)
        # Noted where the answer arrives: whoever asks may be waiting for another one.
        future.add_callbacks(self._receive, self._fail)

    def _receive(self, rows: Any) -> None:
        self._received_ns = time.monotonic_ns()
        self._server_ms = rows[0][0]
        self._end(answered=True)

    def _fail(self, failure: Exception) -> None:
        self.failure = failure  # whatever it is, another coordinator may answer
        self._end(answered=False)

    def _end(self, *, answered: bool) -> None:
        with self._news:
            self.answered, self.ended = answered, True
            self._news.notify_all()

    def sample_us(self, now_ns: int) -> tuple[int, int]:
        middle_ns = (self._sent_ns + self._received_ns) // 2
        server_us = self._server_ms * 1000 + _HALF_MS_US
        return server_us + (now_ns - middle_ns) // 1000, (self._received_ns - self._sent_ns) // 1000
