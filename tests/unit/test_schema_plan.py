"""Options, plans and drift as pure functions of a state."""

import re
from dataclasses import replace
from unittest.mock import Mock

import cassandra
import pytest

from cqueue.errors import ConfigError, Refused, SchemaMismatch
from cqueue.schema import (
    FORMAT,
    Deployment,
    Migration,
    Options,
    State,
    load_migrations,
    parse_compaction,
    parse_replication,
    plan,
    render_plan,
)
from cqueue.schema.drift import all_drift, expected_tables, option_drift
from cqueue.schema.execute import run
from cqueue.schema.migrations import split_statements
from cqueue.schema.model import Column, Table
from cqueue.schema.plan import make_plan
from cqueue.schema.state import Applied
from cqueue.settings import load

SETTINGS = load("cassandra://h/shop?local_dc=dc1", environ={})
MIGRATIONS = load_migrations()
EMPTY = State(keyspace="shop")
SECOND = Migration(len(MIGRATIONS) + 1, "pre", "more", "CREATE TABLE IF NOT EXISTS more (a int PRIMARY KEY);")


def complete_state(migrations=MIGRATIONS, **changes):
    """A keyspace as `apply` leaves it."""
    recorded = Options(replication={"dc1": 3}, compaction={"class": "UnifiedCompactionStrategy"})
    tables = expected_tables(migrations, replace(recorded, gc_grace_s=86_400))
    state = State(
        keyspace="shop",
        nodes={"dc1": 3, "dc2": 3},
        replication={"dc1": 3},
        tables={**tables, "schema_lock": Table({}), "schema_migrations": Table({})},
        applied={m.number: Applied(m.name, m.checksum) for m in migrations},
        recorded=recorded,
        deployment=Deployment(FORMAT, "local_serial", 2000, 500, 86_400, 7, "dc1"),
    )
    return replace(state, **changes)


def statements(planned):
    return [step.cql for step in planned.steps]


def test_a_plan_of_nothing_makes_everything_in_order():
    """Keyspace, lock, bookkeeping, tables, records, and last the row that says it is complete."""
    cql = statements(plan(Options(), EMPTY, SETTINGS))
    assert cql[0].startswith("CREATE KEYSPACE IF NOT EXISTS shop")
    assert cql[1] == "USE shop"
    assert cql[2].startswith("CREATE TABLE IF NOT EXISTS schema_lock")
    assert cql[3].startswith("CREATE TABLE IF NOT EXISTS schema_migrations")
    assert "'bookkeeping'" in cql[-2]
    assert cql[-1].startswith("INSERT INTO deployment")
    assert f"('cqueue', {FORMAT}, 'local_serial', 2000, 500, 86400, 0, 'dc1', 0) IF NOT EXISTS" in cql[-1]
    assert "UnifiedCompactionStrategy" in "".join(cql)


def test_options_reach_the_statements():
    options = Options(
        replication=parse_replication("dc1=3, dc2=2"),
        compaction=parse_compaction("lcs"),
        gc_grace_s=20_000,
        serial_consistency="serial",
        settle_ms=3000,
        skew_ms=300,
    )
    text = render_plan(plan(options, EMPTY, SETTINGS))
    assert "{'class': 'NetworkTopologyStrategy', 'dc1': '3', 'dc2': '2'}" in text
    assert "LeveledCompactionStrategy" in text
    assert "'serial', 3000, 300, 20000, 0, null" in text
    assert "UnifiedCompactionStrategy" not in text


def test_the_text_of_a_plan_is_exactly_its_statements():
    """Taken apart as cqlsh would, without comments, it is what `apply` runs."""
    planned = plan(Options(), EMPTY, SETTINGS)
    text = render_plan(planned)
    assert list(split_statements(text)) == statements(planned)
    rows = text.index("INSERT INTO")  # at cqlsh's own ONE, a quorum without that node would lack them
    assert "-- take no lock: run them once. In cqlsh, say CONSISTENCY QUORUM;" in text[:rows]


@pytest.mark.parametrize(
    ("nodes", "copies"), [({}, 3), ({"dc1": 1}, 1), ({"dc1": 2}, 2), ({"dc1": 9, "dc2": 1}, 3)]
)
def test_default_replication(nodes, copies):
    """As many copies as nodes in the local data centre, three at most, and the plan says so."""
    planned = plan(Options(), replace(EMPTY, nodes=nodes), SETTINGS)
    assert f"'dc1': '{copies}'" in planned.steps[0].cql
    assert f"replication dc1={copies}" in planned.notes[0]


def test_a_lock_has_the_same_id_everywhere_and_another_one_elsewhere():
    """Two processes that create the table at once through two nodes must create the same one."""
    ids = [
        statements(plan(Options(), replace(EMPTY, keyspace=name), SETTINGS))[2] for name in ("a", "a", "b")
    ]
    assert ids[0] == ids[1] != ids[2]


def test_a_complete_schema_needs_nothing():
    planned = plan(Options(), complete_state(), SETTINGS)
    assert (planned.steps, planned.drift) == ((), ())
    assert "Nothing to do" in render_plan(planned)
    assert all_drift(complete_state(), MIGRATIONS) == []


def test_a_keyspace_of_an_older_version_gets_a_home():
    """The home is the applying client's data centre where clients work in one, and named where in several."""
    old = replace(complete_state().deployment, home_dc=None)
    planned = plan(Options(), complete_state(deployment=old), SETTINGS)
    assert statements(planned) == [
        "USE shop",
        "UPDATE deployment SET home_dc = 'dc1', centre_epoch = 0 WHERE name = 'cqueue' IF home_dc = null",
    ]
    assert planned.steps[-1].serial == "local_serial"
    assert "work in dc1, its home" in planned.notes[-1]


def test_a_keyspace_of_several_centres_has_no_home():
    """Where all data centres agree on each mutation, clients work in any of them."""
    everywhere = Deployment(FORMAT, "serial", 2000, 500, 86_400, 7)
    settings = load("cassandra://h/shop?local_dc=dc1&serial_consistency=serial", environ={})
    assert statements(plan(Options(), complete_state(deployment=everywhere), settings)) == []


def test_a_home_is_never_moved_by_apply():
    """Only `cqueue dc switch` does that, wherever `apply` is run."""
    elsewhere = load("cassandra://h/shop?local_dc=dc2", environ={})
    assert statements(plan(Options(), complete_state(), elsewhere)) == []


@pytest.mark.parametrize("serial", ["local_serial", "serial"])
def test_conditional_mutations_are_agreed_on_as_the_clients_agree(serial):
    """Those of the other kind would not see them."""
    steps = plan(Options(serial_consistency=serial), EMPTY, SETTINGS).steps
    conditional = {step.cql for step in steps if re.match(r"(INSERT|UPDATE).* IF ", step.cql, re.DOTALL)}
    assert len(conditional) == 2
    assert {step.cql: step.serial for step in steps if step.serial} == dict.fromkeys(conditional, serial)


def test_a_lock_that_is_missing_is_made_again():
    tables = complete_state().tables
    state = complete_state(tables={name: tables[name] for name in tables if name != "schema_lock"})
    cql = statements(plan(Options(), state, SETTINGS))
    assert [text[:38] for text in cql] == ["USE shop", "CREATE TABLE IF NOT EXISTS schema_lock"]


def test_only_outstanding_migrations_run():
    cql = statements(make_plan(Options(), complete_state(), [*MIGRATIONS, SECOND], SETTINGS))
    assert cql[0] == "USE shop"
    assert cql[1] == SECOND.statements[0]
    assert cql[2].startswith("INSERT INTO schema_migrations")
    assert len(cql) == 3


def test_an_option_that_a_migration_sets_is_no_drift_before_it_has_run():
    """`apply` would tell an operator to run what it runs itself, and end with exit code 1."""
    workers = replace(complete_state().tables["workers"], gc_grace_s=86_400)
    number = next(migration.number for migration in MIGRATIONS if migration.what == "workers")
    old = complete_state(tables={**complete_state().tables, "workers": workers})
    (drift,) = all_drift(old, MIGRATIONS)
    assert drift.cql == ("ALTER TABLE shop.workers WITH gc_grace_seconds = 120",)
    old.applied.pop(number)
    assert [drift.where for drift in all_drift(old, MIGRATIONS)] == [f"migration {number}_pre_workers"]
    planned = plan(Options(), old, SETTINGS, only_pre=True)
    assert "ALTER TABLE workers WITH gc_grace_seconds = 120" in statements(planned)
    assert planned.drift == ()


def test_new_tables_get_the_recorded_options():
    """Not today's defaults."""
    more = replace(
        SECOND,
        cql="CREATE TABLE IF NOT EXISTS m (a int PRIMARY KEY) WITH compaction = {compaction}",
    )
    state = complete_state(recorded=Options(replication={"dc1": 3}, compaction={"class": "Mine"}))
    assert "'Mine'" in statements(make_plan(Options(), state, [*MIGRATIONS, more], SETTINGS))[1]


def test_only_pre_stops_before_the_first_post_migration():
    third = replace(SECOND, number=SECOND.number + 1, phase="post", what="rest")
    fourth = replace(SECOND, number=SECOND.number + 2, what="later")
    planned = make_plan(
        Options(), complete_state(), [*MIGRATIONS, SECOND, third, fourth], SETTINGS, only_pre=True
    )
    assert [s for s in statements(planned) if "INTO schema_migrations" in s] == [statements(planned)[-1]]
    assert f"({'cqueue'!r}, {SECOND.number}," in statements(planned)[-1]


def test_an_interrupted_bootstrap_is_completed():
    """Whatever is recorded is not run again; the rest is."""
    state = complete_state(applied={}, deployment=None, recorded=None)
    cql = statements(plan(Options(), state, SETTINGS))
    assert not any(s.startswith("CREATE KEYSPACE") for s in cql)
    assert cql[-1].startswith("INSERT INTO deployment")


def test_an_interrupted_bootstrap_is_completed_though_only_pre_is_asked_for():
    """No process works with an incomplete schema, and its last row needs columns of all migrations."""
    begun = complete_state(deployment=None, recorded=None)
    state = replace(begun, applied={number: row for number, row in begun.applied.items() if number < 6})
    planned = plan(Options(), state, SETTINGS, only_pre=True)
    assert statements(planned) == statements(plan(Options(), state, SETTINGS))
    assert any("ADD IF NOT EXISTS home_dc" in cql for cql in statements(planned))


def test_an_interrupted_bootstrap_with_other_options_is_told_at_once():
    """Not only by `verify`: deleted messages come back where tables keep less than the deployment says."""
    tables = expected_tables(MIGRATIONS, Options(gc_grace_s=20_000, compaction=parse_compaction("lcs")))
    state = complete_state(applied={}, deployment=None, recorded=None, tables=tables)
    planned = plan(Options(), state, SETTINGS)
    assert any("86400" in cql for cql in statements(planned) if cql.startswith("INSERT INTO deployment"))
    mend = {cql for drift in planned.drift for cql in drift.cql}
    assert "ALTER TABLE shop.messages WITH gc_grace_seconds = 86400" in mend
    assert "ALTER TABLE shop.messages WITH compaction = {'class': 'UnifiedCompactionStrategy'}" in mend


def test_an_interrupted_bootstrap_tells_of_copies_that_are_not_as_asked_for():
    """The keyspace is there; only an operator moves its copies."""
    state = complete_state(applied={}, deployment=None, recorded=None)
    wanted = {name: copies + 1 for name, copies in state.replication.items()}
    assert any(
        "replication" in str(drift) for drift in plan(Options(replication=wanted), state, SETTINGS).drift
    )
    assert not plan(Options(replication=dict(state.replication)), state, SETTINGS).drift


def test_a_newer_migration_is_refused():
    state = complete_state(applied={99: Applied("99_pre_future", "x")})
    with pytest.raises(SchemaMismatch, match="99_pre_future: newer version than this code; upgrade cqueue"):
        plan(Options(), state, SETTINGS)


def test_a_newer_format_is_refused():
    row = Deployment(FORMAT + 1, "local_serial", 2000, 500, 86_400, 0)
    with pytest.raises(SchemaMismatch, match="upgrade cqueue"):
        plan(Options(), complete_state(deployment=row), SETTINGS)


def test_another_serial_consistency_is_refused():
    with pytest.raises(SchemaMismatch, match="fixed"):
        plan(Options(serial_consistency="serial"), complete_state(), SETTINGS)


@pytest.mark.parametrize(
    ("options", "where", "cql"),
    [
        (Options(replication={"dc1": 1}), "keyspace shop", "ALTER KEYSPACE shop WITH replication"),
        (
            Options(compaction=parse_compaction("lcs")),
            "table messages",
            "ALTER TABLE shop.messages WITH compaction",
        ),
        (Options(gc_grace_s=20_000), "table queues", "ALTER TABLE shop.queues WITH gc_grace_seconds = 20000"),
        (
            Options(settle_ms=1),
            "table deployment",
            "SET settle_ms = 1, changes = 8 WHERE name = 'cqueue' IF changes = 7",
        ),
        (Options(skew_ms=200), "table deployment", "SET skew_ms = 200"),
    ],
)
def test_other_options_are_drift_with_what_to_run(options, where, cql):
    """Nothing is altered silently: the plan has no steps, and its drift has the statement."""
    planned = plan(options, complete_state(), SETTINGS)
    assert planned.steps == ()
    assert any(drift.where == where and cql in "".join(drift.cql) for drift in planned.drift)
    if where == "table deployment":  # cqlsh agrees on it otherwise than clients do
        assert all("SERIAL CONSISTENCY LOCAL_SERIAL;" in drift.remedy for drift in planned.drift)
    assert split_statements(render_plan(planned)) == (), "drift stands in comments only"


@pytest.mark.parametrize(
    ("home", "present", "wanted", "altered"),
    [
        ("dc1", "dc1=1", "dc1=3", "'dc1': '2'"),
        ("dc1", "dc1=2", "dc1=3", "'dc1': '3'"),
        ("dc1", "dc1=3", "dc1=1", "'dc1': '2'"),
        ("dc1", "dc1=3", "dc1=3,dc2=3", "'dc1': '3', 'dc2': '3'"),
        (None, "dc1=3", "dc1=3,dc2=3", "'dc1': '3', 'dc2': '1'"),
        (None, "dc1=2,dc2=2", "dc1=3,dc2=3", "'dc1': '3', 'dc2': '2'"),
        (None, "dc1=3,dc2=1", "dc1=3", "'dc1': '3'"),
        (None, "dc1=3", "dc2=3", "'dc1': '3', 'dc2': '1'"),
        (None, "dc1=3,dc2=3", "dc2=3", "'dc1': '2', 'dc2': '3'"),
    ],
)
def test_copies_are_altered_by_one_where_clients_ask_for_a_quorum(home, present, wanted, altered):
    """Or two quorums, one before and one after, share no replica: the second does not see what the first has.

    home: None if clients work in every data centre.
    """
    row = replace(complete_state().deployment, home_dc=home)
    state = complete_state(replication=parse_replication(present), deployment=row)
    (drift,) = option_drift(state, Options(replication=parse_replication(wanted)), MIGRATIONS)
    assert drift.cql[0].endswith(f"'NetworkTopologyStrategy', {altered}}}")


REBUILD = "`nodetool rebuild -ks shop -- dc1` on each node of "
REPAIR = "`nodetool repair -full shop` on "


@pytest.mark.parametrize(
    ("home", "present", "wanted", "order"),
    [
        ("dc1", "dc1=3", "dc1=3,dc2=3", f"{REBUILD}dc2, then {REPAIR}each node of dc2, then"),
        ("dc1", "dc1=3", "dc1=3,dc2=3,dc3=3", f"{REBUILD}dc2, dc3, then {REPAIR}each node of dc2, dc3, then"),
        ("dc1", "dc1=1", "dc1=3,dc2=3", f"{REBUILD}dc2, then {REPAIR}every node, then"),
        ("dc1", "dc1=3,dc2=1", "dc1=3,dc2=3", f"statement, then {REPAIR}every node, then"),
        ("dc1", "dc1=1", "dc1=3", f"statement, then {REPAIR}every node, then"),
        (None, "dc1=3", "dc1=3,dc2=3", f"statement, then {REPAIR}every node, then"),
        ("dc1", "dc1=3,dc2=0", "dc1=3", f"statement, then {REPAIR}every node, then"),
        (
            "US East",
            "US East=3",
            "US East=3,EU=3",
            f"rebuild -ks shop -- 'US East'` on each node of EU, then {REPAIR}each node of EU, then",
        ),
    ],
)
def test_a_new_data_centre_is_rebuilt_and_its_nodes_repaired(home, present, wanted, order):
    """As the how-to says; where clients vote, a repair of every node brings the copies together."""
    row = replace(complete_state().deployment, home_dc=home)
    state = complete_state(replication=parse_replication(present), deployment=row)
    (drift,) = option_drift(state, Options(replication=parse_replication(wanted)), MIGRATIONS)
    assert f" {order} this command again." in drift.remedy


@pytest.mark.parametrize(("home", "present"), [("dc1", 1), (None, 2)])
def test_a_keyspace_without_data_centres_gets_one_with_as_many_copies_first(home, present):
    row = replace(complete_state().deployment, home_dc=home)
    simple = {"replication_factor": present}
    state = complete_state(replication=simple, strategy="SimpleStrategy", deployment=row)
    (drift,) = option_drift(state, Options(replication={"dc1": 3}), MIGRATIONS)
    assert drift.cql[0].endswith(f"'NetworkTopologyStrategy', 'dc1': '{present}'}}")


def test_the_home_keeps_its_copies():
    """Nobody would have copied them elsewhere."""
    row = replace(complete_state().deployment, home_dc="dc2")
    with pytest.raises(ConfigError, match="no copies in dc2, the home"):
        plan(Options(replication={"dc1": 3}), complete_state(deployment=row), SETTINGS)


def test_after_the_operator_has_altered_it_the_new_option_is_recorded():
    state = complete_state(replication={"dc1": 1})
    assert [d.where for d in all_drift(state, MIGRATIONS)] == ["keyspace shop"]
    cql = statements(plan(Options(replication={"dc1": 1}), state, SETTINGS))
    assert len(cql) == 2
    assert '{"dc1": 1}' in cql[1]


def test_verify_names_what_is_missing():
    tables = dict(complete_state().tables)
    del tables["bodies"]
    tables["queues"] = replace(
        tables["queues"],
        columns={
            **{k: v for k, v in tables["queues"].columns.items() if k != "state"},
            "config": Column("int"),
        },
    )
    found = {drift.where: drift for drift in all_drift(complete_state(tables=tables), MIGRATIONS)}
    problems = {where: drift.problem for where, drift in found.items()}
    assert problems["table bodies"].startswith("does not exist")
    assert problems["column queues.state"] == "does not exist."
    (cql,) = found["column queues.state"].cql
    assert cql.startswith("ALTER TABLE shop.queues ADD state ")  # cqlsh has chosen no keyspace
    assert problems["column queues.config"] == "is int (regular), not text (regular)."


@pytest.mark.parametrize(
    ("changes", "where", "problem"),
    [
        ({"replication": None}, "keyspace shop", "does not exist"),
        ({"applied": {}}, f"migration {MIGRATIONS[0].name}", "has not been applied"),
        ({"applied": {1: Applied("01_post_core", "other")}}, "migration 01_post_core", "another content"),
        ({"deployment": None}, "table deployment", "no row"),
        ({"tables": {}}, "table schema_migrations", "does not exist"),
        ({"strategy": "SimpleStrategy"}, "keyspace shop", "SimpleStrategy"),
    ],
)
def test_verify_names_each_drift(changes, where, problem):
    found = [d for d in all_drift(complete_state(**changes), MIGRATIONS) if d.where == where]
    assert found
    assert problem in found[0].problem


def test_more_than_expected_is_no_drift():
    """Newer code may have added columns that this code does not mind."""
    tables = dict(complete_state().tables)
    tables["queues"] = replace(tables["queues"], columns={**tables["queues"].columns, "new": Column("int")})
    assert all_drift(complete_state(tables={**tables, "extra": Table({})}), MIGRATIONS) == []


def test_cassandra_s_additions_to_compaction_are_no_drift():
    full = {"class": "org.apache.cassandra.db.compaction.UnifiedCompactionStrategy", "max_threshold": "32"}
    tables = {
        name: table if name == "log" else replace(table, compaction=full)
        for name, table in complete_state().tables.items()
    }
    assert (
        option_drift(complete_state(tables=tables), Options(compaction=parse_compaction("ucs")), MIGRATIONS)
        == []
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: Options(gc_grace_s=10_800), "hint window"),
        (lambda: Options(settle_ms=0), "settle"),
        (lambda: Options(skew_ms=10**6), "skew"),
        (lambda: Options(skew_ms=199), "skew=199: from 200 to 10000 ms"),
        (lambda: Options(serial_consistency="quorum"), "local_serial or serial"),
        (lambda: Options(replication={"dc1": 0}), "1 to 99"),
        (lambda: parse_replication("dc1"), "dc1=3"),
        (lambda: parse_replication("dc1=x"), "dc1=3"),
        (lambda: parse_replication("dc1=²"), "dc1=3"),
        (lambda: Options(replication={}), "no data centre"),
        (lambda: parse_replication("dc1=1,dc1=2"), "twice"),
        (lambda: parse_compaction("fast"), "ucs, lcs, stcs"),
        (lambda: parse_compaction("[1]"), "object"),
        (lambda: parse_compaction('{"class": "A", "class": "B"}'), '"class" comes twice'),
        (lambda: parse_compaction('{"class": "A", "fanout": NaN}'), "NaN is no number"),
        (lambda: Options(compaction=parse_compaction("{}")), "needs a class"),
        (
            lambda: Options(compaction=parse_compaction('{"class": "a.TimeWindowCompactionStrategy"}')),
            "years ahead",
        ),
        (lambda: parse_compaction('{"class": {}}'), "must be text"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(options, message):
    with pytest.raises(ConfigError, match=message):
        options()


@pytest.mark.parametrize(
    ("replication", "message"),
    [("dc9=1", "There are: dc1, dc2"), ("dc1=9", "quorum"), ("dc2=1", "no copies in dc1")],
)
def test_replication_must_fit_the_cluster(replication, message):
    state = replace(EMPTY, nodes={"dc1": 3, "dc2": 3})
    with pytest.raises(ConfigError, match=message):
        plan(Options(replication=parse_replication(replication)), state, SETTINGS)


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ("Guardrail zero_ttl_on_twcs violated: 0 is not allowed. ", Refused, "this: 0 is not allowed. Have"),
        ("Unrecognized strategy option {dc9}", ConfigError, "refused `CREATE KEYSPACE shop …`: .*dc9"),
    ],
)
def test_a_guardrail_is_for_an_operator_and_a_wrong_option_for_the_caller(said, error, match):
    text = f'Error from server: code=2200 [Invalid query] message="{said}"'
    session = Mock(execute=Mock(side_effect=cassandra.InvalidRequest(text)))
    with pytest.raises(error, match=match):
        run(session, "CREATE KEYSPACE shop")
