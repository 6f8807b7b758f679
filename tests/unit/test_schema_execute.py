"""How statements of the schema that fail are told: done, not done, or unknown."""

from unittest.mock import Mock

import cassandra
import pytest

from cqueue.errors import ConfigError, OutcomeUnknown, Unavailable
from cqueue.schema import bootstrap
from cqueue.schema.execute import run
from cqueue.settings import load


class Failing:
    """A session whose statements fail."""

    def __init__(self, error):
        self.error = error

    def execute(self, *_args, **_options):
        raise self.error


@pytest.mark.parametrize(
    ("cql", "error", "expected"),
    [
        ("SELECT * FROM k.deployment", cassandra.ReadFailure("failed", consistency=1), Unavailable),
        ("SELECT * FROM k.deployment", cassandra.ReadTimeout("late", consistency=1), Unavailable),
        ("SELECT * FROM k.deployment", cassandra.OperationTimedOut(), Unavailable),
        ("ALTER TABLE k.t ADD c int", cassandra.OperationTimedOut(), OutcomeUnknown),
        ("UPDATE k.t SET a = 1", cassandra.WriteTimeout("late", consistency=1, write_type=0), OutcomeUnknown),
        ("UPDATE k.t SET a = 1", cassandra.Unavailable("too few", consistency=1), Unavailable),
        ("SELEC", cassandra.InvalidRequest("no"), ConfigError),
    ],
)
def test_a_failed_read_changes_nothing_and_a_failed_write_may_have(cql, error, expected):
    """Whatever the driver calls it."""
    with pytest.raises(expected) as raised:
        run(Failing(error), cql)
    assert type(raised.value) is expected


def test_verify_waits_for_a_node_that_was_away(monkeypatch):
    """It does not know the newest tables yet: verify named them as missing, and how to make them."""
    agreed = []
    monkeypatch.setattr(bootstrap, "read_state", lambda *_: Mock())
    monkeypatch.setattr(bootstrap, "all_drift", lambda *_: [] if agreed else ["the newest table is missing"])
    monkeypatch.setattr(bootstrap, "await_agreement", agreed.append)
    assert bootstrap.verify("the cluster", load("cassandra://h/k?local_dc=dc")) == []
    assert agreed == ["the cluster"]


def test_verify_tells_what_it_found_where_nodes_do_not_agree(monkeypatch):
    """A node of another data centre may stay away for days."""

    def disagreeing(_connection):
        raise Unavailable("The nodes did not agree on a schema within 60 s.")

    monkeypatch.setattr(bootstrap, "read_state", lambda *_: Mock())
    monkeypatch.setattr(bootstrap, "all_drift", lambda *_: ["a table is missing"])
    monkeypatch.setattr(bootstrap, "await_agreement", disagreeing)
    assert bootstrap.verify("the cluster", load("cassandra://h/k?local_dc=dc")) == ["a table is missing"]
