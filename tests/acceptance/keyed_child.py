"""A process that sends, acks and buries in a keyed queue, and kills itself between two writes.

Usage: python -m tests.acceptance.keyed_child URL QUEUE send|ack|bury|redrive POINT NTH
POINT: the operation after whose nth execution the process dies, by its name.
"""

import sys
from datetime import timedelta

from cqueue.store import keys, operations
from tests.faults.stores import open_client
from tests.faulty_store import Dying

COUNT = 20
SOON = timedelta(seconds=10)


def send(queue):
    for number in range(COUNT):
        queue.send(b"%d" % number, key=f"k{number % 5}", delay=timedelta(seconds=number % 2))


def ack(queue):
    settle(queue, lambda message: message.ack())


def bury(queue):
    settle(queue, lambda message: message.dead("why"))


def settle(queue, how):
    """Settle all messages that are in the queue."""
    with queue.consumer() as consumer:
        while queue.stats(exact=True).live:
            for message in consumer.receive(2, wait=SOON):
                how(message)


def redrive(queue):
    queue.dead_letters.redrive(everything=True)


def main(url, name, what, point, nth):
    kind = getattr(keys, point, None) or getattr(operations, point)
    with open_client(url, lambda store: Dying(store, kind, int(nth))) as client:
        globals()[what](client.queue(name))


if __name__ == "__main__":
    main(*sys.argv[1:])
