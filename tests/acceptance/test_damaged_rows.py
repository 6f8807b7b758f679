"""Rows that cannot be read are set aside, and the rest of their wide row and queue flows on.

The rows are damaged by CQL, as a restore of files of two moments, a bug, or a hand would do.
"""

# ruff: noqa: S608 - the CQL is put together from constants of this module

import json
import re
import struct
import time
from contextlib import closing
from datetime import timedelta
from uuid import UUID

import pytest

import cqueue
from cqueue import ids
from cqueue.client import inside
from cqueue.store import packs
from cqueue.store.operations import WideRow

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(120)]

PACK, SINGLES = 30, 5
FIRST = 10
"""Messages that a consumer holds when the head is damaged."""
VISIBILITY = timedelta(seconds=2)
PATIENCE_S = 30
YEARS_31 = 31 * 365 * 86_400
ROW = "queue = %s AND time_shard = %s AND shard = %s"
RANDOM = UUID("f3b1c2d0-1a2b-1c3d-8e4f-123456789abc")


@pytest.fixture(scope="module")
def damaged_keyspace(new_keyspace):
    return new_keyspace(settle_ms=500, skew_ms=200)


class Story:
    """One queue of one wide row, and a hand at CQL."""

    def __init__(self, keyspace, session, name):
        self.client = cqueue.connect(keyspace.url)
        config = cqueue.QueueConfig(
            shards=1, time_shard=timedelta(days=1), visibility=VISIBILITY, lease=timedelta(seconds=1)
        )
        self.queue = self.client.create_queue(name, config)
        self.session = session
        self.table = f"{keyspace.name}.messages"

    def send(self):
        """A pack and some single messages; their bodies."""
        packed = [b"packed-%d" % at for at in range(PACK)]
        assert not self.queue.send_many([cqueue.Message(body) for body in packed]).failed
        alone = [b"single-%d" % at for at in range(SINGLES)]
        for body in alone:
            self.queue.send(body)
        return packed, alone

    def rows(self, kind):
        return [row for row in self.session.execute(f"SELECT * FROM {self.table}") if self.is_ours(row, kind)]

    def is_ours(self, row, kind):
        return row.queue.startswith(f"{self.queue.name}@") and row.kind == kind

    def set(self, row, **columns):
        """Overwrite columns of a row, as if it had been written so; None deletes.

        A message's row has the time of its id, by the cluster's clock, which may be ahead of this machine's.
        """
        values = ", ".join(f"{name} = %s" for name in columns)
        at = f"USING TIMESTAMP {ids.time_us(ids.from_uuid(row.id)) + 1}" if row.kind == 3 else ""
        self.session.execute(
            f"UPDATE {self.table} {at} SET {values} WHERE {ROW} AND kind = %s AND priority = %s AND id = %s",
            (*columns.values(), row.queue, row.time_shard, row.shard, row.kind, row.priority, row.id),
        )

    def insert_slot(self, like, id_, **columns):
        names = {"state": 1, "ids": [], "due": 0, "attempt": 1, "owner": b"x", "rev": 5, **columns}
        self.session.execute(
            f"INSERT INTO {self.table} (queue, time_shard, shard, kind, priority, id, {', '.join(names)}) "
            f"VALUES (%s, %s, %s, 2, 0, %s{', %s' * len(names)})",
            (like.queue, like.time_shard, like.shard, id_, *names.values()),
        )

    def received(self, wanted, patience_s=PATIENCE_S):
        """What comes until all that is wanted has come, and what else comes in a moment after that."""
        found, deadline = [], time.monotonic() + patience_s
        with self.queue.consumer() as consumer:
            while set(found) < set(wanted) and time.monotonic() < deadline:
                messages = consumer.receive(100, wait=timedelta(milliseconds=500))
                found += [message.body for message in messages]
                consumer.ack(messages)
            rest = consumer.receive(100, wait=timedelta(milliseconds=200))
            consumer.ack(rest)
        return sorted(found + [message.body for message in rest])

    def close(self):
        self.client.close()


@pytest.fixture
def story(damaged_keyspace, connection, request):
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name)
    with closing(Story(damaged_keyspace, connection.session, name)) as story:
        yield story


def pack_row(story):
    return max(story.rows(3), key=lambda row: len(row.body))


def single_row(story):
    return min(story.rows(3), key=lambda row: len(row.body))


def lengths(*some):
    return struct.pack(f">{PACK}H", *some) + b"x" * 10


OF_A_PACK = {
    "short body": {"body": b"\0"},
    "lengths beyond the body": {"body": lengths(*[500] * PACK)},
    "lengths below the body": {"body": lengths(*[0] * PACK)},
    "a place that is none": {"gone": {-1}},
    "a place beyond the pack": {"gone": {200 * 256 + 201}},
    "a newer format": {"format": 9},
    "no time": {"sent_at": None},
    "a size as well": {"size": 12},
}
OF_A_MESSAGE = {
    "no body": {"body": None},
    "a newer format": {"format": 9},
    "a pack's format": {"format": 1},
    "a size as well": {"size": 12},
    "an expiry before 1970": {"expires": -1},
    "an absurd time": {"sent_at": 2**62},
    "a mark": {"gone": {0}},
}


@pytest.mark.parametrize("what", OF_A_PACK)
def test_a_damaged_pack_holds_up_nobody(story, what):
    """The other messages come, nothing of the pack does; purge and delete come to their ends."""
    _, alone = story.send()
    story.set(pack_row(story), **OF_A_PACK[what])
    assert story.received(alone) == sorted(alone)
    check_set_aside(story)


@pytest.mark.parametrize("what", OF_A_MESSAGE)
def test_a_damaged_message_holds_up_nobody(story, what):
    """The other messages come, this one does not; purge and delete come to their ends."""
    packed, alone = story.send()
    row = single_row(story)
    others = sorted({*packed, *alone} - {row.body})
    story.set(row, **OF_A_MESSAGE[what])
    assert story.received(others) == others
    check_set_aside(story)


@pytest.mark.parametrize("column", ["task", "key", "headers"])
def test_a_text_that_is_no_text_holds_up_nobody(story, column):
    """Cassandra takes surrogates, which Python does not."""
    packed, alone = story.send()
    row = single_row(story)
    others = sorted({*packed, *alone} - {row.body})
    text = "blob_as_text(0xeda080)"
    value = f"{{'h': {text}}}" if column == "headers" else text
    story.session.execute(
        f"UPDATE {story.table} USING TIMESTAMP {ids.time_us(ids.from_uuid(row.id)) + 1} "
        f"SET {column} = {value} WHERE {ROW} AND kind = 3 AND priority = 0 AND id = %s",
        (row.queue, row.time_shard, row.shard, row.id),
    )
    assert story.received(others) == others
    assert story.queue.stats().quarantined == 0
    assert inside(story.client).quarantine.counts() == {row.queue: 1}
    story.queue.purge()


def check_set_aside(story):
    """The row stays, is counted and shown; `find` says so; people's commands work."""
    (row,) = story.rows(3)
    assert sum(story.client._driver.store.quarantine.counts().values()) >= 1
    assert story.queue.stats(exact=True).quarantined == 1
    assert story.queue.stats(exact=True).live == 0
    assert story.queue.peek() == []
    wide_row = WideRow(row.queue, row.time_shard, row.shard)
    id_ = cqueue.MessageId.of(wide_row, 0, ids.from_uuid(row.id))
    with pytest.raises(cqueue.DamagedRow, match="quarantine"):
        story.queue.find(id_)
    with pytest.raises(cqueue.DamagedRow, match="quarantine"):
        story.queue.cancel(id_)
    with cqueue.DelayQueue(story.client, story.queue.name) as delay_queue:
        assert [stale.owner for stale in delay_queue.find_stale()] == [row.queue]
    story.queue.purge()
    assert story.rows(3) == []
    name = story.queue.name
    story.client.delete_queue(name)
    story.client.create_queue(name)  # the name is free again


def hold(story):
    """A consumer holds the first messages; what it holds, and what it does not."""
    packed, alone = story.send()
    consumer = story.queue.consumer()
    held = consumer.receive(FIRST, wait=timedelta(seconds=5))
    assert len(held) == FIRST
    bodies = {message.body for message in held}
    return bodies, {*packed, *alone} - bodies


def head_row(story, kind):
    (row,) = [row for row in story.rows(kind) if row.ids is None or row.ids]
    return row


OF_THE_LOCK = {
    "no state": {"state": None},
    "an unknown state": {"state": 7},
    "until in 31 years": {"state": 1, "until": int(time.time() + YEARS_31) * 1000},
    "no until": {"state": 1, "until": None},
    "no fence": {"fence": None},
    "the last fence there is": {"fence": 2**63 - 1},
    "no owner": {"owner": None},
}
OF_THE_CURSOR = {
    "no cursor": {"cursor": None},
    "no boundary": {"boundary": None},
    "cursor and boundary in the year 5236": {
        "cursor": ids.to_uuid((1 << 124) - 1),
        "boundary": ids.to_uuid((1 << 124) - 1),
    },
    "the cursor above the boundary": {"cursor": ids.to_uuid(ids.lowest_at(int(time.time() + 30) * 10**6))},
}


@pytest.mark.parametrize("what", OF_THE_LOCK)
def test_a_damaged_lock_holds_up_nobody(story, what):
    """All messages come: those that nobody held at once, the others after their timeout."""
    held, others = hold(story)
    story.set(head_row(story, 1), **OF_THE_LOCK[what])
    assert set(story.received(held | others)) == held | others


@pytest.mark.parametrize("what", OF_THE_CURSOR)
def test_a_damaged_cursor_hides_nothing(story, what):
    """All messages come."""
    held, others = hold(story)
    story.set(head_row(story, 0), **OF_THE_CURSOR[what])
    assert set(story.received(held | others)) == held | others


OF_A_SLOT = {
    "no state": {"state": None},
    "an unknown state": {"state": 7},
    "no due time": {"due": None},
    "no attempt": {"attempt": None},
    "an attempt below nought": {"attempt": -4},
    "no revision": {"rev": None},
}


@pytest.mark.parametrize("what", OF_A_SLOT)
def test_a_damaged_slot_holds_up_nobody(story, what):
    """What it does not list comes; what it lists waits for an operator, and is counted."""
    _, others = hold(story)
    story.set(head_row(story, 2), **OF_A_SLOT[what])
    assert story.received(others) == sorted(others)
    assert story.queue.stats().quarantined == 1
    story.queue.purge()
    assert story.rows(3) == []


def test_what_a_slot_no_longer_lists_comes_again(story):
    """Nothing says any more that somebody holds it."""
    held, others = hold(story)
    story.set(head_row(story, 2), ids=None)
    assert set(story.received(held | others)) == held | others
    assert story.queue.stats().quarantined == 1


@pytest.mark.parametrize("number", [RANDOM, ids.to_uuid(ids.slot_id(2**50))], ids=["random", "huge"])
def test_a_slot_without_a_number_holds_up_nobody(story, number):
    """`receive` returns, and all messages come."""
    packed, alone = story.send()
    story.insert_slot(pack_row(story), number)
    assert story.received({*packed, *alone}) == sorted([*packed, *alone])
    assert story.queue.stats().quarantined == 1


def test_a_timeout_in_31_years_is_over(story):
    """What was held by such a slot comes again, as its holder cannot have put it there."""
    held, others = hold(story)
    story.set(head_row(story, 2), due=int(time.time() + YEARS_31) * 1000)
    assert set(story.received(held | others)) == held | others


def test_the_rest_of_a_pack_is_not_deleted_with_its_wide_row(damaged_keyspace, connection):
    """A wide row that is over and holds a damaged row is not retired: the row waits for an operator."""
    with closing(Story(damaged_keyspace, connection.session, "over")) as story:
        config = cqueue.QueueConfig(shards=1, time_shard=timedelta(seconds=1))
        story.queue = story.client.create_queue("over-1", config)
        story.send()
        story.set(pack_row(story), body=b"\0")
        story.received([b"single-%d" % at for at in range(SINGLES)])
        deadline = time.monotonic() + 6
        with story.queue.consumer() as consumer:
            while time.monotonic() < deadline:
                assert consumer.receive(10, wait=timedelta(seconds=1)) == []
        (row,) = story.rows(3)
        assert row.format == packs.PACK


# ── What an operator does ──


@pytest.fixture
def run(damaged_keyspace, cli_on):
    """Run a command line on the keyspace."""
    return cli_on(damaged_keyspace.url)


def addresses(said):
    return [row["address"] for row in json.loads(said.out)]


@pytest.mark.feature
def test_an_operator_finds_looks_at_and_drops_a_damaged_pack(story, run):
    """`quarantine list` names it, `dump` shows it, `drop` deletes it and nothing else."""
    _, alone = story.send()
    assert run("quarantine", "list", story.queue.name, "--json").code == 0
    story.set(pack_row(story), body=b"\0\x01")
    listed = run("quarantine", "list", story.queue.name, "--json")
    assert listed.code == 1
    (address,) = addresses(listed)
    assert json.loads(run("quarantine", "dump", address, "--json").out)["body"] == "0x0001"
    assert run("quarantine", "drop", address).code == 2, "nobody said --yes"
    assert len(story.rows(3)) == 1 + SINGLES
    assert run("quarantine", "drop", address, "--yes").code == 0
    assert len(story.rows(3)) == SINGLES
    assert run("quarantine", "list", story.queue.name).code == 0
    assert story.received(alone) == sorted(alone)
    again = run("quarantine", "drop", address, "--yes")
    assert (again.code, "no row" in again.err) == (2, True)


def test_a_row_that_can_be_read_is_not_dropped(story, run):
    """A wrong address costs nobody a message."""
    story.send()
    row = single_row(story)
    address = f"messages/{row.queue}/{row.time_shard}/{row.shard}/3/0/{row.id}"
    said = run("quarantine", "drop", address, "--yes")
    assert (said.code, "not damaged" in said.err) == (2, True)
    assert len(story.rows(3)) == 1 + SINGLES
    for wrong in ("messages/x", "nothing/1", "messages/q/1/0/3/0/no-uuid", ""):
        assert run("quarantine", "dump", wrong).code == 2


@pytest.mark.parametrize("columns", [{"state": None}, {"rev": None}, {"attempt": -4}], ids=str)
def test_a_dropped_slot_gives_its_messages_back(story, run, columns):
    """What nobody could claim is delivered again."""
    held, others = hold(story)
    story.set(head_row(story, 2), **columns)
    assert story.received(others) == sorted(others)
    (address,) = addresses(run("quarantine", "list", story.queue.name, "--json"))
    assert run("quarantine", "drop", address, "--yes").code == 0
    assert story.received(held) == sorted(held)
    assert run("quarantine", "list", story.queue.name).code == 0


def test_a_slot_without_a_number_can_be_dropped(story, run):
    """It goes, and `stats` counts it no longer."""
    story.send()
    story.insert_slot(pack_row(story), RANDOM)
    (address,) = addresses(run("quarantine", "list", story.queue.name, "--json"))
    assert run("quarantine", "drop", address, "--yes").code == 0
    assert story.queue.stats().quarantined == 0


def test_a_damaged_letter_is_not_said_to_be_gone(story, run):
    """`get` says that it cannot be read; `dead list` and `find` say what they left out."""
    story.send()
    with story.queue.consumer() as consumer:
        message = consumer.receive(1, wait=timedelta(seconds=5))[0]
        message.dead("no use")
    (letter,) = story.queue.dead_letters.list()
    stored = story.session.execute(f"SELECT * FROM {story.table} WHERE kind = 3 ALLOW FILTERING")
    (row,) = [row for row in stored if row.queue.startswith(f"{story.queue.name}.dead@")]
    story.set(row, format=9)
    with pytest.raises(cqueue.DamagedRow, match="quarantine"):
        story.queue.dead_letters.get(letter.id)
    for command in (
        ("dead", "list", story.queue.name),
        ("find", "abcdefg2", "--queue", story.queue.name),
    ):
        assert "1 damaged row is left out" in run(*command).err
    assert run("find", letter.id).code == 3


def test_receive_says_what_it_leaves_out(story, run):
    """Somebody who finds a queue empty is told why."""
    story.send()
    for row in story.rows(3):
        story.set(row, format=9)
    said = run("receive", story.queue.name, "--wait", "1s")
    assert "6 damaged rows are left out" in said.err
