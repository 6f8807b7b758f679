"""A producer with a spool in a process of its own, which kills itself at a point of forwarding.

Usage: python -m tests.acceptance.spooling_child URL SPOOL QUEUE COUNT POINT NTH

POINT: `inserting` and `inserted`, before and after the nth insert of messages; `committing` and `committed`,
before and after the nth commit of the progress.
"""

import os
import signal
import sys
from datetime import timedelta

import cqueue
from cqueue.spool import Spool, forwarder
from cqueue.store.operations import InsertMessages
from tests.faults.stores import open_client
from tests.faulty_store import FaultyStore

AT_ONCE = 10
SOON = timedelta(seconds=30)


class Countdown:
    """Kills the process at the nth call."""

    def __init__(self, nth):
        self._left = nth

    def __call__(self):
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Dying(FaultyStore):
    """Tells before and after each insert of messages."""

    def __init__(self, store, tell):
        super().__init__(store)
        self._tell = tell

    def together(self, operations):
        inserts = any(isinstance(operation, InsertMessages) for operation in operations)
        if inserts:
            self._tell("inserting")
        results = self.store.together(operations)
        if inserts:
            self._tell("inserted")
        return results


class DyingSpool(Spool):
    """Tells before and after each commit."""

    def commit(self, topic, offset, *, queue_id=0):
        self.tell("committing")
        super().commit(topic, offset, queue_id=queue_id)
        self.tell("committed")


def main(*args):
    url, path, name, count, point, nth = args
    die = Countdown(int(nth))

    def tell(where):
        if where == point:
            die()

    forwarder.BATCH = AT_ONCE
    with DyingSpool(path) as spool, open_client(url, lambda store: Dying(store, tell)) as client:
        spool.tell = lambda _: None
        queue = client.queue(name, spool=spool)
        spool.tell = tell
        result = queue.send_many([cqueue.Message(b"%d" % number) for number in range(int(count))])
        assert not result.failed
        queue.flush(SOON)
    raise AssertionError("it was to be killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
