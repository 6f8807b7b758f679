"""Deadlines of calls: each request of a thread gets the time that the thread's call has left.

A call makes several requests, and repeats some. If each request had the whole timeout, a client that is cut
off would wait for the sum of them.
"""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from typing import Final

SHORTEST_S: Final = 0.5
"""Seconds that a request gets even after the deadline. Less would fail requests that Cassandra could
answer."""

_end_s: ContextVar[float | None] = ContextVar("end_s", default=None)


class within:  # noqa: N801 - reads as a function, like `contextlib.suppress`
    """Bound all requests inside the block by `limit_s` seconds from now, or by an earlier outer deadline."""

    __slots__ = ("_limit_s", "_token")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._token: Token[float | None]

    def __enter__(self) -> None:
        outer_s, end_s = _end_s.get(), time.monotonic() + self._limit_s
        self._token = _end_s.set(end_s if outer_s is None else min(outer_s, end_s))

    def __exit__(self, *_: object) -> None:
        _end_s.reset(self._token)


def renew(limit_s: float) -> None:
    """Move the deadline of the innermost `within` to `limit_s` seconds from now, because a request
    succeeded.
    """
    if _end_s.get() is not None:
        _end_s.set(time.monotonic() + limit_s)


def left_s(most_s: float) -> float:
    """Return the seconds that the next request may take: at most `most_s`, at least `SHORTEST_S`."""
    end_s = _end_s.get()
    return most_s if end_s is None else min(most_s, max(SHORTEST_S, end_s - time.monotonic()))


def is_over(grace_s: float = 0.0) -> bool:
    """Return whether the deadline passed at least `grace_s` seconds ago, so that nothing is repeated."""
    end_s = _end_s.get()
    return end_s is not None and time.monotonic() >= end_s + grace_s
