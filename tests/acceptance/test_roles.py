"""The roles of `cqueue schema roles`: each does its job through the public API, and is refused all else."""

# ruff: noqa: S608 - the CQL is put together from names of this module

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from cassandra import Unauthorized

import cqueue
from cqueue import doctor, roles
from cqueue.schema import Options, apply
from cqueue.settings import load
from cqueue.store.connection import open_session
from tests.acceptance.daemons import Site
from tests.faults.guarded import OPERATOR
from tests.fix_dispatcher import until

pytestmark = [pytest.mark.cassandra, pytest.mark.acceptance, pytest.mark.timeout(180)]

EVERY_SECOND = cqueue.Cron("* * * * * *")
NAMES = [role.name for role in roles.ROLES]
WHOLE = {"bootstrap": {"SELECT", "MODIFY"}, "reader": {"SELECT"}}
"""Rights on all tables."""


@pytest.fixture(scope="module")
def keyspace(guarded):
    """With the roles, as the command makes them, and a login of each kind: (role, password)."""
    name = guarded.keyspace()
    assert run_cqueue(guarded.url(OPERATOR, name), "schema", "roles", "--apply").returncode == 0
    for role in NAMES:
        guarded.run(
            f"CREATE ROLE {name}_{role}_1 WITH PASSWORD = 'secret' AND LOGIN = true",
            f"GRANT {name}_{role} TO {name}_{role}_1",
        )
    return name


def run_cqueue(url, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "cqueue", *arguments],
        env={**os.environ, "CQUEUE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def url_of(guarded, keyspace):
    """A function: the URL of a login with that role."""
    return lambda role: guarded.url(f"{keyspace}_{role}_1:secret", keyspace)


@pytest.fixture
def client_of(url_of):
    """A function: a client of that role."""
    clients = []

    def connect(role):
        clients.append(cqueue.connect(url_of(role)))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


names = map("q{}".format, itertools.count())


@pytest.fixture
def queue_name(client_of):
    """A queue that the bootstrap role has created, with dead letters, schedules and spools in mind."""
    config = cqueue.QueueConfig(derived_sends=True, max_attempts=2, visibility=timedelta(seconds=5))
    return client_of("bootstrap").create_queue(next(names), config).name


def refused(*calls):
    for call in calls:
        with pytest.raises(cqueue.Refused, match="GRANT"):
            call()


# ── What each does ──


def test_bootstrap_makes_the_tables_of_a_keyspace_that_is_there(guarded):
    """And nothing outside of it; the operator makes the keyspace, its roles and their grants beforehand."""
    name = guarded.keyspace()
    guarded.run(
        f"DROP KEYSPACE {name}",
        f"CREATE KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}}",
    )
    wanted = [cql for cql in roles.statements(name) if cql.endswith(f"{name}_bootstrap")]
    guarded.run(
        *wanted,
        f"CREATE ROLE {name}_1 WITH PASSWORD = 'secret' AND LOGIN = true",
        f"GRANT {name}_bootstrap TO {name}_1",
    )
    settings = load(guarded.url(f"{name}_1:secret", name))
    with open_session(settings, use_keyspace=False) as connection:
        assert apply(connection, settings, Options()).statements
    with cqueue.connect(guarded.url(f"{name}_1:secret", name)) as client:
        queue = client.create_queue("mail")
        queue.alter(visibility=timedelta(minutes=3))
        client.create_log("events")
        assert client.delete_queue("mail") == 0


def test_a_producer_sends_and_appends_and_reads_nothing(client_of, queue_name):
    admin, client = client_of("bootstrap"), client_of("producer")
    admin.create_log(f"{queue_name}.log")
    queue, log = client.queue(queue_name), client.log(f"{queue_name}.log")
    messages = [cqueue.Message(b"x" * size) for size in (1, 100_000)]
    assert not queue.send_many(messages).failed
    queue.send(b"later", delay=timedelta(hours=1))
    log.append("topic", b"x")
    assert admin.queue(queue_name).stats(exact=True).live == 3
    until(lambda: list(admin.log(f"{queue_name}.log").scan()), 30)
    app = cqueue.App(client, queue=queue_name, retry=cqueue.Retry(max_attempts=2))
    app.task(queue.send)
    with queue.consumer() as consumer:
        refused(lambda: consumer.receive(1, wait=timedelta(seconds=5)))
    refused(
        queue.peek,
        queue.stats,
        queue.purge,
        queue.pause,
        lambda: client.create_queue(next(names)),
        lambda: client.create_log(next(names)),
        lambda: client.delete_queue(queue_name),
        lambda: list(log.scan()),
        queue.schedules.list,
        app.setup,
    )


def test_a_consumer_receives_and_listens_and_has_no_schedules(client_of, queue_name):
    """It may change a queue's definition, since it moves the place where readers of it begin."""
    admin, client = client_of("bootstrap"), client_of("consumer")
    log_name = f"{queue_name}.log"
    for log in (log_name, f"{log_name}.dead"):
        admin.create_log(log)
    producer = client_of("producer")
    producer.queue(queue_name).send_many(map(cqueue.Message, (b"good", b"bad", b"x" * 100_000)))
    queue, got = client.queue(queue_name), []
    with queue.consumer() as consumer:
        while len(got) < 3:
            for message in consumer.receive(3, wait=timedelta(seconds=10)):
                got.append(message.body)
                message.dead("bad") if message.body == b"bad" else message.ack()
    assert queue.stats(exact=True).live == 0
    assert client.queue(queue.dead_letter_name).stats(exact=True).live == 1
    producer.log(log_name).append("topic", b"good")
    producer.log(log_name).append("topic", b"bad")
    heard = []

    def listen(records):
        heard.extend(records)
        if any(record.body == b"bad" for record in records):
            raise ValueError("bad")

    with client.subscribe(log_name, name="one", listeners=[listen], max_attempts=1):
        until(lambda: list(admin.log(f"{log_name}.dead").scan()), 60)
    refused(
        lambda: queue.schedules.add("a", EVERY_SECOND),
        queue.schedules.list,
        lambda: client.create_log(next(names)),
        lambda: client.log(log_name).alter(ttl=timedelta(days=9)),
        queue.pause,
        lambda: queue.alter(max_attempts=9),
        lambda: client.delete_queue(queue_name),
    )
    after = admin.queue(queue_name)
    assert (after.paused, after.config.max_attempts) == (False, 2)  # refused before anything was written


def test_a_dispatcher_fires_schedules_and_runs_handlers(guarded, keyspace, url_of, tmp_path):
    """`cqueue dispatch` as it is deployed; it keeps results and histories, and makes no logs."""
    site = Site(tmp_path, guarded.url(OPERATOR, keyspace), history=timedelta(hours=1))
    try:
        daemon = site.start(url=url_of("dispatcher"))
        daemon.until("daemon_ready")
        site.send("quick", 3)
        with cqueue.connect(url_of("dispatcher")) as client:
            message = site.app.tasks["tick"].message()
            client.queue("ticks").schedules.add(
                "tick", EVERY_SECOND, message.body, task=message.task, codec=message.codec
            )
            client.create_queue(next(names))
            site.wait(lambda: site.numbers("quick") == {0, 1, 2} and site.journal("tick"), 60)
            client.queue("ticks").schedules.remove("tick")
            refused(lambda: client.create_log(next(names)))
            handle = site.app.tasks["double"].enqueue(4)
            assert handle.result(timedelta(seconds=60)) == {"twice": 8}
            site.wait(lambda: client.queue("quick").history(handle))
        workers = run_cqueue(url_of("dispatcher"), "workers")
        assert workers.returncode == 0
        assert str(daemon.pid) in workers.stdout
        daemon.signal()
        assert daemon.end() == 0
        assert not [line for line in daemon.lines() if line.get("level") in {"warning", "error"}]
    finally:
        site.close()


def test_roles_are_used_in_turn_by_a_daemon_that_is_told_to_read_its_file_again(guarded, keyspace, tmp_path):
    """The new role stands in `cqueue.toml` before SIGHUP; then the old one may not log in any more."""
    first, second = f"{keyspace}_turn_1", f"{keyspace}_turn_2"
    for role in (first, second):
        guarded.run(
            f"CREATE ROLE {role} WITH PASSWORD = 'secret' AND LOGIN = true",
            f"GRANT {keyspace}_dispatcher TO {role}",
        )

    def use(role):
        text = f'[cqueue]\nusername = "{role}"\npassword = "secret"\n'
        (tmp_path / "cqueue.toml").write_text(text, encoding="utf-8")

    site = Site(tmp_path, guarded.url(OPERATOR, keyspace))
    try:
        use(first)
        daemon = site.start("--processes", 1, url=guarded.url("nobody", keyspace).replace("nobody@", ""))
        daemon.until("child_ready")
        use(second)
        daemon.signal(signal.SIGHUP)
        daemon.until("child_ready", count=2)
        guarded.run(f"ALTER ROLE {first} WITH LOGIN = false")
        site.send("quick", 3)
        site.wait(lambda: site.numbers("quick") == {0, 1, 2}, 60)
        with open_session(load(guarded.url(OPERATOR, keyspace))) as connection:
            clients = connection.session.execute("SELECT username FROM system_views.clients")
            assert second in {row.username for row in clients}
        daemon.signal()
        assert daemon.end() == 0
    finally:
        site.close()


def test_a_reader_sees_everything_and_changes_nothing(client_of, url_of, queue_name):
    """Enough for `cqueue stats`, `cqueue schema verify`, the doctor, and the pages of the dashboard."""
    client_of("producer").queue(queue_name).send(b"x")
    client = client_of("reader")
    queue = client.queue(queue_name)
    assert [one.body for one in queue.peek()] == [b"x"]
    assert queue.stats(exact=True).live == 1
    assert queue.schedules.list() == []
    for arguments in (["stats"], ["workers"], ["schema", "verify"], ["dead", "list", queue_name]):
        done = run_cqueue(url_of("reader"), *arguments)
        assert done.returncode == 0, done.stderr
    settings = load(url_of("reader"))
    with doctor.open_site(settings, lambda: cqueue.connect(url_of("reader")), limit_s=60) as site:
        found = doctor.examine(site)
    assert not [one for one in found if one.severity is doctor.Severity.NOT_CHECKED]
    with queue.consumer() as consumer:
        refused(lambda: consumer.receive(1, wait=timedelta(seconds=5)))
    refused(
        lambda: queue.send(b"y"),
        queue.purge,
        queue.pause,
        lambda: queue.schedules.add("a", EVERY_SECOND),
        lambda: client.create_queue(next(names)),
        lambda: client.create_log(next(names)),
    )
    assert queue.stats(exact=True).live == 1


def test_a_dashboard_of_a_reader_shows_every_page_and_changes_nothing(client_of, queue_name):
    from starlette.testclient import TestClient

    from cqueue.web import ANYTHING, Access, application

    page = application(client_of("reader"), access=Access(roles=ANYTHING))
    with TestClient(page, base_url="http://localhost", headers={"sec-fetch-site": "same-origin"}) as browser:
        for path in ("", f"queue/{queue_name}", f"queue/{queue_name}/dead", "schedules", "workers", "logs"):
            shown = browser.get(f"/{path}")
            assert (shown.status_code, "GRANT" in shown.text) == (200, False), path
        answer = browser.post(f"/queue/{queue_name}", data={"do": "pause"})
    assert "GRANT" in answer.text
    assert not client_of("reader").queue(queue_name).paused


def test_without_a_keyspace_no_role_is_made(guarded):
    """The error says to make the keyspace first."""
    done = run_cqueue(guarded.url(OPERATOR, "absent"), "schema", "roles", "--apply")
    assert done.returncode == 2
    assert "cqueue schema apply" in done.stderr
    with open_session(load(guarded.url(OPERATOR, "system")), use_keyspace=False) as connection:
        roles_there = [row.role for row in connection.session.execute("LIST ROLES")]
    assert not [name for name in roles_there if name.startswith("absent")]


# ── What each is refused ──


def test_commands_about_the_schema_name_the_grant_too(guarded, keyspace):
    """As all others do, with the exit code of what was not done."""
    role = guarded.role(keyspace)
    url = guarded.url(f"{role}:secret", keyspace)
    for arguments in (["schema", "verify"], ["schema", "apply"], ["dc", "show"]):
        done = run_cqueue(url, "--json", *arguments)
        told = json.loads(done.stderr)
        assert (done.returncode, told["error"]) == (3, "Refused"), arguments
        assert f"GRANT SELECT ON table {keyspace}." in told["message"]


@pytest.fixture
def run_as(url_of):
    """A function: run a statement as a role; whether it was allowed."""
    opened = {}

    def run(role, cql):
        if role not in opened:
            opened[role] = open_session(load(url_of(role)), use_keyspace=False)
        try:
            opened[role].session.execute(cql)
        except Unauthorized:
            return False
        return True

    yield run
    for connection in opened.values():
        connection.close()


@pytest.mark.parametrize("role", roles.ROLES, ids=NAMES)
def test_a_role_has_just_the_rights_of_its_list_on_each_table(guarded, keyspace, run_as, role):
    """On every table that there is, so that a new one is thought of."""
    with open_session(load(guarded.url(OPERATOR, keyspace))) as connection:
        columns = connection.session.execute(
            "SELECT table_name, column_name, type, kind FROM system_schema.columns WHERE keyspace_name = %s",
            (keyspace,),
        ).all()
    keys = {
        table: [one for one in columns if (one.table_name, one.kind) == (table, "partition_key")]
        for table in {one.table_name for one in columns}
    }
    assert {*role.reads, *role.writes} <= {*keys}
    for name, key in keys.items():
        where = " AND ".join(f"{one.column_name} = {_zero(one.type)}" for one in key)
        allowed = {
            "SELECT": run_as(role.name, f"SELECT * FROM {keyspace}.{name} LIMIT 1"),
            "MODIFY": run_as(role.name, f"DELETE FROM {keyspace}.{name} WHERE {where}"),
        }
        listed = WHOLE.get(role.name, set())
        wanted = {
            "SELECT": "SELECT" in listed or name in role.reads,
            "MODIFY": "MODIFY" in listed or name in role.writes,
        }
        assert allowed == wanted, name


def _zero(cql_type):
    return "'none'" if cql_type == "text" else "0"


@pytest.mark.parametrize("role", NAMES)
def test_no_role_reaches_beyond_its_keyspace_or_makes_others(guarded, keyspace, run_as, role):
    other = guarded.keyspace()
    statements = (
        f"SELECT * FROM {other}.messages LIMIT 1",
        f"TRUNCATE {other}.messages",
        f"DROP TABLE {keyspace}.workers",
        f"DROP KEYSPACE {keyspace}",
        "CREATE KEYSPACE mine WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE ROLE mine",
        f"GRANT {keyspace}_bootstrap TO {keyspace}_{role}_1",
        f"GRANT MODIFY ON KEYSPACE {keyspace} TO {keyspace}_producer",
        "SELECT * FROM system_auth.roles",
    )
    assert not [cql for cql in statements if run_as(role, cql)]
    ddl = (
        f"CREATE TABLE {keyspace}.mine_{role} (a int PRIMARY KEY)",
        f"ALTER TABLE {keyspace}.bodies WITH comment = ''",
    )
    assert [run_as(role, cql) for cql in ddl] == [role == "bootstrap"] * 2
