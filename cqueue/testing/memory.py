"""Clients in memory, with a clock that the test moves: for code that takes a client, a queue or a log."""

from __future__ import annotations

from datetime import datetime, timedelta

from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.message import MAX_DELAY, check_duration, to_datetime
from cqueue.queue import Queue
from cqueue.runtime.driver import BlockingDriver
from cqueue.testing.clock import ManualClock
from cqueue.testing.store import ManualStore, growing_bits


class MemoryClient(Client):
    """A client on a store in memory of its own, whose clock stands still until `advance` moves it.

    Messages are received in the order of their sends, because each queue has one shard. A `receive` with
    `wait` waits in real time; move the clock before it.

    Example:
        with MemoryClient() as client:
            queue = client.create_queue("mail")
            queue.send(b"later", delay=timedelta(days=1))
            client.advance(timedelta(days=1))
            with queue.consumer() as consumer:
                (message,) = consumer.receive()
    """

    def __init__(self, *, now: datetime | None = None) -> None:
        """now: aware time at which the clock begins; None: the current second."""
        self.clock = ManualClock(now)
        self.store = ManualStore(self.clock)
        driver = BlockingDriver(self.store, self.clock, random_bits=growing_bits(), pause=self.clock.pause)
        super().__init__(self.store, driver=driver)

    def create_queue(self, name: str, config: QueueConfig | None = None, *, exist_ok: bool = False) -> Queue:
        """As `Client.create_queue`, with one shard."""
        if exist_ok and config is None and name in self.queues():
            return self.queue(name)
        single = (config or QueueConfig()).altered({"shards": 1})
        return super().create_queue(name, single, exist_ok=exist_ok)

    @property
    def now(self) -> datetime:
        """Time of the client's clock, in UTC."""
        return to_datetime(self.clock.now_us() // 1000)

    def advance(self, duration: timedelta) -> None:
        """Move the clock forward by 0 to 10 years; it ends at a whole tenth of a second.

        Raises:
            BadInput: the duration is out of range.
        """
        check_duration("duration", duration, timedelta(), MAX_DELAY)
        self.clock.move_to(self.clock.after(duration))
