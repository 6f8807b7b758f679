"""A process that sends, acks and buries in a keyed queue, and kills itself between two writes.

Usage: python -m tests.acceptance.keyed_child URL QUEUE send|ack|bury|redrive POINT NTH
POINT: the operation after whose nth execution the process dies, by its name.
"""

import os
import signal
import sys
from datetime import timedelta

from cqueue.store import keys, operations
from tests.faults.stores import open_client
from tests.faulty_store import FaultyStore

COUNT = 20
SOON = timedelta(seconds=10)


class Dying(FaultyStore):
    """SIGKILL as soon as the nth operation of this kind has been executed."""

    def __init__(self, store, kind, nth):
        super().__init__(store)
        self._kind = kind
        self._left = nth

    def together(self, operations):
        results = self.store.together(operations)
        self._left -= sum(isinstance(operation, self._kind) for operation in operations)
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return results


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
