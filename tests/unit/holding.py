"""Hold messages: receive as many as a test wants."""

from datetime import timedelta

SOON = timedelta(seconds=10)


def held(consumer, count=1):
    """Receive `count` messages, in as many receives as it takes."""
    found = []
    while len(found) < count:
        got = consumer.receive(count - len(found), wait=SOON)
        assert got
        found += got
    return found
