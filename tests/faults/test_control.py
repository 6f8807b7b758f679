"""Processes killed at each write of messages with keys, and of unique ones: rows 25 and 26."""

from __future__ import annotations

import random
import time
from datetime import timedelta

import pytest

from cqueue import ids
from cqueue.testing.report import EXPIRED, REMADE
from tests.faults.lengths import full

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.quick, pytest.mark.timeout(300)]

SENDING = [("InsertKeys", "half"), ("InsertKeys", "after"), ("InsertMessages", "after")]
ACKING = [("DeleteMessages", "after"), ("DeleteKeys", "half"), ("DeleteKeys", "after")]


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
        run.start("produce", keyed=True, batch=50, kill=[operation, when, rng.randrange(2, 6)]).join()
    live = run.queue.peek(10_000)
    assert all(one.id in {found.id for found in run.queue.list_by_key(one.key)} for one in live)
    after_sends = _healed(run, keys_of)
    assert keys_of(run) == {(one.key, one.id.locate().id) for one in live}
    for operation, when in ACKING * full(5, 1):
        run.start("consume", batch=10, kill=[operation, when, rng.randrange(2, 6)]).join()
    run.start("consume", batch=100)
    run.await_empty()
    after_acks = _healed(run, keys_of)
    left = keys_of(run)
    report = run.finish()
    assert report.clean, str(report)
    assert set(report.reasons) <= {EXPIRED, REMADE}, str(report)
    assert not left
    assert after_sends, "no kill came between the two writes"
    row(
        kills=len(SENDING + ACKING) * full(5, 1),
        messages=report.sends,
        keys_without_a_message=f"{after_sends} after sends, {after_acks} after acks",
        after_healing=len(left),
    )


def _healed(run, keys_of):
    """Wait until rows can be told from those of sends under way, and look each key up: how many went."""
    before = keys_of(run)
    spec = run.client._catalog.entry(run.name).spec
    time.sleep((spec.settle_us + spec.skew_us) / 1e6 + 0.5)
    for key in {key for key, _ in before}:
        run.queue.list_by_key(key)
    return len(before - keys_of(run))
