"""A client in memory for asyncio. Apart, because `App.testing` does not need the extra `aio`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cqueue.aio.connecting import check_extra
from cqueue.testing.memory import MemoryClient

if TYPE_CHECKING:
    from cqueue.aio.client import AsyncClient


def memory_async(client: MemoryClient) -> AsyncClient:
    """Use a client in memory from asyncio. `client.advance` moves the clock of both.

    Example:
        memory = MemoryClient()
        async with memory_async(memory) as client:
            queue = await client.create_queue("mail")
            memory.advance(timedelta(days=1))

    Raises:
        ConfigError: the extra `aio` is missing.
    """
    check_extra()
    from cqueue.aio.client import AsyncClient  # noqa: PLC0415 - needs the extra

    return AsyncClient(lambda: client)
