"""Receiving with asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from functools import partial

from cqueue.aio.awaited import Opening, awaited
from cqueue.aio.bridge import Bridge
from cqueue.consumer import Consumer
from cqueue.received import Received, ReceivedMessage


class AsyncReceivedMessage(Received):
    """A message that a consumer holds until it is settled or its visibility timeout passes.

    Attributes:
        body: the message's bytes.
    """

    __slots__ = ("_twin",)

    def __init__(self, twin: AsyncConsumer, message: ReceivedMessage) -> None:
        super().__init__(message._settler, message.row, message.lease, message.body)  # noqa: SLF001 - its twin
        self._twin = twin

    async def ack(self) -> None:
        """See `Consumer.ack`."""
        await self._twin.ack(self)

    async def nack(self, delay: timedelta = timedelta()) -> None:
        """See `Consumer.nack`."""
        await self._twin.nack(self, delay)

    async def snooze(self, delay: timedelta) -> None:
        """See `Consumer.snooze`."""
        await self._twin.snooze(self, delay)

    async def extend(self, duration: timedelta) -> None:
        """See `Consumer.extend`."""
        await self._twin.extend(self, duration)

    async def dead(self, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """See `Consumer.dead`."""
        await self._twin.dead(self, reason, headers)


class AsyncConsumer(Opening[Consumer]):
    """Receives messages of one queue, as `Consumer`. An asynchronous context manager.

    One task at a time receives. Any task may settle messages. Iteration gives one message after the other,
    and waits for the next one; it ends when the consumer is closed.

    A receive whose task is cancelled gives back what it claims after that, without using an attempt.

    Example:
        async with queue.consumer() as consumer:
            async for message in consumer:
                await handle(message.body)
                await message.ack()
    """

    def __init__(self, bridge: Bridge, name: str, make: Callable[[], Consumer]) -> None:
        super().__init__(bridge, f"consumer of {name!r}", make)
        self.name = name

    async def receive(
        self, max_messages: int = 10, wait: timedelta = timedelta()
    ) -> list[AsyncReceivedMessage]:
        """As `Consumer.receive`."""
        consumer = self._inner
        messages = await self._bridge.call(
            partial(consumer.receive, max_messages, wait),
            lost=consumer._give_back_unseen,  # noqa: SLF001 - its twin
        )
        return [AsyncReceivedMessage(self, message) for message in messages]

    ack = awaited(Consumer.ack)
    nack = awaited(Consumer.nack)
    snooze = awaited(Consumer.snooze)
    extend = awaited(Consumer.extend)
    dead = awaited(Consumer.dead)

    async def close(self, *, give_back: bool = True) -> None:
        """As `Consumer.close`."""
        await self._bridge.call(partial(self._inner.close, give_back=give_back))

    def __aiter__(self) -> AsyncIterator[AsyncReceivedMessage]:
        return self._until_closed(partial(self.receive, 1))
