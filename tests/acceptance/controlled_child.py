"""A consumer in a process of its own, whose messages somebody else cancels, reschedules and extends.

Usage: controlled_child.py URL QUEUE JOURNAL

It writes a line for each message: `received` or `cancelled`, when the call for that began and when the line
was written, in ns, and the body. What a receive returns may have been claimed by the one before: that one's
begin is written. A message whose body begins with `hold` it holds, and extends every second,
until that says that the message was cancelled.
"""

import os
import sys
import time
from datetime import timedelta

import cqueue


def main(url: str, name: str, journal: str) -> None:
    """Receive until killed."""
    out = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(what: str, began: int, messages: list[cqueue.ReceivedMessage]) -> None:
        lines = [b"%s %d %d %s\n" % (what.encode(), began, time.time_ns(), one.body) for one in messages]
        os.write(out, b"".join(lines))

    held: list[cqueue.ReceivedMessage] = []
    extended_s = time.monotonic()
    before = time.time_ns()
    with cqueue.connect(url) as client, client.queue(name).consumer() as consumer:
        while True:
            began = time.time_ns()
            messages = consumer.receive(20, wait=timedelta(milliseconds=200))
            say("received", before, messages)
            before = began
            held += [one for one in messages if one.body.startswith(b"hold")]
            consumer.ack([one for one in messages if not one.body.startswith(b"hold")])
            if time.monotonic() - extended_s < 1:
                continue
            extended_s = time.monotonic()
            for message in list(held):
                began = time.time_ns()
                try:
                    message.extend(timedelta(seconds=5))
                except cqueue.LeaseLost:
                    assert message.is_cancelled
                    say("cancelled", began, [message])
                    held.remove(message)


if __name__ == "__main__":
    main(*sys.argv[1:])
