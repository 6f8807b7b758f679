"""The home of a keyspace on a real Cassandra: who may connect, and how it is moved."""

import json
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

import cqueue
from cqueue.cli.main import main
from cqueue.errors import ConfigError, NotDone, OutcomeUnknown, Unavailable, WrongDataCentre
from cqueue.schema import check_deployment, read_centre, resume_retiring, switch_home
from cqueue.schema.deployment import now_ms
from cqueue.schema.execute import run

pytestmark = pytest.mark.cassandra

HERE = "datacenter1"
BUSY_S = 10
"""What this machine may take on top: with two seconds less than the 15 for which a switch waits."""


@pytest.fixture
def away(connection, keyspace):
    """A keyspace whose home is another data centre, and of which nothing was decided."""
    move(connection, keyspace, "elsewhere", 0)
    return keyspace


@pytest.fixture
def waits(monkeypatch):
    """How long each connect would have waited."""
    slept = []
    monkeypatch.setattr("cqueue.schema.deployment.time", SimpleNamespace(sleep=slept.append))
    return slept


def move(connection, made, home, epoch):
    """Another home, by nobody's decision."""
    columns = "home_dc = %s, centre_epoch = %s, retiring = null, opens_at = null, centre_log = {}"
    cql = f"UPDATE {made.name}.deployment SET {columns} WHERE name = 'cqueue' IF EXISTS"  # noqa: S608
    connection.session.execute(cql, (home, epoch))


@pytest.mark.feature
def test_a_client_elsewhere_is_refused_at_connect(connection, away):
    """It is told where clients work, and what to do; it writes nothing."""
    before = read_centre(connection, away.settings)
    with pytest.raises(WrongDataCentre, match="work in data centre elsewhere"):
        cqueue.connect(away.url)
    assert read_centre(connection, away.settings) == before


def test_a_client_that_runs_is_refused_within_two_seconds(connection, keyspace):
    """Once the row says that its data centre is not the home any more."""
    move(connection, keyspace, HERE, 0)
    with cqueue.connect(keyspace.url) as client:
        queue = client.create_queue("q")
        queue.send(b"in time")
        move(connection, keyspace, "elsewhere", 1)
        with pytest.raises(WrongDataCentre):
            send_for(queue, 2 + BUSY_S)


def send_for(queue, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        queue.send(b"perhaps")


@pytest.mark.feature
def test_a_switch_moves_the_home_and_is_recorded(connection, away, waits):
    """Who, when, from where to where and why. Nothing is retired any more, and clients may connect here."""
    changes = read_centre(connection, away.settings).deployment.changes
    before = time.time()
    switch_home(connection, away.settings, HERE, reason="fire in elsewhere")
    centre = read_centre(connection, away.settings)
    row = centre.deployment
    assert (row.home_dc, row.centre_epoch, row.retiring, row.changes) == (HERE, 1, False, changes + 1)
    (decision,) = centre.decisions
    assert abs(decision.at.timestamp() - before) < 60
    said = {name: decision.did[name] for name in ("what", "from", "to", "epoch", "reason", "old_centre_lost")}
    assert said == {
        "what": "switch",
        "from": "elsewhere",
        "to": HERE,
        "epoch": 1,
        "reason": "fire in elsewhere",
        "old_centre_lost": False,
    }
    assert "@" in decision.did["who"]
    cqueue.connect(away.url).close()
    assert 5 < waits[0] <= 15


@pytest.mark.parametrize("lost", [False, True])
def test_clients_wait_while_those_of_the_old_home_stop(connection, away, waits, monkeypatch, lost):
    """15 seconds from the switch on; then no more."""
    switch_home(connection, away.settings, HERE, old_centre_lost=lost)
    check_deployment(connection.session, away.settings)
    assert 5 < waits.pop() <= 15
    now = now_ms(connection.session)
    monkeypatch.setattr("cqueue.schema.deployment.now_ms", lambda _: now + 15_000)
    check_deployment(connection.session, away.settings)
    assert waits == []


def test_of_two_switches_at_once_one_succeeds(connection, away, monkeypatch):
    """The other one changes nothing, and says so."""
    real = now_ms

    def another_is_quicker(session):
        monkeypatch.setattr("cqueue.schema.centres.now_ms", real)
        switch_home(connection, away.settings, HERE, reason="first")
        return real(session)

    monkeypatch.setattr("cqueue.schema.centres.now_ms", another_is_quicker)
    with pytest.raises(NotDone, match="quicker"):
        switch_home(connection, away.settings, HERE, reason="second")
    centre = read_centre(connection, away.settings)
    assert [decision.did["reason"] for decision in centre.decisions] == ["first"]
    assert centre.deployment.centre_epoch == 1


def losing(monkeypatch, *, executed, readable=True):
    """The answer to the next conditional mutation is lost."""

    def lossy(session, cql, values=(), **options):
        if cql.startswith("UPDATE"):
            if executed:
                run(session, cql, values, **options)
            if not readable:
                monkeypatch.setattr("cqueue.schema.centres.run", refused)
            raise OutcomeUnknown("no answer")
        return run(session, cql, values, **options)

    def refused(*_args, **_options):
        raise Unavailable("no node answers")

    monkeypatch.setattr("cqueue.schema.centres.run", lossy)


def test_a_switch_whose_answer_is_lost_is_found_out(connection, away, monkeypatch):
    """By a serial read: it was made."""
    losing(monkeypatch, executed=True)
    assert switch_home(connection, away.settings, HERE).deployment.home_dc == HERE


def test_a_switch_that_cannot_be_found_is_unknown(connection, away, monkeypatch):
    """It may be on its way still; repeated, it is made once."""
    with monkeypatch.context() as patch:
        losing(patch, executed=False)
        with pytest.raises(OutcomeUnknown, match="not stored as yet"):
            switch_home(connection, away.settings, HERE)
    switch_home(connection, away.settings, HERE)
    assert len(read_centre(connection, away.settings).decisions) == 1


def test_a_switch_that_nobody_can_look_up_is_unknown(connection, away, monkeypatch):
    """And says how to find out."""
    losing(monkeypatch, executed=True, readable=False)
    with pytest.raises(OutcomeUnknown, match="cqueue dc show"):
        switch_home(connection, away.settings, HERE)


def test_what_is_no_switch_is_refused(connection, away, new_keyspace):
    """Another place than where it is run, the home itself, no copies there, no home at all."""
    settings = away.settings
    with pytest.raises(ConfigError, match="run it with local_dc=third"):
        switch_home(connection, settings, "third")
    with pytest.raises(ConfigError, match="no copies in third"):
        switch_home(connection, replace(settings, local_dc="third"), "third")
    with pytest.raises(ConfigError, match="work in elsewhere already"):
        switch_home(connection, settings, "elsewhere")
    everywhere = new_keyspace(serial_consistency="serial")
    with pytest.raises(ConfigError, match="it has no home"):
        switch_home(connection, everywhere.settings, HERE)
    assert read_centre(connection, settings).decisions == ()


@pytest.mark.parametrize("repaired", [True, False])
def test_retiring_resumes_when_the_operator_says_so(connection, away, repaired):
    """Recorded, and only from within the home, after a switch."""
    with pytest.raises(WrongDataCentre):
        resume_retiring(connection, away.settings, repaired=repaired)
    switch_home(connection, away.settings, HERE)
    centre = resume_retiring(connection, away.settings, repaired=repaired, reason="done")
    assert centre.deployment.retiring
    assert centre.decisions[-1].did["repaired"] is repaired
    with pytest.raises(ConfigError, match="nothing to resume"):
        resume_retiring(connection, away.settings, repaired=repaired)


@pytest.mark.usefixtures("waits")
def test_partitions_are_kept_until_retiring_resumes(connection, new_keyspace):
    """After a switch an empty wide row stays registered; then it is dropped as ever."""
    made = new_keyspace(settle_ms=200, skew_ms=200)
    move(connection, made, "elsewhere", 0)
    switch_home(connection, made.settings, HERE, old_centre_lost=True)
    with cqueue.connect(made.url) as client:
        queue = client.create_queue("q", cqueue.QueueConfig(time_shard=timedelta(seconds=1)))
        with queue.consumer() as consumer:
            queue.send(b"x")
            consumer.ack(consumer.receive(10, wait=timedelta(seconds=60)))
            assert consumer.receive(10, wait=timedelta(seconds=4)) == []
            assert registered(connection, made)  # two, if a slow send was repeated
            resume_retiring(connection, made.settings, repaired=True)
            deadline = time.monotonic() + 20
            while registered(connection, made):
                assert time.monotonic() < deadline
                assert consumer.receive(10, wait=timedelta(seconds=1)) == []


def registered(connection, made):
    cql = f"SELECT queue FROM {made.name}.shards WHERE epoch > 0 ALLOW FILTERING"  # noqa: S608
    return len([row for row in connection.session.execute(cql) if row.queue.startswith("q@")])


@pytest.mark.feature
def test_the_command_line_shows_and_moves_it(capsys, away):
    """`show`, a switch that has to be confirmed, its remarks, and the end of the pause."""

    def cqueue_dc(*args):
        code = main(["--url", away.url, *args])
        return code, *capsys.readouterr()

    assert cqueue_dc("dc", "show")[1].startswith("home       elsewhere\n")
    code, _, said = cqueue_dc("dc", "switch", HERE)
    assert code == 2
    assert "Add --yes" in said
    code, out, said = cqueue_dc("dc", "switch", HERE, "--old-centre-lost", "--reason", "flood", "--yes")
    assert code == 0
    assert f"switch elsewhere → {HERE} (old centre lost): flood" in out
    assert "Stop every one of them" in said
    assert "resume-retiring" in said
    assert cqueue_dc("dc", "resume-retiring", "--yes")[0] == 2
    assert cqueue_dc("dc", "resume-retiring", "--given-up", "--yes")[0] == 0
    shown = json.loads(cqueue_dc("--json", "dc", "show")[1])
    assert (shown["home"], shown["epoch"], shown["retiring"]) == (HERE, 1, True)
    assert [one["what"] for one in shown["decisions"]] == ["switch", "resume retiring"]
