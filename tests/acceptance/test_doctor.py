"""The doctor on a real Cassandra: each test makes a trouble, and the doctor names it."""

# ruff: noqa: S608 - the CQL is put together from names of this module

from __future__ import annotations

import json
import socket
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

import cqueue
from cqueue import doctor, ids
from cqueue.dispatcher.service.membership import Worker
from cqueue.doctor import (
    Severity,
    clocks,
    consistency,
    doorbell,
    guardrails,
    queue_figures,
    queues,
    tables,
    versions,
    workers,
)
from cqueue.doctor import statements as cql
from cqueue.doorbell import Address, HintCounts
from cqueue.doorbell.datagram import short_name
from cqueue.doorbell.directory import encode_names
from cqueue.doorbell.listener import Listener
from cqueue.store.control import Heartbeat, Listen, ListenerRow
from tests.fix_dispatcher import until

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(180)]

ERROR, WARNING, NOT_CHECKED, INFO, OK = Severity
LIMIT_S = 60.0
"""Much more than a check takes on a machine with other things to do."""
YEARS_31_MS = 31 * 365 * 86_400_000


@pytest.fixture
def site_of():
    """A function that opens a site on a keyspace, with settings changed; closed after the test."""
    opened = []

    def make(keyspace, **changes):
        settings = replace(keyspace.settings, **changes)
        manager = doctor.open_site(settings, partial(cqueue.connect, keyspace.url), limit_s=LIMIT_S)
        opened.append(manager)
        return manager.__enter__()

    yield make
    for manager in opened:
        manager.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def late_at_once(monkeypatch):
    """A message is late as soon as it is due."""
    monkeypatch.setattr(queue_figures, "LATE_US", 0)
    monkeypatch.setattr(queues, "LATE_US", 0)


def with_severity(found, *severities):
    return [one for one in found if one.severity in severities]


def only(found, *severities):
    """The only finding of these severities; it says why, and what to do."""
    (one,) = with_severity(found, *(severities or (ERROR, WARNING)))
    assert one.reason
    assert one.remedy
    return one


def execute(connection, statement, *values):
    return connection.session.execute(statement, values or None, timeout=60)


def of_queue(found, name):
    return [one for one in found if one.figures.get("queue") == name]


# ── The whole ──


@pytest.mark.feature
def test_a_healthy_keyspace_is_without_errors_and_everything_is_checked(keyspace, client, cli_on):
    """One node with the only copy is worth knowing, and no more."""
    client.create_queue("healthy", exist_ok=True)
    said = cli_on(keyspace.url)("--json", "doctor", "--timeout", "60s")
    found = json.loads(said.out)
    assert (found["error"], found["not_checked"]) == (0, 0), found
    slow = [one for one in found["findings"] if one["subject"] == "tables" and "read in 100" in one["found"]]
    assert found["warning"] == len([one for one in slow if one["severity"] == "warning"]), found
    assert said.code == (1 if found["warning"] else 0)
    assert {one["subject"] for one in found["findings"]} == {check.subject for check in doctor.CHECKS}
    (info,) = [one for one in found["findings"] if one["subject"] == "consistency"]
    assert "only copy" in info["found"]


def test_a_keyspace_that_does_not_exist_says_what_to_run(new_keyspace, cli_on):
    """What needs the keyspace is not checked; the cluster is."""
    said = cli_on(new_keyspace(schema=False).url)("--json", "doctor", "--timeout", "60s")
    found = json.loads(said.out)
    assert said.code == 1
    assert "schema apply" in found["findings"][0]["remedy"]
    left_out = {one["subject"] for one in found["findings"] if one["severity"] == "not checked"}
    assert {"queues", "workers", "consistency"} <= left_out
    assert {"nodes", "clocks", "settings"} <= {
        one["subject"] for one in found["findings"] if one["severity"] == "ok"
    }


# ── The cluster ──


@pytest.mark.parametrize("ahead_s", [5, -5])
def test_a_wrong_clock_of_this_machine_is_found(keyspace, site_of, ahead_s):
    """By the real node's clock."""
    site = site_of(keyspace)
    site.wall_us = lambda: time.time_ns() // 1000 + ahead_s * 1_000_000
    found = only(clocks.check(site))
    assert ("ahead of" if ahead_s > 0 else "behind") in found.found
    assert found.figures["client_off_ms"] == pytest.approx(ahead_s * 1000, abs=500)


def test_more_copies_than_nodes_are_found(new_keyspace, connection, site_of):
    own = new_keyspace()
    execute(connection, f"ALTER KEYSPACE {own.name} WITH replication = {_replication(own, 3)}")
    found = only(consistency.check(site_of(own)), ERROR)
    assert "3 copies on 1 node; a quorum is 2" in found.found
    _, statement = found.remedy.split(", or ")
    execute(connection, statement)
    assert with_severity(consistency.check(site_of(own)), ERROR, WARNING) == []


def _replication(own, copies, strategy="NetworkTopologyStrategy"):
    where = own.settings.local_dc if strategy.startswith("Network") else "replication_factor"
    return f"{{'class': '{strategy}', '{where}': {copies}}}"


def test_a_keyspace_without_a_commit_log_and_without_data_centres_is_found(new_keyspace, connection, site_of):
    own = new_keyspace()
    execute(
        connection,
        f"ALTER KEYSPACE {own.name} WITH replication = {_replication(own, 1, 'SimpleStrategy')} "
        "AND durable_writes = false",
    )
    found = list(consistency.check(site_of(own)))
    assert "durable_writes" in only(found, ERROR).found
    assert "SimpleStrategy" in only(found, WARNING).found


def test_a_url_with_another_serial_consistency_is_found(keyspace, site_of):
    site = site_of(keyspace, serial_consistency="serial", consistency="quorum")
    assert "serial_consistency=local_serial" in only(consistency.check(site)).remedy


def test_a_home_elsewhere_and_retiring_that_is_stopped_are_found(new_keyspace, connection, site_of):
    own = new_keyspace()
    execute(
        connection,
        f"UPDATE {own.name}.deployment SET home_dc = 'dc9', retiring = false WHERE name = 'cqueue' IF EXISTS",
    )
    found = list(consistency.check(site_of(own)))
    assert len(with_severity(found, ERROR)) == 2  # the URL's local_dc, and copies
    assert "local_dc=dc9" in with_severity(found, ERROR)[0].remedy
    assert "resume-retiring" in only(found, WARNING).remedy


def test_settings_and_guardrails_of_the_node_are_read(keyspace, site_of):
    """The names that the rules ask for exist in Cassandra; a rule of a misspelt name would find nothing."""
    settings, failed = site_of(keyspace).node_settings()
    assert not failed
    (told,) = settings.values()
    names = {rule.name for rule in guardrails.RULES} | {name for name, *_ in guardrails.SWITCHES}
    names |= {rule.only_if for rule in guardrails.RULES if rule.only_if}
    names |= {"read_consistency_levels_disallowed", "write_consistency_levels_disallowed"}
    names |= {"table_properties_disallowed", "table_properties_ignored"}
    names |= {"data_disk_usage_percentage_fail_threshold"}
    names |= {"paxos_variant", "paxos_state_purging", "commitlog_sync", "commitlog_sync_period"}
    names |= {"hinted_handoff_enabled", "max_hint_window", "tombstone_warn_threshold"}
    names |= {"tombstone_failure_threshold"}
    assert names <= set(told)


def test_what_nodes_tell_of_tables_versions_and_repairs_can_be_read(keyspace, site_of):
    """Virtual tables and the repair history have the columns that are asked for."""
    site = site_of(keyspace)
    for statement in (
        cql.SELECT_PARTITION_SIZES, cql.SELECT_TOMBSTONES, cql.SELECT_READ_LATENCY, cql.SELECT_HINTS,
    ):  # fmt: skip
        (answer,) = site.ask_each(statement)
        assert answer.error is None
    assert isinstance(site.read(cql.SELECT_REPAIRS), list)
    (made,) = site.read(cql.SELECT_MADE_AT.format(keyspace=keyspace.name))
    assert made.applied_at
    assert with_severity(versions.check(site), ERROR, WARNING, NOT_CHECKED) == []


def test_a_node_that_does_not_answer_is_not_passed_over(keyspace, site_of, monkeypatch):
    """A question that is never sent stands for a node that hangs."""
    site = site_of(keyspace)
    site.limit_s = 0.1
    monkeypatch.setattr(type(site), "_send", lambda *_: None)
    (answer,) = site.ask_each(cql.SELECT_SETTINGS)
    assert answer.error is not None
    found = list(guardrails.check(site))
    assert [one.severity for one in found] == [NOT_CHECKED]


# ── Tables ──


def test_drift_is_found(new_keyspace, connection, site_of):
    """A column that is gone is an error; another compaction or gc_grace a warning, with the CQL for it."""
    own = new_keyspace()
    execute(connection, f"ALTER TABLE {own.name}.schedules DROP fired")
    execute(
        connection,
        f"ALTER TABLE {own.name}.messages WITH compaction = {{'class': 'SizeTieredCompactionStrategy'}}",
    )
    execute(connection, f"ALTER TABLE {own.name}.bodies WITH gc_grace_seconds = 600")
    found = list(tables.check(site_of(own)))
    gone, short = with_severity(found, ERROR)
    assert "schedules.fired does not exist" in gone.found
    assert "bodies 10m" in short.found
    assert "hint window of 3h" in short.found
    options = [one for one in with_severity(found, WARNING) if one.remedy.startswith("ALTER TABLE")]
    assert len(options) == 2
    assert any("UnifiedCompactionStrategy" in one.remedy for one in options)


def test_a_migration_that_is_outstanding_is_found(new_keyspace, connection, site_of):
    own = new_keyspace()
    execute(connection, f"DELETE FROM {own.name}.schema_migrations WHERE name = 'cqueue' AND number = 7")
    execute(connection, f"DELETE FROM {own.name}.schema_migrations WHERE name = 'cqueue' AND number = 9")
    execute(connection, f"DELETE FROM {own.name}.schema_migrations WHERE name = 'cqueue' AND number = 12")
    found = list(tables.check(site_of(own)))
    post, dispensable = with_severity(found, WARNING)
    assert ("07_post_packs" in post.found, "09_pre_listeners" in dispensable.found) == (True, True)
    assert "12_pre_results" in only(found, ERROR).found


def test_a_schema_of_a_newer_version_is_found(new_keyspace, connection, site_of):
    own = new_keyspace()
    execute(
        connection,
        f"INSERT INTO {own.name}.schema_migrations (name, number, phase, what) "
        "VALUES ('cqueue', 99, 'pre', 'future')",
    )
    assert "99_pre_future" in only(tables.check(site_of(own)), ERROR).found


def test_reads_across_many_tombstones_are_found(new_keyspace, connection, site_of):
    """A few thousand rows that were deleted one by one, as acks do."""
    own = new_keyspace()
    session = connection.session
    place = "queue = 'q@1' AND time_shard = 0 AND shard = 0 AND kind = 3 AND priority = 0"
    delete = session.prepare(f"DELETE FROM {own.name}.messages WHERE {place} AND id = ?")
    now_us = time.time_ns() // 1000
    futures = [session.execute_async(delete, [ids.to_uuid(ids.lowest_at(now_us + at))]) for at in range(3000)]
    for future in futures:
        future.result()
    site = site_of(own)
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        for _ in range(20):
            execute(connection, f"SELECT id FROM {own.name}.messages WHERE {place}")
        found = [one for one in tables.check(site) if "tombstones" in one.found]
        if with_severity(found, WARNING):
            break
        time.sleep(1)  # the histogram takes a moment
    warned = only(found, WARNING)
    assert (warned.figures["table"], warned.figures["p99"] >= 3000) == ("messages", True)


# ── Queues ──


def late_queue(client, name, count=3):
    """A queue with messages that are late."""
    queue = client.create_queue(name)
    for _ in range(count):
        queue.send(b"late")
    return queue


@contextmanager
def seconds_later(client, seconds):
    """The client's clock stands that much later."""
    clock = client._driver.clock
    with pytest.MonkeyPatch.context() as patch:
        now_us = clock.now_us
        patch.setattr(clock, "now_us", lambda **options: now_us(**options) + seconds * 1_000_000)
        yield


def listening(client, name, address="127.0.0.1", port=9, seconds=60):
    """Another process waits for the queue, as far as the table of listeners says."""
    short = short_name(client._catalog.entry(name).spec.partition)
    row = ListenerRow(f"waiting-{name}", address, port, b"k" * 16, encode_names([short]))
    client._driver.ask(Listen(row, seconds))


def test_messages_that_nobody_waits_for_are_found(client):
    """And a process that waits makes it an error; a paused queue is neither."""
    queue = late_queue(client, "nobody")
    found = only(of_queue(queues.of_client(client), "nobody"))
    assert (found.severity, found.figures["late"], found.figures["waiting"]) == (WARNING, 3, 0)
    assert "nobody is known to wait" in found.found
    listening(client, "nobody")
    found = only(of_queue(queues.of_client(client), "nobody"))
    assert (found.severity, "1 process waits" in found.found) == (ERROR, True)
    queue.pause()
    (found,) = of_queue(queues.of_client(client), "nobody")
    assert (found.severity, found.remedy) == (INFO, "cqueue queue resume nobody")
    queue.resume()
    queue.purge()


def test_a_claim_that_was_never_settled_nor_taken_over_is_found(client):
    """Its consumer died, and no other one came."""
    queue = client.create_queue("died", cqueue.QueueConfig(visibility=timedelta(minutes=1)))
    queue.send_many([cqueue.Message(b"%d" % at) for at in range(5)])
    with queue.consumer() as consumer:
        held = consumer.receive(5, wait=timedelta(seconds=10))
        assert list(of_queue(queues.of_client(client), "died")) == []
        consumer.ack(held[:-1])
    with seconds_later(client, 61):
        found = only(of_queue(queues.of_client(client), "died"))
    assert "the last claim where the oldest" in found.found or "nothing was ever claimed" in found.found
    queue.purge()


def test_acked_messages_are_not_late(client):
    """Also while their slot still lists them."""
    queue = client.create_queue("acked", cqueue.QueueConfig(visibility=timedelta(seconds=2)))
    queue.send_many([cqueue.Message(b"%d" % at) for at in range(5)])
    with queue.consumer() as consumer:
        consumer.ack(consumer.receive(5, wait=timedelta(seconds=10)))
    with seconds_later(client, 3):
        assert of_queue(queues.of_client(client), "acked") == []


def rows_of(connection, keyspace, client, name, kind):
    partition = client._catalog.entry(name).spec.partition
    found = execute(connection, f"SELECT * FROM {keyspace.name}.messages")
    return [row for row in found if (row.queue, row.kind) == (partition, kind)]


def overwrite(connection, keyspace, row, **columns):
    """Change columns of a row by hand, as a restore or a bug would."""
    assigned = ", ".join(f"{name} = %s" for name in columns)
    execute(
        connection,
        f"UPDATE {keyspace.name}.messages SET {assigned} WHERE queue = %s AND time_shard = %s AND shard = %s "
        "AND kind = %s AND priority = %s AND id = %s",
        *columns.values(), row.queue, row.time_shard, row.shard, row.kind, row.priority, row.id,
    )  # fmt: skip


def claimed(client, name):
    """A queue of one wide row, in which a message was claimed and acked, and others are left."""
    config = cqueue.QueueConfig(shards=1, time_shard=timedelta(days=1), lease=timedelta(seconds=1))
    queue = client.create_queue(name, config)
    for _ in range(3):
        queue.send(b"left")
    with queue.consumer() as consumer:
        consumer.ack(consumer.receive(1, wait=timedelta(seconds=10)))
    return queue


def test_stragglers_below_a_cursor_are_found(client, keyspace, connection):
    """As after a restore: messages stand where consumers have already been."""
    queue = claimed(client, "straggling")
    (at,) = rows_of(connection, keyspace, client, "straggling", 0)
    passed = ids.to_uuid(ids.lowest_at(time.time_ns() // 1000))
    overwrite(connection, keyspace, at, cursor=passed, boundary=passed)
    found = only(of_queue(queues.of_client(client), "straggling"))
    assert (found.severity, found.figures["stragglers"]) == (WARNING, 2)
    assert "below the cursor" in found.found
    queue.purge()


def test_times_that_nobody_can_have_written_are_shown(client, keyspace, connection):
    """A lock until in 31 years stops nobody, and hints at a wrong clock."""
    queue = claimed(client, "implausible")
    (lock,) = rows_of(connection, keyspace, client, "implausible", 1)
    overwrite(connection, keyspace, lock, state=1, until=time.time_ns() // 1_000_000 + YEARS_31_MS)
    found = of_queue(queues.of_client(client), "implausible")
    (shown,) = [one for one in found if "implausible" in one.figures]
    assert (shown.severity, shown.figures["implausible"]) == (INFO, 1)
    queue.purge()


def test_damaged_rows_are_found(new_keyspace, connection, site_of):
    """A timeout slot and a worker's row: heads are read, and the small tables."""
    own = new_keyspace()
    with cqueue.connect(own.url) as client:
        queue = client.create_queue("damaged", cqueue.QueueConfig(shards=1))
        queue.send(b"held")
        with queue.consumer() as consumer:
            assert consumer.receive(1, wait=timedelta(seconds=10))
        slot = next(row for row in rows_of(connection, own, client, "damaged", 2) if row.ids)
        overwrite(connection, own, slot, state=7)
        execute(connection, f"INSERT INTO {own.name}.workers (fleet, worker) VALUES ('cqueue', 'w')")
    site = site_of(own)
    found = [one for one in queues.check(site) if "cannot be read" in one.found]
    assert [one.severity for one in found] == [ERROR, ERROR]
    assert {one.figures["table"] for one in found} == {"messages", "workers"}
    assert all(one.remedy.startswith("cqueue quarantine dump ") for one in found)


def test_dead_letters_are_counted_with_their_age(client):
    queue = client.create_queue("deadly")
    queue.send_many([cqueue.Message(b"%d" % at) for at in range(3)])
    with queue.consumer() as consumer:
        left = 3
        while left:
            for message in consumer.receive(3, wait=timedelta(seconds=10)):
                message.dead("cannot be processed")
                left -= 1
    found = only(of_queue(queues.of_client(client), "deadly"))
    assert (found.severity, found.figures["dead"], found.figures["recent"]) == (WARNING, 3, 3)
    assert found.remedy == "cqueue dead list deadly"
    client.queue("deadly.dead").purge()


# ── Processes ──


def test_a_worker_without_a_heartbeat_is_found(new_keyspace, site_of):
    """As one that hangs: its row is there still, and old."""
    own = new_keyspace()
    site = site_of(own)
    client = site.client()
    now_s = client._driver.clock.now_us() / 1e6
    for name, seen in (("well", now_s), ("hanging", now_s - 12)):
        worker = Worker(name, "host-7", 42, "shop:app", ("mail",), 8, cqueue.__version__, started=now_s)
        client._driver.ask(Heartbeat(replace(worker, seen=seen, running=3).row(), 60))
    found = only(workers.check(site))
    assert found.figures["worker"] == "hanging"
    assert "3 messages run there" in found.found
    assert "host-7" in found.remedy


def test_a_listener_that_is_gone_is_found(new_keyspace, site_of):
    """Its port is closed, and the system says so; one that listens refuses nothing."""
    own = new_keyspace()
    site = site_of(own)
    client = site.client()
    client.create_queue("told")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    listening(client, "told", port=port)
    counts = HintCounts()
    listener = Listener(Address("127.0.0.1"), lambda _: None, counts)
    try:
        row = ListenerRow("alive", "127.0.0.1", listener.port, listener.key, None)
        client._driver.ask(Listen(row, 60))
        found = list(doorbell.check(site))
        until(lambda: counts.received == 1)
    finally:
        listener.close()
    gone = only(found)
    assert (gone.figures["listener"], gone.figures["port"]) == ("waiting-told", port)
    assert "refused" in gone.found.lower()
    assert any("1 of 2 listeners" in one.found for one in with_severity(found, OK))


def test_a_port_of_this_process_that_is_taken_is_found(keyspace, site_of):
    """And `notify=off` is said."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        site = site_of(keyspace, notify_host="127.0.0.1", notify_port=(port, port))
        assert "cannot listen" in next(iter(doorbell.check(site))).found
    (off,) = doorbell.check(site_of(keyspace, notify=False))
    assert (off.severity, "notify=off" in off.found) == (INFO, True)


def test_listeners_that_only_their_own_machine_reaches_are_found():
    """The cluster of the tests is on this machine, where that is as it should be."""
    row = ListenerRow("a", "127.0.0.1", 4000, b"k" * 16, None)
    assert only(doorbell.judged([row], {})).severity is WARNING
    assert [one.severity for one in doorbell.judged([row], {}, all_here=True)] == [OK]
    assert [one.severity for one in doorbell.judged([], {})] == [INFO]
