"""Subscriptions: what every store promises about definitions, positions and members."""

import time
import uuid

import pytest

from cqueue import ids
from cqueue.store.log_operations import (
    AppendRecords,
    BeatMember,
    ChangeDefinition,
    ChangePositions,
    CountRecords,
    DefineSubscription,
    DefinitionRow,
    ListSubscriptions,
    LogShard,
    MemberRow,
    PositionChange,
    PositionRow,
    ReadSubscription,
    RecordRow,
    RemoveMember,
    RemoveSubscription,
    Span,
    SubscriptionKey,
    SubscriptionRows,
)

END = 1 << 123


@pytest.fixture
def key():
    return SubscriptionKey(f"log-{uuid.uuid4().hex}@1", "billing")


@pytest.fixture
def defined(store, key):
    """Make the subscription."""
    store.execute(DefineSubscription(key, DefinitionRow(1, "active", "{}")))


def position(partition, **changes):
    at = ids.lowest_at(time.time_ns() // 1000) - 1  # as the start of a log: not a whole number of ticks
    return PositionRow(partition, at, 17, "", 0)._replace(**changes)


def read(store, key, **options):
    return store.execute(ReadSubscription(key, **options))


def change(store, key, *changes, config="{}"):
    return store.execute(ChangePositions(key, config, tuple(PositionChange(*each) for each in changes)))


def test_a_definition_is_made_once_and_changes_from_the_version_seen(store, key):
    row = DefinitionRow(1, "active", '{"a": 1}')
    assert read(store, key) == SubscriptionRows()
    assert store.execute(DefineSubscription(key, row)) is True
    assert store.execute(DefineSubscription(key, row._replace(state="paused"))) is False
    assert key in store.execute(ListSubscriptions())
    assert store.execute(ChangeDefinition(key, row._replace(state="paused"), 1)) is True
    assert store.execute(ChangeDefinition(key, row, 1)) is False
    assert read(store, key).definition == DefinitionRow(2, "paused", '{"a": 1}')


def test_a_subscription_is_removed_whole_from_the_version_seen(store, key):
    row = DefinitionRow(1, "active", "{}")
    store.execute(DefineSubscription(key, row))
    other = key._replace(name="other")
    for each in (key, other):
        store.execute(BeatMember(each, MemberRow("a", "{}", 1), 60))
    change(store, key, (None, position(3)), (None, position(4)))
    assert len(read(store, key).members) == 1
    assert store.execute(RemoveSubscription(key, 2)) is False
    assert read(store, key).definition == row
    assert store.execute(RemoveSubscription(key, 1)) is True
    assert read(store, key, serial=True) == SubscriptionRows()
    assert len(read(store, other).members) == 1
    assert store.execute(RemoveSubscription(key, 1)) is False
    assert change(store, key, (None, position(3))) is False
    assert read(store, key, serial=True) == SubscriptionRows()
    assert store.execute(DefineSubscription(key, row._replace(config='{"id": "b"}'))) is True
    assert change(store, key, (None, position(3))) is False, "it was made up for another subscription"
    assert change(store, key, (None, position(3)), config='{"id": "b"}') is True
    assert set(read(store, key).positions) == {3}


@pytest.mark.usefixtures("defined")
@pytest.mark.parametrize("serial", [False, True])
def test_positions_change_only_from_the_fence_seen(store, key, serial):
    """Of two that take a partition from the same state one gets it, and a late checkpoint moves nothing."""
    first, other = position(3), position(32_767, owner="b")
    assert change(store, key, (None, first), (None, other)) is True
    assert change(store, key, (None, first)) is False
    moved = first._replace(position=first.position + 5, fence=18, owner="a", generation=2)
    assert change(store, key, (17, moved)) is True
    assert change(store, key, (17, first)) is False
    assert read(store, key, serial=serial).positions == {3: moved, 32_767: other}


@pytest.mark.usefixtures("defined")
def test_several_positions_change_together_or_not_at_all(store, key):
    rows = [position(number) for number in range(64)]
    assert change(store, key, *((None, row) for row in rows)) is True
    moved = [row._replace(fence=20, owner="me") for row in rows]
    assert change(store, key, *((17, row) for row in moved[:-1]), (16, moved[-1])) is False
    assert read(store, key).positions == dict(enumerate(rows))
    assert change(store, key, *((17, row) for row in moved)) is True
    assert read(store, key).positions == dict(enumerate(moved))


def test_a_member_lives_as_long_as_it_says_so(store, key):
    """Beside definition and positions, which its plain writes do not touch."""
    definition = DefinitionRow(1, "active", "{}")
    store.execute(DefineSubscription(key, definition))
    store.execute(BeatMember(key, MemberRow("b", "{}", 5), 60))
    store.execute(BeatMember(key, MemberRow("a", "{}", 1), 60))
    store.execute(BeatMember(key, MemberRow("a", '{"x": 1}', 2), 60))
    change(store, key, (None, position(0)))
    found = read(store, key)
    assert found.members == (MemberRow("a", '{"x": 1}', 2), MemberRow("b", "{}", 5))
    assert found.definition == definition
    store.execute(RemoveMember(key, "a"))
    assert [row.member for row in read(store, key).members] == ["b"]


def test_a_member_that_says_nothing_is_gone(store, key, eventually):
    store.execute(BeatMember(key, MemberRow("a", "{}", 1), 1))
    eventually(lambda: not read(store, key).members)


def test_records_are_counted(store, key):
    shard = LogShard(key.log, 3, time.time_ns() // 600_000_000_000 * 600_000)
    ticks = time.time_ns() // 100
    rows = tuple(RecordRow(ids.from_ticks(ticks + n, n), "t", None, None, b"x") for n in range(5))
    store.execute(AppendRecords(shard, rows, 0))
    assert store.execute(CountRecords(shard, 0, END)) == Span(5, rows[0].id)
    assert store.execute(CountRecords(shard, rows[1].id, rows[3].id)) == Span(2, rows[2].id)
    assert store.execute(CountRecords(shard, rows[4].id, END)) == Span(0, None)
