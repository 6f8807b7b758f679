"""How often one address may ask."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

ADDRESSES: Final = 10_000
"""Addresses that are remembered, at most: those that asked last."""


class RateLimit:
    """A token bucket for each address. Called by one thread, that of the server's loop.

    Args:
        per_s: requests a second, on an average.
        burst: requests at once, at most.
        time_s: monotonic seconds.
    """

    def __init__(self, per_s: float, burst: int, *, time_s: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._time_s = per_s, burst, time_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and since when

    def take(self, address: str) -> bool:
        """Return whether the address may ask once more."""
        now_s = self._time_s()
        left, since_s = self._left.pop(address, (self._burst, now_s))
        left = min(self._burst, left + (now_s - since_s) * self._per_s)
        may = left >= 1
        self._left[address] = left - may, now_s
        if len(self._left) > ADDRESSES:
            self._left.popitem(last=False)
        return may
