"""Tables of the command line: what they show on a narrow terminal, and in a pipe."""

from __future__ import annotations

import ast
import io
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

import cqueue
from cqueue.cli.context import AS_IT_IS, CliContext
from cqueue.cli.table import print_sheet, print_table
from cqueue.client import connect
from cqueue.dispatcher.service.membership import Worker

HEADER = ("id", "task", "body")
ROWS = [("abcdefgh", "a.very.long.task:name", "x" * 100), ("b", "täsk 任务", "short")]


def printed(show, *, width=80, terminal=True):
    """The lines that a function prints to a terminal or a pipe."""
    out = io.StringIO()
    context = CliContext()
    context.console = Console(
        file=out, force_terminal=terminal, width=width, color_system=None, legacy_windows=False, **AS_IT_IS
    )
    show(context)
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()


def test_only_the_last_column_is_cut_and_only_on_a_terminal():
    """Ids, times and tasks stand there whole, however narrow the terminal."""

    def show(cli):
        print_table(cli, HEADER, ROWS, cut=True)

    lines = printed(show, width=60)
    assert lines[1] == "abcdefgh  a.very.long.task:name  " + "x" * 26 + "…"
    assert lines[2] == "b         täsk 任务              short"
    assert printed(show, width=20)[1] == "abcdefgh  a.very.long.task:name  " + "x" * 7 + "…"
    assert printed(show, width=60, terminal=False)[1].endswith("x" * 100)


def test_nothing_is_cut_where_no_column_is_free_text():
    assert printed(lambda cli: print_table(cli, HEADER, ROWS), width=20)[1].endswith("x" * 100)


def test_a_narrow_terminal_does_without_what_can_be_spared_one_column_after_the_other():
    """What identifies stays; a pipe gets all of it. Some columns that can be spared are not always there."""
    rows = [("worker-1", "mail", "12", "shop:app")]

    def show(cli):
        header = ("worker", "queue", "running", "app")
        print_table(cli, header, rows, right=("running",), spare=("not there", "app", "running"))

    assert printed(show, width=80)[1] == "worker-1  mail        12  shop:app"
    assert printed(show, width=34)[1] == "worker-1  mail        12  shop:app"
    assert printed(show, width=33)[1] == "worker-1  mail        12"
    assert printed(show, width=20)[1] == "worker-1  mail"
    assert printed(show, width=5)[1] == "worker-1  mail"
    assert printed(show, width=5, terminal=False)[1] == "worker-1  mail        12  shop:app"


def test_sheets_show_values_whole():
    """A value longer than the terminal can be copied: nothing is cut or folded into a column."""
    lines = printed(
        lambda cli: print_sheet(cli, {"id": "i" * 100, "text": "one\ntwo", "none": None}), width=40
    )
    assert lines == ["id    " + "i" * 100, "text  ", "one", "two"]


def test_control_characters_do_not_reach_the_terminal():
    """A message must not be able to command somebody's terminal."""
    lines = printed(lambda cli: print_table(cli, ("id", "body"), [("a", "\x1b[2Jboo")]))
    assert lines[1] == "a   \\x1b[2Jboo"


def test_no_command_draws_a_table_of_rich():
    """Those shrink ids, on a terminal as well as in a pipe."""
    for path in (Path(cqueue.__file__).parent / "cli").glob("*.py"):
        modules = [
            node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
        ]
        assert "rich.table" not in modules, path


# ── Tables of commands on a terminal of 80 columns ──

WORKER = Worker(
    name="ip-172-31-255-255.example-123456-abcdef",
    host="ip-172-31-255-255.example",
    pid=123456,
    app="shop.tasks:app",
    queues=("orders", "mail", "invoices"),
    threads=20,
    version="1",
    started=0.0,
    state="running",
    running=3,
    unstarted=17,
    counters={"succeeded": 1_234_567, "retried": 12, "dead": 3},
    seen=1.0,
)


@pytest.fixture
def narrow(cli, monkeypatch):
    """The command line on a terminal of 80 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*args):
        monkeypatch.setenv("COLUMNS", "80")
        said = cli(*args)
        assert said.code == 0, said.err
        return re.sub(r"\x1b\[[0-9;]*m", "", said.out)

    return run


def test_workers_keep_worker_queues_and_state(narrow, cli, monkeypatch):
    """These say which process is meant and what it is for; a wide terminal and a pipe have the rest."""
    monkeypatch.setattr("cqueue.dispatcher.service.membership.listed", lambda _client: ([WORKER], 1.0))
    _, line = narrow("workers").splitlines()
    assert line.split("  ")[0] == WORKER.name
    assert "orders, mail, invoices  running" in line
    assert len(line) <= 80
    monkeypatch.delenv("FORCE_COLOR")
    _, line = cli("workers").out.splitlines()
    assert "shop.tasks:app" in line
    assert "1,234,567" in line
    monkeypatch.setenv("COLUMNS", "40")
    assert cli("workers").out.splitlines()[1] == line


def test_a_terminal_shows_a_few_of_a_workers_queues_and_a_pipe_all(narrow, cli, monkeypatch):
    """A worker may have 100,000: nobody could find the others behind that line."""
    names = tuple(f"q{number}" for number in range(7))
    many = replace(WORKER, name="w", queues=names)
    monkeypatch.setattr("cqueue.dispatcher.service.membership.listed", lambda _client: ([many], 1.0))
    assert "q0, q1, q2, q3, q4 and 2 more  running" in narrow("workers")
    monkeypatch.delenv("FORCE_COLOR")
    assert ", ".join(names) in cli("workers").out


def test_peek_keeps_ids_and_shows_the_beginning_of_bodies(narrow, cli):
    cli("queue", "create", "q")
    cli("send", "q", "b" * 100, "--priority", "3")
    _, line = narrow("peek", "q").splitlines()
    assert "bbbbbbb…" in line
    assert len(line) <= 80


def test_schedules_keep_key_state_next_and_task(narrow, cli):
    cli("queue", "create", "q")
    key, task = "the-nightly-clean-up", "shop.tasks.reports:clean_up_the_old_ones"
    cli("schedule", "add", "q", key, "--cron", "0 3 * * *", "--timezone", "Europe/Berlin", "--task", task)
    for args in ((), ("q",)):
        _, line = narrow("schedule", "list", *args).splitlines()
        assert key in line
        assert "active" in line
        assert task in line
    assert "0 3 * * * Europe/Berlin" in narrow("schedule", "show", "q", key)


def test_stats_do_not_do_without_what_is_unusual(narrow, cli, cli_url):
    """That a queue is paused, or a message waits to be delivered again, is what somebody looks for."""
    name = "n" * 40
    cli("queue", "create", name)
    assert narrow("stats").split()[:4] == ["queue", "ready", "delayed", "claimed"]
    cli("send", name, "x")
    with connect(cli_url) as client, client.queue(name).consumer() as consumer:
        consumer.receive()[0].nack(timedelta(hours=1))
    assert narrow("stats").split()[:5] == ["queue", "ready", "delayed", "claimed", "waiting"]
    cli("queue", "pause", name)
    assert narrow("stats").split()[:2] == ["queue", "state"]


def test_queues_and_logs_fit(narrow, cli):
    name = "the.queue-with_a.rather.long.name.of.48.character"
    cli("queue", "create", name)
    cli("log", "create", "events")
    for line in narrow("queue", "list").splitlines() + narrow("log", "list").splitlines():
        assert len(line) <= 80
    assert name in narrow("queue", "list")
