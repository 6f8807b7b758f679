"""A dispatcher that notes each firing, until it is killed: ticking_child.py URL QUEUE JOURNAL."""

import os
import signal
import sys
import threading

import cqueue


def main(url, name, journal):
    """Note `pid time` for every firing, before it is moved on and acked."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    out = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(_, context):
        os.write(out, f"{os.getpid()} {context.firing.fired_at.isoformat()}\n".encode())

    with cqueue.connect(url) as client, cqueue.Dispatcher(client.queue(name), handle, threads=2):
        os.write(out, f"{os.getpid()} ready\n".encode())
        while not stop.wait(1):  # in turns: a signal just before a wait is handled after it
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
