"""The command line in this process: one store in memory a test, and what a command said and returned."""

from __future__ import annotations

import io
import json
import logging
import secrets
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from functools import cache

import pytest
import structlog
import typer

from cqueue import client as clients

command_of = cache(typer.main.get_command)
"""Makes the commands of a module once for all tests, as a process that runs one command line does."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """Standard output as one JSON value."""
        return json.loads(self.out)

    @property
    def json_lines(self):
        """Standard output as JSON values, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(autouse=True)
def logging_as_before():
    """A daemon that was run in this process must not go on logging, to a stream that is gone."""
    names = ("", "cqueue", "cassandra", "cqueue.tracebacks")
    levels = [logging.getLogger(name).level for name in names]
    yield
    root = logging.getLogger()
    ours = [one for one in root.handlers if isinstance(one.formatter, structlog.stdlib.ProcessorFormatter)]
    if ours:
        for handler in ours:
            root.removeHandler(handler)
        for name, level in zip(names, levels, strict=True):
            logging.getLogger(name).setLevel(level)
        logging.captureWarnings(capture=False)
    if structlog.is_configured():  # by a daemon, or since lines were captured
        structlog.reset_defaults()


@pytest.fixture
def cli_url():
    """A store in memory that all commands of a test share."""
    return f"memory://cli-{secrets.token_hex(6)}"


@pytest.fixture
def cli_clock(cli_url):
    """Put the clock of that store forward: `cli_clock(seconds)`."""

    def put_forward(seconds):
        store = clients._shared_stores[cli_url.removeprefix("memory://")]
        clock_us = store._clock_us
        store._clock_us = lambda: clock_us() + round(seconds * 1e6)

    return put_forward


@pytest.fixture
def cli_on(capsys, monkeypatch, tmp_path):
    """Make a function that runs command lines on the cluster of a URL."""
    from cqueue.cli.main import main

    monkeypatch.chdir(tmp_path)  # no cqueue.toml of the working tree
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(typer.main, "get_command", command_of)

    def on(url):
        def run(*args, stdin=b""):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            code = main(["--url", url, *map(str, args)])
            return Said(int(code), *capsys.readouterr())

        return run

    return on


@pytest.fixture
def cli(cli_url, cli_on):
    """Run a command line: `cli("queue", "list", stdin=b"…")`. Standard input is no terminal."""
    return cli_on(cli_url)


STUCK = """
    import sys, threading
    from cqueue import client
    from cqueue.cli.main import main

    connect = client.connect

    def stuck(*args, **options):
        threading.Thread(target=threading.Event().wait, daemon=False).start()
        return connect(*args, **options)

    client.connect = stuck
    sys.exit(main(["--url", "memory://stuck", *sys.argv[1:]]))
"""


def code_of_a_stuck(*args, once, **how):
    """What a process ends with after a signal, though the driver waits for a node: the end of Python waits
    for its threads.

    once: the signal comes when standard error has a line with this. how: of `subprocess.Popen`.
    """
    command = [sys.executable, "-c", textwrap.dedent(STUCK), *args]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **how) as process:
        try:
            assert any(once in line for line in process.stderr)
            process.terminate()
            return process.wait(timeout=30)
        finally:
            process.kill()
