"""Three members share 16 partitions while members and writers are killed and stopped."""

import uuid
from datetime import timedelta

import pytest

import cqueue
from tests.acceptance.log_members import crowd, judge, wait_for_work, wait_until_done

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(400)]

SECONDS = 30


@pytest.mark.parametrize("kind", ["member", "early-member"])
def test_members_that_are_killed_and_stopped_miss_nothing_and_keep_the_order(keyspace, tmp_path, kind):
    """0 missed, order kept in each partition, duplicates only between a success and its checkpoint.

    With low latency: 0 missed, and none twice while a member holds its partition.
    """
    name = f"events-{uuid.uuid4().hex[:8]}"
    with cqueue.connect(keyspace.url) as client:
        client.create_log(name, cqueue.LogConfig(partitions=16, time_shard=timedelta(minutes=1)))
    with crowd(keyspace.url, name, tmp_path, members=3, writers=2, seed=7, kind=kind) as people:
        wait_for_work(people)
        people.disturb(SECONDS)
        people.end("writer")
        took_s = wait_until_done(people)
        people.end("member")
        verdict = judge(people, early=kind == "early-member")
    print(f"{verdict}, {dict(people.acts)}, all done {took_s:.0f} s after the last append")  # noqa: T201
    assert verdict.acked > 100
    assert verdict.stretches > 16, "no partition changed hands: nothing was tested"
