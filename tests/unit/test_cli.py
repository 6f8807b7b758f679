"""The shell of the command line: exit codes, where output goes, how quickly it starts."""

import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from typing import Annotated

import pytest
import typer

from cqueue import errors, schema
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode, exit_code
from cqueue.cli.groups import ENTRIES
from cqueue.cli.interrupts import handled_by
from cqueue.cli.main import main
from cqueue.cli.options import number
from cqueue.runtime import tls

DOWN = "cassandra://127.0.0.1:1/k?local_dc=dc1"


def test_help_names_every_group(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(entry.name in shown for entry in ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_entry_leads_to_a_command(entry):
    assert entry.load().name == entry.name


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("cqueue ")


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["shema"], "Did you mean 'schema'"),
        (["schema", "aply"], "Did you mean 'apply'"),
        (["queue", "list", "-v"], "-v goes before the command: cqueue -v … queue …"),
        (["queue", "list", "--url=x"], "--url goes before the command"),
        (["schema", "plan", "--gc-grace", "x"], "--gc-grace"),
        (["queue", "create"], "Try 'cqueue queue create --help' for help."),
        (["set-priority", "-1", "aaaa"], "No such option: -1. Write -- before an argument"),
        (["set-priority", "3", "aaaa", "-q"], "No such option: -q\n"),
        (["set-priority", "--", "-1", "aaaa"], "from 0 (most urgent) to 9"),
    ],
)
def test_wrong_usage_is_2_and_says_what_was_meant(capsys, args, hint):
    assert main(args) == ExitCode.USAGE
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.SchemaMismatch("x"), 2),
        (errors.Unavailable("x"), 3),
        (errors.DevError("x"), 3),
        (errors.SendUnknown("x"), 4),
        (errors.LeaseLost("x"), 5),
        (KeyboardInterrupt(), 130),
        (RuntimeError("x"), 70),
    ],
)
def test_each_family_of_errors_has_its_code(error, code):
    assert exit_code(error) == code


def test_not_done_is_3_without_a_traceback(capsys):
    assert main(["--url", DOWN, "schema", "verify"]) == ExitCode.NOT_DONE
    out, err = capsys.readouterr()
    assert out == ""
    assert "can be reached (Connection refused). Is Cassandra running?" in err
    assert "`cqueue dev start`" in err, "nobody but this machine's user can start it"
    assert "Traceback" not in err


def test_a_node_that_hangs_is_waited_for_once(capsys, monkeypatch):
    """A look at whether it speaks TLS would hang as long as the driver has."""
    looked = []
    monkeypatch.setattr(tls, "wrong", lambda *given: looked.append(given))
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"cassandra://127.0.0.1:{hanging.getsockname()[1]}/k?local_dc=dc1&connect_timeout=0.2"
        assert main(["--url", url, "schema", "verify"]) == ExitCode.NOT_DONE
    assert "can be reached (Timed out creating connection (0.2 seconds))." in capsys.readouterr().err
    assert looked == []


def test_verbose_shows_the_traceback(capsys):
    assert main(["--verbose", "--url", DOWN, "schema", "verify"]) == ExitCode.NOT_DONE
    assert "Traceback" in capsys.readouterr().err


def test_errors_are_json_too(capsys):
    main(["--json", "--url", DOWN, "schema", "verify"])
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err)["error"] == "Unavailable"
    assert json.loads(err)["exit_code"] == 3


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["--json", "send", "q", "x", "--delay", "zz"], "--delay"),
        (["send", "q", "x", "--delay", "zz", "--json"], "--delay"),
        (["--json", "send", "q", "x", "--header", "=x"], "write NAME=VALUE"),
        (["--json", "send"], "QUEUE"),
        (["--json", "shema"], "schema"),
        (["--json", "queue", "create", "q", "--nosuch"], "--nosuch"),
        (["queue", "list", "--nosuch", "--json"], "--nosuch"),
        (["queue", "lst", "--json"], "list"),
        (["--nosuch", "--json", "queue", "list"], "--nosuch"),
    ],
)
def test_wrong_usage_is_json_too(capsys, args, hint):
    """Wherever --json stands."""
    assert main(args) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert (out, json.loads(err)["error"], json.loads(err)["exit_code"]) == ("", "BadInput", 2)
    assert hint in json.loads(err)["message"]


def test_wrong_options_need_no_cluster(capsys):
    """They are found before anything is sent."""
    assert main(["--url", DOWN, "schema", "apply", "--gc-grace", "5"]) == ExitCode.USAGE
    assert "hint window" in capsys.readouterr().err


def test_roles_are_printed_for_cqlsh_without_a_cluster(capsys):
    assert main(["--url", DOWN, "schema", "roles"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("-- ") or line.endswith(";") for line in lines)
    assert any(line.startswith("GRANT MODIFY ON ") and line.endswith("_producer;") for line in lines)


def test_apply_that_alters_nothing_does_not_say_that_nothing_is_to_do(capsys, monkeypatch):
    """Where the keyspace differs from the options, the operator has statements to run."""
    drift = schema.Drift("table messages", "has gc_grace_seconds 86400", cql=("ALTER TABLE …",))
    monkeypatch.setattr(CliContext, "connection", lambda _: nullcontext())
    for found, code, said in (((drift,), 1, "nothing altered"), ((), 0, "nothing to do")):
        applied = schema.Applied((), found, ())
        monkeypatch.setattr(schema, "apply", lambda *_, applied=applied, **__: applied)
        assert main(["--url", DOWN, "schema", "apply"]) == code
        assert said in capsys.readouterr().out


def test_an_offline_plan_needs_no_cluster(capsys):
    assert main(["--url", DOWN, "schema", "plan", "--offline", "--replication", "dc1=3"]) == 0
    out, err = capsys.readouterr()
    assert "CREATE KEYSPACE IF NOT EXISTS k " in out
    assert err == ""


@pytest.mark.parametrize("option", ["--replication", "--compaction", "--serial-consistency"])
def test_an_option_of_the_schema_without_a_value_is_refused(option, capsys):
    """An empty variable of a shell must not stand for the default."""
    assert main(["--url", DOWN, "schema", "plan", "--offline", option, ""]) == ExitCode.USAGE
    assert f"{option[2:].replace('-', ' ')} ''" in capsys.readouterr().err


def test_emit_prints_json_or_text(capsys):
    CliContext(json=True).emit({"a": (1, 2)}, "human")
    CliContext().emit({"a": 1}, "human")
    CliContext().emit({"a": 1}, lambda: "made")
    assert capsys.readouterr().out == '{"a": [1, 2]}\nhuman\nmade\n'


def test_texts_that_look_like_markup_are_printed_as_they_are(capsys):
    """Keys, addresses and names of files are anybody's."""
    cli, text = CliContext(), "cassandra://[fe80::1]:9042/shop: [/x] [red] :bug: 1"
    cli.emit({}, text)
    cli.line(text)
    cli.remark(text)
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"{text}\n" * 2, f"{text}\n")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("cqueue.dev.DevCluster.start", ["dev", "start"]),
        ("cqueue.bench.setup.open_bench", ["--url", "memory://", "bench", "floor"]),
        ("cqueue.demo.cassandra.apply_schema", ["--url", "memory://", "demo"]),
    ],
)
def test_what_makes_queues_or_nodes_for_itself_ends_as_by_ctrl_c(monkeypatch, place, words, sent):
    """Then all of it is gone again: after `kill`, after `timeout`, and where the terminal is closed."""
    monkeypatch.setattr(place, lambda *_, **__: signal.raise_signal(sent))
    with handled_by(lambda *_: None, sent):
        assert main(words) == ExitCode.INTERRUPTED


def test_a_ctrl_c_while_the_command_is_imported_is_told_in_a_word():
    """No traceback: the user has seen nothing of the command yet."""
    code = """
import signal, sys
from cqueue.__main__ import run
class Slow:
    def find_spec(name, *_):
        name == "typer" and signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Slow)
run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


def test_python_m_cqueue_is_the_command():
    done = subprocess.run([sys.executable, "-m", "cqueue", "--version"], capture_output=True, check=False)
    assert done.stdout.startswith(b"cqueue ")


def at_a_prompt(error):
    """Typer makes an error of its own of what ends a prompt."""
    aborted = typer.Abort()
    aborted.__context__ = error
    return aborted


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (KeyboardInterrupt(), 130, "Interrupted."),
        (at_a_prompt(KeyboardInterrupt()), 130, "Interrupted."),
        (at_a_prompt(EOFError()), 1, "Aborted."),
    ],
)
def test_a_ctrl_c_is_told_in_a_word(cli, monkeypatch, error, code, word):
    """With --json in an object, as an error is."""

    def ended(*_args, **_options):
        raise error

    monkeypatch.setattr("cqueue.client.connect", ended)
    said = cli("stats")
    assert (said.code, said.err) == (code, f"{word}\n")
    if code == 130:
        assert json.loads(cli("--json", "stats").err)["exit_code"] == 130


def test_an_option_is_its_type_and_its_help(capsys):
    """A command's function says what it takes; the type says how people write it."""
    app, called = typer.Typer(), []

    @command(app)
    def probe(
        cli: CliContext,
        name: Annotated[str, "NAME", "An argument."],
        *,
        all_: Annotated[bool, "A flag."] = False,
        wait: Annotated[timedelta | None, "A duration."] = None,
        start: Annotated[str | None, "--from POSITION", "Another name."] = None,
        rate: Annotated[int, number("A range.", 1, 9)] = 2,
    ) -> None:
        called.append((cli.json, name, all_, wait, start, rate))

    run = typer.main.get_command(app)
    for words in (["x", "--all", "--wait", "5m", "--from", "here", "--rate", "9", "--json"], ["x"]):
        run.main(words, standalone_mode=False)
    assert called == [(True, "x", True, timedelta(minutes=5), "here", 9), (False, "x", False, None, None, 2)]
    run.main(["--help"], standalone_mode=False)
    shown = capsys.readouterr().out
    for text in ("NAME", "DURATION", "--from", "POSITION", "--all"):
        assert text in shown
    assert "--no-all" not in shown
    assert not re.search(r"<[a-z]", shown)  # no <bool>, as if it took a value


def test_help_says_on_a_narrow_terminal_how_a_url_is_written(capsys, monkeypatch):
    """A word longer than its column is cut."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    assert "cassandra://HOST/KEYSPACE?local_dc=DC" in capsys.readouterr().out


def test_help_names_both_forms_of_a_flag_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["dev", "start", "--help"]) == 0
    assert "--no-client-certs" in capsys.readouterr().out


def test_a_setting_of_spark_without_a_value_is_refused(cli):
    """By the benchmark as by the jobs: it would be set to nothing."""
    said = cli("bench", "spark", "--conf", "spark.ui.enabled")
    assert said.code == ExitCode.USAGE
    assert "--conf 'spark.ui.enabled': write NAME=VALUE" in " ".join(said.err.split())
