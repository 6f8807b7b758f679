"""Ask several coordinators for the cluster's time at once."""

from __future__ import annotations

import random
import time
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from cassandra.cluster import ExecutionProfile, Session
from cassandra.policies import HostDistance
from cassandra.pool import Host

from cqueue.errors import Unavailable
from cqueue.store.statements import READ_TIME

SAMPLED_HOSTS: Final = 5
"""Coordinators that are asked, at most: the median of five is right though two of them are wrong."""
TIMEOUT_S: Final = 2.0
"""Seconds that an answer may take. A slower one would be too inexact to be used."""

PATIENCE_S: Final = 0.1
"""Seconds to wait for all answers. After that one answer is enough, because other nodes may be cut off."""

_HALF_MS_US: Final = 500  # the answer is rounded down to whole ms: half of one too early on average


def sample_time_us(session: Session, profile: ExecutionProfile) -> list[tuple[int, int]]:
    """Return (cluster time at the moment of return, round trip) of each coordinator that answered, in µs.

    Raises:
        Unavailable: no coordinator answered.
    """
    answers: SimpleQueue[_Sample | Exception] = SimpleQueue()
    hosts = _hosts(session, profile)
    for host in hosts:
        _ask(session, profile, host, answers)
    samples, failures = _soon(answers, len(hosts))
    if not samples:
        first = next(iter(failures), None)
        raise Unavailable(f"None of {len(hosts)} coordinators told the time: {first}") from first
    now_ns = time.monotonic_ns()
    return [sample.at(now_ns) for sample in samples]


class _Sample(NamedTuple):
    sent_ns: int
    received_ns: int
    server_ms: int

    def at(self, now_ns: int) -> tuple[int, int]:
        """Return cluster time at `now_ns`, and the length of the round trip, both in µs."""
        middle_ns = (self.sent_ns + self.received_ns) // 2
        server_us = self.server_ms * 1000 + _HALF_MS_US
        return server_us + (now_ns - middle_ns) // 1000, (self.received_ns - self.sent_ns) // 1000


def _hosts(session: Session, profile: ExecutionProfile) -> list[Host]:
    known = session.cluster.metadata.all_hosts()
    near = [h for h in known if h.is_up and profile.load_balancing_policy.distance(h) == HostDistance.LOCAL]
    return random.sample(near, min(SAMPLED_HOSTS, len(near)))


def _ask(session: Session, profile: ExecutionProfile, host: Host, answers: SimpleQueue[Any]) -> None:
    sent_ns = time.monotonic_ns()
    future = session.execute_async(READ_TIME.cql, host=host, timeout=TIMEOUT_S, execution_profile=profile)
    # Timed on the thread where the answer arrives, as the asking thread may be waiting for another.
    future.add_callbacks(
        lambda rows: answers.put(_Sample(sent_ns, time.monotonic_ns(), rows[0][0])),
        answers.put,  # another coordinator may still answer
    )


def _soon(answers: SimpleQueue[Any], count: int) -> tuple[list[_Sample], list[Exception]]:
    """Collect the answers of the first `PATIENCE_S`, or else the first answer, together with the failures."""
    samples, failures = list[_Sample](), list[Exception]()
    soon_s = time.monotonic() + PATIENCE_S
    while len(samples) + len(failures) < count:
        end_s = soon_s if samples else soon_s + TIMEOUT_S
        try:
            one = answers.get(timeout=max(0.0, end_s - time.monotonic()))
        except Empty:
            break
        if isinstance(one, _Sample):
            samples.append(one)
        else:
            failures.append(one)
    return samples, failures
