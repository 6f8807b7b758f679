"""The registry, queues and the deployment row: what every store promises."""

import uuid

import pytest

from cqueue.store.operations import (
    AdvanceEpoch,
    BumpDeployment,
    ChangeQueue,
    CreateQueue,
    ListQueues,
    QueueRow,
    ReadDeployment,
    ReadQueue,
    ReadShards,
    RegisterShard,
    RemoveQueue,
    ShardRow,
    UnregisterShard,
)

HOUR = 3_600_000
EPOCH = 1_700_000_000_000 // HOUR * HOUR


@pytest.fixture
def name():
    return f"queue-{uuid.uuid4().hex}"


def register(store, name, time_shard, shard, *priorities, epoch=EPOCH):
    store.execute(RegisterShard(name, epoch, time_shard, shard, frozenset(priorities)))


def shards(store, name, start=0, epoch=EPOCH):
    return store.execute(ReadShards(name, epoch, start))


# ── Registry ──


def test_priorities_of_several_registrations_add_up(store, name):
    """Producers register without reading: at one timestamp, elements of a set are merged."""
    register(store, name, EPOCH, 0, 1)
    register(store, name, EPOCH, 0, 2, 9)
    register(store, name, EPOCH, 0, 1)
    assert shards(store, name) == [ShardRow(EPOCH, 0, frozenset({1, 2, 9}))]


def test_registered_shards_come_in_order(store, name):
    """By time shard, then shard; from the given time shard on; each epoch apart."""
    for time_shard, shard in ((EPOCH + 200, -1), (EPOCH + 100, 3), (EPOCH + 100, -7), (EPOCH, 1)):
        register(store, name, time_shard, shard, 0)
    register(store, name, EPOCH + HOUR, 0, 0, epoch=EPOCH + HOUR)
    found = [(row.time_shard, row.shard) for row in shards(store, name, EPOCH + 100)]
    assert found == [(EPOCH + 100, -7), (EPOCH + 100, 3), (EPOCH + 200, -1)]
    assert len(shards(store, name)) == 4


def test_a_long_registry_is_read_whole(store, name):
    """More rows than a page holds."""
    places = [(EPOCH + at, shard) for at in (0, 1, 2) for shard in range(833)]
    store.together(tuple(RegisterShard(name, EPOCH, *place, frozenset({0})) for place in places))
    assert [(row.time_shard, row.shard) for row in shards(store, name)] == places


def test_an_unregistered_shard_is_not_revived(store, name):
    """A stale producer registers after the retirement: in vain, with any priority."""
    register(store, name, EPOCH, 0, 1)
    register(store, name, EPOCH, 1, 1)
    store.execute(UnregisterShard(name, EPOCH, EPOCH, 0))
    register(store, name, EPOCH, 0, 1)
    register(store, name, EPOCH, 0, 5)
    store.execute(UnregisterShard(name, EPOCH, EPOCH, 2))
    register(store, name, EPOCH, 2, 0)
    assert shards(store, name) == [ShardRow(EPOCH, 1, frozenset({1}))]


@pytest.mark.parametrize("epoch", [-1 - EPOCH, -(1 << 62)])
def test_epochs_may_be_negative(store, name, epoch):
    """Those of open wide rows are."""
    register(store, name, EPOCH, -1, 0, epoch=epoch)
    assert shards(store, name, epoch=epoch) == [ShardRow(EPOCH, -1, frozenset({0}))]
    assert shards(store, name) == []


# ── Queues ──


def queue(name, **values):
    return QueueRow(name, "inc-1", 1, "active", '{"a": 1}', HOUR, EPOCH, -1 - EPOCH)._replace(**values)


def test_a_queue_is_created_once(store, name):
    """The first one wins, and keeps all its values."""
    assert store.execute(ReadQueue(name)) is None
    assert store.execute(CreateQueue(queue(name)))
    assert not store.execute(CreateQueue(queue(name, incarnation="inc-2", config="{}")))
    assert store.execute(ReadQueue(name)) == queue(name)
    assert queue(name) in store.execute(ListQueues())


def test_a_queue_changes_from_the_version_seen(store, name):
    """State and configuration, not what is fixed at creation; each change counts the version up."""
    store.execute(CreateQueue(queue(name)))
    paused = queue(name, state="paused", config='{"a": 2}', epoch_ms=1, oldest_epoch=1)
    assert store.execute(ChangeQueue(paused, 1))
    assert not store.execute(ChangeQueue(paused, 1))
    assert store.execute(ReadQueue(name)) == queue(name, version=2, state="paused", config='{"a": 2}')
    assert not store.execute(ChangeQueue(queue(name, incarnation="other"), 2))
    assert store.execute(ChangeQueue(queue(name), 2))
    assert store.execute(ReadQueue(name)).version == 3


def test_a_queue_that_is_not_there_does_not_change(store, name):
    """Neither change nor removal nor an epoch makes a queue."""
    assert not store.execute(ChangeQueue(queue(name), 1))
    assert not store.execute(RemoveQueue(name, "inc-1"))
    assert not store.execute(AdvanceEpoch(name, "inc-1", EPOCH, EPOCH + 1))
    assert store.execute(ReadQueue(name)) is None


def test_only_the_incarnation_named_is_removed(store, name):
    """A queue made anew under the same name is another queue."""
    store.execute(CreateQueue(queue(name)))
    assert not store.execute(RemoveQueue(name, "inc-0"))
    assert store.execute(RemoveQueue(name, "inc-1"))
    assert store.execute(ReadQueue(name)) is None
    assert not store.execute(RemoveQueue(name, "inc-1"))
    assert store.execute(CreateQueue(queue(name, incarnation="inc-2")))
    assert store.execute(ReadQueue(name)) == queue(name, incarnation="inc-2")


@pytest.mark.parametrize("open_", [False, True])
def test_the_oldest_epoch_moves_by_compare_and_set(store, name, open_):
    """From what was seen, of that incarnation, and only the one of the two that was meant."""
    store.execute(CreateQueue(queue(name)))
    column = "oldest_open_epoch" if open_ else "oldest_epoch"
    seen = getattr(queue(name), column)
    assert not store.execute(AdvanceEpoch(name, "inc-1", seen + 1, seen + 2, open_))
    assert not store.execute(AdvanceEpoch(name, "inc-0", seen, seen + 2, open_))
    assert store.execute(AdvanceEpoch(name, "inc-1", seen, seen + 2, open_))
    assert not store.execute(AdvanceEpoch(name, "inc-1", seen, seen + 3, open_))
    assert store.execute(ReadQueue(name)) == queue(name, **{column: seen + 2})


# ── Deployment ──


def test_the_change_counter_counts_each_change_once(store):
    """Of two that saw the same value one bumps it, and nothing else of the row changes."""
    before = store.execute(ReadDeployment())
    assert not store.execute(BumpDeployment(before.changes - 1))
    assert store.execute(BumpDeployment(before.changes))
    assert not store.execute(BumpDeployment(before.changes))
    assert store.execute(ReadDeployment()) == before._replace(changes=before.changes + 1)
