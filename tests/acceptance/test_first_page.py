"""README and tutorial work from top to bottom, as a reader types them, on a Cassandra that is empty."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import signal
import socket
import subprocess
import sys

import pytest

import cqueue
from cqueue.cli.main import main
from tests.fix_dispatcher import until
from tests.unit import markdown_pages as markdown

pytestmark = pytest.mark.cassandra

PORT = "8000"  # of the partner on the first page
LETTER = "36nmlniu"  # on both pages, the id that `dead list` prints


class Reader:
    """Somebody who has only the page: writes its files, types its Python and its commands, in order."""

    def __init__(self, folder, queue, capfd):
        self.folder, self.queue, self.capfd = folder, queue, capfd
        # Nobody else gets the port meanwhile, and as nobody listens there, it refuses.
        self.kept = socket.socket()
        self.kept.bind(("127.0.0.1", 0))
        self.port = str(self.kept.getsockname()[1])
        self.namespace = {"__name__": "__main__"}
        self.server = None
        self.printed = []  # what each command printed

    def follow(self, page):
        for block in markdown.blocks(markdown.ROOT / page, "python", "sh"):
            block = dataclasses.replace(block, text=block.text.replace(PORT, self.port))  # noqa: PLW2901
            if block.language == "sh":
                for command in markdown.commands_of(block):
                    self.type(list(command.words))
            elif block.file:
                (self.folder / block.file).write_text(block.text, encoding="utf-8")
            else:
                self.execute(block)

    def execute(self, block):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(block.code, self.namespace)  # noqa: S102 - that is the test
        if expected := re.findall(r"#\s→\s(.*)$", block.text, re.MULTILINE):
            assert out.getvalue().splitlines() == expected, f"what {block} prints"

    def type(self, words):
        if words[:3] == ["python3", "-m", "http.server"]:
            self.kept.close()
            with (self.folder / "told").open("w") as told:
                self.server = self.start(*words[1:], stdout=subprocess.DEVNULL, stderr=told)
            until(self.is_served, seconds=120)
        elif words[:2] == ["cqueue", "dispatch"]:
            self.dispatch(words[1:])
        elif words[0] == "cqueue" and words[1] not in {"dev", "--version"}:
            words = [self.letter() if word == LETTER else word for word in words]
            code = main(words[1:])
            self.printed.append(self.capfd.readouterr())
            assert code == 0, f"{words}: {self.printed[-1].err}"

    def letter(self):
        with cqueue.connect() as client:
            return str(client.queue(self.queue).dead_letters.list()[0].id)

    def dispatch(self, words):
        """Run it until it has no more to do; then press Ctrl-C."""
        with self.start("-m", "cqueue", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as daemon:
            try:
                with cqueue.connect() as client:
                    until(lambda: _idle(client.queue(self.queue)), seconds=120)
                daemon.send_signal(signal.SIGINT)
                out, log = daemon.communicate(timeout=60)
            finally:
                daemon.kill()
        assert daemon.returncode == 0, log
        self.printed.append((out, log))

    def is_served(self):
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(self.port))).close()
            return True

    def start(self, *words, **pipes):
        return subprocess.Popen([sys.executable, *words], text=True, cwd=self.folder, **pipes)


def _idle(queue):
    """Whether nothing is left but what is due later."""
    stats = queue.stats(exact=True)
    return stats.live == stats.delayed


@pytest.fixture
def reader(new_keyspace, monkeypatch, tmp_path, capfd):
    """A function that makes a reader of a page about this module and queue."""
    monkeypatch.setenv("CQUEUE_URL", new_keyspace(schema=False).url)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    modules, readers = set(sys.modules), []

    def make(queue):
        readers.append(Reader(tmp_path, queue, capfd))
        return readers[-1]

    yield make
    for reader in readers:
        reader.kept.close()
        reader.namespace["app"].close()
        if reader.server:
            reader.server.kill()
            reader.server.wait()
    for name in {"hooks", "shop"} - modules:
        sys.modules.pop(name, None)


def test_the_first_page(reader):
    """Defined, enqueued, dispatched, failed, looked at and redriven: the partner is told in the end."""
    someone = reader("hooks")
    someone.follow("README.md")
    (_, failing), listed, shown, redriven, (_, working) = someone.printed[-5:]
    assert failing.count('"event": "message_retried"') == 4
    assert failing.count('"event": "message_dead"') == 2
    assert len(re.findall(r"hooks:tell +3  attempt 3 of 3: .*Connection refused", listed.out)) == 2
    assert "in tell\n" in shown.out
    assert redriven.out == "2 dead letters sent back to hooks.\n"
    told = (someone.folder / "told").read_text()
    assert "GET /?paid=17" in told
    assert "GET /?shipped=16" in told
    assert "message_dead" not in working


def test_the_tutorial(reader):
    """The mended task is done in the end, and what the shell sent is received by the shell."""
    someone = reader("shop")
    someone.follow("docs/tutorial.md")
    receipts = [out for out, log in someone.printed if "daemon_ready" in log]
    # Two threads print: each text is written in one piece, its line end may come later.
    assert "receipt of order 1 to ann@example.org" in receipts[0]
    assert "receipt of order 2 to bob@example.org" in receipts[0]
    assert receipts[0].count("receipt") == 2
    assert receipts[1].splitlines() == ["receipt of order 3 to eve@example.org"]
    assert "attempt 3 of 3: KeyError: 3" in "".join(out for out, _ in someone.printed)
    received = [out for out, _ in someone.printed if out.startswith("hello")]
    assert received == ["hello\n", "hello, later\n"]
