"""A dispatcher that notes firings and acks, until it is killed: ticking_child.py URL QUEUE JOURNAL."""

import os
import signal
import sys
import threading

import cqueue


class AckNotes(cqueue.Middleware):
    """Notes `pid acked message-id` for every stored ack."""

    def __init__(self, note):
        self.note = note

    def after_ack(self, messages):
        for message in messages:
            self.note(f"acked {message.id}")


def main(url, name, journal):
    """Note `pid time message-id` for every firing, before it is moved on and acked."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    out = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(text):
        os.write(out, f"{os.getpid()} {text}\n".encode())

    def handle(message, context):
        note(f"{context.firing.fired_at.isoformat()} {message.id}")

    with (
        cqueue.connect(url) as client,
        cqueue.Dispatcher(client.queue(name), handle, middleware=[AckNotes(note)], threads=2),
    ):
        note("ready -")
        while not stop.wait(1):  # in turns: a signal just before a wait is handled after it
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
