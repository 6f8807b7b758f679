"""How statements of the schema that fail are told: done, not done, or unknown."""

import cassandra
import pytest

from cqueue.errors import ConfigError, OutcomeUnknown, Unavailable
from cqueue.schema.execute import run


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
