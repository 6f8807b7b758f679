"""Tests of `orders.py`, with the fixtures of cqueue's plugin for pytest.

Run them with `pytest test_orders.py` in memory, and with `pytest --cqueue-cassandra test_orders.py` on a real
Cassandra.
"""

import asyncio
from datetime import timedelta

import orders
import pytest

import cqueue

SOON = timedelta(seconds=20)


@pytest.fixture(autouse=True)
def app(cqueue_client):
    with orders.app.using(cqueue_client):
        orders.app.setup()
        orders.refused.clear()
        yield orders.app


@pytest.fixture
def work(app, cqueue_client):
    """A function that runs all payments, tried again or not, as a daemon would."""

    def run():
        with app.dispatcher() as dispatcher:
            while cqueue_client.queue("orders").stats(exact=True).live:
                assert dispatcher.drain(SOON)

    return run


@pytest.fixture
def with_shop(cqueue_url):
    """A function that runs a coroutine function with a shop."""

    async def opened(function):
        async with cqueue.connect_async(cqueue_url) as client:
            return await function(await orders.Shop.open(client))

    return lambda function: asyncio.run(opened(function))


def test_an_order_is_charged_once(work, with_shop):
    async def press_twice(shop):
        return await shop.order(17, customer=4), await shop.order(17, customer=4)

    first, second = with_shop(press_twice)
    assert first == second
    assert (first.skipped, second.skipped) == (False, True)
    work()
    assert with_shop(lambda shop: shop.receipt(first, SOON)) == "receipt-17"
    assert with_shop(lambda shop: shop.order(17, customer=4)) == first


def test_a_refused_payment_is_paid_later(work, with_shop, cqueue_client):
    orders.refused.add(4)
    payment = with_shop(lambda shop: shop.order(18, customer=4))
    work()
    with pytest.raises(cqueue.TaskFailed, match="the bank refuses order 18"):
        with_shop(lambda shop: shop.receipt(payment, SOON))
    orders.refused.clear()
    assert with_shop(lambda shop: shop.pay_again(per_second=10)) == 1
    work()
    assert not list(cqueue_client.queue("orders").dead_letters)


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


def test_a_dead_reminder_is_left_to_people(with_shop, cqueue_client):
    """`forget` cancels what waits; a dead letter is looked at, and sent back or dropped."""
    with_shop(lambda shop: shop.remind(3, timedelta()))
    reminders = cqueue_client.queue("reminders")
    with reminders.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        message.dead("no such address")
    assert not with_shop(lambda shop: shop.forget(3))
    assert [letter.key for letter in reminders.dead_letters] == ["order-3"]
