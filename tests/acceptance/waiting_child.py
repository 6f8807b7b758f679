"""A consumer in a process of its own that looks for messages when it is told of some, and else rarely.

It writes `waiting` whenever it has found nothing, and a line for each message: what led to it, and its body.

Usage: waiting_child.py URL QUEUE SECONDS, which is how long it waits between two looks.
"""

import sys
from threading import Event

import cqueue


def main(url: str, name: str, seconds: str) -> None:
    """Receive and ack until killed."""
    told, led = Event(), ""
    with cqueue.connect(url) as client, client.queue(name).consumer(wake=told.set) as consumer:
        while True:
            messages = consumer.receive(1)
            for message in messages:
                message.ack()
                _say(f"{led} {message.body.decode()}")
            if not messages:
                _say("waiting")
                led = "hint" if told.wait(float(seconds)) else "poll"
                told.clear()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
