"""How long a thread's requests may still take: of a call's time, what is left is passed down to the driver.

A call makes several requests, and repeats some. If each had the whole request timeout, a client that is
cut off would wait for the sum of them.
"""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from typing import Final

SHORTEST_S: Final = 0.5
"""What any request gets, however late it is made: less would refuse what could still be had."""

_end_s: ContextVar[float | None] = ContextVar("end_s", default=None)


class within:  # noqa: N801 - reads as a function, like `contextlib.suppress`
    """Let all requests inside end in `limit_s`, or earlier where an outer limit says so."""

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
    """Something succeeded: inside the present `within`, so much time is left from now on."""
    if _end_s.get() is not None:
        _end_s.set(time.monotonic() + limit_s)


def left_s(most_s: float) -> float:
    """What the next request may take."""
    end_s = _end_s.get()
    return most_s if end_s is None else min(most_s, max(SHORTEST_S, end_s - time.monotonic()))


def is_over(grace_s: float = 0.0) -> bool:
    """Whether there is no time left to repeat anything; with `grace_s`, to ask for anything at all."""
    end_s = _end_s.get()
    return end_s is not None and time.monotonic() >= end_s + grace_s
