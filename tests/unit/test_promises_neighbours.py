"""What a message that kills its process costs the messages that the process held beside it.

`docs/reference/proof.md` has the bound in words.
"""

from datetime import timedelta

import pytest

from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.store.memory import MemoryStore
from cqueue.testing.clock import ManualClock

ATTEMPTS = 4
CONFIG = QueueConfig(
    shards=1, time_shard=timedelta(days=1), visibility=timedelta(seconds=10), max_attempts=ATTEMPTS
)


class Processes:
    """Processes one after the other on one store and one clock, each with a consumer of its own."""

    def __init__(self):
        self.store, self.clock, self.clients = MemoryStore(), ManualClock(), []
        self.start()
        self.queue.send(b"first")  # so that a claim of the rest is one that finds a fence
        self.receive()[0].ack()

    def start(self):
        client = Client(self.store)
        client._driver.clock = self.clock
        client._driver._pause = self.clock.pause
        self.clients.append(client)
        self.queue = client.create_queue("q", CONFIG, exist_ok=True)
        self.consumer = self.queue.consumer()

    def die(self):
        """All that the process holds stays held until its timeout; another process starts then."""
        self.clock.pause(11)
        self.start()

    def send(self, *bodies):
        for body in bodies:
            self.queue.send(body)
        self.clock.pause(0.001)

    def receive(self):
        return self.consumer.receive(100)

    def close(self):
        for client in self.clients:
            client.close()


@pytest.fixture
def processes():
    processes = Processes()
    yield processes
    processes.close()


def test_a_killer_costs_its_neighbours_one_attempt_and_no_more(processes):
    """However often it kills: from its first kill on it comes alone, and so does each neighbour."""
    neighbours = {b"n%d" % at for at in range(5)}
    processes.send(b"killer", *neighbours)
    assert {message.body for message in processes.receive()} == {b"killer", *neighbours}
    processes.die()
    kills, handled = 1, {}
    for _ in range(20):
        for message in processes.receive():
            if message.body == b"killer":
                kills += 1
                processes.die()
                break
            handled[message.body] = message.attempt
            message.ack()
    assert kills == ATTEMPTS
    assert handled == dict.fromkeys(neighbours, 2)
    assert [letter.body for letter in processes.queue.dead_letters.list()] == [b"killer"]


@pytest.mark.parametrize("killers", [ATTEMPTS - 1, ATTEMPTS])
def test_it_takes_max_attempts_killers_beside_it_to_bury_a_good_message(processes, killers):
    """Each new one that a process claims beside it costs one attempt, though its own handler never began.

    This is the bound, not a wish: should a message come to lose less, README and proof page say so as well.
    """
    processes.send(b"good")
    for number in range(killers):
        held = processes.receive()
        assert [(message.body, message.attempt) for message in held] == [(b"good", number + 1)]
        processes.send(b"killer %d" % number)
        assert [message.body for message in processes.receive()] == [b"killer %d" % number]
        # Of the two whose process dies, the killer is not what is looked at here.
        killer = next(message for message in processes.queue.peek(10) if message.body != b"good")
        processes.queue.cancel(killer.id)
        processes.die()
    left = processes.receive()
    letters = [letter.body for letter in processes.queue.dead_letters.list()]
    if killers < ATTEMPTS:
        assert [(message.body, message.attempt) for message in left] == [(b"good", ATTEMPTS)]
        assert letters == []
    else:
        assert (left, letters) == ([], [b"good"])
