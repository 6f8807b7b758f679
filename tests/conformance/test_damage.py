"""Damaged rows of all tables but `messages` stop nobody: written with CQL, then looked at from outside."""

import functools
import json
import threading
import time
import uuid
from datetime import timedelta
from queue import SimpleQueue

import pytest

import cqueue
from cqueue import ids, quarantine
from cqueue.client import inside
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.dispatcher.schedules.monitor import restart_stalled
from cqueue.dispatcher.schedules.triggers import Repeating
from cqueue.errors import DamagedRow, LogNotFound, QueueNotFound, ScheduleNotFound, SchemaMismatch
from cqueue.log import LogConfig
from cqueue.protocol import registry
from cqueue.store.control import ReadSchedule
from cqueue.store.log_operations import ReadLogShards
from cqueue.store.record_page import ReadRecordPage

pytestmark = pytest.mark.cassandra

FAR_MS = 1 << 60
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def first_of(values, names):
    """Parameters of which `make test` tries the first and `make test-all` all, as each takes 6 s."""
    return [
        pytest.param(value, id=name, marks=[pytest.mark.acceptance] if place else [])
        for place, (value, name) in enumerate(zip(values, names, strict=True))
    ]


@pytest.fixture(scope="module")
def keyspace(new_keyspace):
    """A keyspace with a small W and ε: records are stable after 1.1 s."""
    return new_keyspace(settle_ms=1000, skew_ms=200)


@pytest.fixture
def client(keyspace):
    with cqueue.connect(keyspace.url) as client:
        yield client


@pytest.fixture
def cql(connection, keyspace):
    """Run a statement as an operator's hand would: `{ks}` is the keyspace."""

    def run(text, *values):
        return list(connection.session.execute(text.replace("{ks}", keyspace.name), values))

    return run


@pytest.fixture
def cli(keyspace, cli_on):
    return cli_on(keyspace.url)


@pytest.fixture
def name():
    return f"n{uuid.uuid4().hex[:12]}"


def received(client, queue):
    """All bodies that a new consumer finds. Of what is counted, more is waited for."""
    found, opened = [], client.queue(queue)
    with opened.consumer() as consumer:
        while batch := consumer.receive(
            100, wait=timedelta(seconds=20 if opened.stats(exact=True).live else 0)
        ):
            found += [message.body for message in batch]
            consumer.ack(batch)
    return sorted(found)


def update(table, where, **columns):
    """An UPDATE of those columns."""
    sets = ", ".join(f"{column} = {value}" for column, value in columns.items())
    return f"UPDATE {{ks}}.{table} SET {sets} WHERE {where}"  # noqa: S608


# ── queues ──

BROKEN_QUEUES = {
    "config no JSON": {"config": "'{broken'"},
    "config no object": {"config": "'[]'"},
    "config null": {"config": "null"},
    "a setting out of range": {"config": "'{\"shards\": -1}'"},
    "a setting of another type": {"config": '\'{"visibility_ms": "x"}\''},
    "a duration beyond all bounds": {"config": "'{\"visibility_ms\": 1e300}'"},
    "state unknown": {"state": "'melted'"},
    "state null": {"state": "null"},
    "version null": {"version": "null"},
    "version 0": {"version": "0"},
    "version at its end": {"version": str((1 << 63) - 1)},
    "epoch width null": {"epoch_ms": "null"},
    "epoch width 0": {"epoch_ms": "0"},
    "oldest epoch null": {"oldest_epoch": "null"},
    "oldest epoch in the future": {"oldest_epoch": str(40_000_000_000_000)},
    "oldest epoch in 1970": {"oldest_epoch": "0"},
    "oldest epoch between two": {"oldest_epoch": str(1_700_000_000_017)},
    "oldest open epoch among the others": {"oldest_open_epoch": str(1_700_000_000_000)},
    "oldest open epoch absurd": {"oldest_open_epoch": str(-(1 << 62))},
}


def test_damaged_queues_fail_alone_and_can_be_deleted(client, cql, name, keyspace):
    """Named it raises DamagedRow; lists and other queues go on; delete takes its messages too."""
    other, damaged = f"{name}-other", {f"{name}-{at}": what for at, what in enumerate(BROKEN_QUEUES)}
    for each in (other, *damaged):
        client.create_queue(each).send(each.encode())
    for each, what in damaged.items():
        cql(update("queues", f"queue = '{each}'", **BROKEN_QUEUES[what]))
    with cqueue.connect(keyspace.url) as fresh:
        assert {other, *damaged} & set(fresh.queues()) == {other}
        assert received(fresh, other) == [other.encode()]
        assert {each.key for each in inside(fresh).quarantine.of("queues")} == {(each,) for each in damaged}
        for each, what in damaged.items():
            with pytest.raises(DamagedRow, match=r"table queues.*delete"):
                pytest.fail(f"{what}: {fresh.queue(each)}")
            assert fresh.delete_queue(each) == 1, what
            with pytest.raises(QueueNotFound):
                fresh.queue(each)
            assert fresh.create_queue(each).stats().live in {None, 0}, what


def test_a_row_that_an_update_made_out_of_nothing_is_deleted_too(client, cql, name):
    """Without an incarnation there are no messages to look for: the row goes, and the name is free again."""
    cql(update("queues", f"queue = '{name}'", oldest_epoch="7"))
    with pytest.raises(DamagedRow):
        client.queue(name)
    assert client.delete_queue(name) == 0
    client.create_queue(name)


def test_schedules_of_a_deleted_queue_go_whatever_stands_in_their_rows(client, cql, name):
    """Delete does not stop at a schedule that cannot be read."""
    queue = client.create_queue(name)
    queue.schedules.add("k", Repeating(HOUR))
    partition = client._catalog.entry(name).spec.partition
    cql(update("schedules", f"queue = '{partition}' AND key = 'k'", version="null", definition="'{'"))
    client.delete_queue(name)
    assert cql("SELECT key FROM {ks}.schedules WHERE queue = %s", partition) == []


# ── the registry ──

INDEX = registry.EPOCH_INDEX
BROKEN_SHARDS = {
    "time shard at its end": (None, (1 << 63) - 1, 0),
    "time shard beyond what ids can hold": (None, 1 << 60, 0),
    "time shard of another epoch": (None, 0, 0),
    "shard beyond all": (None, None, 1 << 30),
    "open shard in a normal epoch": (None, None, -1),
    "index beyond what epochs can be": (INDEX, (1 << 63) - 1, 0),
    "index of no kind": (INDEX, None, 1 << 20),
}


def insert_shard(cql, *place):
    """What a hand might write: with a timestamp of now, unlike a producer's."""
    cql("INSERT INTO {ks}.shards (queue, epoch, time_shard, shard, priorities) VALUES (%s, %s, %s, %s, {0})",
        *place)  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN_SHARDS.values(), ids=BROKEN_SHARDS.keys())
def test_a_registry_row_beside_all_wide_rows_is_set_aside(client, cql, name, broken):
    """Messages come, are counted, purged; the row is shown, and dropped for good."""
    queue = client.create_queue(name)
    queue.send(b"one")
    spec = client._catalog.entry(name).spec
    now = registry.epoch_at(spec, time.time_ns() // 1_000_000)
    epoch, time_shard, shard = broken
    place = (
        spec.partition,
        now if epoch is None else epoch,
        now if time_shard is None else time_shard,
        shard,
    )
    insert_shard(cql, *place)
    assert queue.stats(exact=True).live == 1
    assert received(client, name) == [b"one"]
    queue.send(b"two")
    assert queue.purge() == 1
    (damage,) = [
        each for each in quarantine.look(client) if each.table == "shards" and each.owner == place[0]
    ]
    assert damage.key == place
    quarantine.drop(client, damage)
    assert cql("SELECT * FROM {ks}.shards WHERE queue = %s AND epoch = %s AND time_shard = %s AND shard = %s",
               *place) == []  # fmt: skip
    assert client.delete_queue(name) == 0


@pytest.mark.parametrize("time_shard", [-1, -(1 << 63), 17])
def test_an_odd_registry_row_stops_nobody(client, cql, name, time_shard):
    """Below all times nobody looks; off the grid it is set aside by consumers, and swept up by purge."""
    queue = client.create_queue(name)
    queue.send(b"one")
    spec = client._catalog.entry(name).spec
    epoch = registry.epoch_at(spec, time.time_ns() // 1_000_000)
    insert_shard(cql, spec.partition, epoch, epoch + 17 if time_shard == 17 else time_shard, 0)
    insert_shard(cql, spec.partition, INDEX, time_shard, 0)
    assert queue.stats(exact=True).live == 1
    assert received(client, name) == [b"one"]
    queue.send(b"two")
    assert queue.purge() == 1
    assert client.delete_queue(name) == 0


@pytest.mark.parametrize("priorities", ["null", "{}", "{-3, 99}"])
def test_without_priorities_a_wide_row_may_have_messages_of_any(client, cql, name, priorities):
    """What the registry does not say must not lose a message; what no priority is, is ignored."""
    queue = client.create_queue(name)
    queue.send(b"urgent", priority=7)
    spec = client._catalog.entry(name).spec
    rows = cql(
        "SELECT epoch, time_shard, shard FROM {ks}.shards WHERE queue = %s ALLOW FILTERING", spec.partition
    )
    for epoch, time_shard, shard in rows:
        key = f"queue = '{spec.partition}' AND epoch = {epoch} "
        key += f"AND time_shard = {time_shard} AND shard = {shard}"
        cql(update("shards", key, priorities=priorities))
        cql("INSERT INTO {ks}.shards (queue, epoch, time_shard, shard) VALUES (%s, %s, %s, %s)",
            spec.partition, epoch, time_shard, shard)  # fmt: skip
    with cqueue.Client(client._driver.store, on_close=lambda: None) as fresh:
        assert received(fresh, name) == [b"urgent"]


def test_a_damaged_registry_row_keeps_no_epoch_back(client, cql, name):
    """The oldest epoch moves over one that holds nothing but rows which are set aside."""
    queue = client.create_queue(name)
    spec = client._catalog.entry(name).spec
    old = registry.epoch_at(spec, time.time_ns() // 1_000_000 - 7_200_000)
    cql(update("queues", f"queue = '{name}'", oldest_epoch=str(old)))
    insert_shard(cql, spec.partition, old, old + 17, 0)
    with cqueue.Client(client._driver.store, on_close=lambda: None) as fresh:
        queue = fresh.queue(name)
        queue.send(b"now")
        assert received(fresh, name) == [b"now"]
    assert cql("SELECT oldest_epoch FROM {ks}.queues WHERE queue = %s", name)[0][0] > old


def test_a_body_that_is_null_counts_as_missing(client, cql, name):
    """A large message without its body is dealt with as one whose body never came; the next one flows on."""
    queue = client.create_queue(name)
    queue.send(b"x" * 300_000)
    queue.send(b"small")
    spec = client._catalog.entry(name).spec
    (row,) = cql("SELECT queue, time_shard, shard, id FROM {ks}.bodies WHERE queue = %s ALLOW FILTERING",
                 spec.partition)  # fmt: skip
    cql("DELETE body FROM {ks}.bodies WHERE queue = %s AND time_shard = %s AND shard = %s AND id = %s", *row)
    cql("INSERT INTO {ks}.bodies (queue, time_shard, shard, id) VALUES (%s, %s, %s, %s)", *row)
    assert b"small" in received(client, name)


def test_a_dispatcher_goes_on_with_its_other_queues(client, cql, name):
    """One whose row is damaged while it runs is tried again and again; it is back once the row is mended."""
    handled = SimpleQueue()
    damaged, other = (client.create_queue(f"{name}-{each}") for each in ("damaged", "other"))
    (config,) = cql("SELECT config FROM {ks}.queues WHERE queue = %s", damaged.name)[0]
    with Dispatcher([damaged, other], lambda message, _: handled.put(message.body)) as dispatcher:
        cql("UPDATE {ks}.queues SET config = '{' WHERE queue = %s", damaged.name)
        other.alter(visibility=timedelta(seconds=40))  # whereupon all read their configurations again
        failing, sent = 0, 0
        while failing < 3:
            other.send(b"%d" % sent)
            assert handled.get(timeout=20) == b"%d" % sent
            failing += damaged.name in dispatcher.stats().failing
            sent += 1
        assert dispatcher.engine.quarantined() == {damaged.name: 1}
        cql("UPDATE {ks}.queues SET config = %s WHERE queue = %s", config, damaged.name)
        damaged.send(b"mended")
        assert handled.get(timeout=20) == b"mended"


# ── schedules ──

BROKEN_SCHEDULES = {
    "definition no JSON": {"definition": "'{broken'"},
    "definition null": {"definition": "null"},
    "definition of no schedule": {"definition": "'{\"a\": 1}'"},
    "a start of another type": {"definition": '\'{"start": "x", "trigger": {}}\''},
    "version null": {"version": "null"},
    "version negative": {"version": "-3"},
    "state unknown": {"state": "'resting'"},
    "generation null": {"generation": "null"},
    "next time null": {"next_at": "null"},
    "next time absurd": {"next_at": str(FAR_MS)},
    "previous null": {"previous": "null"},
    "previous absurd": {"previous": str(FAR_MS)},
    "fired null": {"fired": "null"},
}


def test_damaged_schedules_fail_alone(client, cql, name):
    """The list and the schedule monitor go on with the others; one is replaced, or removed, as it stands."""
    queue = client.create_queue(name)
    for key in ("other", *BROKEN_SCHEDULES):
        queue.schedules.add(key, Repeating(HOUR))
    partition = client._catalog.entry(name).spec.partition

    def damage(key):
        cql(update("schedules", f"queue = '{partition}' AND key = '{key}'", **BROKEN_SCHEDULES[key]))

    for key in BROKEN_SCHEDULES:
        damage(key)
    past = int(time.time() * 1000) - 3_600_000
    cql(update("schedules", f"queue = '{partition}' AND key = 'other'", next_at=str(past)))
    assert [each.key for each in queue.schedules.list()] == ["other"]
    assert restart_stalled(queue.schedules.store) == ["other"]
    for key in BROKEN_SCHEDULES:
        with pytest.raises(DamagedRow, match=r"table schedules.*remove"):
            pytest.fail(f"{key}: {queue.schedules.get(key)}")
        assert inside(client).quarantine.find("schedules", (partition, key)) is not None, key
        replaced = queue.schedules.add(key, Repeating(HOUR), replace=True)
        assert replaced.state in {"active", "paused"}, key
        damage(key)
        queue.schedules.remove(key)
        with pytest.raises(ScheduleNotFound):
            queue.schedules.get(key)


def test_a_damaged_schedule_can_be_dropped(client, cql, name):
    """As the operator's command does it."""
    queue = client.create_queue(name)
    queue.schedules.add("k", Repeating(HOUR))
    partition = client._catalog.entry(name).spec.partition
    cql(update("schedules", f"queue = '{partition}' AND key = 'k'", fired="null"))
    (damage,) = [each for each in quarantine.look(client) if each.key == (partition, "k")]
    quarantine.drop(client, damage)
    assert queue.schedules.list() == []


# ── workers ──


@pytest.mark.parametrize(
    "broken",
    [("null", "1"), ("'{'", "1"), ("'[]'", "1"), ("'{}'", "null"), ("'{}'", str(FAR_MS))],
)
def test_a_damaged_worker_is_left_out(client, cql, cli, name, broken):
    """The others are shown, with a word on the one that is not; it can be dropped."""
    ms, (info, seen) = time.time_ns() // 1_000_000, broken
    cql(update("workers", f"fleet = 'cqueue' AND worker = '{name}-b'", info=info, seen=seen))
    cql(update("workers", f"fleet = 'cqueue' AND worker = '{name}-g'", info="'{\"pid\": 7}'", seen=str(ms)))
    said = cli("workers", "--json")
    assert said.code == 0
    assert [row["name"] for row in said.json] == [f"{name}-g"]
    assert "left out" in said.err
    assert f"{name}-b" in said.err
    for damage in quarantine.look(client):
        if damage.table == "workers":
            quarantine.drop(client, damage)
    cql("DELETE FROM {ks}.workers WHERE fleet = 'cqueue' AND worker = %s", f"{name}-g")
    assert cql("SELECT worker FROM {ks}.workers WHERE fleet = 'cqueue'") == []


def test_numbers_of_a_worker_that_no_clock_knows_are_shown_as_none(cql, cli, name):
    """`workers` does not fail for what another process says of itself."""
    info = json.dumps(
        {"pid": float("inf"), "started": 1e300, "threads": float("nan"), "counters": {"x": -1e308}}
    )
    cql(update("workers", f"fleet = 'cqueue' AND worker = '{name}'", info=f"'{info}'", seen="1"))
    assert cli("workers").code == 0
    cql("DELETE FROM {ks}.workers WHERE fleet = 'cqueue' AND worker = %s", name)


# ── logs ──

BROKEN_LOGS = {
    "config no JSON": {"config": "'{broken'"},
    "config null": {"config": "null"},
    "config without a width": {"config": "'{\"partitions\": 2}'"},
    "state unknown": {"state": "'melted'"},
    "version null": {"version": "null"},
    "created null": {"created": "null"},
    "created in the future": {"created": str(40_000_000_000_000)},
    "created absurd": {"created": str(-FAR_MS)},
}


@pytest.mark.parametrize("columns", BROKEN_LOGS.values(), ids=BROKEN_LOGS.keys())
def test_a_damaged_log_fails_alone_and_can_be_deleted(client, cql, name, columns, keyspace):
    """Named it raises DamagedRow; others go on; delete takes its records and its subscriptions."""
    damaged, other = f"{name}-damaged", f"{name}-other"
    for each in (damaged, other):
        client.create_log(each, LogConfig(partitions=2, time_shard=timedelta(seconds=30))).append("t", b"x")
    client.subscribe(damaged, name="s", listeners=[print])
    partition = client._logs.entry(damaged).spec.partition
    cql(update("logs", f"log = '{damaged}'", **columns))
    with cqueue.connect(keyspace.url) as fresh:
        assert other in fresh.logs()
        assert damaged not in fresh.logs()
        with pytest.raises(DamagedRow, match=r"table logs.*delete"):
            fresh.log(damaged)
        fresh.delete_log(damaged)
        with pytest.raises(LogNotFound):
            fresh.log(damaged)
    for table in ("log", "subscriptions"):
        assert cql(f"SELECT log FROM {{ks}}.{table} WHERE log = %s ALLOW FILTERING", partition) == []  # noqa: S608


def _later(now_us, **options):
    """Past the time for which a scan holds back what was just acknowledged."""
    return now_us(**options) + 5_000_000


def _just_after(id_):
    """A write time above that of the record: the cluster's clock may be ahead of this machine's."""
    return ids.time_us(ids.from_uuid(id_)) + 1


@pytest.fixture
def damaged_log(client, cql, name):
    """Returns a function that makes a log of one partition with nine records, some of them damaged.

    All stand in one wide row, whenever a test runs: a wide row of an hour may end between two of them.
    """

    def make(damaged, column):
        log = client.create_log(name, LogConfig(partitions=1, time_shard=30 * DAY))
        for n in range(9):
            log.append("t", b"%d" % n, key="k" if n % 2 else None)
        rows = cql("SELECT log, partition, time_shard, id FROM {ks}.log WHERE log = %s ALLOW FILTERING",
                   client._logs.entry(name).spec.partition)  # fmt: skip
        for place, row in enumerate(rows):
            if place in damaged:
                cql(f"DELETE {column} FROM {{ks}}.log USING TIMESTAMP {_just_after(row[3])} "
                    "WHERE log = %s AND partition = %s AND time_shard = %s AND id = %s", *row)  # fmt: skip
        clock = client._driver.clock
        clock.now_us = functools.partial(_later, clock.now_us)
        return log

    return make


@pytest.mark.parametrize(
    "broken",
    [("body", {4}), ("topic", {4}), ("topic", {0, 1, 2}), ("body", {6, 7, 8}), ("topic", set(range(9))),
     ("body", set(range(8)))],
)  # fmt: skip
def test_a_damaged_record_is_left_out_of_a_scan(client, cql, damaged_log, name, broken):
    """The rest of its page flows on, in rows and in Arrow; it is told once, and can be dropped."""
    column, damaged = broken
    log = damaged_log(damaged, column)
    expected = [b"%d" % n for n in range(9) if n not in damaged]
    with log.scan() as scanner:
        assert [record.body for record in scanner] == expected
    with log.scan(reverse=True) as scanner:
        assert [record.body for record in scanner] == expected[::-1]
    with log.scan() as scanner:
        assert [body for batch in scanner.to_arrow() for body in batch.column("body").to_pylist()] == expected
    partition = client._logs.entry(name).spec.partition
    assert inside(client).quarantine.counts() == {partition: len(damaged)}
    for damage in quarantine.look_at_log(client, name):
        quarantine.drop(client, damage)
    left = cql("SELECT topic, body FROM {ks}.log WHERE log = %s ALLOW FILTERING", partition)
    assert len(left) == len(expected)
    assert None not in {cell for row in left for cell in row}


def test_each_damaged_record_is_found_however_many_there_are(
    client, damaged_log, name, keyspace, monkeypatch
):
    """A process remembers only some of them; to call another one undamaged would keep it for good."""
    damaged_log({1, 3, 5}, "body")
    found = quarantine.look_at_log(client, name)
    monkeypatch.setattr("cqueue.store.quarantine.REMEMBERED", 1)
    with cqueue.connect(keyspace.url) as other:
        assert [quarantine.find(other, damage.address) for damage in found] == found
    assert len(found) == 3


def test_a_partition_that_no_log_has_can_be_dropped(client, cql, cli, damaged_log, name):
    """A row of the registry of logs, at the address that a reader's log line gives."""
    damaged_log(set(), "body")
    partition = client._logs.entry(name).spec.partition
    (time_shard,) = {
        row[0] for row in cql("SELECT time_shard FROM {ks}.log WHERE log = %s ALLOW FILTERING", partition)
    }
    cql("INSERT INTO {ks}.log_shards (log, time_shard, partition) VALUES (%s, %s, -1)", partition, time_shard)
    client._driver.ask(ReadLogShards(partition, (time_shard,)))
    (damage,) = inside(client).quarantine.of("log_shards")
    said = cli("quarantine", "drop", damage.address, "--yes")
    assert said.code == 0, said.err
    assert not cql(
        "SELECT * FROM {ks}.log_shards WHERE log = %s AND partition = -1 ALLOW FILTERING", partition
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_as_many_records_are_read_as_were_asked_for(client, damaged_log, name, limit, reverse):
    """A short answer means that there are no more: one must not be short for the records left out of it."""
    damaged_log({0, 1, 2, 4, 5, 7}, "body")
    spec = client._logs.entry(name).spec
    shard = spec.shard_at(0, spec.created_ms * 1000)
    found = client._driver.ask(ReadRecordPage(shard, ids.START, 1 << 123, limit, reverse))
    bodies = [row.body for row in found.rows()]
    assert bodies == sorted([b"3", b"6", b"8"], reverse=reverse)[:limit]


def test_a_member_goes_on_behind_a_damaged_record(client, damaged_log, name):
    """A subscription does as a scan does: whatever page the record stands in, the next ones come."""
    damaged_log({0, 3, 8}, "topic")
    assert read_all(client, name, 6) == [b"1", b"2", b"4", b"5", b"6", b"7"]


# ── reservations ──

BROKEN_RESERVATIONS = {
    "message null": {"message": "null"},
    "message too short": {"message": "0x00"},
    "message of no priority": {"message": "0x" + "ff" * 29},
    "message with an id of no time": {"message": "0x" + "00" * 29},
    "replaces null": {"replaces": "null"},
    "replaces too short": {"replaces": "0x00"},
    "made null": {"made": "null"},
    "made negative": {"made": "-1"},
    "sent null": {"sent": "null"},
}


def test_damaged_reservations_fail_alone_and_can_be_dropped(client, cql, cli, name):
    """Sends of its key raise DamagedRow, which names the remedy; others go on; dropped, its key is free."""
    queue = client.create_queue(name)
    partition = client._catalog.entry(name).spec.partition
    keys = {f"k{at}": what for at, what in enumerate(BROKEN_RESERVATIONS)}
    for key, what in keys.items():
        queue.send(b"first", unique=cqueue.Unique(key=key))
        cql(update("reservations", f"queue = '{partition}' AND key = '{key}'", **BROKEN_RESERVATIONS[what]))
    queue.send(b"with another key", unique=cqueue.Unique(key="other"))
    queue.send(b"without")
    for key, what in keys.items():
        with pytest.raises(DamagedRow, match=f"quarantine drop reservations/{partition}/{key}"):
            pytest.fail(f"{what}: {queue.send(b'refused', unique=cqueue.Unique(key=key))}")
        said = cli("quarantine", "drop", f"reservations/{partition}/{key}", "--yes")
        assert said.code == 0, (what, said.err)
        queue.send(b"second", unique=cqueue.Unique(key=key))
    expected = [b"first"] * len(keys) + [b"second"] * len(keys) + [b"with another key", b"without"]
    assert received(client, name) == expected


# ── keys ──


def test_a_damaged_key_is_passed_over_and_can_be_dropped(client, cql, cli, name):
    """A look-up finds the other messages of the key."""
    queue = client.create_queue(name, cqueue.QueueConfig(keyed=True))
    partition = client._catalog.entry(name).spec.partition
    queue.send(b"1", key="k")
    ((id_,),) = cql(f"SELECT id FROM {{ks}}.message_keys WHERE queue = '{partition}' AND key = 'k'")  # noqa: S608
    sound = queue.send(b"2", key="k")
    row = f"queue = '{partition}' AND key = 'k' AND id = {id_} AND priority = 0"
    cql(update("message_keys", row, shard="99999"))
    assert [each.id for each in queue.list_by_key("k")] == [sound]
    said = cli("quarantine", "drop", f"message_keys/{partition}/k/{id_}/0", "--yes")
    assert said.code == 0, said.err
    assert not cql(f"SELECT id FROM {{ks}}.message_keys WHERE {row}")  # noqa: S608


# ── subscriptions ──


@pytest.fixture
def subscribed(client, name):
    """A log of two partitions with a record in each, and a subscription that has read both."""
    log = client.create_log(name, LogConfig(partitions=2, time_shard=HOUR))
    for partition in range(2):
        log.append("t", b"first", partition=partition)
    assert read_all(client, name, 2) == [b"first", b"first"]
    return log


def read_all(client, log, count, rest_s=0.0):
    """Bodies that a member gets, until there are `count`, and for `rest_s` longer; fewer come in a minute."""
    found, enough, further = [], threading.Event(), threading.Event()

    def listen(record):
        found.append(record.body)
        if len(found) >= count:
            enough.set()
        if len(found) > count:
            further.set()

    subscription = client.subscribe(log, name="s", listeners=[listen])
    subscription.start()
    enough.wait(60)
    further.wait(rest_s)
    subscription.stop(timedelta(seconds=10))
    return sorted(found)


FUTURE = json.dumps({"partitions": 2, "default": ids.lowest_at(40_000_000_000_000_000), "own": {}})
BROKEN_DEFINITIONS = {
    "config no JSON": {"config": "'{'"},
    "config null": {"config": "null"},
    "config of another kind": {"config": "'{\"partitions\": 1}'"},
    "an origin in the future": {"config": f"'{FUTURE}'"},
    "state unknown": {"state": "'resting'"},
    "version null": {"version": "null"},
}


@pytest.mark.parametrize("columns", BROKEN_DEFINITIONS.values(), ids=BROKEN_DEFINITIONS.keys())
@pytest.mark.usefixtures("subscribed")
def test_a_subscription_with_a_damaged_definition_is_told_and_deleted(client, cql, name, columns):
    """No member takes it for deleted; it goes with all its positions, and begins anew."""
    partition = client._logs.entry(name).spec.partition
    where = f"log = '{partition}' AND subscription = 's' AND kind = 0 AND partition = 0 AND member = ''"
    cql(update("subscriptions", where, **columns))
    assert client.subscriptions(name) == ["s"]
    with pytest.raises(DamagedRow, match=r"table subscriptions.*delete"):
        client.subscribe(name, name="s", listeners=[print]).lag()
    assert [each.key[:2] for each in quarantine.look(client) if each.owner == partition] == [(partition, "s")]
    client.delete_subscription(name, "s")
    assert read_all(client, name, 2) == [b"first", b"first"]


BROKEN_POSITIONS = {
    "position null": {"position": "null"},
    "position in the future": {"position": "maxTimeuuid('2090-01-01')"},
    "fence null": {"fence": "null"},
    "fence at its end": {"fence": str((1 << 63) - 1)},
    "fence negative": {"fence": "-1"},
    "generation negative": {"generation": "-1"},
}


@pytest.mark.parametrize("columns", first_of(BROKEN_POSITIONS.values(), BROKEN_POSITIONS.keys()))
def test_a_damaged_position_stops_its_partition_only(client, cql, name, columns, subscribed):
    """No record of it is passed over: it waits until `seek` sets it anew; the others flow on."""
    partition = client._logs.entry(name).spec.partition
    where = f"log = '{partition}' AND subscription = 's' AND kind = 1 AND partition = 1 AND member = ''"
    cql(update("subscriptions", where, **columns))
    for each in range(2):
        subscribed.append("t", b"of %d" % each, partition=each)
    assert read_all(client, name, 1, rest_s=3) == [b"of 0"]
    subscription = client.subscribe(name, name="s", listeners=[print])
    assert list(subscription.lag()) == [0]
    assert list(subscription.positions()) == [0]
    subscription.seek({1: "earliest"})
    assert read_all(client, name, 2) == [b"first", b"of 1"]


BROKEN_MEMBERS = [
    ("null", 50),
    ("'{'", 50),
    ("'[]'", 50),
    ("'{\"partitions\": 5}'", 0),
    ("'{}'", 1 << 40),
    ("'{}'", None),
]
"""What a member says of itself, and in how many seconds from now it will have said so."""


@pytest.mark.parametrize("broken", first_of(BROKEN_MEMBERS, map(str, BROKEN_MEMBERS)))
def test_a_damaged_member_keeps_nobody_from_its_partitions(client, cql, name, broken, subscribed):
    """Whatever stands in a member's row, the living ones share the partitions; it can be dropped."""
    partition = client._logs.entry(name).spec.partition
    where = f"log = '{partition}' AND subscription = 's' AND kind = 2 AND partition = 0 AND member = 'ghost'"
    info, in_s = broken
    seen = "null" if in_s is None else time.time_ns() // 1000 + in_s * 1_000_000
    cql(update("subscriptions", where, info=info, seen=seen))
    for each in range(2):
        subscribed.append("t", b"of %d" % each, partition=each)
    assert read_all(client, name, 2) == [b"of 0", b"of 1"]
    for damage in quarantine.look(client):
        if damage.owner == partition:
            quarantine.drop(client, damage)
            assert cql(f"SELECT member FROM {{ks}}.subscriptions WHERE {where}") == []  # noqa: S608


# ── deployment ──


def test_a_damaged_deployment_row_is_told(new_keyspace, connection):
    """Those who connect, and those who are connected, are told which column is wrong."""
    own = new_keyspace()
    stored = connection.session.execute(f"SELECT * FROM {own.name}.deployment").one()._asdict()  # noqa: S608
    session = connection.session
    impossible = {"serial_consistency": (None, "x"), "home_dc": ("",), "centre_epoch": (-1,)}
    numbers = dict.fromkeys(("format", "settle_ms", "skew_ms", "gc_grace", "changes"), (None, -1))
    for column, values in (numbers | impossible).items():
        for value in values:
            set_ = f"UPDATE {own.name}.deployment SET {column} = %s WHERE name = 'cqueue'"  # noqa: S608
            with cqueue.connect(own.url) as client:
                session.execute(set_, (value,))
                with pytest.raises(SchemaMismatch, match=column):
                    client.queue("q")
                with pytest.raises(SchemaMismatch, match=column):
                    cqueue.connect(own.url)
                session.execute(set_, (stored[column],))


# ── texts that are none ──


@pytest.mark.parametrize("data", ["0xeda080", "0xc080"])
def test_a_text_that_is_no_text_costs_no_connection(client, cql, cli, name, data):
    """Cassandra takes surrogates and overlong zeros, which Python does not: such a row fails alone."""
    ms = time.time_ns() // 1_000_000
    text = f"blob_as_text({data})"
    client.create_queue(f"{name}-a").schedules.add("k", Repeating(HOUR))
    client.create_queue(f"{name}-b").send(b"b")
    partition = client._catalog.entry(f"{name}-a").spec.partition
    cql(update("workers", f"fleet = 'cqueue' AND worker = '{name}'", info=text, seen=str(ms)))
    cql(update("schedules", f"queue = '{partition}' AND key = 'k'", definition=text))
    cql(update("queues", f"queue = '{name}-a'", config=text))
    cql(f"INSERT INTO {{ks}}.queues (queue, state) VALUES ({text}, 'active')")  # noqa: S608
    assert f"{name}-b" in {row["queue"] for row in cli("queue", "list", "--json").json}
    assert cli("workers", "--json").json == []
    with pytest.raises(DamagedRow, match="no text"):
        client._driver.ask(ReadSchedule(partition, "k"))
    assert received(client, f"{name}-b") == [b"b"]
    client.delete_queue(f"{name}-a")
    cql(f"DELETE FROM {{ks}}.queues WHERE queue = {text}")  # noqa: S608
    cql("DELETE FROM {ks}.workers WHERE fleet = 'cqueue' AND worker = %s", name)


@pytest.mark.parametrize("column", ["topic", "key"])
def test_a_record_with_such_a_text_is_read_with_its_bytes_spelt_out(client, cql, damaged_log, name, column):
    """It is not lost, and the scan goes on."""
    log = damaged_log(set(), "body")
    row = cql("SELECT log, partition, time_shard, id FROM {ks}.log WHERE log = %s ALLOW FILTERING",
              client._logs.entry(name).spec.partition)[1]  # fmt: skip
    cql(f"UPDATE {{ks}}.log USING TIMESTAMP {_just_after(row[3])} "  # noqa: S608
        f"SET {column} = blob_as_text(0xeda080) "
        "WHERE log = %s AND partition = %s AND time_shard = %s AND id = %s", *row)  # fmt: skip
    with log.scan() as scanner:
        found = list(scanner)
    assert [record.body for record in found] == [b"%d" % n for n in range(9)]
    assert getattr(found[1], column) == "\\xed\\xa0\\x80"


# ── lists ──


def test_lists_show_what_can_be_read_and_say_what_is_left_out(client, cql, cli, name):
    """On standard error, so that no pipe meets it; a row that is named is an error of its own."""
    for each in ("a", "b"):
        client.create_queue(f"{name}-{each}").schedules.add("k", Repeating(HOUR))
        client.create_log(f"{name}-{each}")
    partition = client._catalog.entry(f"{name}-a").spec.partition
    cql(update("schedules", f"queue = '{partition}' AND key = 'k'", fired="null"))
    cql(update("queues", f"queue = '{name}-b'", config="'{'"))
    cql(update("logs", f"log = '{name}-b'", config="'{'"))
    for command, expected in ((("queue", "list"), f"{name}-b"), (("log", "list"), f"{name}-b"),
                              (("schedule", "list", f"{name}-a"), "k")):  # fmt: skip
        said = cli(*command, "--json")
        assert said.code == 0
        assert "left out" in said.err
        assert expected in said.err
        assert expected not in {row.get("queue") if command[0] == "queue" else row.get("log", row.get("key"))
                                for row in said.json}  # fmt: skip
    said = cli("queue", "show", f"{name}-b")
    assert said.code != 0
    assert "table queues" in said.err
    assert cli("queue", "delete", f"{name}-b", "--yes").code == 0
    assert cli("log", "delete", f"{name}-b", "--yes").code == 0
    assert cli("queue", "list", "--json").err == ""


# ── results ──


@pytest.mark.parametrize("value", ["state = 'odd'", "state = null", "at = -1", "codec = ''"])
def test_a_damaged_result_is_told_and_stops_nobody(client, cql, cli, name, value):
    """A call that asks for it raises; the message is settled as any other; the row is known to be damaged."""
    queue = client.create_queue(name)
    id_ = queue.send(b"x")
    cql(update("results", f"message = '{id_}'", state="'succeeded'", at="1"))
    assert queue.result(id_).state == "succeeded"
    cql(f"UPDATE {{ks}}.results SET {value} WHERE message = %s", str(id_))  # noqa: S608
    with pytest.raises(DamagedRow, match=value.split()[0]):
        queue.result(id_)
    assert "DELETE FROM results" in cli("quarantine", "drop", f"results/{id_}", "--yes").err
    assert queue.find(id_).state == "ready"
    client.delete_queue(name)
