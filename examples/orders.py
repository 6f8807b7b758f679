"""Orders of a shop: what an asyncio service does, and the task that a dispatcher runs for it.

`python orders.py` takes an order on the cluster of `CQUEUE_URL` and shows what becomes of it, with
`cqueue dispatch orders:app` beside it. In a web framework each method of `Shop` is the body of a route.
`test_orders.py` tests it, in memory and on Cassandra.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import cqueue

app = cqueue.App(queue="orders", retry=cqueue.Retry(timedelta(seconds=1), max_attempts=2))
refused: set[int] = set()
"""Customers whose bank says no; in real life the bank knows."""

Mail = Callable[[str], Awaitable[None]]


@app.task(result_ttl=timedelta(days=1))
def charge(order: int, customer: int) -> str:
    """Take the money, and return the number of the receipt."""
    if customer in refused:
        raise ValueError(f"the bank refuses order {order}")
    return f"receipt-{order}"


class Shop:
    """The service. Its reminders are plain messages, which it sends and receives without a thread."""

    def __init__(self, reminders: cqueue.AsyncQueue) -> None:
        self.reminders = reminders

    @classmethod
    async def open(cls, client: cqueue.AsyncClient) -> Shop:
        """Make the queue of reminders, if it is not there."""
        keyed = cqueue.QueueConfig(keyed=True)
        return cls(await client.create_queue("reminders", keyed, exist_ok=True))

    # ── pay once ──

    async def order(self, order: int, customer: int) -> str:
        """Charge for the order, once however often it is asked for; return the payment's id."""
        once = charge.options(unique=cqueue.Unique(args=("order",), while_="ever", on_conflict="skip"))
        return await asyncio.to_thread(once.enqueue, order, customer)

    async def receipt(self, payment: str, wait: timedelta) -> str:
        """Wait for the receipt. Raises `TaskFailed` if the bank refused."""
        return await asyncio.to_thread(charge.handle(payment).result, wait)

    async def pay_again(self, per_second: float) -> int:
        """Send failed payments back, slowly, once the bank works again; return their number."""
        letters = app.client.queue("orders").dead_letters
        result = await asyncio.to_thread(lambda: letters.redrive(task=charge.name, rate=per_second))
        return len(result.sent)

    # ── remind ──

    async def remind(self, order: int, after: timedelta) -> str:
        """Remind of an order; another reminder of it begins anew. Return the reminder's id."""
        anew = cqueue.Unique(on_conflict="debounce")
        return await self.reminders.send(b"%d" % order, key=f"order-{order}", delay=after, unique=anew)

    async def remind_now(self, reminder: str) -> None:
        """Bring a reminder forward."""
        await self.reminders.reschedule(reminder, timedelta())

    async def forget(self, order: int) -> bool:
        """Send no reminder of this order; False if none waits."""
        result = await self.reminders.delete_by_key(f"order-{order}")
        for error in result.failed.values():
            raise error
        return bool(result.done)

    async def send_reminders(self, mail: Mail) -> None:
        """Mail what is due, until the task is cancelled; a mail that fails is tried again in a minute."""
        async with self.reminders.consumer() as consumer:
            async for message in consumer:
                try:
                    await mail(f"Your order {message.body.decode()} waits")
                except OSError:
                    await message.nack(timedelta(minutes=1))
                else:
                    await message.ack()


async def main() -> None:
    app.setup()
    async with cqueue.connect_async() as client:
        shop = await Shop.open(client)
        payment = await shop.order(17, customer=4)
        print(await shop.receipt(payment, timedelta(seconds=30)))
        print(await shop.remind(17, timedelta(days=3)), await shop.forget(17))


if __name__ == "__main__":
    asyncio.run(main())
