"""Open pages are sent their live parts whenever these have changed, as server-sent events.

A page would else be asked for every three seconds. A stream sends only the parts that differ: of a queue's
page the figures, and its charts once a minute. It holds no thread while it waits.

A stream ends after a minute, and the page opens another one. So a server that waits for its answers to end
waits no longer than that. Somebody who may no longer see the page gets nothing more from the next look on.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Final

STEP_S: Final = 0.5
"""Seconds after which a stream that waits notices that the dashboard ends."""
BEAT_S: Final = 15.0
"""Seconds after which a stream of which nothing has changed says so; proxies close silent connections."""
LIFE_S: Final = 60.0
"""Seconds after which a stream ends."""
CUT_S: Final = LIFE_S + 5
"""Seconds after which a stream is cut off: one whose reader takes nothing never comes to its end."""
MOST: Final = 50
"""Streams side by side: a page is made in some 10 ms, so these take a sixth of a processor."""
_TAG: Final = re.compile(r"<(/?)(?:div|section)\b([^>]*)>")
_ID: Final = re.compile(r'\bid="([^"]+)"')


class Streams:
    """The streams of one dashboard. Used by the server's loop alone, but for `stop`.

    every_s: seconds between two looks of a stream.
    """

    def __init__(
        self,
        every_s: float,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        time_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = math.ceil(every_s / STEP_S)
        self._step_s = every_s / self._steps
        self._sleep, self._time_s = sleep, time_s
        self._open = 0
        self._is_stopped = False

    @property
    def is_full(self) -> bool:
        """Whether no further stream is to be opened."""
        return self._open >= MOST

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Count a stream while the block runs."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def stop(self) -> None:
        """End all streams, within half a second. Safe in a signal's handler."""
        self._is_stopped = True

    async def events(self, look: Callable[[], Awaitable[str | None]]) -> AsyncIterator[str]:
        """Yield an event whenever parts of a page have changed: their contents by id, as JSON.

        look: makes the page anew; None if there is no page any more, which ends the stream.
        """
        sent: dict[str, bytes] = {}
        begun_s = told_s = self._time_s()
        while self._time_s() - begun_s < LIFE_S:
            page = await look()
            if page is None:
                return
            parts = parts_of(page)
            digests = {name: blake2b(part.encode()).digest() for name, part in parts.items()}
            changed = {name: part for name, part in parts.items() if digests[name] != sent.get(name)}
            if changed or self._time_s() - told_s >= BEAT_S:
                sent, told_s = digests, self._time_s()
                yield f"data: {json.dumps(changed)}\n\n"
            for _ in range(self._steps):
                if self._is_stopped:
                    return
                await self._sleep(self._step_s)


def parts_of(page: str) -> dict[str, str]:
    """Return what stands in the live parts of one of our own pages, by their ids.

    Those are outermost `div` and `section` elements with the attribute `data-live`. Counting the tags of both
    kinds finds their ends, because templates escape all text.
    """
    found: dict[str, str] = {}
    name, begin, depth = "", 0, 0
    for tag in _TAG.finditer(page):
        is_end, attributes = tag.groups()
        if not depth:
            if "data-live" in attributes and (given := _ID.search(attributes)):
                name, begin, depth = given[1], tag.end(), 1
            continue
        depth += -1 if is_end else 1
        if not depth:
            found[name] = page[begin : tag.start()]
    return found
