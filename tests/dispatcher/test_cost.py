"""What the dispatcher costs for each message, counted in calls of Python functions.

Rates differ from run to run by a third; the number of calls does not. It had grown by half within a week, a
few calls at a time, and each benchmark beside the commit before had called that noise.
"""

import sys
import threading
from collections import Counter
from pathlib import Path

from cqueue import dispatcher, received
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.message import Message
from tests.fix_dispatcher import SOON

MESSAGES = 2000
CALLS = 26
"""Most calls of the dispatcher's functions a message: 22, and up to 24 where threads wake each other."""
FILES = (str(Path(dispatcher.__file__).parent), received.__file__)


def test_a_message_takes_few_calls(memory_client):
    queue, counters = memory_client.create_queue("q"), []

    def start_counting(frame, event, _):  # each thread has a counter of its own, as adding takes two steps
        if threading.current_thread().name == "cqueue-lease-extender":  # its calls go by time
            sys.setprofile(None)
            return
        calls = Counter()
        counters.append(calls)

        def count(frame, event, _):
            if event == "call" and frame.f_code.co_filename.startswith(FILES):
                calls[frame.f_code.co_qualname] += 1

        sys.setprofile(count)
        count(frame, event, None)

    queue.send_many([Message(b"") for _ in range(MESSAGES)])
    threading.setprofile(start_counting)
    try:
        with Dispatcher(queue, lambda *_: None, threads=8) as running:
            assert running.drain(SOON)
    finally:
        threading.setprofile(None)
    calls = sum(counters, Counter())
    assert running.stats().total.succeeded == MESSAGES
    assert sum(calls.values()) / MESSAGES <= CALLS, calls.most_common(50)
