"""The command line writes down who changed something, where the dashboard writes it."""

import json
import os
import pwd
import socket

import pytest

from cqueue import connect
from cqueue.audit import Trail
from cqueue.client import Client
from cqueue.errors import LogExists, OutcomeUnknown, Refused, Unavailable

ME = (pwd.getpwuid(os.getuid()).pw_name, socket.gethostname())


@pytest.fixture
def written_down(cli_url, cli_clock):
    """Read what was written down, the oldest first: (who, address, action, outcome, what it was done to)."""

    def read():
        cli_clock(3)
        with connect(cli_url) as client:
            found = reversed(Trail(client).read())
            return [(one.who, one.address, one.action, one.outcome, one.about) for one in found]

    return read


@pytest.fixture
def shop(cli_url, cli, written_down):
    """A queue with a dead letter and a schedule, and a log with a subscription."""
    assert cli("queue", "create", "mails").code == 0
    assert cli("schedule", "add", "mails", "digest", "--every", "1h").code == 0
    assert cli("log", "create", "events").code == 0
    with connect(cli_url) as client:
        client.queue("mails").send(b"4111")
        with client.queue("mails").consumer() as consumer:
            (message,) = consumer.receive()
            message.dead("too late")
        client.subscribe("events", name="billing", listeners=[print])
    assert written_down() == []


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("line", "action", "about"),
    [
        ("queue pause mails", "pause_queue", {"queue": "mails"}),
        ("queue resume mails", "resume_queue", {"queue": "mails"}),
        ("queue alter mails --lease 7s", "alter_queue", {"queue": "mails", "changes": {"lease_ms": 7000}}),
        ("queue purge mails --yes", "purge_queue", {"queue": "mails", "deleted": 1}),
        ("queue delete mails --yes", "delete_queue", {"queue": "mails"}),
        ("schedule pause mails digest", "pause_schedule", {"queue": "mails", "schedule": "digest"}),
        ("schedule resume mails digest", "resume_schedule", {"queue": "mails", "schedule": "digest"}),
        ("schedule run-now mails digest", "fire_schedule", {"queue": "mails", "schedule": "digest"}),
        ("schedule remove mails digest", "remove_schedule", {"queue": "mails", "schedule": "digest"}),
        ("log alter events --ttl 2d", "alter_log", {"log": "events", "changes": {"ttl_ms": 172_800_000}}),
        ("log delete events --yes", "delete_log", {"log": "events"}),
        (
            "subscription seek events billing latest --partition 1",
            "seek_subscription",
            {"log": "events", "subscription": "billing", "position": "latest", "partitions": [1]},
        ),
        (
            "subscription pause events billing",
            "pause_subscription",
            {"log": "events", "subscription": "billing"},
        ),
        (
            "subscription resume events billing",
            "resume_subscription",
            {"log": "events", "subscription": "billing"},
        ),
        (
            "subscription delete events billing --yes",
            "delete_subscription",
            {"log": "events", "subscription": "billing"},
        ),
    ],
)
def test_a_change_is_written_down(cli, written_down, line, action, about):
    assert cli(*line.split()).code == 0
    assert written_down() == [(*ME, action, "done", about)]


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("line", ["dead redrive mails --all", "dead drop mails --all --yes"])
def test_letters_are_written_down_with_what_became_of_them(cli, written_down, line):
    assert cli(*line.split()).code == 0
    ((*_, action, outcome, about),) = written_down()
    (letter,) = about.pop("ids")
    assert (action, outcome) == (f"{line.split()[1]}_letters", "done")
    assert about == {"queue": "mails", "all": True, "done": 1, "held": 0, "failed": 0}
    assert letter.startswith("AQ")


@pytest.mark.usefixtures("shop")
def test_a_redrive_of_held_letters_is_not_done(cli, cli_url, written_down):
    """As its exit code says; they were asked for, and stay."""
    with connect(cli_url) as client, client.queue("mails.dead").consumer() as consumer:
        assert consumer.receive()
        assert cli("dead", "redrive", "mails", "--all").code == 3
    ((*_, outcome, about),) = written_down()
    assert (outcome, about["done"], about["held"]) == ("not_done", 0, 1)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    "line",
    [
        "queue show mails",
        "queue pause nosuch",
        "queue delete nosuch --yes",
        "log delete nosuch --yes",
        "schedule pause mails nosuch",
        "schedule remove mails nosuch",
        "schedule run-now mails nosuch",
        "dead redrive mails --all --dry-run",
        "dead redrive mails --task nosuch",
        "dead drop mails --task nosuch --yes",
    ],
)
def test_what_changes_nothing_is_not_written_down(cli, cli_url, line):
    """Nor does it make the log."""
    cli(*line.split())
    with connect(cli_url) as client:
        assert client.logs() == ["events"]


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    "error", [Refused("no grant"), Unavailable("no grant"), OutcomeUnknown("no grant"), LogExists("no grant")]
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_cannot_be_written_down_is_done_and_says_so(cli, cli_url, monkeypatch, error, options):
    """A role without the right to make logs, or a log that is damaged or half deleted, stops nobody."""

    def fail(*_args, **_options):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Client, "create_log", fail)
        said = cli(*options, "queue", "pause", "mails")
    assert said.code == 0
    assert "The log cqueue.audit may not have this change" in said.err
    assert "no grant" in said.err
    with connect(cli_url) as client:
        assert client.queue("mails").paused


@pytest.mark.usefixtures("shop")
def test_the_environment_does_not_say_who_it_was(cli, written_down, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("USER", "ada")
    assert cli("queue", "pause", "mails").code == 0
    assert written_down()[0][:2] == ME


@pytest.mark.usefixtures("shop")
def test_an_interrupt_leaves_the_outcome_unknown(cli, written_down, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Client, "delete_queue", interrupted)
        assert cli("queue", "delete", "mails", "--yes").code == 130
    ((*_, action, outcome, _about),) = written_down()
    assert (action, outcome) == ("delete_queue", "unknown")


def test_no_record_holds_a_body(cli, cli_url, cli_clock, shop):  # noqa: ARG001 - makes what is purged
    cli("dead", "drop", "mails", "--all", "--yes")
    cli_clock(3)
    with connect(cli_url) as client, client.log("cqueue.audit").scan() as records:
        told = [json.loads(record.body) for record in records]
    assert [one["outcome"] for one in told] == ["begun", "done"]
    assert "4111" not in json.dumps(told)


def test_the_log_of_changes_can_be_deleted(cli, cli_url, written_down):
    """What became of its own deletion is not written down: that would make it anew."""
    assert cli("queue", "create", "mails").code == 0
    assert cli("queue", "pause", "mails").code == 0
    assert len(written_down()) == 1
    assert cli("log", "delete", "cqueue.audit", "--yes").code == 0
    with connect(cli_url) as client:
        assert client.logs() == []
