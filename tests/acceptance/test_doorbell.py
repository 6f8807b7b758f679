"""A message that one process sends wakes a consumer of another one, on a real Cassandra."""

import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest

import cqueue
from cqueue.doorbell.datagram import short_name
from cqueue.doorbell.directory import names_contain
from cqueue.schema import apply, load_migrations
from cqueue.store.control import ReadDigests, ReadListeners
from tests.fix_dispatcher import until

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(300)]

CHILD = Path(__file__).with_name("waiting_child.py")
RARELY_S = 150.0
SOON_S = 60.0
"""Much less than the consumer waits between two polls, and enough for a machine with other things to do."""


def listening(client, name):
    """The rows of processes that wait for messages of a queue."""
    short = short_name(client._catalog.entry(name).spec.partition)
    ask = client._driver.ask
    return [row for row in ask(ReadListeners(tuple(ask(ReadDigests())))) if names_contain(row.names, short)]


@contextmanager
def consumer(url, name, seconds=RARELY_S, **environment):
    """A consumer in another process; gives a function that waits for its next line."""
    command = [sys.executable, str(CHILD), url, name, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as child:
        lines = Queue()
        reader = threading.Thread(target=lambda: [lines.put(line.strip()) for line in child.stdout])
        reader.start()
        try:
            yield lambda: lines.get(timeout=SOON_S)
        finally:
            child.kill()
            reader.join()


def until_found(line):
    """The first line about a message."""
    return next(said for said in iter(line, None) if said != "waiting")


@pytest.mark.feature
def test_a_send_wakes_a_consumer_of_another_process(client, keyspace):
    """Long before it would poll; the first one of a sender that does not know yet who listens as well."""
    queue = client.create_queue("awake")
    with consumer(keyspace.url, "awake") as line:
        until(lambda: listening(client, "awake"), SOON_S)
        for number in range(5):
            assert line() == "waiting"
            queue.send(b"%d" % number)
            assert line() == f"hint {number}"
    until(lambda: queue.hints.sent == 5)  # counted when the datagram has left, and it may be there already


def test_the_command_line_wakes_a_consumer_of_another_process(client, keyspace):
    """A process that ends as soon as its message is stored tells somebody all the same."""
    client.create_queue("told")
    with consumer(keyspace.url, "told") as line:
        until(lambda: listening(client, "told"), SOON_S)
        assert line() == "waiting"
        send = [sys.executable, "-m", "cqueue", "--url", keyspace.url, "send", "told", "hello"]
        subprocess.run(send, check=True, capture_output=True, timeout=60)
        assert line() == "hint hello"


def test_with_notify_off_messages_are_found_by_polling(client, keyspace):
    """As where a firewall drops all datagrams: nothing is lost, and a message waits for the next poll."""
    queue = client.create_queue("asleep")
    with consumer(keyspace.url, "asleep", seconds=0.5, CQUEUE_NOTIFY="off") as line:
        assert line() == "waiting"
        queue.send(b"x")
        assert until_found(line) == "poll x"
    assert queue.hints.sent == 0


def test_a_killed_listener_is_forgotten(client, keyspace):
    """Its row goes by itself: nobody rings it for longer than its time to live."""
    client.create_queue("killed")
    with consumer(keyspace.url, "killed"):
        until(lambda: listening(client, "killed"), SOON_S)
    until(lambda: not listening(client, "killed"), 60)


def test_a_keyspace_without_the_table_is_polled(connection, new_keyspace, caplog):
    """New code runs before the migration is applied: the doorbell is off, and nothing else is missing.

    One line of the log says so, without a traceback, however often it is tried again.
    """
    made = new_keyspace(schema=False)
    before = tuple(each for each in load_migrations() if each.what != "listeners")
    assert len(before) == len(load_migrations()) - 1
    apply(connection, made.settings, migrations=before)
    with cqueue.connect(made.url) as client:
        queue = client.create_queue("old")
        with consumer(made.url, "old", seconds=0.2) as line:
            assert line() == "waiting"
            queue.send(b"x")
            assert until_found(line) == "poll x"
        for _ in range(3):
            with pytest.raises(cqueue.Refused, match="listeners"):
                client._driver.ask(ReadDigests())
        assert queue.hints.sent == 0
    said = [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]
    assert [("doorbell_off" in record.getMessage(), record.exc_info) for record in said] == [(True, None)]
