"""A consumer in a process of its own: it buries messages of the task `refuse`, and `kill` kills it.

Usage: python -m tests.acceptance.dying_child URL QUEUE JOURNAL
"""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import cqueue
from cqueue.runtime.rendezvous import own_name


def main(url: str, name: str, journal: str) -> None:
    """Handle what comes within some seconds; the killer last."""
    with cqueue.connect(url) as client, client.queue(name).consumer() as consumer:
        messages = sorted(consumer.receive(10, wait=timedelta(seconds=5)), key=lambda one: one.task == "kill")
        for message in messages:
            if message.task == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            with Path(journal).open("a", encoding="utf-8") as out:
                out.write(f"refused by {own_name()} with fence {message.fence}\n")
            message.dead("ValueError: bad")


if __name__ == "__main__":
    main(*sys.argv[1:])
