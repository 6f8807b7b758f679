"""Threads that send under one unique key, in a process of its own, which may kill itself between two writes.

Usage: python -m tests.acceptance.racing_child URL QUEUE THREADS WHILE none|reserved|inserted
"""

import os
import signal
import sys
import threading

from cqueue import Duplicate, Unique
from cqueue.store.keys import WriteReservation
from cqueue.store.operations import InsertMessages
from tests.faults.stores import open_client
from tests.faulty_store import FaultyStore

POINTS = {
    "none": (),
    "reserved": WriteReservation,
    "inserted": InsertMessages,
}


class Dying(FaultyStore):
    """SIGKILL as soon as such an operation has been executed, with success."""

    def __init__(self, store, kind):
        super().__init__(store)
        self._kind = kind

    def together(self, operations):
        results = self.store.together(operations)
        for operation, result in zip(operations, results, strict=True):
            if isinstance(operation, self._kind) and result in {None, True}:
                os.kill(os.getpid(), signal.SIGKILL)
        return results

    def execute(self, operation):
        (result,) = self.together((operation,))
        if isinstance(result, Exception):
            raise result
        return result


def main(url, name, threads, unique, point):
    unique = Unique(key="k", while_=unique)
    with open_client(url, lambda store: Dying(store, POINTS[point])) as client:
        queue = client.queue(name)
        go, outcomes = threading.Barrier(int(threads) + 1), []

        def send():
            go.wait()
            try:
                outcomes.append(f"sent {queue.send(b'x', unique=unique)}")
            except Duplicate as exc:
                outcomes.append(f"duplicate {exc.id}")

        racing = [threading.Thread(target=send) for _ in range(int(threads))]
        for thread in racing:
            thread.start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        go.wait()
        for thread in racing:
            thread.join()
        sys.stdout.write("\n".join(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
