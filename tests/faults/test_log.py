"""Members and writers of a log, killed and stopped for five minutes; in tests/acceptance it is short."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

import cqueue
from tests.acceptance.log_members import crowd, judge, wait_for_work, wait_until_done

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(900)]

SECONDS = 300


@pytest.mark.row(21, "members and writers of a log killed and stopped for 5 minutes")
def test_members_of_a_log_miss_nothing_and_keep_the_order(keyspace, tmp_path, row):
    """0 missed, order kept in each partition, duplicates only between a success and its checkpoint."""
    name = f"events-{uuid.uuid4().hex[:8]}"
    with cqueue.connect(keyspace.url) as client:
        client.create_log(name, cqueue.LogConfig(partitions=16, time_shard=timedelta(minutes=1)))
    with crowd(keyspace.url, name, tmp_path, members=3, writers=3, seed=None) as people:
        wait_for_work(people)
        people.disturb(SECONDS)
        people.end("writer")
        took_s = wait_until_done(people)
        people.end("member")
        verdict = judge(people)
    assert verdict.stretches > 16, "no partition changed hands: nothing was tested"
    row(
        acknowledged=verdict.acked,
        missed=0,
        done_twice=verdict.twice,
        stretches=verdict.stretches,
        in_hand_when_taken_over=verdict.overlaps,
        all_done_after=f"{took_s:.0f} s",
        acts=", ".join(f"{what} {count}" for what, count in sorted(people.acts.items())),
    )
