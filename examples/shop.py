"""Background work of a shop: an application for `cqueue dispatch shop:app`.

`python shop.py 100` enqueues the work of a hundred orders. It goes to the cluster of `CQUEUE_URL`.
"""

import random
import sys
import time
from datetime import datetime, timedelta

from tenacity import wait_exponential

import cqueue

app = cqueue.App(queue="shop", retry=cqueue.Retry(max_attempts=4, wait=wait_exponential(min=1, max=30)))


@app.task(timeout=timedelta(seconds=30))
def receipt(order: int) -> None:
    """Take a moment, and succeed."""
    time.sleep(0.02)
    cqueue.current_context().log.info("receipt_sent", order=order)


@app.task
def charge(order: int) -> None:
    """Fail at one attempt in three, as services of others do, and be tried again."""
    if random.random() < 1 / 3:
        raise ConnectionError(f"the bank does not answer about order {order}")


@app.task
def label(order: int) -> None:
    """Fail always, and end in the dead-letter queue `shop.dead`."""
    raise ValueError(f"order {order} has no address")


@app.periodic("*/10 * * * * *", timezone="Europe/Berlin")
def count(fired_at: datetime) -> None:
    """Run every ten seconds, on all machines together, not on each."""
    cqueue.current_context().log.info("orders_counted", fired_at=fired_at.isoformat())


def enqueue(orders: int) -> None:
    app.setup()
    for order in range(orders):
        receipt.enqueue(order)
        charge.enqueue(order)
        if order % 50 == 49:
            label.enqueue(order)


if __name__ == "__main__":
    enqueue(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
    app.close()
