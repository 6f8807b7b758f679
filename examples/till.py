"""A till that goes on selling while Cassandra, or the network to it, is away.

`python till.py 100` sells a hundred times. Each sale is on the till's own disk before the customer has the
receipt, and a thread forwards it to the queue `sales` of `CQUEUE_URL`. Stop Cassandra, sell, start Cassandra
again: the next run, or `cqueue spool forward till-spool`, sends what is left, and each sale arrives once.

The first run needs Cassandra: it creates the queue, and the spool remembers it.
"""

import json
import sys
import time
from datetime import timedelta

import cqueue
from cqueue.spool import Spool


def sale(number: int) -> bytes:
    return json.dumps({"sale": number, "cents": 100 + number % 900, "sold_at": time.time()}).encode()


def create_queue(client: cqueue.Client) -> None:
    """Make sure that there is a queue. Without Cassandra the spool knows it from an earlier run."""
    try:
        client.create_queue("sales", exist_ok=True)
    except cqueue.NotDone as exc:
        print(f"selling without Cassandra: {type(exc).__name__}")


def main(sales: int) -> None:
    # Closed in the reverse order: the client forwards what it can within 5 s, and the spool keeps the rest.
    with Spool("till-spool") as spool, cqueue.connect(lazy=True) as client:
        create_queue(client)
        queue = client.queue("sales", spool=spool)
        for number in range(sales):
            queue.send(sale(number))  # on the disk when it returns
        print(f"{sales} sold")
        if queue.flush(timedelta(seconds=2)):
            print("all of them are in Cassandra")
        else:
            print(f"{queue.waiting} wait on this disk: {queue.trouble or 'no answer yet'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
