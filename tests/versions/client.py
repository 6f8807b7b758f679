"""A client that obeys: `python client.py URL`. Runs with the code that PYTHONPATH names, old or new."""

import json
import sys
import time
from datetime import timedelta

import cqueue


def send(client, *, queue, numbers):
    """Message n carries n; how many were stored."""
    result = client.queue(queue).send_many([cqueue.Message(b"%d" % number) for number in numbers])
    return len(numbers) - len(result.failed)


def consume(client, *, queue, idle_s, least=0):
    """Take everything until nothing has come for a while; the deliveries as [number, attempt, verb].

    For `least` deliveries it waits two minutes. Of ten messages one is retried at its first delivery, and
    one never succeeds.
    """
    done, last_s = [], time.monotonic()
    limit_s = last_s + 120
    with client.queue(queue).consumer() as consumer:
        while time.monotonic() - last_s < idle_s or (len(done) < least and time.monotonic() < limit_s):
            for message in consumer.receive(20, wait=timedelta(milliseconds=200)):
                number = int(message.body)
                verb = "nack" if number % 10 == 3 or (number % 10 == 7 and message.attempt == 1) else "ack"
                getattr(message, verb)()
                done.append([number, message.attempt, verb])
                last_s = time.monotonic()
    return done


def alter(client, *, queue, **changes):
    """Change settings."""
    client.queue(queue).alter(**changes)


def look(client, *, queue):
    """The settings that this version knows, and what is left."""
    found = client.queue(queue)
    return {
        "shards": found.config.shards,
        "max_attempts": found.config.max_attempts,
        "live": found.stats(exact=True).live,
    }


def letters(client, *, queue):
    """Dead letters, emptied: their numbers and reasons."""
    found = []
    with client.queue(queue + ".dead").consumer() as consumer:
        while messages := consumer.receive(50, wait=timedelta(seconds=1)):
            found += [
                [int(message.body), message.headers.get("cqueue-dead-reason", "")] for message in messages
            ]
            consumer.ack(messages)
    return found


def where(_client):
    """Which code this is."""
    return cqueue.__file__


def main(url):
    calls = {each.__name__: each for each in (send, consume, alter, look, letters, where)}
    with cqueue.connect(url) as client:
        for line in sys.stdin:
            call = json.loads(line)
            sys.stdout.write(json.dumps(calls[call.pop("call")](client, **call)) + "\n")
            sys.stdout.flush()


main(sys.argv[1])
