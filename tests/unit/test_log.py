"""Test the log through its public API, on both stores where that matters."""

import json
import threading
import time
import uuid
from contextlib import nullcontext
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

import cqueue
from cqueue.client import Client
from cqueue.errors import (
    AppendUnknown,
    Closed,
    ConfigError,
    DamagedRow,
    InvalidLogId,
    LogExists,
    LogNotFound,
    NotDone,
    OutcomeUnknown,
    PartitionOutOfRange,
    PositionExpired,
)
from cqueue.log import LogConfig, LogId, Record, catalog
from cqueue.log.catalog import LogCatalog
from cqueue.log.config import earlier_ttls, growths
from cqueue.log.log import Log
from cqueue.runtime import waiting
from cqueue.store.log_operations import AppendRecords, ListLogShards, ReadLog
from cqueue.store.record_page import ReadRecordPage
from tests.subscriptions.subscribing import Clocked
from tests.unit.ctrl_c import at_each_moment, ctrl_c_at, on_a_thread

SHARD = timedelta(seconds=10)


@pytest.fixture
def store():
    return Clocked()


@pytest.fixture
def client(store):
    with Client(store) as client:
        client._driver.clock._local_us = lambda: store.time_us
        client._driver.clock._wall_us = lambda: store.time_us
        yield client


@pytest.fixture
def log(client):
    return client.create_log("events", LogConfig(partitions=4, time_shard=SHARD))


def bodies(records):
    return [record.body for record in records]


def fill(log, store, count, step_ms=700, **values):
    """Append records a moment apart; return their ids."""
    found = []
    for number in range(count):
        found.append(log.append(f"t{number % 3}", b"%d" % number, **values))
        store.pass_time(milliseconds=step_ms)
    store.pass_time(seconds=5)
    return found


# ── logs ──


def test_a_log_is_created_altered_listed_and_deleted(client, log, store):
    assert client.logs() == ["events"]
    assert client.create_log("events", log.config, exist_ok=True).config == log.config
    with pytest.raises(LogExists, match="exist_ok=True"):
        client.create_log("events")
    with pytest.raises(LogExists, match="another configuration"):
        client.create_log("events", LogConfig(partitions=9), exist_ok=True)
    assert log.alter(partitions=8).partitions == 8
    assert client.create_log("events", exist_ok=True).config.partitions == 8
    with pytest.raises(ConfigError, match="only become more"):
        log.alter(partitions=4)
    fill(log, store, 20)
    client.delete_log("events")
    with pytest.raises(LogNotFound):
        client.log("events")
    assert client.logs() == []
    assert not any(shard.live for shard in store.store._handlers[AppendRecords].__self__._shards.values())


@pytest.mark.usefixtures("log")
def test_a_client_that_uses_very_many_logs_remembers_the_last_ones(client, monkeypatch):
    monkeypatch.setattr(catalog, "REMEMBERED", 3)
    entries = client._logs._entries
    for number in range(3):
        client.create_log(f"log-{number}")
    assert len(entries) <= 3
    for name in ("events", "log-1"):
        client.log(name)
    client._logs.entry("log-2", fresh_s=0)
    assert set(entries) == {"log-2", "events", "log-1"}, "one that is read again has none forgotten"


def test_a_read_that_fails_changes_nothing_of_what_is_known(client, log, store):
    """Meanwhile another thread has deleted the log: an append to it would be acknowledged and lost."""

    def fails(operation):
        return NotDone("no") if type(operation) is ReadLog else None

    def deletes_and_fails(operation):
        if type(operation) is ReadLog:
            store.trouble = lambda _: None
            client.delete_log("events")
            store.trouble = fails
        return fails(operation)

    store.trouble = deletes_and_fails
    client._logs.entry("events", fresh_s=0)
    store.trouble = lambda _: None
    with pytest.raises(LogNotFound):
        log.append("t", b"x")


def test_a_creation_that_is_done_says_so_though_nothing_can_be_read_any_more(client, store):
    """`NotDone` would say that there is no log, and the program's next try would meet `LogExists`."""
    store.trouble = lambda operation: NotDone("no") if type(operation) is ReadLog else None
    assert client.create_log("orders", LogConfig(partitions=3)).config.partitions == 3
    store.trouble = lambda _: None
    assert client.create_log("orders", exist_ok=True).config.partitions == 3


def test_a_deleted_log_leaves_no_record_from_before_its_ttl_became_shorter(client, log, store):
    fill(log, store, 20)
    log.alter(ttl=timedelta(minutes=1))
    store.pass_time(minutes=5)
    client.delete_log("events")
    assert not any(shard.live for shard in store.store._handlers[AppendRecords].__self__._shards.values())


def test_what_is_appended_after_a_longer_ttl_is_found_until_it_ends(client, store):
    """The time shard was registered under the shorter ttl, which ends before."""
    log = client.create_log("events", LogConfig(partitions=1, ttl=timedelta(minutes=1), time_shard=SHARD))
    log.append("t", b"before")
    log.alter(ttl=timedelta(days=7))
    log.append("t", b"after")
    store.pass_time(hours=3)
    assert b"after" in bodies(log.scan(on_expired="earliest"))


def test_what_was_appended_under_a_longer_ttl_stays_although_the_ttl_was_shorter_meanwhile(client, store):
    """The append in between does not shorten what the records before it were registered for."""
    config = LogConfig(partitions=1, ttl=timedelta(days=7), time_shard=timedelta(hours=1))
    log = client.create_log("events", config)
    for body, ttl in ((b"a", timedelta(minutes=1)), (b"b", timedelta(days=7)), (b"c", timedelta(days=7))):
        log.append("t", body)
        log.alter(ttl=ttl)
    store.pass_time(hours=6)
    assert {b"a", b"c"} <= set(bodies(log.scan(on_expired="earliest")))


def test_a_start_that_was_forgotten_under_a_shorter_ttl_stays_forgotten(client, store):
    """A reader that is behind learns it, also where the ttl was made longer too late."""
    log = client.create_log("short", LogConfig(ttl=timedelta(hours=1), time_shard=timedelta(minutes=10)))
    old = log.append("t", b"old")
    store.pass_time(hours=2)
    young = log.append("t", b"young")
    store.pass_time(minutes=5)
    log.alter(ttl=timedelta(days=7))
    for start in (old, store.now - timedelta(minutes=100)):
        with pytest.raises(PositionExpired, match="on_expired"):
            log.scan(start)
    assert bodies(log.scan("earliest")) == [b"young"]
    store.pass_time(minutes=30)
    assert bodies(log.scan(store.now - timedelta(minutes=40))) == [b"young"]
    store.pass_time(hours=1)
    with pytest.raises(PositionExpired):
        log.scan(young)
    log.append("t", b"new")
    store.pass_time(days=6)
    assert bodies(log.scan("earliest")) == [b"new"]


def test_what_was_to_be_kept_for_ever_is_not_forgotten_under_a_later_ttl(client, store):
    log = client.create_log("events", LogConfig(ttl=None, time_shard=SHARD))
    id_ = log.append("t", b"kept")
    store.pass_time(seconds=20)
    log.alter(ttl=timedelta(hours=1))
    store.pass_time(seconds=20)
    assert [record.id for record in log.scan()] == [id_]
    assert list(log.scan(id_)) == []  # and no `PositionExpired`


@pytest.mark.parametrize("ttl", [timedelta(days=7), None])
def test_a_ttl_that_became_shorter_takes_nothing_that_a_reader_has_yet_to_read(client, store, ttl):
    """Until records may have expired under it. One that begins with the earliest leaves out more, at once.

    Trap: a position of a quiet log that was older than the new ttl counted as forgotten in that moment.
    """
    log = client.create_log("events", LogConfig(partitions=1, ttl=ttl, time_shard=timedelta(minutes=10)))
    read = log.append("t", b"read")
    store.pass_time(minutes=10)
    log.append("t", b"unread")
    store.pass_time(minutes=10)
    log.alter(ttl=timedelta(minutes=5))
    store.pass_time(minutes=1)
    young = log.append("t", b"young")
    store.pass_time(minutes=3, seconds=50)
    assert bodies(log.scan()) == [b"young"]
    assert bodies(log.scan(read)) == [b"unread", b"young"]
    with log.follow(read) as follower:
        assert drained(follower) == [b"unread", b"young"]
    store.pass_time(seconds=15)
    with pytest.raises(PositionExpired):
        log.scan(read)
    assert bodies(log.scan(young)) == []


@pytest.mark.parametrize("longer", [timedelta(days=7), None])
def test_a_reader_is_told_what_ended_under_a_ttl_that_was_shorter_for_a_while(client, store, longer):
    """Trap: the first ttl had taken nothing yet, so any position counted as remembered.

    What is left before can be read, by a reader that begins there or does not mind.
    """
    log = client.create_log("events", LogConfig(partitions=1, ttl=longer, time_shard=timedelta(minutes=10)))
    read, _ = log.append("t", b"read"), log.append("t", b"kept")
    store.pass_time(minutes=10)
    log.alter(ttl=timedelta(minutes=5))
    ended = log.append("t", b"ended")
    store.pass_time(seconds=10)
    log.append("t", b"lost")
    store.pass_time(minutes=1)
    log.alter(ttl=longer)
    store.pass_time(minutes=10)
    log.append("t", b"new")
    store.pass_time(seconds=5)
    for start in (read, ended):
        with pytest.raises(PositionExpired):
            log.scan(start)
        with pytest.raises(PositionExpired):
            log.follow(start)
    assert bodies(log.scan()) == [b"read", b"kept", b"new"]
    assert drained(log.follow("earliest")) == [b"new"]
    assert drained(log.follow("earliest", on_expired="earliest")) == [b"read", b"kept", b"new"]
    for start, left in ((read, [b"kept", b"new"]), (ended, [b"new"])):
        assert bodies(log.scan(start, on_expired="earliest")) == left
        assert drained(log.follow(start, on_expired="earliest")) == left


def test_a_deleted_log_leaves_nothing_in_the_registry(client, log, store):
    fill(log, store, 5)
    listing = ListLogShards(log._catalog.entry("events").spec.partition)
    assert store.execute(listing)
    client.delete_log("events")
    assert not store.execute(listing)


@pytest.mark.parametrize("earlier", ["7", "[7]", "[[1]]", '[["a", 1]]'])
def test_damaged_notes_of_changes_are_a_damaged_row(earlier):
    with pytest.raises(DamagedRow):
        earlier_ttls(json.dumps({"earlier_ttls": json.loads(earlier)}))
    with pytest.raises(DamagedRow):
        growths(json.dumps({"growths": json.loads(earlier)}))


def test_who_does_not_know_the_notes_of_changes_keeps_them(client, store, log, monkeypatch):
    """As a client of an earlier version, which alters the log meanwhile."""
    store.pass_time(days=1)
    log.alter(partitions=5, ttl=timedelta(days=1))
    before = client._logs.entry("events")
    monkeypatch.setattr(catalog, "with_growth", lambda stored, *_: stored)
    monkeypatch.setattr(catalog, "with_earlier_ttl", lambda stored, *_: stored)
    store.pass_time(days=1)
    with Client(store) as earlier:
        assert earlier.log("events").alter(partitions=6, ttl=timedelta(days=2)).partitions == 6
    spec = client._logs.entry("events", fresh_s=0).spec
    assert (spec.growths, spec.earlier) == (before.spec.growths, before.spec.earlier)
    assert len(spec.growths) == len(spec.earlier) == 1


def test_twenty_changes_of_the_ttl_are_remembered(client, store, log):
    for days in range(1, 30):
        store.pass_time(days=1)
        log.alter(ttl=timedelta(days=days))
    earlier = client._logs.entry("events").spec.earlier
    assert [each.ttl_s // 86400 for each in earlier] == [*range(9, 29)]
    assert all(one.until_ms == other.since_ms for one, other in pairwise(earlier))


def another_process(client, log):
    """The log with the configuration that a process of its own has cached by now."""
    logs = LogCatalog(client._driver, client._logs._deployment)
    logs.entry(log.name)
    return Log(log.name, logs, client._driver, client._append_notifier)


def test_who_appends_with_the_old_ttl_does_not_hide_what_another_appended_with_a_longer_one(client, store):
    """The registration that lasts longest stays, also if another was written last."""
    log = client.create_log("events", LogConfig(partitions=1, ttl=timedelta(hours=1)))
    other = another_process(client, log)
    log.alter(ttl=timedelta(days=7))
    log.append("t", b"kept for 7 days")
    other.append("t", b"kept for an hour")
    store.pass_time(hours=2)
    assert bodies(log.scan(on_expired="earliest")) == [b"kept for 7 days"]


@pytest.mark.parametrize("at_once", [1, 1024])
def test_a_deleted_log_leaves_nothing_from_before_a_shorter_ttl_of_another_process(
    client, store, monkeypatch, at_once
):
    monkeypatch.setattr(catalog, "LISTED_AT_ONCE", at_once)
    log = client.create_log("events", LogConfig(partitions=2, ttl=None, time_shard=timedelta(hours=1)))
    for _ in range(3):
        store.pass_time(hours=1)
        log.append_many([Record("t", b"kept for ever")] * 4)
    log.alter(ttl=timedelta(hours=1))
    another_process(client, log).append_many([Record("t", b"kept for an hour")] * 4)
    store.pass_time(hours=4)
    client.delete_log("events")
    shards = store.store._handlers[AppendRecords].__self__._shards.values()
    assert {row.body for shard in shards for _, row in shard.live.values()} <= {b"kept for an hour"}


@pytest.mark.parametrize(
    "values",
    [
        {"partitions": 0},
        {"partitions": 32_768},
        {"partitions": True},
        {"ttl": timedelta(seconds=1)},
        {"ttl": 7},
        {"time_shard": timedelta(seconds=7)},
        {"time_shard": timedelta(microseconds=1)},
    ],
)
def test_a_configuration_out_of_range_is_refused(values):
    with pytest.raises(ConfigError):
        LogConfig(**values)


@pytest.mark.parametrize("config", [LogConfig(), LogConfig(partitions=32_767, ttl=None, time_shard=SHARD)])
def test_a_configuration_survives_its_json(config):
    assert LogConfig.from_json(config.to_json()) == config


# ── append ──


def test_what_is_wrong_fails_alone_before_anything_is_written(log):
    wrong = [
        Record("", b"x"),
        Record("t", "text"),
        Record("t", b"x" * (1 << 20) + b"x"),
        Record("t", b"x", partition=4),
        Record("t", b"x", key=""),
        Record("t", b"x", headers={"a": 1}),
        b"no record",
    ]
    result = log.append_many([*wrong, Record("t", b"good")])
    assert [index for index, _ in result.failed] == list(range(len(wrong)))
    assert result.ids[-1] is not None
    assert isinstance(result.failed[3][1], PartitionOutOfRange)
    with pytest.raises(cqueue.BatchTooLarge):
        log.append_many([Record("t", b"")] * 10_001)


def test_an_append_without_an_answer_is_unknown_and_names_its_id(log, store):
    """An append may be stored although it has no answer: the error names its id."""

    def lost(operation):
        if type(operation) is AppendRecords:
            store.pass_time(seconds=3)
            raise OutcomeUnknown("no answer")

    store.trouble = lost
    with pytest.raises(AppendUnknown) as raised:
        log.append("t", b"x")
    assert LogId(raised.value.ids[0]).locate()[0].startswith("events@")


def test_an_unknown_append_that_is_stored_has_the_id_of_its_record(log, store):
    """A late record that cannot be written again is read under its first id, so the error names that, too."""
    tries = []

    def late_then_refused(operation):
        if type(operation) is AppendRecords:
            tries.append(operation)
            store.pass_time(seconds=3)
            if len(tries) > 1:
                raise NotDone("no")

    store.trouble = late_then_refused
    with pytest.raises(AppendUnknown) as raised:
        log.append("t", b"x")
    store.trouble = lambda _: None
    store.pass_time(seconds=10)
    (record,) = log.scan()
    assert raised.value.ids[0] == record.id
    assert len(raised.value.ids) == 2


# ── scan ──


def test_a_scan_gives_everything_in_order_once(log, store):
    """The order holds over several time shards and all partitions."""
    ids = fill(log, store, 60)
    with log.scan() as scanner:
        records = list(scanner)
    assert [record.id for record in records] == ids
    assert {record.partition for record in records} == {0, 1, 2, 3}
    assert records[3].time < records[4].time
    assert bodies(log.scan(reverse=True)) == bodies(records)[::-1]


def test_a_scan_is_bounded_by_time_id_topic_partition_and_limit(log, store):
    began = store.now
    ids = fill(log, store, 60, step_ms=1000)
    records = list(log.scan())
    assert bodies(log.scan(began + timedelta(seconds=10), began + timedelta(seconds=20))) == [
        b"%d" % number for number in range(10, 20)
    ]
    assert [record.id for record in log.scan(ids[9], ids[19])] == ids[10:20]
    assert [record.id for record in log.scan(ids[9], ids[19], reverse=True)] == ids[19:9:-1]
    assert bodies(log.scan(topics=["t1"])) == [b"%d" % number for number in range(1, 60, 3)]
    assert [r.id for r in log.scan(partitions=[2])] == [r.id for r in records if r.partition == 2]
    assert bodies(log.scan(limit=7)) == bodies(records)[:7]
    assert bodies(log.scan(limit=7, reverse=True)) == bodies(records)[:-8:-1]
    assert bodies(log.scan(topics=["t2"], limit=3)) == [b"2", b"5", b"8"]
    per_partition = {0: ids[30], 1: "latest", 2: "earliest"}
    expected = [r.id for r in records if r.partition in (2, 3) or (r.partition == 0 and ids.index(r.id) > 30)]
    assert [r.id for r in log.scan(per_partition)] == expected


def test_a_scan_ends_at_the_stable_horizon(log, store):
    """Records beside those acknowledged a moment ago may still be on their way."""
    log.append("t", b"old")
    store.pass_time(seconds=3)
    log.append("t", b"young")
    assert bodies(log.scan()) == [b"old"]
    store.pass_time(seconds=3)
    assert bodies(log.scan()) == [b"old", b"young"]


def test_a_scan_can_be_moved(log, store):
    ids = fill(log, store, 40)
    with log.scan() as scanner:
        first = next(iter(scanner))
        assert first.id == ids[0]
        scanner.seek(ids[29])
        assert [record.id for record in scanner] == ids[30:]
        scanner.seek("earliest")
        assert next(iter(scanner)).id == ids[0]


def test_a_closed_scan_says_so(log, store):
    fill(log, store, 3)
    scanner = log.scan()
    scanner.close()
    with pytest.raises(Closed):
        list(scanner)


def test_a_failing_read_loses_no_record(log, store):
    """It is told, and iterating again goes on where it stopped."""
    ids, told, found = fill(log, store, 40), [], []

    def trouble(operation):
        return NotDone("no") if type(operation) is ReadRecordPage and len(told) < 3 else None

    store.trouble = trouble
    scanner = log.scan()
    for _ in range(4):
        try:
            found += [record.id for record in scanner]
        except NotDone as exc:
            told.append(exc)
    assert len(told) == 3
    assert found == ids


def test_a_start_that_is_forgotten_is_an_error_or_the_earliest(client, store):
    """A reader must know that records may be missing, unless it has said that it does not mind."""
    log = client.create_log("short", LogConfig(ttl=timedelta(minutes=1), time_shard=SHARD))
    old = log.append("t", b"old")
    store.pass_time(minutes=5)
    young = log.append("t", b"young")
    store.pass_time(seconds=5)
    for start in (old, store.now - timedelta(minutes=4), {0: old}):
        with pytest.raises(PositionExpired, match="on_expired"):
            log.scan(start)
        assert [record.id for record in log.scan(start, on_expired="earliest")] == [young]
    assert [record.id for record in log.scan()] == [young]


@pytest.mark.parametrize("on_expired", ["error", "earliest"])
def test_a_follower_says_that_the_log_has_forgotten_what_it_has_not_read(client, store, on_expired):
    """A follower that is polled too seldom must not pass over records unseen, unless it does not mind."""
    log = client.create_log("short", LogConfig(ttl=timedelta(minutes=1), time_shard=SHARD))
    with log.follow("earliest", on_expired=on_expired) as follower:
        log.append("t", b"old")
        store.pass_time(minutes=5)
        log.append("t", b"young")
        store.pass_time(seconds=5)
        for _ in range(2 if on_expired == "error" else 0):
            with pytest.raises(PositionExpired, match="on_expired"):
                follower.poll()
        if on_expired == "earliest":
            assert drained(follower) == [b"young"]


def test_a_record_that_expires_with_its_second_is_not_missed_unseen(client, store):
    """Cassandra counts a time to live from the whole second in which a record was written."""
    log = client.create_log("short", LogConfig(ttl=timedelta(minutes=1), time_shard=SHARD))
    store.pass_time(milliseconds=300)
    first = log.append("t", b"first", partition=0)
    store.pass_time(milliseconds=600)
    log.append("t", b"second", partition=0)
    with log.follow({0: first}, partitions=[0]) as follower:
        store.pass_time(milliseconds=59_200)  # the second has expired; ε alone would not tell
        with pytest.raises(PositionExpired):
            follower.poll()


@pytest.mark.parametrize("ttl", [timedelta(days=30), None])
def test_the_earliest_record_is_that_of_the_earlier_ttl_after_it_was_made_longer(client, store, ttl):
    """What was appended under the earlier one expires by it; all but what expires at once is read."""
    log = client.create_log("short", LogConfig(ttl=timedelta(hours=1), time_shard=timedelta(minutes=10)))
    log.append("t", b"forgotten")
    store.pass_time(hours=2)
    log.append("t", b"expires in a moment")
    store.pass_time(minutes=10)
    log.append("t", b"old")
    log.alter(ttl=ttl)
    store.pass_time(minutes=49, seconds=30)
    log.append("t", b"young")
    store.pass_time(seconds=5)
    assert bodies(log.scan()) == [b"expires in a moment", b"old", b"young"]
    with log.follow("earliest") as follower:
        assert drained(follower) == [b"old", b"young"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"start": "yesterday"}, InvalidLogId),
        ({"start": datetime(2026, 1, 1)}, cqueue.BadInput),  # noqa: DTZ001
        ({"start": 17}, cqueue.BadInput),
        ({"start": {9: "earliest"}}, PartitionOutOfRange),
        ({"partitions": [4]}, PartitionOutOfRange),
        ({"partitions": []}, cqueue.BadInput),
        ({"partitions": 1}, cqueue.BadInput),
        ({"topics": "t1"}, cqueue.BadInput),
        ({"topics": []}, cqueue.BadInput),
        ({"limit": 0}, cqueue.BadInput),
        ({"on_expired": "ignore"}, cqueue.BadInput),
    ],
)
def test_a_scan_of_what_cannot_be_is_refused(log, arguments, error):
    with pytest.raises(error):
        log.scan(**arguments)


def test_a_misspelt_start_is_told_what_starts_there_are(client, log):
    with pytest.raises(InvalidLogId, match="'earliest' or 'latest'"):
        log.scan("earlest")
    with pytest.raises(InvalidLogId, match="'earliest' or 'latest'"):
        log.follow("lates")
    with pytest.raises(cqueue.InvalidQueueName, match="is not a subscription name"):
        client.subscribe(log.name, name="a/b", listeners=[print])


def test_one_text_is_not_several_topics(log):
    """The error shows what was given, and not its first letter."""
    for one in ("t1", b"t1"):
        with pytest.raises(cqueue.BadInput, match=f"topics is {one!r}; it takes several texts"):
            log.scan(topics=one)


def test_the_id_of_another_log_is_no_position(client, log):
    other = client.create_log("other")
    with pytest.raises(cqueue.BadInput, match="not one of log"):
        log.scan(other.append("t", b"x"))


def test_arrow_batches_hold_what_was_appended(log, store):
    """All batches are whole and have the same schema, with or without empty columns."""
    arrow = pytest.importorskip("cqueue.log.arrow")
    fill(log, store, 10)
    fill(log, store, 10, key="k", headers={"a": "1"})
    batches = list(log.scan().to_arrow())
    assert all(batch.schema == arrow.SCHEMA for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    records = list(log.scan())
    assert [(row["partition"], row["topic"], row["key"], row["body"]) for row in rows] == [
        (record.partition, record.topic, record.key, record.body) for record in records
    ]
    assert dict(rows[-1]["headers"]) == {"a": "1"}
    assert [row["time"].replace(microsecond=0) for row in rows] == [
        record.time.replace(microsecond=0) for record in records
    ]


# ── follow ──


@pytest.mark.parametrize("low_latency", [False, True])
def test_a_follower_misses_nothing_and_repeats_nothing(log, store, low_latency):
    """At any timing of appends and polls."""
    follower = log.follow("earliest", low_latency=low_latency)
    found, sent = [], []
    for number in range(100):
        sent.append(log.append("t", b"%d" % number))
        store.pass_time(milliseconds=310 if number % 7 else 4000)
        if number % 3 == 0:
            found += [record.id for record in follower.poll()]
        if low_latency and number % 3 == 0:
            assert sent[-1] in found or found[-1:] == [] or len(sent) - len(found) < 10
    store.pass_time(seconds=10)
    for _ in range(20):
        found += [record.id for record in follower.poll()]
    assert sorted(found) == sorted(sent)
    assert len(found) == len(sent)
    if not low_latency:
        assert found == sent


def drained(follower):
    """Return all records that can be read now."""
    return [body for _ in range(4) for body in bodies(follower.poll())]


def test_low_latency_hands_out_at_once_and_goes_back(log, store):
    """A record that lands behind an early one is handed out as well."""
    follower = log.follow("earliest", low_latency=True, partitions=[0])
    appended = []
    store.trouble = lambda operation: appended.append(operation) if type(operation) is AppendRecords else None
    log.append("t", b"first", partition=0)
    store.pass_time(milliseconds=100)
    log.append("t", b"second", partition=0)
    assert drained(follower) == [b"first", b"second"]
    late = appended[0].rows[0]._replace(id=appended[0].rows[0].id + 1, body=b"between")
    store.execute(AppendRecords(appended[0].shard, (late,), 0))
    assert drained(follower) == [b"between"]  # at the next poll: not first when it is stable
    store.pass_time(seconds=5)
    assert drained(follower) == []


def test_stable_records_are_handed_out_though_later_ones_cannot_be_read(log, store):
    """A poll that finds nothing else tells the failure."""
    log.append("t", b"stable", partition=0)
    store.pass_time(seconds=5)
    log.append("t", b"early", partition=0)
    horizon = log._catalog.entry(log.name).spec.horizon(store.time_us)
    store.trouble = lambda operation: NotDone("no") if getattr(operation, "upto", 0) > horizon else None
    follower, found, failures = log.follow("earliest", low_latency=True, partitions=[0]), [], 0
    for _ in range(4):
        try:
            found += bodies(follower.poll())
        except NotDone:
            failures += 1
    assert found == [b"stable"]
    assert failures
    store.trouble = lambda _: None
    assert drained(follower) == [b"early"]


def test_a_follower_reads_partitions_that_are_added(log, store):
    follower = log.follow("earliest")
    log.alter(partitions=6)
    log._catalog._entries.clear()
    log.append("t", b"new", partition=5)
    store.pass_time(seconds=5)
    found = []
    for _ in range(5):
        found += bodies(follower.poll())
    assert found == [b"new"]


@pytest.mark.parametrize("is_another", [False, True])
def test_a_partition_that_is_added_while_a_follower_is_away_is_read_whole(client, store, is_another):
    """So it is for another follower that goes on from the positions of this one."""
    log = client.create_log("short", LogConfig(partitions=4, ttl=timedelta(minutes=10), time_shard=SHARD))
    follower = log.follow("earliest")
    drained(follower)
    log.alter(partitions=6)
    log.append("t", b"new", partition=5)
    store.pass_time(minutes=9, seconds=30)
    if is_another:
        follower = log.follow(follower.positions())
    log._catalog._entries.clear()
    assert drained(follower) == [b"new"]


@pytest.mark.parametrize("knows_when", [True, False])
def test_a_follower_says_that_it_may_have_missed_the_first_records_of_an_added_partition(
    client, store, monkeypatch, *, knows_when
):
    """It may not have known of it for some seconds when it was last there. Where the log notes the time, a
    follower that is not late has missed nothing; an earlier version of the library notes none.
    """
    if not knows_when:
        monkeypatch.setattr(catalog, "with_growth", lambda stored, *_: stored)
    log = client.create_log("short", LogConfig(partitions=4, ttl=timedelta(minutes=10), time_shard=SHARD))
    store.pass_time(minutes=20)
    follower = log.follow("latest")
    follower.poll()
    log.alter(partitions=6)
    log.append("t", b"new", partition=5)
    store.pass_time(minutes=9, seconds=45)
    if knows_when:
        assert drained(follower) == [b"new"]
        return
    for _ in range(2):
        with pytest.raises(PositionExpired):
            follower.poll()


def test_positions_leave_nothing_out_whenever_they_are_asked_for(log, store):
    """Records that were read but not yet returned lie behind the positions."""
    log.append_many([Record("t", b"early %d" % number, partition=0) for number in range(200)])
    log.append("t", b"last", partition=1)
    store.pass_time(seconds=5)
    follower = log.follow("earliest")
    while not (found := bodies(follower.poll())):
        pass
    rest = log.scan(follower.positions())
    assert 0 < len(found) < 201
    assert sorted(found + bodies(rest)) == sorted([b"last", *(b"early %d" % number for number in range(200))])


@pytest.mark.parametrize("low_latency", [False, True])
def test_positions_inside_a_loop_stand_behind_its_record(log, store, low_latency):
    """A program may store them after each record, and end anywhere."""
    ids = fill(log, store, 20)
    if low_latency:  # some of them beyond the stable horizon
        ids += log.append_many([Record("t", b"young") for _ in range(5)]).ids
    follower, done = log.follow("earliest", low_latency=low_latency), []
    for record in follower:
        done.append(record.id)
        left = [each.id for each in log.scan(follower.positions(), end=store.now)]
        assert set(done) | set(left) >= set(ids[:20])
        assert len(left) >= 20 - len(done)
        if len(done) == len(ids):
            break
    assert sorted(done) == sorted(ids)


def test_a_loop_that_is_left_loses_nothing(log, store):
    """The next loop, and `poll`, give what was read and not yet yielded."""
    ids = fill(log, store, 20)
    follower = log.follow("earliest")
    found = [next(iter(follower)).id]
    for _ in range(20):
        found += [record.id for record in follower.poll()]
    assert found == ids


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_that_is_left_loses_nothing(log, store, reverse):
    ids = fill(log, store, 40)
    scanner = log.scan(limit=30, reverse=reverse)
    found = [next(iter(scanner)).id for _ in range(5)]
    found += [record.id for record in next(scanner.batches())]
    found += [record.id for record in scanner]
    assert found == (ids[:9:-1] if reverse else ids[:30])


def test_a_scan_whose_wait_a_ctrl_c_ends_loses_nothing(log, store, monkeypatch):
    """At each moment of a wait for what is read ahead: the next loop gives what that read finds."""
    ids = fill(log, store, 150)  # more than one read gives

    plain, found = waiting.wait, []
    moments, left, interrupted = 0, 0, True

    def wait(future):
        """Be interrupted in the second wait, which is for what is read ahead."""
        nonlocal left
        left -= 1
        with nullcontext() if left else ctrl_c_at(moments):
            plain(future)

    monkeypatch.setattr(waiting, "wait", wait)
    while interrupted:
        moments, left, interrupted, scanner = moments + 1, 2, False, log.scan()
        found.clear()
        try:
            for record in scanner:
                found.append(record.id)  # noqa: PERF401 - those before the Ctrl-C as well
        except KeyboardInterrupt:
            interrupted = True
        found += on_a_thread(lambda: [record.id for record in scanner])  # noqa: B023 - called at once
        assert found == ids
    assert moments > 5


@pytest.mark.parametrize("low_latency", [False, True])
def test_a_poll_that_a_ctrl_c_ends_loses_and_repeats_nothing(log, store, low_latency):
    """At each moment of a poll: the next polls give what that one would have given."""
    ids = fill(log, store, 8, step_ms=1500)
    moments, interrupted = 0, True
    while interrupted:
        moments, interrupted, found = moments + 1, False, []
        follower = log.follow("earliest", low_latency=low_latency)
        try:
            follower._read_ahead(timedelta())  # which shards there are
            with ctrl_c_at(moments):
                follower._read_ahead(timedelta())
        except (KeyboardInterrupt, RuntimeError):
            interrupted = True
        for _ in range(5):
            found += [record.id for record in follower.poll()]
        assert found == ids
        follower.close()
    assert moments > 50


@pytest.mark.parametrize("limit", [None, 15])
def test_a_scan_that_a_ctrl_c_ends_loses_and_repeats_nothing(log, store, limit):
    """At each moment while records are read and kept; and it gives no more than its limit."""
    ids = fill(log, store, 20)[:limit]
    moments, interrupted = 0, True
    while interrupted:
        moments, interrupted = moments + 1, False
        with log.scan(limit=limit) as scanner:
            try:
                with ctrl_c_at(moments):
                    scanner._read_ahead()
            except (KeyboardInterrupt, RuntimeError):
                interrupted = True
            assert [record.id for record in scanner] == ids
    assert moments > 20


def test_a_signal_that_a_ctrl_c_met_can_be_used_by_all():
    """At each moment of a clear, a set or a wait: other threads set it, and wait for it."""
    awake = waiting.Signal()

    def check():
        on_a_thread(awake.clear)
        on_a_thread(awake.set)
        assert on_a_thread(lambda: awake.wait(5))

    for call in (awake.clear, awake.set, lambda: awake.wait(0.001)):
        awake.clear()
        assert at_each_moment(call, check) > 2


def test_a_move_keeps_the_end_of_the_scan(log, store):
    """Also backwards, where reading begins at the end: beyond it records may not be stable."""
    ids = fill(log, store, 6, step_ms=1000)
    scanner = log.scan(end=ids[2], reverse=True)
    for start in ("latest", ids[4], store.now):
        assert [record.id for record in scanner] == ids[2::-1]
        scanner.seek(start)
    whole = log.scan(reverse=True)
    log.append("t", b"not stable yet")
    whole.seek(store.now + timedelta(seconds=1))
    assert [record.id for record in whole] == ids[::-1]
    whole.seek(ids[3])
    assert [record.id for record in whole] == ids[3::-1]


def test_a_refused_move_loses_nothing(log, store):
    ids = fill(log, store, 3000)
    scanner = log.scan()
    found = [next(iter(scanner)).id]
    with pytest.raises(cqueue.BadInput, match="no id"):
        scanner.seek("no id")
    assert found + [record.id for record in scanner] == ids


def test_a_move_counts_only_what_was_yielded_towards_the_limit(log, store):
    ids = fill(log, store, 20)
    scanner = log.scan(limit=10)
    loop = iter(scanner)
    assert [next(loop).id for _ in range(3)] == ids[:3]
    scanner.seek("earliest")
    assert [record.id for record in scanner] == ids[:7]


def test_a_follower_goes_on_for_another_from_its_positions(log, store):
    fill(log, store, 10)
    follower = log.follow("earliest")
    while not follower.poll():
        pass
    fill(log, store, 10)
    assert len(list(log.scan(follower.positions()))) >= 10


def test_closing_ends_a_follower_that_waits(log):
    """Another thread's `close` ends it at once."""
    follower = log.follow()
    ended = threading.Event()

    def read():
        list(follower)
        ended.set()

    threading.Thread(target=read).start()
    follower.close()
    assert ended.wait(20)


def test_an_idle_follower_costs_one_read_a_poll(log, store):
    """One statement asks all quiet partitions."""
    reads = []
    follower = log.follow("latest")
    for _ in range(5):
        store.pass_time(milliseconds=100)
        follower.poll()
    store.trouble = lambda operation: reads.append(type(operation).__name__)
    for _ in range(20):
        store.pass_time(milliseconds=100)
        follower.poll()
    assert len(reads) <= 22, reads


def test_a_follower_that_waits_rests_between_its_polls(log, store):
    """The horizon moves while it reads, which alone is no reason to read again."""
    reads = []

    def count(operation):
        reads.append(operation)
        store.pass_time(milliseconds=1)

    follower = log.follow("latest", poll_interval=timedelta(milliseconds=50))
    store.trouble = count
    assert follower.poll(timedelta(milliseconds=300)) == []
    assert len(reads) < 40


# ── on Cassandra ──


@pytest.mark.cassandra
def test_a_log_on_cassandra(keyspace):
    """Appends of several threads are read once each, in the order of each key."""
    with cqueue.connect(keyspace.url) as client:
        log = client.create_log(f"log-{uuid.uuid4().hex[:8]}", LogConfig(partitions=4, time_shard=SHARD))

        def append(worker):
            for start in range(0, 300, 100):
                records = [
                    Record("t", b"%d-%d" % (worker, start + n), key=f"w{worker}", headers={"n": str(n)})
                    for n in range(100)
                ]
                assert not log.append_many(records).failed

        threads = [threading.Thread(target=append, args=(worker,)) for worker in range(3)]
        for thread in threads:
            thread.start()
        found = []
        deadline = time.monotonic() + 60
        with log.follow("earliest") as follower:
            while len(found) < 900 and time.monotonic() < deadline:
                found += follower.poll(timedelta(seconds=1))
        for worker in range(3):
            mine = [record.body for record in found if record.key == f"w{worker}"]
            assert mine == [b"%d-%d" % (worker, n) for n in range(300)]
        assert bodies(log.scan(reverse=True, limit=5)) == bodies(list(log.scan())[:-6:-1])
        client.delete_log(log.name)


# ── edges ──


def test_a_topic_that_nobody_uses_is_an_empty_scan(log, store):
    """Topics are declared nowhere, so no topic is unknown."""
    fill(log, store, 3)
    assert list(log.scan(topics=["nobody's"])) == []
    assert next(iter(log.scan(topics=["nobody's", "t1"], reverse=True))).topic == "t1"


@pytest.mark.parametrize(
    "use",
    [
        list,
        lambda one: list(one.batches()),
        lambda one: list(one.to_arrow()),
        lambda one: one.seek("earliest"),
    ],
    ids=["iterate", "batches", "to_arrow", "seek"],
)
def test_a_closed_scanner_says_so_whatever_is_asked(log, store, use):
    """A scan may be closed in the middle; closing again does no harm."""
    pytest.importorskip("pyarrow")
    fill(log, store, 3)
    scanner = log.scan()
    next(iter(scanner))
    scanner.close()
    scanner.close()
    with pytest.raises(Closed, match="events"):
        use(scanner)


def test_a_closed_follower_says_so(log):
    follower = log.follow()
    follower.close()
    with pytest.raises(Closed):
        follower.poll()
    assert list(follower) == []


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_the_largest_and_the_smallest_body_come_back(log, store, size):
    """Limits are inclusive; one byte more is refused before anything is written."""
    log.append("t", bytes(size))
    with pytest.raises(cqueue.BodyTooLarge, match="1,048,576"):
        log.append("t", bytes((1 << 20) + 1))
    store.pass_time(seconds=5)
    assert bodies(log.scan()) == [bytes(size)]


@pytest.mark.parametrize("skew_ms", [-490, 0, 490])
def test_a_clock_that_is_off_by_less_than_epsilon_hides_nothing(log, store, skew_ms):
    """A reader goes up to W + ε before its own now; what was acknowledged by another clock lies below."""
    with Client(store) as writer:
        writer._driver.clock._local_us = lambda: store.time_us
        writer._driver.clock._wall_us = lambda: store.time_us
        writer._driver.clock.now_us = lambda **_: store.time_us + skew_ms * 1000
        follower, appended, found = log.follow("earliest"), [], []
        for number in range(60):
            appended.append(writer.log("events").append("t", b"%d" % number))
            store.pass_time(milliseconds=137)
            found += [record.id for record in follower.poll()]
        store.pass_time(seconds=5)
        for _ in range(10):
            found += [record.id for record in follower.poll()]
    assert found == appended


def test_stats_tell_the_ends_and_the_rate(log, store):
    """The rate is that of the last minute; times are those of the records."""
    assert (log.stats().oldest, log.stats().newest, log.stats().per_second) == (None, None, 0.0)
    fill(log, store, 100, step_ms=1000)
    stats, records = log.stats(), list(log.scan())
    assert (stats.oldest, stats.newest) == (records[0].time, records[-1].time)
    assert 0.9 < stats.per_second < 1.1
    assert stats.partitions == 4
    assert stats.time_shards in {10, 11}
    assert stats.cassandra_partitions == len(
        {(record.partition, int(record.time.timestamp()) // 10) for record in records}
    )
    store.pass_time(minutes=10)
    assert log.stats().per_second == 0
    assert log.stats().newest == records[-1].time
