"""Methods of synchronous objects, awaited: their names, arguments and docstrings stay as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from datetime import timedelta
from functools import partial, wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from cqueue.aio.bridge import Bridge
from cqueue.errors import Closed

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

POLL = timedelta(minutes=1)
"""How long one fetch of an iteration waits; then another one follows."""


class Twin(Generic[T]):
    """An object of the asyncio API, on top of the synchronous object that does the work."""

    def __init__(self, bridge: Bridge, inner: T) -> None:
        self._bridge = bridge
        self._inner = inner

    def __repr__(self) -> str:
        return f"<asyncio: {self._inner!r}>"


def awaited(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Make a method that awaits a method of the synchronous object."""

    @wraps(method)
    async def call(self: Twin[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._bridge.call(partial(method, self._inner, *args, **kwargs))

    return call


async def each(bridge: Bridge, made: Callable[[], Iterator[T]], at_a_time: int = 1) -> AsyncIterator[T]:
    """Yield what a synchronous iterator yields, fetching some items in one call."""
    items = await bridge.call(made)
    while some := await bridge.call(lambda: list(islice(items, at_a_time))):
        for item in some:
            yield item


class Closing(Protocol):
    """What is closed at the end of a block."""

    def close(self) -> None:
        """Let go; never raises."""


C = TypeVar("C", bound=Closing)


class Opening(Twin[C]):
    """A twin that is opened by `async with`, because a function without `await` makes it."""

    _is_opened = False  # or being opened

    def __init__(self, bridge: Bridge, what: str, make: Callable[[], C]) -> None:
        self._bridge = bridge
        self._what = what
        self._make = make

    def __repr__(self) -> str:
        return f"<asyncio: {self._what}>"

    if not TYPE_CHECKING:  # to a type checker it would make any name an Any

        def __getattr__(self, name: str) -> Any:
            """Say what to do about the object that is not there yet."""
            if name in {"_bridge", "_inner"}:
                raise Closed(f"the {self._what} is not open; use it in an `async with` block")
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    async def _until_closed(self, fetch: Callable[[timedelta], Awaitable[Iterable[R]]]) -> AsyncIterator[R]:
        """Yield what comes, until the object is closed. fetch: takes how long to wait."""
        while True:
            try:
                some = await fetch(POLL)
            except Closed:
                if "_inner" not in vars(self):  # never opened: an iteration that just ends would hide that
                    raise
                return
            for item in some:
                yield item

    async def close(self) -> None:
        """Stop receiving or reading. Never raises."""
        await self._bridge.call(partial(self._let_go, self._inner))

    @staticmethod
    def _let_go(opened: C) -> None:
        opened.close()

    async def __aenter__(self) -> Self:
        # Another one in its place would leave what the first one holds to a timeout.
        if self._is_opened:
            raise Closed(f"the {self._what} has been opened before; make another one")
        self._is_opened = True
        try:
            self._inner = await self._bridge.call(self._make, lost=self._let_go)
        except BaseException:
            self._is_opened = False
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
