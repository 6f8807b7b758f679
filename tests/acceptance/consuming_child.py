"""A consumer in a process of its own, to be killed: writes a line for each message received and acked.

Usage: consuming_child.py URL QUEUE JOURNAL
"""

import os
import sys
from datetime import timedelta

import cqueue


def main(url: str, name: str, journal: str) -> None:
    """Receive and ack until killed. A line is in the journal before what it says can be doubted."""
    out = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with cqueue.connect(url) as client, client.queue(name).consumer() as consumer:
        while True:
            messages = consumer.receive(100, wait=timedelta(seconds=1))
            if messages:
                os.write(out, b"".join(b"received %s\n" % message.body for message in messages))
                consumer.ack(messages)
                os.write(out, b"".join(b"acked %s\n" % message.body for message in messages))


if __name__ == "__main__":
    main(*sys.argv[1:])
