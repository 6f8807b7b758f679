"""Bootstrap against a real Cassandra: repeated, interrupted, concurrent, altered by hand, newer."""

import json
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import pytest

import cqueue
from cqueue.cli.main import main
from cqueue.errors import ConfigError, OwnershipLost, SchemaMismatch, Unavailable
from cqueue.schema import (
    FORMAT,
    Deployment,
    Options,
    apply,
    check_deployment,
    load_migrations,
    parse_compaction,
    plan,
    read_state,
    render_plan,
    verify,
)
from cqueue.schema.lock import SchemaLock
from cqueue.schema.migrations import DIRECTORY, split_statements
from cqueue.settings import load
from cqueue.store.connection import open_session

pytestmark = pytest.mark.cassandra

SECOND = """
CREATE TABLE IF NOT EXISTS extras (queue text, n int, v frozen<map<text, int>>, PRIMARY KEY ((queue), n))
    WITH CLUSTERING ORDER BY (n DESC) AND compaction = {compaction} AND gc_grace_seconds = {gc_grace};
ALTER TABLE queues ADD IF NOT EXISTS colour text;
"""


@pytest.fixture
def extended(tmp_path):
    """This package's migrations and one more."""
    for path in DIRECTORY.glob("*.cql"):
        shutil.copy(path, tmp_path)
    number = len(load_migrations()) + 1
    (tmp_path / f"{number:02}_pre_extras.cql").write_text(SECOND, encoding="utf-8")
    return load_migrations(tmp_path)


def structure(connection, name):
    """Everything about a keyspace's tables except its name."""
    return replace(read_state(connection, name), keyspace="", deployment=None)


def execute(connection, cql):
    return connection.session.execute(cql, timeout=60)


@pytest.mark.feature
def test_a_keyspace_that_does_not_exist_says_what_to_run(connection, new_keyspace):
    """At connect, at the check, and by verify."""
    absent = new_keyspace(schema=False)
    with pytest.raises(SchemaMismatch, match="cqueue schema apply"):
        open_session(absent.settings)
    with pytest.raises(SchemaMismatch, match="cqueue schema apply"):
        check_deployment(connection.session, absent.settings)
    (drift,) = verify(connection, absent.settings)
    assert "does not exist" in drift.problem


@pytest.mark.feature
def test_apply_makes_what_verify_and_connect_want(connection, new_keyspace):
    """And a second one does nothing."""
    made = new_keyspace()
    assert verify(connection, made.settings) == []
    with open_session(made.settings) as opened:
        deployment = check_deployment(opened.session, made.settings)
    assert deployment == Deployment(FORMAT, "local_serial", 2000, 500, 86_400, 0, made.settings.local_dc)
    again = apply(connection, made.settings)
    assert (again.statements, again.drift) == ((), ())


def test_options_reach_the_cluster(connection, new_keyspace):
    made = new_keyspace(
        compaction=parse_compaction("lcs"),
        gc_grace_s=20_000,
        serial_consistency="serial",
        settle_ms=700,
        skew_ms=290,
    )
    settings = replace(made.settings, serial_consistency="serial", consistency="quorum")
    assert check_deployment(connection.session, settings) == Deployment(FORMAT, "serial", 700, 290, 20_000, 0)
    messages = read_state(connection, made.name).tables["messages"]
    assert messages.gc_grace_s == 20_000
    assert messages.compaction["class"].endswith("LeveledCompactionStrategy")
    assert verify(connection, settings) == []


def test_the_wrong_serial_consistency_is_refused(connection, keyspace):
    """By clients at connect, and by a second bootstrap."""
    other = replace(keyspace.settings, serial_consistency="serial", consistency="quorum")
    with pytest.raises(SchemaMismatch, match="serial_consistency=local_serial"):
        check_deployment(connection.session, other)
    with pytest.raises(SchemaMismatch, match="fixed"):
        apply(connection, keyspace.settings, Options(serial_consistency="serial"))


def test_the_text_of_a_plan_makes_the_same_schema(connection, new_keyspace):
    """What is piped to cqlsh is what `apply` does."""
    by_hand, applied = new_keyspace(schema=False), new_keyspace()
    with open_session(by_hand.settings, use_keyspace=False) as opened:
        planned = plan(Options(), read_state(opened, by_hand.name), by_hand.settings)
        for statement in split_statements(render_plan(planned)):
            execute(opened, statement)
    assert structure(connection, by_hand.name) == structure(connection, applied.name)
    assert verify(connection, by_hand.settings) == []
    assert apply(connection, by_hand.settings).statements == ()


@pytest.mark.feature
def test_all_migrations_equal_a_fresh_schema(connection, new_keyspace, extended):
    """Step by step or at once, with the same options: the same tables and the same records."""
    options = {"compaction": parse_compaction("stcs"), "gc_grace_s": 30_000}
    stepwise = new_keyspace(**options)
    assert [d.where for d in verify(connection, stepwise.settings, migrations=extended)] == [
        f"migration {extended[-1].name}"
    ]
    result = apply(connection, stepwise.settings, migrations=extended)
    assert len(result.statements) == 4  # USE, two statements, the record
    fresh = new_keyspace(schema=False)
    apply(connection, fresh.settings, Options(**options), migrations=extended)
    assert structure(connection, stepwise.name) == structure(connection, fresh.name)
    assert verify(connection, stepwise.settings, migrations=extended) == []
    with pytest.raises(SchemaMismatch, match="upgrade cqueue"):
        verify(connection, stepwise.settings)
    with pytest.raises(SchemaMismatch, match="upgrade cqueue"):
        apply(connection, stepwise.settings)


def test_the_drift_s_own_statements_mend_it(connection, new_keyspace):
    """Apply names the ALTERs, alters nothing, and is content when an operator has run them."""
    made = new_keyspace()
    options = Options(compaction=parse_compaction("lcs"), gc_grace_s=40_000)
    before = structure(connection, made.name)
    result = apply(connection, made.settings, options)
    assert result.statements == ()
    assert structure(connection, made.name) == before
    for drift in result.drift:
        for cql in drift.cql:
            execute(connection, cql)
    again = apply(connection, made.settings, options)
    assert again.drift == ()
    assert verify(connection, made.settings) == []
    deployment = check_deployment(connection.session, made.settings)
    assert (deployment.gc_grace_s, deployment.changes) == (40_000, 1)


@pytest.mark.feature
def test_verify_sees_what_somebody_altered(connection, new_keyspace):
    made = new_keyspace()
    for cql in (
        f"ALTER TABLE {made.name}.queues DROP state",
        f"DROP TABLE {made.name}.bodies",
        f"ALTER TABLE {made.name}.shards WITH gc_grace_seconds = 1",
        f"UPDATE {made.name}.schema_migrations SET checksum = 'x' WHERE name = 'cqueue' AND number = 1",  # noqa: S608
    ):
        execute(connection, cql)
    assert [drift.where for drift in verify(connection, made.settings)] == [
        "migration 01_post_core",
        "table bodies",
        "column queues.state",
        "table shards",
    ]


@pytest.mark.parametrize("stored", ["{", "[]", '{"replication": 3}', '{"compaction": 3}'])
def test_recorded_options_that_cannot_be_read_say_what_to_do(connection, new_keyspace, stored):
    """And what is said helps."""
    made = new_keyspace()
    row = "WHERE name = 'cqueue' AND number = 0"
    execute(connection, f"UPDATE {made.name}.schema_migrations SET options = '{stored}' {row}")  # noqa: S608
    with pytest.raises(SchemaMismatch, match="Delete the row"):
        verify(connection, made.settings)
    execute(connection, f"DELETE FROM {made.name}.schema_migrations {row}")  # noqa: S608
    apply(connection, made.settings)
    assert verify(connection, made.settings) == []


def test_a_newer_format_is_refused(connection, new_keyspace):
    made = new_keyspace()
    cql = f"UPDATE {made.name}.deployment SET format = {FORMAT + 1} WHERE name = 'cqueue' IF EXISTS"  # noqa: S608
    execute(connection, cql)
    for call in (
        lambda: check_deployment(connection.session, made.settings),
        lambda: verify(connection, made.settings),
        lambda: apply(connection, made.settings),
    ):
        with pytest.raises(SchemaMismatch, match="upgrade cqueue"):
            call()


def forget(connection, made, *numbers):
    """Let migrations count as outstanding."""
    for number in numbers:
        where = f"WHERE name = 'cqueue' AND number = {number}"
        execute(connection, f"DELETE FROM {made.name}.schema_migrations {where}")  # noqa: S608


def test_a_keyspace_of_an_older_version_gets_a_home(connection, new_keyspace):
    """`apply` records the data centre that it is run in; before that nobody connects."""
    made = new_keyspace()
    for column in ("home_dc", "centre_epoch", "retiring", "opens_at", "centre_log"):
        execute(connection, f"ALTER TABLE {made.name}.deployment DROP {column}")
    forget(connection, made, 8)
    with pytest.raises(SchemaMismatch, match="08_pre_centres"):
        check_deployment(connection.session, made.settings)
    apply(connection, made.settings, only_pre=True)
    deployment = check_deployment(connection.session, made.settings)
    assert (deployment.home_dc, deployment.centre_epoch, deployment.retiring) == (
        made.settings.local_dc,
        0,
        True,
    )
    assert verify(connection, made.settings) == []


def test_workers_are_listed_though_many_have_stopped(connection, new_keyspace):
    """A read stops at 100,000 tombstones, which are kept for a day by default, and here for two minutes.

    An older keyspace works as it is, until `apply` has been run.
    """
    made = new_keyspace()
    execute(connection, f"ALTER TABLE {made.name}.workers WITH gc_grace_seconds = 86400")
    forget(connection, made, 13)
    assert check_deployment(connection.session, made.settings).gc_grace_s == 86_400
    result = apply(connection, made.settings, only_pre=True)
    assert result.drift == ()
    assert read_state(connection, made.name).tables["workers"].gc_grace_s == 120
    assert verify(connection, made.settings) == []


def test_an_upgrade_packs_messages_only_when_no_old_process_is_left(connection, new_keyspace, monkeypatch):
    """From format 1 to 2 under a client that runs: `pre` migrations are not enough."""
    monkeypatch.setattr("cqueue.runtime.catalog.MAX_AGE_S", 0.0)  # it looks at every call
    made = new_keyspace()
    forget(connection, made, 6, 7)
    execute(connection, f"UPDATE {made.name}.deployment SET format = 1 WHERE name = 'cqueue' IF EXISTS")  # noqa: S608
    with pytest.raises(SchemaMismatch, match="06_pre_packs"):
        check_deployment(connection.session, made.settings)

    apply(connection, made.settings, only_pre=True)
    assert check_deployment(connection.session, made.settings).format == 1
    with cqueue.connect(made.url) as client:
        queue = client.create_queue("q")
        first = queue.send_many([cqueue.Message(b"x")] * 3).ids
        assert rows_of_messages(connection, made.name) == 3
        apply(connection, made.settings)
        assert check_deployment(connection.session, made.settings).format == FORMAT
        queue.send_many([cqueue.Message(b"y")] * 3)
        assert rows_of_messages(connection, made.name) == 4
        sent = len(first) + 3
        with queue.consumer() as consumer:
            bodies = []
            while len(bodies) < sent:
                received = consumer.receive(100, wait=timedelta(seconds=10))
                assert received, f"only {len(bodies)} of {sent}"
                bodies += [message.body for message in received]
                consumer.ack(received)
        assert bodies.count(b"x") == 3
        assert rows_of_messages(connection, made.name) == 0


def rows_of_messages(connection, keyspace):
    cql = f"SELECT count(*) FROM {keyspace}.messages WHERE kind = 3 ALLOW FILTERING"  # noqa: S608
    return execute(connection, cql).one()[0]


@pytest.mark.parametrize(("done", "only_pre"), [(6, False), (20, True)])
def test_an_interrupted_bootstrap_is_completed_by_the_next(connection, new_keyspace, done, only_pre):
    """Wherever it stopped, and also by one that spares processes with old code: there are none."""
    made = new_keyspace(schema=False)
    planned = plan(Options(), read_state(connection, made.name), made.settings)
    with open_session(made.settings, use_keyspace=False) as opened:
        for step in planned.steps[:done]:
            execute(opened, step.cql)
        with pytest.raises(SchemaMismatch, match="no complete schema"):
            check_deployment(connection.session, made.settings)
        assert apply(opened, made.settings, only_pre=only_pre).statements
    assert verify(connection, made.settings) == []


def test_options_that_cassandra_refuses_are_not_kept(connection, new_keyspace):
    made = new_keyspace(schema=False)
    with pytest.raises(ConfigError, match="Nonsense"):
        apply(connection, made.settings, Options(compaction=parse_compaction('{"class": "Nonsense"}')))
    apply(connection, made.settings)
    assert verify(connection, made.settings) == []


def test_bootstraps_at_once_do_it_once(connection, new_keyspace):
    """Four processes, as it were: every statement under the lock is run by exactly one of them."""
    made = new_keyspace(schema=False)
    everybody = threading.Barrier(4)

    def bootstrap(opened):
        everybody.wait()
        return apply(opened, made.settings)

    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        sessions = [stack.enter_context(open_session(made.settings, use_keyspace=False)) for _ in range(4)]
        results = list(pool.map(bootstrap, sessions))
    run = [cql for result in results for cql in result.statements]
    assert sum("CREATE TABLE IF NOT EXISTS messages" in cql for cql in run) == 1
    assert sum(cql.startswith("INSERT INTO deployment") for cql in run) == 1
    assert verify(connection, made.settings) == []


def test_two_commands_at_once(connection, new_keyspace):
    """Two real processes: both succeed, and together they run each statement under the lock once."""
    made = new_keyspace(schema=False)
    command = [sys.executable, "-W", "error", "-m", "cqueue", "--url", made.url, "--json", "schema", "apply"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    run = [cql for out, _ in outputs for cql in json.loads(out)["statements"]]
    assert sum("CREATE TABLE IF NOT EXISTS messages" in cql for cql in run) == 1
    assert verify(connection, made.settings) == []


@pytest.mark.feature
def test_the_command_line_tells_drift_by_its_exit_code(capsys, new_keyspace):
    """0 without, 1 with; the ALTER is on standard output."""
    made = new_keyspace()
    assert main(["--url", made.url, "schema", "verify"]) == 0
    assert "no drift" in capsys.readouterr().out
    assert main(["--url", made.url, "schema", "apply", "--gc-grace", "50000"]) == 1
    assert f"ALTER TABLE {made.name}.messages WITH gc_grace_seconds = 50000;" in capsys.readouterr().out
    assert main(["--url", made.url, "schema", "apply", "--serial-consistency", "serial"]) == 2
    assert "fixed" in capsys.readouterr().err


def test_a_crashed_holder_s_lock_expires(connection, keyspace):
    """The next one waits, says for whom, and goes on when the lease has run out."""
    crashed = SchemaLock(connection.session, keyspace.name, lease_s=4)
    assert crashed._try_acquire()
    said = []
    with SchemaLock(connection.session, keyspace.name, wait_s=60).held(said.append):
        assert "process" in said[0]
    assert said[0].startswith("Another `cqueue schema apply` is at work")


def test_a_living_holder_s_lock_does_not_expire(connection, keyspace):
    """It is renewed every two seconds, so that a process may be kept from it for four; another one gives up
    after its limit, having done nothing.
    """
    with SchemaLock(connection.session, keyspace.name, lease_s=6).held(print) as lock:
        with (
            pytest.raises(Unavailable, match="Gave up after 9 s"),
            SchemaLock(connection.session, keyspace.name, wait_s=9).held(lambda _: None),
        ):
            pytest.fail("two holders")
        lock.check()


def test_a_holder_that_lost_its_lease_stops(connection, keyspace):
    lock = SchemaLock(connection.session, keyspace.name, lease_s=3)
    with lock.held(print):
        cql = f"DELETE FROM {keyspace.name}.schema_lock WHERE name = 'cqueue' IF EXISTS"  # noqa: S608
        execute(connection, cql)
        for _ in range(600):
            if lock._renewed < 0:
                break
            threading.Event().wait(0.1)
        with pytest.raises(OwnershipLost, match="repeat the command"):
            lock.check()


def test_local_dc_must_be_given_and_exist(cassandra_url):
    """The error names the data centres that do."""
    base = cassandra_url.partition("?")[0]
    for url in (base, f"{base}?local_dc=nosuch"):
        with pytest.raises(ConfigError, match="The cluster has: "):
            open_session(load(url, environ={}), use_keyspace=False)


def test_a_cluster_that_is_down_is_unavailable_at_once():
    with pytest.raises(Unavailable, match="can be reached") as caught:
        open_session(load("cassandra://127.0.0.1:1/k?local_dc=dc1", environ={}))
    assert caught.value.__cause__ is not None
