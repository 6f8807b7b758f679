"""Deadlines of calls: each request of a thread gets the time that the thread's call has left.

A call makes several requests, and repeats some. If each request had the whole timeout, a client that is cut
off would wait for the sum of them.
"""

from __future__ import annotations

import sys
import time
from contextvars import ContextVar, Token
from types import FrameType
from typing import Final, NamedTuple

SHORTEST_S: Final = 0.5
"""Seconds that a request gets even after the deadline. Less would fail requests that Cassandra could
answer."""


class _Limit(NamedTuple):
    """A deadline in monotonic seconds, and the function whose `with within(…)` block it bounds."""

    end_s: float
    owner: FrameType


_limit: ContextVar[_Limit | None] = ContextVar("limit", default=None)


class within:  # noqa: N801 - reads as a function, like `contextlib.suppress`
    """Bound all requests inside the block by `limit_s` seconds from now, or by an earlier outer deadline.

    A deadline counts as an outer one only while its function runs. A Ctrl-C between the start of `__enter__`
    and that of the block, or as the block ends, leaves the deadline behind; it would end all later calls of
    the thread.
    """

    __slots__ = ("_limit_s", "_token")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._token: Token[_Limit | None]

    def __enter__(self) -> None:
        outer, caller, end_s = _limit.get(), sys._getframe(1), time.monotonic() + self._limit_s  # noqa: SLF001
        if outer is not None and _runs(outer.owner, caller):
            end_s = min(outer.end_s, end_s)
        elif outer is not None:
            _limit.set(None)
        self._token = _limit.set(_Limit(end_s, caller))

    def __exit__(self, *_: object) -> None:
        _limit.reset(self._token)


def _runs(owner: FrameType, caller: FrameType) -> bool:
    """Return whether `owner` still runs: it is `caller`, or one of the functions that led to that call."""
    frame: FrameType | None = caller
    while frame is not None and frame is not owner:
        frame = frame.f_back
    return frame is not None


def renew(limit_s: float) -> None:
    """Move the deadline of the innermost `within` to `limit_s` seconds from now, because a request
    succeeded.
    """
    limit = _limit.get()
    if limit is not None:
        _limit.set(_Limit(time.monotonic() + limit_s, limit.owner))


def left_s(most_s: float) -> float:
    """Return the seconds that the next request may take: at most `most_s`, at least `SHORTEST_S`."""
    limit = _limit.get()
    return most_s if limit is None else min(most_s, max(SHORTEST_S, limit.end_s - time.monotonic()))


def is_over(grace_s: float = 0.0) -> bool:
    """Return whether the deadline passed at least `grace_s` seconds ago, so that nothing is repeated."""
    limit = _limit.get()
    return limit is not None and time.monotonic() >= limit.end_s + grace_s
