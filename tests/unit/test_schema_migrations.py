"""Reading, filling in and adding up migration files."""

import pytest

from cqueue.errors import ConfigError
from cqueue.schema import migrations
from cqueue.schema.migrations import (
    fill_in,
    load_migrations,
    map_literal,
    split_statements,
    text_literal,
)
from cqueue.schema.model import Column, tables_of

VALUES = {"replication": "{}", "compaction": map_literal({"class": "X"}), "gc_grace": "86400"}


def write(directory, **files):
    for name, text in files.items():
        (directory / f"{name.removeprefix('m')}.cql").write_text(text, encoding="utf-8")
    return load_migrations(directory)


def test_the_real_migrations_can_be_repeated():
    """Every statement is harmless when repeated; the parser knows no form that is not."""
    statements = [s for m in load_migrations() for s in m.render(VALUES)]
    tables = tables_of(statements + statements)
    assert {"messages", "bodies", "shards", "queues", "deployment"} <= set(tables)


def test_a_connect_splits_no_statement(monkeypatch):
    """It goes by the names, and has no use for the text of thirteen files."""

    def split(_):
        raise AssertionError

    monkeypatch.setattr(migrations, "split_statements", split)
    assert load_migrations()[0].name == "01_post_core"


def test_the_key_of_messages():
    messages = tables_of(s for m in load_migrations() for s in m.render(VALUES))["messages"]
    assert messages.columns["time_shard"] == Column("bigint", "partition_key", 1)
    assert messages.columns["id"] == Column("timeuuid", "clustering", 2, "asc")
    assert messages.columns["headers"] == Column("frozen<map<text, text>>")
    assert messages.compaction == {"class": "X"}
    assert messages.gc_grace_s == 86_400


def test_statements_are_split_where_they_end():
    """Semicolons, comments and quotes within each other do not confuse it."""
    text = "a -- ; '\n b; /* ; */ INSERT 'x;--''\n\ny' ; // z\n \"c;d\" {'k': 'v'};;"
    assert split_statements(text) == ("a\n b", "INSERT 'x;--''\n\ny'", "\"c;d\" {'k': 'v'}")


def test_comments_and_white_space_do_not_change_a_checksum(tmp_path):
    (first,) = write(tmp_path, m01_pre_a="UPDATE a SET b = 'c  d';")
    (second,) = write(tmp_path, m01_pre_a="-- why\nUPDATE  a\n\n  SET b = 'c  d'")
    (third,) = write(tmp_path, m01_pre_a="UPDATE a SET b = 'c d';")
    assert first.checksum == second.checksum
    assert first.checksum != third.checksum


def test_placeholders():
    assert (
        fill_in("WITH c = {compaction} AND m = {'k': 'v'}", VALUES)
        == "WITH c = {'class': 'X'} AND m = {'k': 'v'}"
    )
    with pytest.raises(ConfigError, match="nosuch"):
        fill_in("{nosuch}", VALUES)


def test_literals_are_quoted():
    assert text_literal("it's") == "'it''s'"
    assert map_literal({"class": "X", "dc1": 3}) == "{'class': 'X', 'dc1': '3'}"


@pytest.mark.parametrize("name", ["1_pre_a", "01_a", "01_mid_a", "01_pre_A"])
def test_malformed_names_are_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="not a migration"):
        write(tmp_path, **{name: "x"})


@pytest.mark.parametrize("names", [["m02_pre_a"], ["m01_pre_a", "m03_pre_b"], ["m01_pre_a", "m01_post_b"]])
def test_numbers_have_no_gaps(tmp_path, names):
    with pytest.raises(ConfigError, match="missing or there twice"):
        write(tmp_path, **dict.fromkeys(names, "x"))


def test_tables_add_up():
    """Later statements change what earlier ones made."""
    tables = tables_of(
        [
            (
                "CREATE TABLE IF NOT EXISTS t (a int, b text STATIC, c frozen<map<text,int>>, d int,"
                " PRIMARY KEY ((a), d)) WITH CLUSTERING ORDER BY (d DESC) AND gc_grace_seconds = 5"
            ),
            "ALTER TABLE t ADD IF NOT EXISTS e set<text>",
            "ALTER TABLE t ADD IF NOT EXISTS (f int, g map<text, text>)",
            "ALTER TABLE t WITH gc_grace_seconds = 6",
            "ALTER TABLE dropped WITH gc_grace_seconds = 6",
            "CREATE TABLE IF NOT EXISTS t (z int PRIMARY KEY)",
            "INSERT INTO t (a) VALUES (1)",
        ]
    )
    assert set(tables) == {"t"}
    assert tables["t"].gc_grace_s == 6
    assert tables["t"].columns == {
        "a": Column("int", "partition_key", 0),
        "b": Column("text", "static"),
        "c": Column("frozen<map<text, int>>"),
        "d": Column("int", "clustering", 0, "desc"),
        "e": Column("set<text>"),
        "f": Column("int"),
        "g": Column("map<text, text>"),
    }


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (a int PRIMARY KEY)",
        "ALTER TABLE t ADD a int",
        "DROP TABLE t",
        "TRUNCATE t",
        "CREATE TABLE",
    ],
)
def test_statements_that_cannot_be_repeated_are_refused(statement):
    """A process may stop between a statement and its record; then it runs again."""
    with pytest.raises(ConfigError, match="cannot contain"):
        tables_of([statement])
