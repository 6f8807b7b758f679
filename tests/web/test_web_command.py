"""`cqueue web`: what it refuses, and a real server on a real Cassandra."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

import cqueue
from cqueue.cli.web import _shown
from tests.fix_cli import code_of_a_stuck

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")

PATIENCE_S = 60


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.invalid"])  # noqa: S104 - refused
def test_another_address_asks_for_a_token(cli, host):
    said = cli("web", "--host", host)
    assert said.code == 2
    assert "--token-file" in said.err


def test_tokens_that_others_may_read_are_refused(cli, tmp_path):
    path = tmp_path / "tokens"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o644)
    said = cli("web", "--token-file", path)
    assert (said.code, "chmod 600" in said.err) == (2, True)
    path.chmod(0o600)
    path.write_text("")
    assert "no token" in cli("web", "--token-file", path).err
    path.write_bytes(b"0123456789abcdef\xff\n")
    said = cli("web", "--token-file", path)
    assert (said.code, "not valid utf-8" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("0123456789abcde\udcff", "CQUEUE_WEB_TOKEN is not valid utf-8"),
        (" ", "there is no token"),
        ("short", "too short"),
    ],
)
def test_a_token_of_the_environment_that_nobody_can_sign_in_with_is_refused_at_the_start(
    cli, monkeypatch, given, said
):
    monkeypatch.setenv("CQUEUE_WEB_TOKEN", given)
    refused = cli("web", "--port", "0")
    assert (refused.code, said in refused.err) == (2, True)


def test_a_password_is_asked_for_and_its_hash_printed(cli):
    from cqueue.web.access import parse_tokens

    said = cli("web", "--hash-password", stdin=b"correct horse\n")
    assert said.code == 0
    (found,) = parse_tokens([f"ada read {said.out.strip()}"], frozenset())
    assert found.fits("correct horse")
    for refused in (b"short\n", b"correct \xff horse\n"):
        assert cli("web", "--hash-password", stdin=refused).code == 2


@pytest.mark.parametrize("options", [("--prefix", "queues"), ("--prefix", "//x"), ("--roles", "root")])
def test_wrong_options_are_refused_before_anything_is_begun(cli, monkeypatch, options):
    monkeypatch.setattr("cqueue.client.connect", None)
    assert cli("web", "--port", "0", *options).code == 2


@pytest.mark.parametrize(
    ("bound", "shown"),
    [
        (("127.0.0.1", 8787), "127.0.0.1:8787"),
        (("::1", 8787, 0, 0), "[::1]:8787"),
        (("fe80::1", 8787, 0, socket.if_nametoindex("lo")), "[fe80::1%lo]:8787"),
    ],
)
def test_an_address_is_shown_as_a_program_can_take_it(bound, shown):
    """A link-local address needs its interface."""
    assert _shown(SimpleNamespace(getsockname=lambda: bound)) == shown


def test_without_the_extra_it_says_what_to_install(cli, monkeypatch):
    """The command line itself works without it."""
    real = importlib.util.find_spec
    hidden = {"starlette", "jinja2", "uvicorn"}
    monkeypatch.setattr("cqueue.cli.web.find_spec", lambda name: None if name in hidden else real(name))
    said = cli("web")
    assert said.code == 2
    assert "pip install 'cassandra-cqueue[web]'" in said.err
    code = (
        "import sys; sys.modules |= dict.fromkeys(['starlette', 'jinja2', 'uvicorn']);"
        "from cqueue.cli.main import main; sys.exit(main(['web', '--help']))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_read_that_gets_no_answer_does_not_keep_the_process():
    """Answers under way get five seconds; systemd and Kubernetes would kill it before the driver ends."""
    assert code_of_a_stuck("web", "--port", "0", "--log", "json", once="dashboard_listening") == 0


class Server:
    """A `cqueue web` in a process of its own."""

    def __init__(self, url, directory, *options):
        self.log = directory / "web.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "cqueue",
                    "--url",
                    url,
                    "web",
                    "--port",
                    "0",
                    "--log",
                    "json",
                    *options,
                ],
                stderr=out,
                stdout=out,
                env={**_environment(), "COLUMNS": "300"},
                cwd=directory,
            )
        self.address = self._until(r'"(http://[^"]+)"')

    def _until(self, pattern):
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s and self.process.poll() is None:
            if found := re.search(pattern, self.log.read_text()):
                return found[1]
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def ask(self, path, data=None, **headers):
        address = self.address.rstrip("/") + path
        request = urllib.request.Request(address, data=data, headers=headers)  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - as above
            return answer.read().decode()

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def _environment():
    return {**os.environ, "PYTHONPATH": str(Path(cqueue.__file__).parents[1])}


@pytest.mark.cassandra
@pytest.mark.feature
def test_a_server_on_cassandra_shows_and_changes_a_queue_until_ctrl_c(keyspace, tmp_path):
    name = "web-mails"
    with cqueue.connect(keyspace.url) as client:
        queue = client.create_queue(name, exist_ok=True)
        queue.send(b"hello")
        server = Server(keyspace.url, tmp_path)
        try:
            assert f"/queue/{name}" in server.ask("/")
            assert "First messages" in server.ask(f"/queue/{name}")
            origin = {"Sec-Fetch-Site": "same-origin"}
            assert "is paused" in server.ask(f"/queue/{name}", b"do=pause", **origin)
            with pytest.raises(urllib.error.HTTPError, match="403"):
                server.ask(f"/queue/{name}", b"do=resume")
        finally:
            code = server.end()
        assert code == 0, server.log.read_text()
        assert '"action": "pause_queue"' in server.log.read_text()
        client.delete_queue(name)


@pytest.mark.slow
def test_sigterm_and_a_prefix(tmp_path):
    server = Server("memory://", tmp_path, "--prefix", "/ops/")
    try:
        assert server.address.endswith("/ops/")
        assert "There is no queue yet" in server.ask("/")
        assert "--button" in server.ask("/static/style.css")
    finally:
        code = server.end(signal.SIGTERM)
    assert code == 0, server.log.read_text()
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_it_starts_while_cassandra_is_away_and_says_so(tmp_path):
    server = Server("cassandra://127.0.0.1:9/cqueue?local_dc=dc1", tmp_path)
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.ask("/")
        assert refused.value.code == 503
        assert "Cassandra does not answer" in refused.value.read().decode()
    finally:
        code = server.end()
    lines = server.log.read_text().splitlines()
    assert code == 0, lines
    assert {"dashboard_not_connected", "dashboard_listening"} <= {json.loads(line)["event"] for line in lines}
