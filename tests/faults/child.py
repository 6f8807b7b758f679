"""One client in a process of its own, to be stopped and killed: a producer or some consumers.

Usage: python -m tests.faults.child PLAN, a JSON object of `role`, `url`, `queue`, `history` and
what the role takes. Says `ready` when it is connected; SIGTERM ends it in an orderly way.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import cqueue
from cqueue.spool import Spool
from cqueue.testing import recording
from tests.faults import worker
from tests.faults.stores import Flaky, Journaling, Killing, Stopping, open_client

stop = threading.Event()

BATCH = 100
"""Messages of one `send_many`: they share a row."""
PART = 0.5
"""How much of what it has just received a consumer acks at once, the rest with the next: a row that holds
several messages is deleted in parts, and mostly by several consumers."""


def main(text):
    plan = json.loads(text)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if plan["role"] == "spool":
        spool(plan)
        return
    wraps, counts = [], {}
    if "flaky" in plan:
        wraps.append(partial(Flaky, rate=plan["flaky"], seed=plan["seed"], counts=counts))
    if "stop_after" in plan:
        wraps.append(partial(Stopping, point=plan["stop_after"], nth=plan.get("nth", 1)))
    if "kill" in plan:
        operation, when, nth = plan["kill"]
        wraps.append(partial(Killing, operation=operation, when=when, nth=nth))
    if "journal" in plan:
        wraps.append(partial(Journaling, path=plan["journal"]))
    with open_client(plan["url"]) as first, open_client(plan["url"], partial(_wrap, wraps)) as client:
        # Opened through a sound store; the configuration is read again through the other.
        first.queue(plan["queue"])
        queue = _patiently(lambda: client.queue(plan["queue"]))
        with recording(queue, Path(plan["history"])) as recorded:
            print("ready", flush=True)  # noqa: T201
            ROLES[plan["role"]](recorded, plan)
    if "fates" in plan:
        Path(plan["fates"]).write_text(json.dumps(counts))


def _wrap(wraps, store):
    for wrap in wraps:
        store = wrap(store)
    return store


def _patiently(function):
    """Until it is done, or we are to stop."""
    while True:
        try:
            return function()
        except (cqueue.NotDone, cqueue.OutcomeUnknown):
            if stop.is_set():
                raise
            time.sleep(0.05)


# ── producer ──


def produce(recorded, plan):
    """Send `count` messages (0: until stopped) in batches; what was refused is sent again."""
    batch, rate, count = plan.get("batch", BATCH), plan.get("rate"), plan.get("count", 0)
    label, sent, again = plan.get("label", "m"), 0, []
    padded = plan.get("size", 0)
    begin = time.monotonic()
    while not stop.is_set() and (again or not count or sent < count):
        size = batch if not count else min(batch, count - sent)
        bodies = again or [(b"%s-%d" % (label.encode(), sent + place)).ljust(padded) for place in range(size)]
        sent += 0 if again else len(bodies)
        again = _send(recorded, bodies, plan)
        if rate:
            time.sleep(max(0.0, begin + sent / rate - time.monotonic()))


def _send(recorded, bodies, plan):
    """Bodies to be sent again."""
    delay = timedelta(seconds=plan["delay_s"]) if "delay_s" in plan else None
    keys = [body.decode() if plan.get("keyed") else None for body in bodies]
    messages = [cqueue.Message(body, delay=delay, key=key) for body, key in zip(bodies, keys, strict=True)]
    try:
        failed = recorded.send_many(messages).failed
    except cqueue.NotDone:
        time.sleep(0.1)
        return bodies
    if failed:
        time.sleep(0.05)
    kinds = cqueue.CqueueError if plan.get("repeat_unknown") else cqueue.NotDone
    return [bodies[place] for place, error in failed if isinstance(error, kinds)]


def join(threads):
    """Wait for threads, in turns: a signal that comes just before a wait is handled after it."""
    for thread in threads:
        while thread.is_alive():
            thread.join(1)


def race(recorded, plan):
    """Send unique messages: each of `threads` threads one of each key, as soon as the file `go` exists."""

    def send_all():
        for key in plan["keys"]:
            unique = cqueue.Unique(key=key, on_conflict=plan["on_conflict"])
            _patiently(lambda key=key, unique=unique: recorded.queue.send(key.encode(), unique=unique))

    threads = [threading.Thread(target=send_all) for _ in range(plan["threads"])]
    while not Path(plan["go"]).exists():
        time.sleep(0.01)
    for thread in threads:
        thread.start()
    join(threads)


def spool(plan):
    """As `produce`, through a spool; it starts whether Cassandra is there or not."""
    with Spool(plan["spool"]) as files, cqueue.connect(plan["url"], lazy=True) as client:
        queue = client.queue(plan["queue"], spool=files)
        with recording(queue, Path(plan["history"])) as recorded:
            print("ready", flush=True)  # noqa: T201
            produce(recorded, plan)
        assert queue.flush(timedelta(minutes=10)), f"{queue.waiting} messages wait: {queue.trouble}"


# ── consumers ──


def consume(recorded, plan):
    """`threads` consumers that receive and ack until stopped, in parts, with `mix` giving back some."""
    threads = [
        threading.Thread(target=_consume, args=(recorded, plan, number))
        for number in range(plan.get("threads", 1))
    ]
    for thread in threads:
        thread.start()
    join(threads)


def _consume(recorded, plan, number):
    handle_s, rng = plan.get("handle_s", 0.0), random.Random(plan.get("seed", 0) * 1000 + number)
    with recorded.consumer() as consumer:
        kept = []
        while not stop.is_set():
            try:
                messages = consumer.receive(plan.get("batch", 50), wait=timedelta(seconds=0.3))
            except (cqueue.NotDone, cqueue.OutcomeUnknown):
                time.sleep(0.05)
                continue
            if messages:
                stop.wait(handle_s)
            kept = _settle(consumer, kept, _given_back(messages, plan.get("mix", 0.0), rng), rng)
        _settle(consumer, kept, [], rng)


def _given_back(messages, mix, rng):
    """Do something else to a share of the messages; those that are to be acked."""
    acks = []
    for message in messages:
        if rng.random() >= mix:
            acks.append(message)
            continue
        operation = rng.choice(OPERATIONS)
        try:
            operation(message)
        except cqueue.CqueueError:
            continue  # the history has it; the message comes again, or somebody else has it
    return acks


def _settle(consumer, kept, messages, rng):
    """Ack what was kept, and a part of the messages; the others."""
    first = {message.id for message in messages if rng.random() < PART}
    acks = kept + [message for message in messages if message.id in first]
    if acks:
        _patiently(lambda: consumer.ack(acks))
    return [message for message in messages if message.id not in first]


OPERATIONS = (
    lambda message: message.nack(),
    lambda message: message.nack(timedelta(seconds=1)),
    lambda message: message.snooze(timedelta(seconds=0.5)),
    lambda message: message.extend(timedelta(seconds=4)),
    lambda message: message.dead("mixed"),
)


def halve(recorded, plan):
    """Receive until nothing comes for a while; ack half of each batch, give the rest back for `rest_s`."""
    rng, rest = random.Random(plan["seed"]), timedelta(seconds=plan["rest_s"])
    with recorded.consumer() as consumer:
        while messages := _patiently(lambda: consumer.receive(plan["batch"], wait=timedelta(seconds=3))):
            acks = rng.sample(messages, len(messages) // 2)
            acked = {message.id for message in acks}
            rest_of = [message for message in messages if message.id not in acked]
            if acks:
                _patiently(lambda acks=acks: consumer.ack(acks))
            with suppress(cqueue.CqueueError):  # their timeout gives them back
                consumer.snooze(rest_of, rest)


def nack_all(recorded, plan):
    """Receive once, nack everything, go on as a consumer: what a stopped holder does when it wakes."""
    over = (cqueue.NotDone, cqueue.OutcomeUnknown)  # the time of a call that was stopped for long
    with recorded.consumer() as consumer, suppress(*over):
        for message in consumer.receive(plan.get("batch", 50), wait=timedelta(seconds=2)):
            with suppress(cqueue.LeaseLost):
                message.nack()
    consume(recorded, plan)


# ── handlers ──


def work(recorded, plan):
    """Run a handler that takes its time, and kills its process where the plan says so."""
    poison = plan.get("poison", "").encode()

    def handle(message):
        if poison and message.body == poison:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(plan.get("handle_s", 0.0))

    worker.serve(recorded, handle, stop, batch=plan["batch"], grace_s=plan.get("grace_s", 0.0))


ROLES = {
    "produce": produce,
    "race": race,
    "consume": consume,
    "halve": halve,
    "nack_all": nack_all,
    "work": work,
}

if __name__ == "__main__":
    main(sys.argv[1])
