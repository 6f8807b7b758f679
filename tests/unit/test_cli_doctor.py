"""`cqueue doctor`: what it prints, and its exit codes."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pytest
from rich.console import Console

from cqueue import doctor as checks
from cqueue.cli import doctor as command
from cqueue.cli.context import AS_IT_IS, CliContext
from cqueue.doctor import Finding, Severity
from cqueue.errors import Unavailable

URL = "cassandra://127.0.0.1:1/shop?local_dc=dc1"
LONG = Finding(
    Severity.ERROR,
    "settings",
    "commitlog_sync is periodic on all nodes",
    "A node acknowledges what only its memory holds, and is killed with it. " * 2,
    "cassandra.yaml of those nodes: commitlog_sync: batch; restart them one by one, each when the last is up",
    {"nodes": ["a"]},
)
GOOD = Finding(Severity.OK, "clocks", "1 node")


@pytest.fixture
def run(monkeypatch, cli_on):
    """Run the command on findings instead of a cluster."""

    @contextmanager
    def open_site(*_, limit_s):
        yield limit_s

    def on(*found):
        monkeypatch.setattr(checks, "open_site", open_site)
        monkeypatch.setattr(checks, "examine", lambda _: list(found))
        return cli_on(URL)

    return on


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ([Severity.OK, Severity.INFO], 0),
        ([Severity.WARNING, Severity.OK], 1),
        ([Severity.ERROR, Severity.NOT_CHECKED], 1),
        ([Severity.NOT_CHECKED, Severity.OK], 3),
        ([], 0),
    ],
)
def test_the_exit_code_says_the_worst(run, severities, code):
    """What could not be checked is never a success."""
    said = run(*(Finding(one, "nodes", "found") for one in severities))("doctor")
    assert said.code == code


def test_in_a_pipe_a_finding_is_a_line_and_the_worst_comes_last(run):
    lines = run(LONG, GOOD)("doctor").out.splitlines()
    assert lines[0] == "ok           clocks: 1 node"
    assert lines[1].startswith("error        settings: commitlog_sync is periodic on all nodes. A node")
    assert lines[1].endswith("each when the last is up")
    assert " → cassandra.yaml" in lines[1]
    assert lines[2] == "cassandra://127.0.0.1:1/shop: 1 error, 1 ok."


def test_json_is_one_document(run):
    said = run(LONG, GOOD)("doctor", "--json")
    assert (said.json["error"], said.json["ok"], said.json["not_checked"], said.json["exit_code"]) == (
        1,
        1,
        0,
        1,
    )
    first = said.json["findings"][0]
    assert (first["severity"], first["subject"], first["figures"]) == ("error", "settings", {"nodes": ["a"]})
    assert {"found", "reason", "remedy"} <= set(first)


@pytest.mark.parametrize("width", [80, 60, 40])
def test_on_a_terminal_every_line_fits(width, capsys):
    """Text stands in one column; a remedy's further lines stand below its text."""
    cli = CliContext()
    cli.console = Console(width=width, force_terminal=True, color_system=None, **AS_IT_IS)
    command._print(cli, LONG)
    command._print(cli, GOOD)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("error        settings: ")
    assert all(line.startswith(" " * command.INDENT) for line in lines[1:-1])
    arrow = next(at for at, line in enumerate(lines) if "→" in line)
    assert all(line.startswith(" " * (command.INDENT + 2)) for line in lines[arrow + 1 : -1])


def test_a_terminal_shows_few_findings_of_one_reason(capsys):
    """Thousands of queues may wait for consumers; what else is wrong is seen as well."""
    late = [Finding(Severity.WARNING, "queues", f"q{number}: late", "They wait.") for number in range(7)]
    others = [GOOD, Finding(Severity.OK, "nodes", "all answer")] * 4
    cli = CliContext()
    cli.console = Console(width=80, force_terminal=True, color_system=None, **AS_IT_IS)
    command._print_all(cli, URL, [LONG, *late, *others], Counter())
    out = capsys.readouterr().out
    assert [number for number in range(7) if f"q{number}: late" in out] == [0, 1, 2, 3, 4]
    assert "queues: 2 more, for the same reason as those below" in out
    assert out.count("clocks: 1 node") == 4
    assert out.index("2 more") < out.index("q4: late") < out.index("q0: late") < out.index("commitlog_sync")


def test_control_characters_of_a_finding_do_not_reach_the_terminal(run):
    """Names of queues and texts of errors come from elsewhere."""
    said = run(Finding(Severity.WARNING, "queues", "mail\x1b[2J: 1\nlate"))("doctor")
    assert "\x1b" not in said.out
    assert len(said.out.splitlines()) == 2


@pytest.mark.parametrize("limit", ["0s", "2h"])
def test_a_limit_out_of_range_is_refused(run, limit):
    said = run()("doctor", "--timeout", limit)
    assert (said.code, "1s to 1h" in said.err) == (2, True)


def test_no_cluster_is_exit_code_3(cli_on):
    """Nothing was checked, and the error says why."""
    said = cli_on(URL)("doctor", "--json")
    assert (said.code, said.out) == (3, "")
    assert Unavailable.__name__ in said.err


def test_a_store_in_memory_has_no_cluster_to_look_at(cli):
    said = cli("doctor")
    assert (said.code, "not a Cassandra cluster" in said.err) == (2, True)
