"""`cqueue spool`: what waits, whether the files are whole, and forwarding what a producer left."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

import cqueue
from cqueue.cli.failures import ExitCode
from cqueue.cli.interrupts import handled_by
from cqueue.cli.main import main
from cqueue.spool import Spool
from cqueue.spool.segment import Segment


@pytest.fixture
def client(request):
    with cqueue.connect(f"memory://cli-spool-{abs(hash(request.node.nodeid))}") as client:
        client.create_queue("mail")
        yield client


@pytest.fixture
def url(client):
    return client._address


@pytest.fixture
def path(client, tmp_path):
    """A spool that its producer left with three messages for `mail`."""
    with (
        Spool(tmp_path / "spool", segment_bytes=1 << 20) as spool,
        mock.patch("cqueue.spool.forwarder.Forwarder.start"),
    ):
        queue = client.queue("mail", spool=spool)
        queue.send(b"first", headers={"a": "b"})
        queue.send_many([cqueue.Message(b"second"), cqueue.Message(b"\xff", priority=2)])
    return str(tmp_path / "spool")


def run(*args, expect=ExitCode.DONE):
    assert main(args) == expect


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_without_the_extra_it_says_what_to_install(tmp_path):
    """A newcomer who installed the package alone gets no traceback, by the command nor in a program."""
    for program in (
        f"from cqueue.cli.main import main; sys.exit(main(['spool', 'status', {str(tmp_path)!r}]))",
        "import cqueue\ntry: import cqueue.spool\nexcept cqueue.ConfigError as exc: sys.exit(str(exc))",
    ):
        code = f"import sys; sys.modules['google_crc32c'] = None\n{program}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode in {1, ExitCode.USAGE}
        assert "pip install 'cassandra-cqueue[spool]'" in done.stderr
        assert "Traceback" not in done.stderr


def test_status_shows_what_waits_also_beside_the_producer(path, capsys):
    """By topic; a producer that has the spool open does not matter."""
    with Spool(path):
        run("spool", "status", path, "--json")
    ((one,),) = lines(capsys)
    assert (one["topic"], one["waiting"], one["lost"]) == ("queue.mail", 3, [])
    assert one["oldest"]
    run("spool", "status", path)
    out = capsys.readouterr().out
    assert "queue.mail" in out
    assert max(map(len, out.splitlines())) <= 80


def test_dump_prints_messages(path, capsys):
    """What waits, as text or base64; nothing is changed by it."""
    run("spool", "dump", path, "--json")
    first, second, third = lines(capsys)
    assert (first["offset"], first["body"], first["headers"]) == (0, "first", {"a": "b"})
    assert (second["body"], second["encoding"]) == ("second", "utf-8")
    assert (third["priority"], third["encoding"]) == (2, "base64")
    run("spool", "dump", path, "--limit", "1")
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_dump_goes_on_behind_what_is_no_message(path, capsys):
    """A record that another program or a newer version wrote is named, with its offset."""
    with Spool(path) as spool:
        spool.append("queue.mail", b"\x09 of a newer version").result(5)
        spool.append("queue.mail", next(spool.records("queue.mail")).payload).result(5)
    run("spool", "dump", path, "--json")
    found = lines(capsys)
    assert [one.get("body") for one in found] == ["first", "second", "/w==", None, "first"]
    assert found[3]["offset"] == 3
    assert "no message" in found[3]["error"] or "format 9" in found[3]["error"]
    run("spool", "dump", path)
    assert len(capsys.readouterr().out.splitlines()) >= 5


def test_dump_says_that_the_disk_cannot_read_a_record(path, capsys, monkeypatch):
    """And not that its own output cannot be written; `status` goes on without."""
    monkeypatch.setattr(Segment, "_bytes", mock.Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    run("spool", "dump", path, expect=ExitCode.NOT_DONE)
    assert "queue.mail: a record cannot be read: [Errno 5] Input/output error" in capsys.readouterr().err
    run("spool", "status", path)


def test_verify_fails_for_a_damaged_file(path, tmp_path, capsys):
    """Exit code 0 for a sound spool, 1 for one in which a byte was changed."""
    run("spool", "verify", path)
    data = next(
        each for each in (tmp_path / "spool").rglob("*") if each.is_file() and b"second" in each.read_bytes()
    )
    data.write_bytes(data.read_bytes().replace(b"second", b"secont"))
    capsys.readouterr()
    run("spool", "verify", path, expect=ExitCode.CHECK_FAILED)
    assert "Lost: 1 to 1" in capsys.readouterr().out


def test_forward_sends_what_was_left_and_nothing_twice(client, url, path, capsys):
    """A second run finds nothing to do."""
    for count in (3, 0):
        run("--url", url, "spool", "forward", path, "--json")
        assert lines(capsys) == [{"topic": "queue.mail", "forwarded": count}]
    assert [message.body for message in client.queue("mail").peek()] == [b"first", b"second", b"\xff"]


def test_what_has_nothing_to_do_says_so(url, path, tmp_path, capsys):
    """Beside the result: what dump prints is data."""
    Spool(tmp_path / "empty").close()
    run("--url", url, "spool", "forward", path)
    capsys.readouterr()
    for args in (("dump", path), ("dump", str(tmp_path / "empty")), ("forward", str(tmp_path / "empty"))):
        run("--url", url, "spool", *args)
        said = capsys.readouterr()
        assert (said.out, said.err) == ("", "Nothing waits.\n")


def test_forward_leaves_a_spool_alone_that_a_producer_has(url, path, capsys):
    """Not done, exit code 3: it forwards itself."""
    with Spool(path):
        run("--url", url, "spool", "forward", path, expect=ExitCode.NOT_DONE)
    assert "has the spool" in capsys.readouterr().err


def test_forward_gives_up_when_its_time_is_over(url, path, capsys):
    """What is left is said, and stays."""
    with mock.patch("cqueue.spool.forward_message.QueueTarget.store", side_effect=cqueue.Unavailable("away")):
        run("--url", url, "spool", "forward", path, "--wait", "0.3s", expect=ExitCode.NOT_DONE)
    assert "3 records of queue.mail are still in the spool: away" in " ".join(capsys.readouterr().err.split())
    run("spool", "status", path, "--json")
    assert lines(capsys)[0][0]["waiting"] == 3


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_forward_says_that_it_can_be_repeated(client, url, path, capsys, sent):
    """After Ctrl-C, and where `timeout` ends it: the spool is closed, and the next run sends what is left."""

    def interrupted(*_):
        signal.raise_signal(sent)

    with mock.patch("cqueue.cli.spool._chosen", interrupted), handled_by(lambda *_: None, sent):
        run("--url", url, "spool", "forward", path, expect=ExitCode.INTERRUPTED)
    assert "the same command goes on" in capsys.readouterr().err
    run("--url", url, "spool", "forward", path)
    assert len(client.queue("mail").peek()) == 3


def test_forward_says_nothing_of_going_on_before_it_has_begun(url, path, capsys):
    with mock.patch("cqueue.cli.spool.open_client", side_effect=KeyboardInterrupt):
        run("--url", url, "spool", "forward", path, expect=ExitCode.INTERRUPTED)
    assert capsys.readouterr().err == "Interrupted.\n"


def test_forward_says_that_the_queue_is_gone(client, url, path):
    """At once, as bad input; the spool keeps what it has."""
    client.delete_queue("mail")
    run("--url", url, "spool", "forward", path, expect=ExitCode.USAGE)
    run("spool", "verify", path)


def test_forward_sends_what_it_can_beside_a_queue_that_is_gone(client, url, path, capsys):
    """The other queues get their messages; one that is gone and waits for nothing is no failure."""
    client.create_queue("another")
    client.create_queue("zoo")
    with Spool(path) as spool, mock.patch("cqueue.spool.forwarder.Forwarder.start"):
        client.queue("zoo", spool=spool).send(b"roar")
        client.queue("another", spool=spool).send(b"old")
        spool.commit("queue.another", 1)
    client.delete_queue("another")
    client.delete_queue("mail")
    run("--url", url, "spool", "forward", path, "--json", expect=ExitCode.USAGE)
    told = capsys.readouterr()
    assert [json.loads(line) for line in told.out.splitlines()] == [
        {"topic": "queue.another", "forwarded": 0},
        {"topic": "queue.zoo", "forwarded": 1},
    ]
    assert "'mail'" in told.err
    assert [message.body for message in client.queue("zoo").peek()] == [b"roar"]


def test_a_topic_that_is_not_there_is_refused(path, capsys):
    run("spool", "dump", path, "--topic", "queue.male", expect=ExitCode.USAGE)
    assert "queue.male" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "verify", "dump", "forward"])
def test_a_directory_that_is_no_spool_is_refused_and_left_as_it_is(url, tmp_path, capsys, command):
    """A mistyped path must not look like a spool of which all is whole and forwarded."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    (tmp_path / "notes" / "2026").mkdir()
    run("--url", url, "spool", command, str(tmp_path), expect=ExitCode.USAGE)
    assert "is no spool" in " ".join(capsys.readouterr().err.split())
    assert [each.name for each in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("command", ["status", "verify", "dump", "forward"])
@pytest.mark.parametrize("closed", [".", "queue.mail", "queue.mail/0"])
def test_what_this_user_may_not_read_is_not_taken_for_empty(url, path, capsys, command, closed):
    """Of a spool of another user nobody says that all records are whole, or that nothing waits."""
    hidden = Path(path, closed)

    def guarded(call, refuses):
        def look(at, *args, **more):
            if refuses(Path(at)):
                raise PermissionError(errno.EACCES, "Permission denied", str(at))
            return call(at, *args, **more)

        return look

    with (
        mock.patch("os.listdir", guarded(os.listdir, lambda at: at == hidden)),
        mock.patch("os.scandir", guarded(os.scandir, lambda at: at == hidden)),
        mock.patch("os.stat", guarded(os.stat, lambda at: at.parent == hidden and hidden.name != "0")),
    ):
        run("--url", url, "spool", command, path, expect=ExitCode.NOT_DONE)
    assert "Permission denied" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("lacking", [".lock", "queue.mail"])
def test_a_spool_is_known_by_its_lock_or_by_its_queues(path, lacking):
    """One that was copied may have no lock, and an empty one has no queue."""
    gone = Path(path, lacking)
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    run("spool", "verify", path)
