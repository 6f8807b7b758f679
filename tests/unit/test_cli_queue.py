"""`cqueue queue`: each command, its JSON, and what it says to mistakes."""

import io
import json
import signal
import sys
from dataclasses import fields
from datetime import timedelta
from types import SimpleNamespace

import pytest
import typer

from cqueue import QueueConfig, connect
from cqueue.cli import confirm as asking
from cqueue.cli import queue as commands
from cqueue.cli.context import CliContext
from cqueue.cli.interrupts import handled_by
from cqueue.cli.main import main
from cqueue.client import _shared_stores, inside
from cqueue.config import FIXED
from cqueue.errors import BadInput, Unavailable
from cqueue.runtime import catalog
from cqueue.store.operations import BumpDeployment, ChangeQueue, CreateQueue, ListQueues, ReadQueue
from cqueue.store.quarantine import Damage
from tests.faulty_store import FaultyStore

EVERYTHING = {
    "shards": 2,
    "time_shard": timedelta(minutes=1),
    "visibility": timedelta(seconds=5),
    "max_attempts": 7,
    "lease": timedelta(seconds=2),
    "max_shards": 8,
    "open_shards": 3,
    "derived_sends": True,
    "history": timedelta(days=7),
    "keyed": True,
}


def options(settings):
    for name, value in settings.items():
        if value is True:
            yield f"--{name.replace('_', '-')}"
            continue
        shown = f"{value.total_seconds()}s" if isinstance(value, timedelta) else value
        yield from (f"--{name.replace('_', '-')}", shown)


def option_names(command):
    group = typer.main.get_command(commands.app)
    return {param.name for param in group.commands[command].params if not getattr(param, "hidden", False)}


def test_create_takes_every_setting(cli, cli_url):
    """Whatever QueueConfig knows can be given, and arrives."""
    assert set(EVERYTHING) == {field.name for field in fields(QueueConfig)} <= option_names("create")
    assert cli("queue", "create", "q", *options(EVERYTHING)).code == 0
    with connect(cli_url) as client:
        assert client.queue("q").config == QueueConfig(**EVERYTHING)


def test_alter_takes_every_setting_that_is_not_fixed(cli, cli_url):
    alterable = {name: value for name, value in EVERYTHING.items() if name not in FIXED}
    assert option_names("alter") & set(EVERYTHING) == set(alterable)
    cli("queue", "create", "q")
    said = cli("--json", "queue", "alter", "q", *options(alterable))
    assert (said.code, said.json["visibility_ms"], said.json["max_attempts"]) == (0, 5000, 7)
    with connect(cli_url) as client:
        assert client.queue("q").config == QueueConfig(**alterable)


def test_a_history_is_turned_off_by_0s(cli, cli_url):
    """Nothing is kept any more; other settings stay."""
    cli("queue", "create", "q", "--history", "7d", "--shards", "8")
    said = cli("--json", "queue", "alter", "q", "--history", "0s")
    assert (said.code, said.json["history_ms"], said.json["shards"]) == (0, None, 8)
    assert cli("queue", "alter", "q", "--history", "5s").code == 2
    with connect(cli_url) as client:
        assert client.queue("q").config == QueueConfig(shards=8)


def test_alter_without_a_change_says_what_there_is(cli):
    cli("queue", "create", "q")
    said = cli("queue", "alter", "q")
    assert said.code == 2
    assert "--visibility" in said.err


def test_show_prints_the_whole_configuration(cli):
    cli("queue", "create", "orders")
    described = {
        "queue": "orders",
        "state": "active",
        "dead_letter_queue": "orders.dead",
        "shards": 4,
        "time_shard_ms": 30000,
        "visibility_ms": 30000,
        "max_attempts": 5,
        "lease_ms": 5000,
        "max_shards": 64,
        "open_shards": 1,
        "derived_sends": False,
        "history_ms": None,
        "keyed": False,
    }
    assert cli("queue", "show", "orders", "--json").json == described
    assert cli("--json", "queue", "list").json == [described]
    shown = cli("queue", "show", "orders").out
    assert "orders.dead" in shown
    assert "30s" in shown


def test_a_dead_letter_queue_has_none_of_its_own(cli):
    cli("queue", "create", "q")
    assert cli("--json", "queue", "show", "q.dead").json["dead_letter_queue"] is None
    assert "no limit" in cli("queue", "show", "q.dead").out


def test_list_shows_dead_letter_queues_when_asked(cli):
    assert cli("--json", "queue", "list").json == []
    assert "no queue yet" in cli("queue", "list").err
    cli("queue", "create", "b")
    cli("queue", "create", "a")
    assert [queue["queue"] for queue in cli("--json", "queue", "list").json] == ["a", "b"]
    names = [queue["queue"] for queue in cli("--json", "queue", "list", "--all").json]
    assert names == ["a", "a.dead", "b", "b.dead"]
    assert cli("queue", "list").out.splitlines()[1].split()[0] == "a"


def test_list_reads_no_queue_alone_though_some_are_being_changed(cli, cli_url, monkeypatch):
    """Each change makes clients forget what they know: to read 100,000 queues one by one takes minutes."""
    with connect(cli_url) as client:
        client.create_queue("a")
        store = client._driver.store
    read, handlers = [], store._handlers
    monkeypatch.setattr(catalog, "MAX_AGE_S", 0.0)  # each call looks whether anything was changed

    def list_and_change(operation, handle=handlers[ListQueues]):
        store.execute(BumpDeployment(store._deployment.changes))
        return handle(operation)

    def note(operation, handle=handlers[ReadQueue]):
        read.append(operation.name)
        return handle(operation)

    handlers.update({ListQueues: list_and_change, ReadQueue: note})
    assert [queue["queue"] for queue in cli("--json", "queue", "list").json] == ["a"]
    assert not read


def test_alter_says_that_it_keeps_what_is_not_given(cli):
    """A default in its help would be taken for what it sets."""
    for group in ("queue", "log"):
        altered = cli(group, "alter", "--help").out
        assert "by default" not in altered
        assert altered.count("kept if not given") >= 2
        assert "by default" in cli(group, "create", "--help").out


def test_pause_and_resume(cli):
    """A paused queue gives nothing and says so; sends go on."""
    cli("queue", "create", "q")
    assert cli("queue", "pause", "q", "--json").json["state"] == "paused"
    assert cli("send", "q", "x").code == 0
    said = cli("receive", "q")
    assert said.out == ""
    assert "Queue q is paused; `cqueue queue resume q`" in said.err
    assert "nothing" not in said.err
    assert cli("--json", "stats", "q").json[0]["state"] == "paused"
    assert cli("queue", "resume", "q", "--json").json["state"] == "active"
    assert cli("receive", "q").out == "x\n"


def test_purge_deletes_what_is_there_and_keeps_the_queue(cli):
    cli("queue", "create", "q")
    cli("send", "q", "now")
    cli("send", "q", "later", "--delay", "1h")
    assert cli("--json", "queue", "purge", "q", "--yes").json == {"queue": "q", "deleted": 2}
    assert cli("--json", "stats", "q", "--exact").json[0]["live"] == 0


def test_delete_deletes_messages_and_the_dead_letter_queue(cli):
    cli("queue", "create", "q")
    cli("send", "q", "x")
    assert cli("--json", "queue", "delete", "q", "-y").json == {"queue": "q", "deleted": 1}
    assert cli("--json", "queue", "list", "--all").json == []
    assert cli("queue", "delete", "q", "--yes").code == 2


@pytest.mark.parametrize(
    "line",
    [
        "queue delete q",
        "queue purge q",
        "log delete events",
        "subscription delete events billing",
        "dead drop q --all",
        "quarantine drop messages:00:0:0",
        "dc switch dc2",
        "dc resume-retiring --repaired",
        "dev wipe --dir none",
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",)], ids=str)
def test_without_anybody_to_ask_it_needs_yes(cli_on, line, options):
    """A script that forgot --yes hears so, whatever stands in its standard input, also of no cluster."""
    said = cli_on("cassandra://127.0.0.1:1/k?local_dc=dc1")(*line.split(), *options, stdin=b"y\n")
    assert (said.code, said.out) == (2, "")
    assert "Add --yes" in said.err


@pytest.mark.parametrize("options", [(), ("--json",)], ids=str)
def test_a_question_that_nobody_can_answer_is_not_asked(monkeypatch, options):
    """Not even by a command that forgot to look before: an answer in a file is nobody's."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(BadInput, match="Add --yes"):
        asking.confirm(CliContext(json=bool(options)), "Delete it?", yes=False)


@pytest.mark.parametrize(
    ("line", "fault"),
    [("dead drop q", "Say which letters"), ("dc resume-retiring", "Say --repaired or --given-up")],
)
def test_who_adds_yes_meets_no_other_fault(cli_on, line, fault):
    """Nobody confirms a command that is refused then."""
    said = cli_on("cassandra://127.0.0.1:1/k?local_dc=dc1")(*line.split())
    assert (said.code, said.out) == (2, "")
    assert fault in said.err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("line", "method"),
    [
        ("queue delete q", "cqueue.Client.delete_queue"),
        ("queue purge q", "cqueue.Queue.purge"),
        ("log delete events", "cqueue.Client.delete_log"),
    ],
)
def test_a_deletion_that_is_cut_off_says_that_the_same_command_goes_on(cli, monkeypatch, line, method, sent):
    cli("queue", "create", "q")
    cli("log", "create", "events")
    monkeypatch.setattr(method, lambda *_: signal.raise_signal(sent))
    with handled_by(lambda *_: None, sent):
        said = cli(*line.split(), "--yes")
    assert (said.code, said.err) == (130, "What is done stays done; the same command goes on.\n")


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("queue", "purge", "q"), "--yes"),
        (("send", "q", "-"), "input is closed"),
        (("send", "q", "--lines"), "input is closed"),
    ],
)
def test_a_process_without_standard_input_is_told_so(cli_url, monkeypatch, capsys, args, hint):
    """`<&-` in a shell closes it."""
    assert main(["--url", cli_url, "queue", "create", "q"]) == 0
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["--url", cli_url, *args]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "code"), [(True, 0), (False, 1), (EOFError(), 1), (KeyboardInterrupt(), 130)]
)
def test_the_answer_decides(cli, monkeypatch, answer, code):
    """Ctrl-D at the prompt is a no, and no Ctrl-C."""

    def confirm(question, *, err):
        assert "q" in question
        assert err, "the question is no result"
        if isinstance(answer, BaseException):
            try:
                raise answer
            except (EOFError, KeyboardInterrupt):  # as Typer
                raise typer.Abort from None
        return answer

    cli("queue", "create", "q")
    monkeypatch.setattr(typer, "confirm", confirm)
    on_terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(asking, "sys", on_terminal)
    assert cli("queue", "delete", "qq").err.endswith("Did you mean 'q'?\n"), "nobody is asked about it"
    said = cli("queue", "delete", "q")
    assert (said.code, said.err.endswith("Nothing was deleted.\n")) == (code, answer is not True)
    assert cli("queue", "show", "q").code == (2 if answer is True else 0)


def test_a_dead_letter_queue_is_not_deleted_alone(cli):
    cli("queue", "create", "q")
    said = cli("queue", "delete", "q.dead", "--yes")
    assert said.code == 2
    assert "purge" in said.err


@pytest.mark.parametrize(
    "args",
    [
        ("queue", "show", "oders"),
        ("queue", "alter", "oders", "--shards", "2"),
        ("queue", "delete", "oders", "--yes"),
        ("queue", "purge", "oders", "--yes"),
        ("queue", "pause", "oders"),
        ("queue", "resume", "oders"),
        ("send", "oders", "x"),
        ("send", "oders", "--lines"),
        ("receive", "oders"),
        ("peek", "oders"),
        ("stats", "oders"),
    ],
    ids=" ".join,
)
def test_a_mistyped_name_gets_the_nearest_one(cli, args):
    cli("queue", "create", "orders")
    said = cli(*args)
    assert (said.code, said.out) == (2, "")
    assert "Did you mean 'orders'?" in said.err
    assert "Traceback" not in said.err


def test_a_name_like_no_other_gets_a_way_on(cli):
    assert "there is none yet" in cli("queue", "show", "x").err
    cli("queue", "create", "orders")
    said = cli("queue", "show", "x")
    assert "cqueue queue list" in said.err
    assert "cqueue queue create x" in said.err


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("create", "a b"), "is not a queue name"),
        (("create", "[/x]"), "is not a queue name"),
        (("create", "q.dead"), "dead-letter"),
        (("create", "q", "--visibility", "1s"), "2 seconds to 12 hours"),
        (("create", "q", "--visibility", "soon"), "is not a duration"),
        (("create", "q", "--max-attempts", "1"), "2 or more"),
        (("create", "q", "--shards", "65"), "shards"),
        (("create", "q", "--time-shard", "7s"), "divides an hour"),
        (("create", "there"), "(--exist-ok) alone takes it as it is"),
        (("create", "there", "--exist-ok", "--shards", "1"), "another configuration: shards is 4, not 1"),
        (("alter", "there", "--shards", "0"), "shards"),
        (("alter", "there"), "--derived-sends, --history or --keyed."),
        (("alter", "there", "--max-shards", "9"), "fixed when a queue is made"),
        (("alter", "absent", "--time-shard", "1m"), "fixed when a queue is made"),  # before it is looked up
        (("show",), "QUEUE"),
        (("delet", "there"), "Did you mean 'delete'"),
    ],
)
def test_a_mistake_is_2_and_explained(cli, args, hint):
    cli("queue", "create", "there")
    said = cli("queue", *args)
    assert (said.code, said.out) == (2, "")
    assert hint in " ".join(said.err.replace("│", " ").split())
    assert "Traceback" not in said.err


def test_create_can_be_repeated_with_exist_ok(cli):
    assert [cli("queue", "create", "q", "--exist-ok").code for _ in range(2)] == [0, 0]
    cli("queue", "alter", "q", "--shards", "8")
    assert cli("queue", "create", "q", "--exist-ok", "--visibility", "30s").code == 0
    said = cli("queue", "create", "q", "--exist-ok", "--shards", "4")  # the default
    assert "shards is 8, not 4" in said.err


def test_errors_are_json_behind_the_command_too(cli):
    said = cli("queue", "show", "x", "--json")
    assert said.out == ""
    assert json.loads(said.err)["error"] == "QueueNotFound"


@pytest.mark.usefixtures("brief_pauses")
@pytest.mark.parametrize(
    ("args", "written"),
    [
        (("create", "new"), CreateQueue),
        (("alter", "mail", "--shards", "8"), ChangeQueue),
        (("pause", "mail"), ChangeQueue),
        (("resume", "mail"), ChangeQueue),
    ],
)
def test_a_change_that_cannot_be_shown_is_not_said_to_be_not_done(cli, cli_url, monkeypatch, args, written):
    """Nobody answers once it is stored."""
    cli("queue", "create", "mail")
    if args[0] == "resume":
        cli("queue", "pause", "mail")  # else there is nothing to store
    name, stored = cli_url.removeprefix("memory://"), []

    def around(operation, do):
        if stored and type(operation) is ReadQueue:
            raise Unavailable("away")
        if type(operation) is written and operation.row.name in args:
            stored.append(operation)
        return do()

    monkeypatch.setitem(_shared_stores, name, FaultyStore(_shared_stores[name], around=around))
    said = cli("queue", *args, "--json")
    assert (said.code, json.loads(said.err)["error"]) == (4, "OutcomeUnknown")
    assert "cannot be read" in said.err
    assert stored


def test_damaged_rows_of_a_queue_that_is_named_twice_are_looked_for_once(cli, monkeypatch):
    looks = []
    monkeypatch.setattr("cqueue.quarantine.look_at_queue", lambda _client, name: looks.append(name) or [])
    cli("queue", "create", "q")
    assert cli("quarantine", "list", "q", "q").code == 0
    assert looks == ["q"]


@pytest.mark.parametrize("rows", [2, 3])
def test_a_list_of_damaged_rows_that_is_full_says_so(cli, monkeypatch, rows):
    """An operator who drops all that is listed looks again."""

    def look(client, name):
        known = inside(client).quarantine
        for number in range(rows):
            known.report(Damage("shards", name, (name, 0, number, 0), "why"))
        return known.of("shards")

    monkeypatch.setattr("cqueue.store.quarantine.REMEMBERED", 3)
    monkeypatch.setattr("cqueue.quarantine.look_at_queue", look)
    cli("queue", "create", "q")
    said = cli("quarantine", "list", "q")
    assert (said.code, len(said.out.splitlines())) == (1, 2 * rows)
    assert ("There may be more: 3 are remembered" in said.err) == (rows == 3)
