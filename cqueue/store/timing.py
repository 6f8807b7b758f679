"""The cluster's time, asked of several coordinators at once."""

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
        """Cluster time now, and how long the round trip took, in µs."""
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
    # Noted where the answer arrives: whoever asks may be waiting for another one.
    future.add_callbacks(
        lambda rows: answers.put(_Sample(sent_ns, time.monotonic_ns(), rows[0][0])),
        answers.put,  # whatever failed, another coordinator may answer
    )


def _soon(answers: SimpleQueue[Any], count: int) -> tuple[list[_Sample], list[Exception]]:
    """What is answered soon; or, if nothing is, the first answer that comes, and what went wrong."""
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
