"""`connect_async`, which says what to install where the extra `aio` is missing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cqueue.client import connect
from cqueue.errors import ConfigError

if TYPE_CHECKING:
    from cqueue.aio.client import AsyncClient


def connect_async(url: str | None = None, *, lazy: bool = False) -> AsyncClient:
    """Connect for asyncio, to be used in an `async with` block. Arguments and errors as of `connect`.

    The client belongs to the event loop that the block runs on, and to that one block.

    Raises:
        ConfigError: the extra is missing; `pip install 'cassandra-cqueue[aio]'`.

    Example:
        async with cqueue.connect_async("cassandra://db1,db2/shop?local_dc=dc1") as client:
            queue = await client.queue("mails")
            await queue.send(b"hello")
    """
    check_extra()
    from cqueue.aio.client import AsyncClient  # noqa: PLC0415 - needs the extra

    return AsyncClient(partial(connect, url, lazy=lazy))


def check_extra() -> None:
    """Raise `ConfigError` if the extra `aio` is missing."""
    try:
        import greenlet  # noqa: F401, PLC0415
    except ModuleNotFoundError as exc:
        raise ConfigError("asyncio needs greenlet; install it: pip install 'cassandra-cqueue[aio]'") from exc
