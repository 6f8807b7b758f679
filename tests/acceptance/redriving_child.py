"""A redrive in a process of its own, which kills itself at a point between two statements.

Usage: python -m tests.acceptance.redriving_child URL QUEUE sent|deleted NTH
"""

import sys

from cqueue.sending import redriving
from cqueue.store.operations import DeleteMessages, InsertMessages
from tests.faults.stores import open_client
from tests.faulty_store import Dying

AT_ONCE = 10
KINDS = {"sent": InsertMessages, "deleted": DeleteMessages}


def main(url, name, point, nth):
    redriving.AT_ONCE = AT_ONCE
    with open_client(url, lambda store: Dying(store, KINDS[point], int(nth))) as client:
        client.queue(name).dead_letters.redrive(everything=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
