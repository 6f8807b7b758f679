"""What runs handlers in the tests of rows 9, 18 and 19: the one place to change for the dispatcher.

Now it is a plain consumer that handles one message after the other.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta

import cqueue

NAME = "plain consumer"


def serve(recorded, handle, stop, *, batch, grace_s):
    """Call `handle(message)` for each message and ack it, until the event `stop` is set.

    Then go on with what has been received for `grace_s`, and give the rest back: it is available at
    once, and no attempt is used.
    """
    with recorded.consumer() as consumer:
        while not stop.is_set():
            try:
                messages = consumer.receive(batch, wait=timedelta(seconds=0.3))
            except (cqueue.NotDone, cqueue.OutcomeUnknown):
                stop.wait(0.05)
                continue
            rest = _handle_all(messages, handle, stop, grace_s)
            if rest:
                with suppress(cqueue.CqueueError):  # their timeout gives them back
                    consumer.snooze(rest, timedelta())


def _handle_all(messages, handle, stop, grace_s):
    """Handle and ack one by one; those for which the grace time was too short."""
    left, end_s = list(messages), None
    while left:
        if stop.is_set():
            end_s = end_s or time.monotonic() + grace_s
            if time.monotonic() >= end_s:
                break
        handle(left[0])
        with suppress(cqueue.CqueueError):  # it comes again
            left.pop(0).ack()
    return left
