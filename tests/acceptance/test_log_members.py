"""Three members share 16 partitions while members and writers are killed and stopped."""

import uuid
from datetime import timedelta

import pytest

import cqueue
from tests.acceptance.log_members import crowd, judge, wait_for_work, wait_until_done

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(480)]

SECONDS = 30
PARTITIONS, ACKED = 16, 100


@pytest.mark.parametrize("kind", ["member", "early-member"])
def test_members_that_are_killed_and_stopped_miss_nothing_and_keep_the_order(keyspace, tmp_path, kind):
    """0 missed, order kept in each partition, duplicates only between a success and its checkpoint.

    With low latency: 0 missed, and none twice while a member holds its partition.
    """
    name = f"events-{uuid.uuid4().hex[:8]}"
    with cqueue.connect(keyspace.url) as client:
        client.create_log(name, cqueue.LogConfig(partitions=PARTITIONS, time_shard=timedelta(minutes=1)))
    with crowd(keyspace.url, name, tmp_path, members=3, writers=2, seed=7, kind=kind) as people:
        wait_for_work(people)
        people.disturb(SECONDS, lambda: has_enough(people))
        people.end("writer")
        took_s = wait_until_done(people)
        people.end("member")
        verdict = judge(people, early=kind == "early-member")
    print(f"{verdict}, {dict(people.acts)}, all done {took_s:.0f} s after the last append")  # noqa: T201
    assert verdict.acked > ACKED
    assert verdict.stretches > PARTITIONS, "no partition changed hands: nothing was tested"


def has_enough(people):
    """Whether much was appended, and partitions have changed hands: a slow machine takes longer for it."""
    done = {(line.who, line.partition) for line in people.lines("member") if line.what == "done"}
    return len(people.lines("writer")) > ACKED and len(done) > PARTITIONS
