"""docs/explanation/layout.md names each module that one receive and its ack run, in the order of reading."""

import re
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import cqueue

pytestmark = pytest.mark.cassandra

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "layout.md"
SOON = timedelta(seconds=20)
OF_ASYNCIO = "aio/bridge"
"""Asked by each wait of a process that has imported `cqueue.aio`, as tests that ran before have."""


@pytest.fixture
def named():
    """The modules that the page's section names."""
    section = PAGE.read_text(encoding="utf-8").partition("## The way of one message")[2].partition("\n## ")[0]
    return set(re.findall(r"`([a-z_/]+)`", section))


def modules_of(call):
    """Return the modules of this project whose code a call runs on its own thread."""
    found = set()

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "cqueue"):
            found.add(path.relative_to(ROOT / "cqueue").with_suffix("").as_posix())

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("is_told", [True, False])
def test_a_reader_of_one_receive_finds_each_module_on_the_page(client, named, is_told):
    """Where a hint names the message, and where the consumer has to search for it."""
    queue = client.create_queue(f"way-{is_told}".lower(), cqueue.QueueConfig(shards=1))
    with queue.consumer() as consumer:

        def receive_and_ack():
            for message in consumer.receive(1, wait=SOON):
                message.ack()

        found = set()
        for trace in (False, False, True):
            queue.send(b"a message")
            if not is_told:
                consumer._receiver.inbox.hints.clear()
            if trace:
                found = modules_of(receive_and_ack)
            else:
                receive_and_ack()
    assert "protocol/claim" in found
    assert found - named <= {OF_ASYNCIO}
