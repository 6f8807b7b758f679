"""Processes killed at each write of messages with keys, and of unique ones: rows 25 and 26."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import timedelta

import pytest

import cqueue
from cqueue import ids
from cqueue.testing.report import EXPIRED, REMADE
from tests.faults.lengths import full

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.quick, pytest.mark.timeout(300)]

SENDING = [("InsertKeys", "half"), ("InsertKeys", "after"), ("InsertMessages", "after")]
ACKING = [("DeleteMessages", "after"), ("DeleteKeys", "half"), ("DeleteKeys", "after")]
RESERVING = [("WriteReservation", "after"), ("InsertMessages", "after")]


@pytest.fixture
def keys_of(keyspace, connection):
    """A function that reads the look-up table: (key, id) of each row of a run's queue."""

    def read(run):
        rows = connection.session.execute(f"SELECT queue, key, id FROM {keyspace.name}.message_keys")  # noqa: S608
        return {(row.key, ids.from_uuid(row.id)) for row in rows if row.queue.startswith(f"{run.name}@")}

    return read


@pytest.mark.row(25, "kill -9 at each write of messages with keys")
def test_a_kill_between_two_writes_leaves_no_key_without_a_message(start_run, row, keys_of):
    """Each message is found by its key at once; after the healing time no row is without one."""
    run = start_run(keyed=True, visibility=timedelta(seconds=4), lease=timedelta(seconds=2))
    rng = random.Random(25)
    for operation, when in SENDING * full(5, 1):
        run.start("produce", keyed=True, batch=100, kill=[operation, when, rng.randrange(2, 5)]).join()
    live = run.queue.peek(10_000)
    assert all(one.id in {found.id for found in run.queue.list_by_key(one.key)} for one in live)
    after_sends = _healed(run, keys_of)
    assert keys_of(run) == {(one.key, one.id.locate().id) for one in live}
    for operation, when in ACKING * full(5, 1):
        run.start("consume", batch=4, kill=[operation, when, rng.randrange(2, 4)]).join()
    run.start("consume", batch=100)
    run.await_empty()
    after_acks = _healed(run, keys_of)
    left = keys_of(run)
    report = run.finish()
    assert report.clean, str(report)
    assert set(report.reasons) <= {EXPIRED, REMADE}, str(report)
    assert not left
    assert after_sends, "no kill came between the two writes"
    assert sum(child.was_killed for child in run.children) >= len(SENDING) * full(5, 1)
    row(
        kills=sum(child.was_killed for child in run.children),
        messages=report.sends,
        keys_without_a_message=f"{after_sends} after sends, {after_acks} after acks",
        after_healing=len(left),
    )


def _healed(run, keys_of):
    """Wait until rows can be told from those of sends under way, and look each key up: how many went."""
    before = keys_of(run)
    time.sleep(_healing_s(run))
    for key in {key for key, _ in before}:
        run.queue.list_by_key(key)
    return len(before - keys_of(run))


def _healing_s(run):
    """Seconds after which no send can be between two writes any more: W + ε, and a little."""
    spec = run.client._catalog.entry(run.name).spec
    return (spec.settle_us + spec.skew_us) / 1e6 + 0.5


@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
@pytest.mark.row(26, "fifty producers of the same unique messages, some killed at each write")
def test_racing_and_killed_producers_make_one_message_of_a_key(start_run, row, tmp_path, on_conflict):
    """After the healing time each key has one message, and what died without one holds up nobody."""
    run = start_run(visibility=timedelta(seconds=4), lease=timedelta(seconds=2))
    raced, alone, kills = [], [], 0
    for turn in range(full(5, 1)):
        keys, go = [f"raced-{turn}-{number}" for number in range(20)], tmp_path / f"go-{turn}"
        plan = {"threads": 10, "keys": keys, "go": str(go), "on_conflict": on_conflict}
        children = [run.start("race", **plan) for _ in range(full(3, 1))]
        children += [run.start("race", **plan, kill=[*write, 5]) for write in RESERVING]
        for write in RESERVING:  # killed at its first message, which nobody else sends
            alone.append(f"alone-{turn}-{write[0]}")
            children.append(run.start("race", **{**plan, "threads": 1, "keys": alone[-1:]}, kill=[*write, 1]))
        go.touch()
        for child in children:
            child.join(120)
            kills += child.was_killed
        raced += keys
    if on_conflict == "skip":
        assert max(_messages_of_keys(run).values()) == 1
    time.sleep(_healing_s(run))
    took_s, sent = [], []
    for key in raced + alone:
        began = time.monotonic()
        if not run.queue.send(key.encode(), unique=cqueue.Unique(key=key, on_conflict="skip")).skipped:
            sent.append(key)
        took_s.append(time.monotonic() - began)
    assert _messages_of_keys(run) == dict.fromkeys(raced + alone, 1)
    assert {key.rpartition("-")[2] for key in sent} == {"WriteReservation"}
    assert kills >= len(alone)
    assert run.queue.purge() == len(raced + alone)
    assert not any(run.queue.send(key.encode(), unique=cqueue.Unique(key=key)).skipped for key in raced)
    row(
        conflicts=on_conflict,
        keys=len(raced + alone),
        kills=kills,
        doubles=0,
        keys_that_a_dead_sender_kept=0,
        keys_that_it_had_reserved=len(sent),
        slowest_send_afterwards=f"{max(took_s):.2f} s",
    )


def _messages_of_keys(run):
    """How many messages each key has."""
    return Counter(one.body.decode() for one in run.queue.peek(10_000))
