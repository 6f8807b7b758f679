"""The asyncio API for tests that are written for the synchronous one: each call is awaited on an event loop.

So one test body runs on both APIs. The loop runs in a thread of its own. An attribute is the asyncio API's; a
coroutine is awaited, and what comes back is wrapped again. A private attribute is that of the synchronous
object.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

import cqueue
from cqueue.aio.awaited import Twin
from cqueue.aio.consumer import AsyncReceivedMessage

PROPERTIES = {"config", "paused", "now"}
"""Properties of the synchronous API that the asyncio API has as methods."""


class OnLoop:
    """An object of the asyncio API, used from a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, twin: Any) -> None:
        self._loop = loop
        self._twin = twin

    def __repr__(self) -> str:
        return repr(self._twin)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return getattr(self._twin._inner, name)
        found = getattr(self._twin, name)
        if not callable(found):
            return self._wrapped(found)

        def call(*args: Any, **kwargs: Any) -> Any:
            plain = [_unwrapped(arg) for arg in args]
            return self._wrapped(self._awaited(lambda: found(*plain, **kwargs)))

        return call() if name in PROPERTIES else call

    def _awaited(self, act: Any) -> Any:
        async def on_loop() -> Any:
            result = act()
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(60)

    def _wrapped(self, found: Any) -> Any:
        if isinstance(found, list):
            return [self._wrapped(one) for one in found]
        is_twin = isinstance(found, Twin | AsyncReceivedMessage) or hasattr(found, "__anext__")
        return OnLoop(self._loop, found) if is_twin else found

    def __enter__(self) -> OnLoop:  # noqa: PYI034 - of what comes back
        return self._wrapped(self._awaited(self._twin.__aenter__))

    def __exit__(self, *error: object) -> None:
        self._awaited(lambda: self._twin.__aexit__(*error))

    def __iter__(self) -> Iterator[Any]:
        iterator = self._awaited(self._twin.__aiter__)
        while True:
            try:
                yield self._wrapped(self._awaited(iterator.__anext__))
            except StopAsyncIteration:
                return


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list):
        return [_unwrapped(one) for one in value]
    return value._twin if isinstance(value, OnLoop) else value


@contextmanager
def connected_on_loop(url: str) -> Iterator[OnLoop]:
    """Connect with `connect_async` on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="test-loop", daemon=True)
    thread.start()
    try:
        with OnLoop(loop, cqueue.connect_async(url)) as client:
            yield client
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def memory_asyncio_client() -> Iterator[OnLoop]:
    """A client for asyncio in memory, one a test."""
    with connected_on_loop("memory://") as client:
        yield client


@pytest.fixture(scope="module")
def cassandra_asyncio_client(keyspace: Any) -> Iterator[OnLoop]:
    """A client for asyncio on Cassandra, one a test module."""
    with connected_on_loop(keyspace.url) as client:
        yield client


API = [
    pytest.param("memory_client", id="memory"),
    pytest.param("cassandra_client", id="cassandra", marks=pytest.mark.cassandra),
    pytest.param("memory_asyncio_client", id="memory-asyncio"),
    pytest.param("cassandra_asyncio_client", id="cassandra-asyncio", marks=pytest.mark.cassandra),
]
"""Names of the fixtures that open a client of each store and API."""
