"""Tests of `orders.py`: each in memory, with a clock that the test moves, and on Cassandra."""

import asyncio
import os
from contextlib import contextmanager
from datetime import timedelta

import orders
import pytest

import cqueue

SOON = timedelta(seconds=20)


class InMemory:
    """The task in a block of `app.testing()`, the reminders in a store of their own."""

    url = "memory://"

    @contextmanager
    def block(self):
        with orders.app.testing() as self.sandbox:
            yield self

    def run(self):
        self.sandbox.advance(timedelta(minutes=1))


class OnCassandra:
    """Both in the keyspace of `CQUEUE_TEST_KEYSPACE`, with a dispatcher while the test asks for it."""

    url = os.environ.get("CQUEUE_TEST_KEYSPACE")

    @contextmanager
    def block(self):
        with cqueue.connect(self.url) as client, orders.app.using(client):
            orders.app.setup()
            client.queue("orders").purge()
            yield self

    def run(self):
        with orders.app.dispatcher() as dispatcher:
            while orders.app.client.queue("orders").stats(exact=True).live:
                assert dispatcher.drain(SOON)


PLACES = [InMemory, OnCassandra] if OnCassandra.url else [InMemory]


@pytest.fixture(params=PLACES, ids=lambda kind: kind.__name__)
def place(request):
    with request.param().block() as place:
        orders.refused.clear()
        yield place


@pytest.fixture
def with_shop(place):
    """A function that runs a coroutine with a shop."""

    async def opened(function):
        async with cqueue.connect_async(place.url) as client:
            return await function(await orders.Shop.open(client))

    return lambda function: asyncio.run(opened(function))


def test_an_order_is_charged_once(place, with_shop):
    async def press_twice(shop):
        return await shop.order(17, customer=4), await shop.order(17, customer=4)

    first, second = with_shop(press_twice)
    assert first == second
    assert (first.skipped, second.skipped) == (False, True)
    place.run()
    assert with_shop(lambda shop: shop.receipt(first, SOON)) == "receipt-17"
    assert with_shop(lambda shop: shop.order(17, customer=4)) == first


def test_a_refused_payment_is_paid_later(place, with_shop):
    orders.refused.add(4)
    payment = with_shop(lambda shop: shop.order(18, customer=4))
    place.run()
    with pytest.raises(cqueue.TaskFailed, match="the bank refuses order 18"):
        with_shop(lambda shop: shop.receipt(payment, SOON))
    orders.refused.clear()
    assert with_shop(lambda shop: shop.pay_again(per_second=10)) == 1
    place.run()
    assert orders.app.client.queue("orders").stats(exact=True).live == 0


def test_reminders(with_shop):
    """One of an order at a time, moved forward by its id, called off by its order."""
    mails = asyncio.Queue()

    async def story(shop):
        await shop.remind(1, timedelta(days=1))
        reminder = await shop.remind(1, timedelta(days=3))
        assert (await shop.reminders.stats(exact=True)).live == 1
        await shop.remind(2, timedelta(days=3))
        assert (await shop.forget(2), await shop.forget(2)) == (True, False)
        await shop.remind_now(reminder)
        sending = asyncio.create_task(shop.send_reminders(mails.put))
        assert await asyncio.wait_for(mails.get(), 20) == "Your order 1 waits"
        sending.cancel()

    with_shop(story)
