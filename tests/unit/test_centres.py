"""Switches of the home whose answers are lost, or wrong; tests/acceptance/test_centres.py has the others."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from cassandra import ConsistencyLevel, InvalidRequest

from cqueue.errors import ConfigError, NotDone, OutcomeUnknown, SchemaMismatch, Unavailable
from cqueue.schema import read_centre, switch_home
from cqueue.settings import load

SETTINGS = load("cassandra://db4/shop?local_dc=dc2")


class Cluster:
    """The deployment row in two data centres, of which dc1 may be cut off.

    answer: what the switch gets, once it is stored: a value or an error. reads: the levels of all reads.
    falls_silent: reads fail from the switch on.
    """

    def __init__(self, monkeypatch, answer):
        self.answer = answer
        self.reads = []
        self.cut_off = False
        self.others = False
        self.falls_silent = self.is_silent = False
        self.row = SimpleNamespace(
            format=2, serial_consistency="local_serial", settle_ms=2000, skew_ms=500, gc_grace=86_400,
            changes=0, home_dc="dc1", centre_epoch=0, retiring=True, opens_at=None, centre_log={},
        )  # fmt: skip
        monkeypatch.setattr("cqueue.schema.centres.run", self.run)
        monkeypatch.setattr("cqueue.schema.centres.now_ms", lambda _: 1_000_000)

    def run(self, _session, cql, values=(), **options):
        if "system_schema" in cql:
            return [SimpleNamespace(replication={"dc1": "1", "dc2": "1"})]
        if cql.startswith("UPDATE"):
            self.is_silent = self.falls_silent
            home_dc, centre_epoch, opens_at, changes, log = values[:5]
            if self.others:
                home_dc, log = "dc3", {datetime(2026, 1, 1, tzinfo=UTC): '{"token": "of another"}'}
            self.row = SimpleNamespace(**vars(self.row) | {
                "home_dc": home_dc, "centre_epoch": centre_epoch, "opens_at": opens_at, "changes": changes,
                "centre_log": {at.replace(tzinfo=None): did for at, did in log.items()},
            })  # fmt: skip
            if isinstance(self.answer, Exception):
                raise self.answer
            return [(self.answer,)]
        self.reads.append(options["read_at"])
        if self.is_silent:
            raise Unavailable("no node answers")
        if self.cut_off and options["read_at"] == ConsistencyLevel.EACH_QUORUM:
            raise Unavailable("dc1 does not answer")
        return [self.row]

    def switch(self, **options):
        return switch_home(SimpleNamespace(session=None), SETTINGS, "dc2", **options).deployment.home_dc


def test_a_switch_is_found_only_where_each_data_centre_has_it(monkeypatch):
    """Its commit may have reached one alone: then clients of the old home would go on beside the new ones."""
    cluster = Cluster(monkeypatch, OutcomeUnknown("no answer"))
    assert cluster.switch() == "dc2"
    assert cluster.reads[-1] == ConsistencyLevel.EACH_QUORUM
    cluster = Cluster(monkeypatch, OutcomeUnknown("no answer"))
    cluster.cut_off = True
    with pytest.raises(OutcomeUnknown, match="cqueue dc show"):
        cluster.switch()


def test_a_switch_that_was_made_is_not_called_undone_because_nodes_fall_silent(monkeypatch):
    """An operator who reads that nothing was changed would start the clients of the old home again."""
    cluster = Cluster(monkeypatch, answer=True)
    cluster.falls_silent = True
    with pytest.raises(OutcomeUnknown, match="cqueue dc show"):
        cluster.switch()
    assert cluster.row.home_dc == "dc2"


def test_a_keyspace_that_is_not_there_is_said_to_be_none(monkeypatch):
    def run(*_, **__):
        raise ConfigError("refused") from InvalidRequest('code=2200 message="keyspace shop does not exist"')

    monkeypatch.setattr("cqueue.schema.centres.run", run)
    with pytest.raises(SchemaMismatch, match="cqueue schema apply"):
        read_centre(SimpleNamespace(session=None), SETTINGS)


def test_a_lost_data_centre_is_not_asked(monkeypatch):
    cluster = Cluster(monkeypatch, OutcomeUnknown("no answer"))
    cluster.cut_off = True
    assert cluster.switch(old_centre_lost=True) == "dc2"


@pytest.mark.parametrize("others", [False, True])
def test_a_switch_that_stands_was_made_whatever_its_answer(monkeypatch, others):
    """A request that was sent twice is "not applied" the second time; the record tells whose stands."""
    cluster = Cluster(monkeypatch, answer=False)
    cluster.others = others
    if others:
        with pytest.raises(NotDone, match="quicker"):
            cluster.switch()
    else:
        assert cluster.switch() == "dc2"
