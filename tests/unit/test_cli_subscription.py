"""`cqueue subscription`: each command, its JSON, what it says to mistakes, and how a run ends."""

import json
import signal
import sys
import threading

import pytest

from cqueue import LogNotFound, Record, connect, ids
from cqueue.cli import subscription
from cqueue.log.protocol.spec import LogSpec
from cqueue.log.subscription import Subscription


@pytest.fixture(autouse=True)
def _stable_at_once(monkeypatch):
    """What is appended can be read at once: one process has no other appender to wait for."""
    monkeypatch.setattr(LogSpec, "horizon", lambda _, began_us: ids.highest_at(began_us))


@pytest.fixture(autouse=True)
def client(cli, cli_url):
    """A log called events with six records in two partitions, and a subscription called billing."""
    assert cli("log", "create", "events", "--partitions", "2").code == 0
    with connect(cli_url) as client:
        client.log("events").append_many([Record("t", b"%d" % n, partition=n % 2) for n in range(6)])
        client.subscribe("events", name="billing", listeners=[print])
        yield client


@pytest.fixture
def listeners(tmp_path, monkeypatch):
    """A module whose listener remembers records, and ends the run with a signal after six."""
    text = (
        "import signal, os\nseen = []\nnumber = 5\n"
        "def listen(record):\n"
        "    seen.append(record.body)\n"
        "    if len(seen) == 6:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "def fail(record):\n"
        "    raise ValueError(record.body)\n"
    )
    (tmp_path / "listening.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield "listening"
    sys.modules.pop("listening", None)


def test_list(cli):
    assert cli("--json", "subscription", "list", "events").json == ["billing"]
    assert cli("subscription", "list", "events").out == "billing\n"
    cli("log", "create", "other")
    assert cli("--json", "subscription", "list", "other").json == []
    assert "no subscription yet" in cli("subscription", "list", "other").err


def test_show_says_how_far_each_partition_is(cli):
    shown = cli("--json", "subscription", "show", "events", "billing").json
    assert {key: shown[key] for key in ("log", "subscription", "state", "members")} == {
        "log": "events",
        "subscription": "billing",
        "state": "active",
        "members": [],
    }
    assert [(row["partition"], row["lag"], row["member"]) for row in shown["partitions"]] == [
        (0, 3, None),
        (1, 3, None),
    ]
    sheet = cli("subscription", "show", "events", "billing").out
    assert "billing of events: active, 0 members" in sheet


def test_seek_moves_all_partitions_or_some(cli):
    def lags(*args):
        shown = cli("--json", "subscription", "seek", "events", "billing", *args).json
        return [row["lag"] for row in shown["partitions"]]

    assert lags("latest") == [0, 0]
    assert lags("earliest", "--partition", "1") == [0, 3]
    assert lags("1h") == [3, 3]
    assert "moved" in cli("subscription", "seek", "events", "billing", "latest").out


def test_pause_and_resume(cli, client):
    assert "is paused" in cli("subscription", "pause", "events", "billing").out
    assert cli("--json", "subscription", "show", "events", "billing").json["state"] == "paused"
    assert cli("--json", "subscription", "resume", "events", "billing").json["state"] == "active"
    assert not client.subscribe("events", name="billing", listeners=[print]).paused


def test_delete(cli):
    assert "Add --yes" in cli("subscription", "delete", "events", "billing").err
    assert cli("subscription", "list", "events").out == "billing\n"
    assert "is deleted" in cli("subscription", "delete", "events", "billing", "--yes").out
    assert cli("--json", "subscription", "list", "events").json == []


@pytest.mark.parametrize("command", [("show",), ("pause",), ("seek", "latest")])
def test_one_that_was_deleted_a_moment_ago_is_not_made_again(cli, client, command):
    """A member's heartbeat may come behind the deletion, so that the name is listed still."""
    member = client.subscribe("events", name="billing", listeners=[print])
    client.delete_subscription("events", "billing")
    member._member.heartbeat()
    name, *rest = command
    said = cli("subscription", name, "events", "billing", *rest)
    assert (said.code, "no subscription 'billing'" in said.err) == (2, True)
    with pytest.raises(LogNotFound):
        client.delete_subscription("events", "billing")
    member._member.leave()
    assert client.subscriptions("events") == []


@pytest.mark.parametrize(
    "command", [("show",), ("pause",), ("resume",), ("seek", "latest"), ("delete", "--yes")]
)
def test_a_mistyped_name_gets_the_nearest_one_and_makes_nothing(cli, command):
    name, *rest = command
    said = cli("subscription", name, "events", "biling", *rest)
    assert (said.code, "Did you mean 'billing'?" in said.err) == (2, True)
    said = cli("subscription", name, "evnts", "billing", *rest)
    assert (said.code, "Did you mean 'events'?" in said.err) == (2, True)
    assert cli("--json", "subscription", "list", "events").json == ["billing"]


def test_run_calls_listeners_until_a_signal(cli, listeners):
    """It ends after the call under way, with all that was done written down; exit code 0."""
    said = cli("subscription", "run", "events", "billing", f"{listeners}:listen")
    assert said.code == 0, said.err
    assert sorted(sys.modules[listeners].seen) == [b"%d" % n for n in range(6)]
    shown = cli("--json", "subscription", "show", "events", "billing").json
    assert [row["lag"] for row in shown["partitions"]] == [0, 0]
    assert shown["members"] == []


def test_run_logs_what_fails_in_the_form_that_is_asked_for(cli, listeners):
    """Lines go to standard error, as those of `cqueue dispatch`; in JSON what is told stands in fields."""
    targets = [f"{listeners}:listen", f"{listeners}:fail"]
    said = cli("subscription", "run", "events", "billing", *targets, "--max-attempts", "1", "--log", "json")
    assert said.code == 0, said.err
    lines = [json.loads(line) for line in said.err.splitlines() if line.startswith("{")]
    dead = [line for line in lines if line["event"] == "record_dead"]
    assert dead
    assert {(line["subscription"], line["listener"], line["attempt"]) for line in dead} == {
        ("billing", "fail", 1)
    }
    assert all("in fail" in line["exception"] for line in dead)


@pytest.mark.parametrize("begun", [True, False])
def test_a_signal_while_the_run_starts_ends_it_as_one_later_does(cli, listeners, monkeypatch, begun):
    """Records may be done before the thread that starts it goes on; or the run has not even begun."""
    stopped = threading.Event()

    class Interrupted(threading.Thread):
        def start(self):
            super().start()
            signal.raise_signal(signal.SIGTERM)

        def run(self):
            if begun or stopped.wait(10):
                super().run()

    def stop(self, real=Subscription.stop):
        real(self)
        stopped.set()

    monkeypatch.setattr("cqueue.cli.subscription.Thread", Interrupted)
    monkeypatch.setattr(Subscription, "stop", stop)
    said = cli("subscription", "run", "events", "fresh", f"{listeners}:listen", "--from", "latest")
    assert (said.code, "Stopping after the call under way" in said.err) == (0, True)
    assert stopped.is_set()


def test_a_signal_before_the_thread_is_there_waits_for_nothing(cli, listeners, monkeypatch):
    class Interrupted(threading.Thread):
        def start(self):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("cqueue.cli.subscription.Thread", Interrupted)
    assert cli("subscription", "run", "events", "fresh", f"{listeners}:listen").code == 130


def test_ctrl_c_ends_a_run_that_waits(cli, listeners, monkeypatch):
    def wait(ended, real=subscription._await):
        if not interrupted.is_set():
            threading.Thread(target=interrupt).start()
        real(ended)

    def interrupt():
        interrupted.set()
        signal.raise_signal(signal.SIGINT)

    interrupted = threading.Event()
    monkeypatch.setattr(subscription, "_await", wait)
    said = cli("subscription", "run", "events", "fresh", f"{listeners}:listen", "--from", "latest")
    assert (said.code, "Stopping after the call under way" in said.err) == (0, True)


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("nowhere:listen",), "no module"),
        (("listening:lisen",), "Did you mean 'listen'?"),
        (("listening",), "write listening:NAME"),
        (("listening.listen",), "Did you mean 'listening:listen'?"),
        (("listening:number",), "is not a function"),
        (("listening:listen", "--partition", "2"), "the log has 0 to 1"),
        (("listening:listen", "--max-attempts", "-1"), "max_attempts"),
        (("listening:listen", "--from", "soon"), "is not a position"),
    ],
)
@pytest.mark.usefixtures("listeners")
def test_a_run_of_what_cannot_be_is_2(cli, args, hint):
    said = cli("subscription", "run", "events", "fresh", *args)
    assert (said.code, hint in " ".join(said.err.replace("│", " ").split())) == (2, True), said.err
    assert cli("--json", "subscription", "list", "events").json == ["billing"]
