"""A member of a subscription, or a writer to its log, in a process of its own, to be killed and stopped.

Usage: log_child.py member|early-member|writer URL LOG JOURNAL. A line of the journal says what happened, and
when by the machine's monotonic clock, before anything that follows from it.
"""

import os
import random
import signal
import sys
import threading
import time

import cqueue
from cqueue.log.records import LogId


class Journal:
    """A file of whole lines, even when the process that writes is killed."""

    def __init__(self, path):
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, *lines):
        now = time.monotonic_ns()
        os.write(self._out, "".join(f"{now} {line}\n" for line in lines).encode())


def position(id_):
    """The place in its partition, as a number that sorts."""
    return LogId(id_).locate()[2]


def patiently(call, *args, **options):
    """The machine may be so busy that Cassandra does not answer in time."""
    while True:
        try:
            return call(*args, **options)
        except (cqueue.NotDone, cqueue.OutcomeUnknown):
            time.sleep(0.5)


def member(client, log, say, **options):
    """Read until SIGTERM, or until killed."""

    def listen(record):
        say(f"done {record.partition} {position(record.id)} {record.body.decode()}")

    subscription = patiently(
        client.subscribe,
        log,
        name="members",
        listeners=[listen],
        checkpoint_records=200,
        **options,
        on_event=lambda what, partition, at: say(f"{what} {partition} {position(at)}"),
    )
    # On another thread: the signal may come while this one has the lock of what `stop` sets.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=subscription.stop).start())
    subscription.run()


def writer(client, log, say):
    """Append until killed, in batches of any size."""
    target, number = patiently(client.log, log), 0
    while True:
        count = random.choice((1, 1, 5, 40))
        bodies = [f"{os.getpid()}-{number + n}" for n in range(count)]
        number += count
        records = [cqueue.Record("t", body.encode(), key=body) for body in bodies]
        result = patiently(target.append_many, records)
        acked = [body for body, id_ in zip(bodies, result.ids, strict=True) if id_ is not None]
        say(*(f"acked {body}" for body in acked))
        time.sleep(random.choice((0.02, 0.1)))


def main(role, url, log, journal):
    """Connect, and do it."""
    with patiently(cqueue.connect, url) as client:
        say = Journal(journal)
        if role == "writer":
            writer(client, log, say)
        else:
            member(client, log, say, low_latency=role == "early-member")


if __name__ == "__main__":
    main(*sys.argv[1:])
