"""Decisions of `DevCluster` that need no server, and what it says when a start fails."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from cqueue.cli import confirm
from cqueue.cli.context import CliContext
from cqueue.cli.dev import app
from cqueue.cli.failures import ExitCode
from cqueue.cli.main import main
from cqueue.client import connect
from cqueue.dev import (
    ClusterState,
    DevCluster,
    NodeState,
    NodeStatus,
    Status,
    guard,
    probe,
    processes,
    record,
    startup,
)
from cqueue.dev.addresses import Reservation
from cqueue.dev.jvm import MARKER, java_command
from cqueue.dev.node import Node
from cqueue.dev.paths import node_home
from cqueue.dev.record import Record
from cqueue.dev.settings import Settings
from cqueue.dev.status import cluster_url, known_server, summarize
from cqueue.errors import BadInput, ConfigError, DevError
from cqueue.settings import DEFAULT_URL, load
from tests.fix_dispatcher import until

RECORD = Record("cqueue-dev-test", ("127.99.0.1",), Settings(), formed=True)


def node_status(state):
    return NodeStatus(1, "127.0.0.1", 9042, None, state)


@pytest.mark.parametrize(
    ("nodes", "cluster"),
    [
        ([], ClusterState.STOPPED),
        ([NodeState.DOWN, NodeState.DOWN], ClusterState.STOPPED),
        ([NodeState.DOWN, NodeState.STARTING], ClusterState.STARTING),
        ([NodeState.UP, NodeState.STARTING], ClusterState.DEGRADED),
        ([NodeState.UP, NodeState.DOWN], ClusterState.DEGRADED),
        ([NodeState.UP, NodeState.UP], ClusterState.RUNNING),
    ],
)
def test_cluster_state_follows_from_its_nodes(nodes, cluster):
    """`running` means that every node answers."""
    assert summarize([node_status(state) for state in nodes]) is cluster


def test_url_names_every_node():
    """A client finds the cluster by any of its nodes."""
    three = replace(RECORD, addresses=("127.0.0.1", "127.0.0.2"), settings=Settings(nodes=2))
    assert (
        cluster_url(Path("/dev"), three)
        == "cassandra://127.0.0.1:9042,127.0.0.2:9042/cqueue?local_dc=datacenter1"
    )


def test_url_has_what_a_client_needs_to_be_let_in():
    """Login, authority and certificate; it is good for `load`, whatever characters the directory has."""
    guarded = replace(RECORD, settings=Settings(auth=True, tls=True, client_certificates=True))
    settings = load(cluster_url(Path("/a b&c"), guarded), environ={})
    assert (settings.username, settings.password) == ("cassandra", "cassandra")
    assert settings.tls
    assert (settings.tls_ca, settings.tls_cert) == (
        Path("/a b&c/node1/tls/ca.pem"),
        Path("/a b&c/node1/tls/client.pem"),
    )


def test_record_comes_back_as_it_was(tmp_path):
    """A cluster restarts with the settings it was made with."""
    stored = replace(RECORD, settings=Settings(yaml={"a": [1]}, jvm_options=["-Da=b"], heap="1g"))
    record.save(tmp_path, stored)
    assert record.load(tmp_path) == stored


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"settings": {"nodes": 0}}'])
def test_damaged_record_has_a_remedy(tmp_path, text):
    """A record that cannot be read is reported with the way out, and `wipe` is one."""
    (tmp_path / record.RECORD).write_text(text)
    cluster = DevCluster(tmp_path)
    with pytest.raises(DevError, match=f"`cqueue dev wipe --dir {tmp_path}` starts afresh"):
        cluster.status()
    cluster.wipe()
    assert cluster.status().state is ClusterState.STOPPED


def test_one_command_at_a_time(tmp_path):
    """A second command waits for the first, and says so if that takes too long."""
    busy = pytest.raises(DevError, match="Another `cqueue` command")
    with record.locked(tmp_path, timedelta(0)), busy, record.locked(tmp_path, timedelta(0)):
        pass
    with record.locked(tmp_path, timedelta(0)):
        pass


def test_directory_that_cannot_be_written(tmp_path):
    """The error names the option that chooses another place."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DevError, match="--dir"):
        DevCluster(tmp_path / "file" / "below").start()


def test_a_disk_that_takes_no_more_has_a_remedy(tmp_path):
    """Also where it is full only after the directory was made."""
    (tmp_path / record.RECORD).with_suffix(".new").mkdir()  # no file can be written there
    with pytest.raises(DevError, match="--dir"):
        DevCluster(tmp_path, first_address="127.98.1.1").start()


def test_who_may_not_read_the_certificates_sees_what_runs(tmp_path):
    """Another user may look at the cluster; only its owner reads the key."""
    record.save(tmp_path, replace(RECORD, settings=Settings(tls=True)))
    with stand_in_for_a_node(tmp_path):
        assert DevCluster(tmp_path).status().state is ClusterState.STARTING


@contextmanager
def stand_in_for_a_node(directory):
    """Run a process that looks like node 1 of the cluster."""
    home = node_home(directory.resolve(), 1)
    home.mkdir()
    stand_in = [sys.executable, "-c", "import signal; signal.pause()", MARKER + str(home)]
    processes.spawn(stand_in, home=home, log=home / "log", environ=os.environ)
    try:
        yield
    finally:
        DevCluster(directory).wipe()
    assert not home.exists()


@pytest.fixture
def run():
    """A process in place of a run of tests."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as run:
        yield run
        run.kill()


def test_a_run_of_tests_that_is_killed_leaves_no_node(tmp_path, run):
    """Neither a process nor its data; until then nothing happens, and one process guards it."""
    directory = tmp_path / f"cqueue-test-run-{run.pid}"
    directory.mkdir()
    record.save(directory, RECORD)
    with stand_in_for_a_node(directory):
        node = processes.find(node_home(directory.resolve(), 1))
        guards = [guard.start(directory) for _ in range(2)]
        until(lambda: any(map(processes.is_gone, guards)))
        assert not all(map(processes.is_gone, guards))
        assert not processes.is_gone(node)
        run.kill()
        assert processes.wait_gone([node, *guards], timedelta(seconds=60)) == []
        assert not directory.exists()


def test_a_guard_has_nothing_to_do_where_the_run_has_cleaned_up(tmp_path, run):
    directory = tmp_path / f"cqueue-test-run-{run.pid}"
    guard.main(directory, run.pid)  # which is gone before the guard looks
    directory.mkdir()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(guard.main, directory, run.pid)
        until((directory / guard.LOCK).exists)
        shutil.rmtree(directory)
        run.kill()
        ended.result(60)
    assert not directory.exists()


def test_a_directory_that_no_run_has_made_is_not_guarded(tmp_path):
    """Its user ends the cluster there, and may keep other things in it."""
    directory = tmp_path / f"cassandra-{os.getpid()}"
    assert guard.start(directory) is None
    assert not directory.exists()


def test_wrong_options_fail_before_anything_starts(tmp_path):
    """Bad input is noticed when the cluster is named, not after a download."""
    with pytest.raises(ConfigError):
        DevCluster(tmp_path, nodes=99)


def test_number_of_nodes_is_fixed(tmp_path):
    """A cluster is not silently replaced by one of another size."""
    record.save(tmp_path, RECORD)
    with pytest.raises(DevError, match=r"with --nodes 1, not .*wipe"):
        DevCluster(tmp_path, nodes=3).start()


def test_other_settings_need_a_stop(tmp_path):
    """A running cluster is not reported as if it had the settings that were asked for."""
    record.save(tmp_path, RECORD)
    with stand_in_for_a_node(tmp_path):
        with pytest.raises(DevError, match=r"heap '512m' instead of '1g'.*stop"):
            DevCluster(tmp_path, heap="1g").start()
        assert DevCluster(tmp_path).status().state is ClusterState.STARTING


@pytest.fixture
def dev_server(tmp_path, monkeypatch):
    """A process that looks like a node of the cluster in the default directory, and no configuration."""
    for name in [name for name in os.environ if name.startswith("CQUEUE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    directory = tmp_path.resolve() / "data" / "cqueue" / "dev"
    home = node_home(directory, 1)
    home.mkdir(parents=True)
    record.save(directory, RECORD)
    stand_in = [sys.executable, "-c", "import signal; signal.pause()", MARKER + str(home)]
    processes.spawn(stand_in, home=home, log=home / "log", environ=os.environ)
    yield cluster_url(Path("/dev"), RECORD)
    processes.kill([home])


def test_the_command_line_finds_the_server_that_runs(dev_server, capsys):
    """After `dev start` on another address the next command goes there, and says where it goes."""
    context = CliContext()
    assert context.url == context.url == dev_server
    assert [host for host, _ in context.settings().hosts] == ["127.99.0.1"]
    assert capsys.readouterr().err.count(dev_server) == 1  # told once


def test_who_is_asked_about_a_deletion_knows_on_which_server(dev_server, monkeypatch, capsys):
    said, client = [], connect("memory://orders")  # in place of that server, which does not listen
    client.create_queue("orders")
    monkeypatch.setattr("cqueue.client.connect", lambda _: client)
    monkeypatch.setattr(confirm, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: said.append(capsys.readouterr().err))
    assert main(["queue", "purge", "orders"]) == ExitCode.CHECK_FAILED
    assert dev_server in said[0].replace("\n", "")


@pytest.mark.usefixtures("dev_server")
def test_whatever_is_configured_comes_before_the_server_that_runs(tmp_path, monkeypatch):
    assert CliContext("memory://given").url == "memory://given"
    monkeypatch.setenv("CQUEUE_LOCAL_DC", "dc1")
    assert CliContext().url is None
    monkeypatch.delenv("CQUEUE_LOCAL_DC")
    (tmp_path / "cqueue.toml").write_text('[cqueue]\nurl = "memory://file"\n')
    assert CliContext().url is None
    assert CliContext().settings().scheme == "memory"


@pytest.mark.usefixtures("dev_server")
def test_a_program_that_connects_does_not_look_for_the_server_that_runs():
    """What a program does must not hang on what somebody runs on its machine."""
    assert load().hosts == (("127.0.0.1", 9042),)


def test_a_server_is_only_found_while_it_runs_and_is_ours(dev_server, tmp_path, monkeypatch):
    assert known_server(tmp_path / "elsewhere") is None
    assert known_server() == (dev_server, True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: -1)
        assert known_server() == (dev_server, False)
    directory = tmp_path.resolve() / "data" / "cqueue" / "dev"
    processes.kill([node_home(directory, 1)])
    assert known_server() == (dev_server, False)
    (directory / record.RECORD).write_text("no JSON")
    assert known_server() is None  # `cqueue dev status` says what is wrong


@pytest.mark.usefixtures("dev_server")
def test_who_is_led_elsewhere_because_the_server_is_stopped_is_told_so(tmp_path, capsys):
    """Another server may have the usual address, and a queue of the same name to be purged."""
    processes.kill([node_home(tmp_path.resolve() / "data" / "cqueue" / "dev", 1)])
    assert CliContext().url is None
    assert "`cqueue dev` does not run, so this command goes to" in " ".join(capsys.readouterr().err.split())


def test_looking_for_the_server_imports_no_driver(tmp_path):
    """A command that needs none is not slower for it."""
    code = (
        "import sys; from cqueue.cli.context import CliContext; CliContext().url; "
        "sys.exit('cassandra' in sys.modules)"
    )
    clean = {name: text for name, text in os.environ.items() if not name.startswith("CQUEUE_")}
    environ = {**clean, "XDG_DATA_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=tmp_path, check=False)
    assert done.returncode == 0


def test_start_tells_programs_what_to_export(tmp_path, monkeypatch):
    """The README's next command, and the programs after it, go to this server and no other."""
    url = cluster_url(Path("/dev"), RECORD)
    status = Status(ClusterState.RUNNING, (node_status(NodeState.UP),), url)
    monkeypatch.setattr(DevCluster, "start", lambda *_: status)
    said = CliRunner().invoke(app, ["start", "--dir", str(tmp_path)]).stdout.splitlines()
    assert f"export CQUEUE_URL='{url}'" in said, "a line of its own, to be copied"
    usual = replace(status, url=DEFAULT_URL)
    monkeypatch.setattr(DevCluster, "start", lambda *_: usual)
    assert "export" not in CliRunner().invoke(app, ["start", "--dir", str(tmp_path)]).stdout


def test_a_wipe_that_was_interrupted_goes_on_at_the_next_start(tmp_path, monkeypatch):
    """Nodes that have lost half of their data would not find each other again."""

    def interrupted(_home):
        raise KeyboardInterrupt

    record.save(tmp_path, RECORD)
    node_home(tmp_path, 1).mkdir()
    monkeypatch.setattr("cqueue.dev.cluster._delete", interrupted)
    with pytest.raises(KeyboardInterrupt):
        DevCluster(tmp_path).wipe()
    assert not record.load(tmp_path).formed


def test_a_pid_can_be_copied_behind_kill(tmp_path, monkeypatch):
    """docs/tutorial-on-call.md has one do that; a comma within it would make it another word."""
    node = replace(node_status(NodeState.UP), pid=29650)
    monkeypatch.setattr(DevCluster, "status", lambda *_: Status(ClusterState.RUNNING, (node,), DEFAULT_URL))
    assert " 29650 " in CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).stdout


def test_where_nothing_is_nothing_is_made(tmp_path):
    """A mistyped --dir leaves no directory behind."""
    for end in (DevCluster.stop, DevCluster.wipe):
        end(DevCluster(tmp_path / "typo" / "dev"))
    assert not list(tmp_path.iterdir())


def test_wipe_deletes_only_what_is_ours(tmp_path):
    """`--dir` may name a directory with other things in it."""
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "node1").mkdir()
    record.save(tmp_path, RECORD)
    DevCluster(tmp_path).wipe()
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.txt", record.LOCK}


def test_directories_that_others_made_are_neither_used_nor_deleted(tmp_path, monkeypatch):
    """`node1` is a common name: other tools keep clusters there, too."""
    monkeypatch.setattr("cqueue.dev.cluster.find_java", lambda: pytest.fail("nothing is looked for"))
    (tmp_path / "node2" / "data").mkdir(parents=True)
    (tmp_path / record.LOCK).write_text("theirs")
    cluster = DevCluster(tmp_path)
    with pytest.raises(DevError, match="node2 was not made by"):
        cluster.start()
    cluster.wipe()
    assert (tmp_path / "node2" / "data").is_dir()
    assert (tmp_path / record.LOCK).read_text() == "theirs"
    assert not (tmp_path / record.RECORD).exists()


def test_commands_on_nothing_have_a_remedy(tmp_path):
    """Without a cluster the node commands name the one that makes it; `stop` has nothing to do."""
    cluster = DevCluster(tmp_path)
    for call in (cluster.kill, cluster.logs, cluster.start_node):
        with pytest.raises(DevError, match=f"`cqueue dev start --dir {tmp_path}` makes one"):
            call(1)
    cluster.stop()
    record.save(tmp_path, RECORD)
    with pytest.raises(ConfigError, match="no node 2"):
        cluster.logs(2)
    assert cluster.logs(1) == []


def failing_start(monkeypatch, tmp_path, script, **options):
    """Start a cluster whose java is `script`."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\ncase $1 in -version) echo 'version \"17.0.1\"'; exit;; esac\n{script}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("cqueue.dev.cluster.ensure_jars", lambda _progress: [tmp_path / "jamm-1.jar"])
    cluster = DevCluster(tmp_path / "dev", first_address="127.98.0.1", **options)
    with pytest.raises(DevError) as caught:
        cluster.start(limit=timedelta(seconds=1))
    assert cluster.status().state is ClusterState.STOPPED, "no process is left behind"
    return str(caught.value)


def test_failing_start_shows_the_log_and_a_remedy(monkeypatch, tmp_path):
    """The end of the log and one line of advice, instead of a path to look at."""
    message = failing_start(
        monkeypatch, tmp_path, "echo 'java.io.IOException: No space left on device'; exit 3"
    )
    assert "ended while it was starting" in message
    assert "No space left on device" in message
    assert message.splitlines()[-1] == "Free some disk space, or choose another disk with --dir."


def test_failing_start_shows_the_error_that_much_else_came_after(monkeypatch, tmp_path):
    """A server that fails writes pages of tidying up."""
    tidying = "for line in 1 2 3 4 5 6 7 8 9; do echo INFO; echo INFO; done"
    message = failing_start(monkeypatch, tmp_path, f"echo 'ERROR Too small maximum heap'; {tidying}; exit 3")
    assert "\n  ERROR Too small maximum heap\n" in message
    assert message.splitlines()[-1] == "Choose a bigger --heap."


def test_start_that_takes_too_long_leaves_nothing(monkeypatch, tmp_path):
    """After the limit the processes are gone and the message says what was waited for."""
    message = failing_start(monkeypatch, tmp_path, "echo hanging; while :; do sleep 0.1; done")
    assert "did not answer CQL within " in message
    assert "hanging" in message
    assert "start it again later" in message
    assert "wipe" not in message, "nothing says that the data of a slow node is damaged"


@pytest.mark.parametrize(("lines", "took_s"), [(0, 100), (150, 250), (10_000, 500)])
def test_a_start_may_take_longer_while_its_log_grows(monkeypatch, tmp_path, lines, took_s):
    """On a machine with much else to do; but not for ever."""
    clock = SimpleNamespace(now_s=0.0)

    def sleep(_seconds):
        clock.now_s += 1

    node = Node(tmp_path, 1, RECORD)
    monkeypatch.setattr(startup, "time", SimpleNamespace(monotonic=lambda: clock.now_s, sleep=sleep))
    monkeypatch.setattr(Node, "answers", lambda _: False)
    monkeypatch.setattr(Node, "pid", lambda _: 1)
    monkeypatch.setattr(Node, "log_size", lambda _: min(clock.now_s, lines))
    with pytest.raises(DevError, match=f"within {took_s} s"):
        startup.await_answers([node], {}, timedelta(seconds=100), lambda _: None)


def test_a_start_says_how_many_nodes_answer(monkeypatch, tmp_path):
    nodes, said = [Node(tmp_path, number, RECORD) for number in (1, 2)], []
    answers = iter([False, True, True])
    monkeypatch.setattr(startup, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None))
    monkeypatch.setattr(Node, "answers", lambda _: next(answers))
    monkeypatch.setattr(Node, "pid", lambda _: 1)
    startup.await_answers(nodes, {}, timedelta(seconds=100), said.append)
    assert said == [f"Starting Cassandra: {number} of 2 nodes answer" for number in (1, 2)]


def test_a_start_that_fails_keeps_no_option(monkeypatch, tmp_path):
    """The next one begins with what the cluster ran with before."""
    known = replace(RECORD, addresses=("127.98.0.9",))
    (tmp_path / "dev").mkdir()
    record.save(tmp_path / "dev", known)
    failing_start(monkeypatch, tmp_path, "echo 'Too small maximum heap'; exit 3", heap="64m")
    assert record.load(tmp_path / "dev") == known


def test_a_process_without_a_command_line_has_not_ended(monkeypatch, tmp_path):
    """One that becomes another program has none for a moment: twice by chance, and a live node was killed."""
    monkeypatch.setattr(Node, "pid", lambda _: None)
    message = failing_start(monkeypatch, tmp_path, "echo hanging; while :; do sleep 0.1; done")
    assert "did not answer CQL within " in message


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("java.net.BindException: Address already in use", "took the port"),
        ("There is insufficient memory for the Java Runtime Environment", "smaller --heap"),
        ("java.lang.OutOfMemoryError: Java heap space", "bigger --heap"),
        ("org.apache.cassandra.exceptions.ConfigurationException: Invalid yaml", "overrides"),
        ("CommitLogReader$CommitLogReplayException", "`cqueue dev wipe --dir '/a b'`"),
        ("never seen before", "`cqueue dev logs --dir '/a b'`"),
    ],
)
def test_remedies(line, advice):
    """Each known failure has advice of its own, whatever options the server lists; others a place to look."""
    command = java_command(Path("java"), [Path("jamm-1.jar")], Path("home").absolute(), Settings())
    log = [f"INFO JVM Arguments: {command}", line, "INFO last"]
    assert advice in startup.remedy(log, Path("/a b"))


def test_the_error_is_shown_not_what_came_after():
    """A server that fails writes pages of tidying up; what is shown begins at the error."""
    tidying = ["INFO flushed"] * 50
    assert startup.telling(["INFO a", "ERROR b", "  at c", *tidying])[:2] == ["ERROR b", "  at c"]
    assert startup.telling([*tidying, "end"])[-1] == "end"
    assert len(startup.telling(tidying)) == 12
    assert startup.telling([]) == []


def test_node_moves_only_where_none_of_ours_lives(tmp_path):
    """A node whose address was taken gets a fresh one; its neighbours stay where they are."""
    known = replace(RECORD, addresses=("127.97.0.1", "127.97.0.2"), settings=Settings(nodes=2))
    cluster = DevCluster(tmp_path, first_address="127.97.0.1")
    settings = replace(known.settings, cql_port=19042, storage_port=17000)
    with socket.create_server(("127.97.0.1", 17000)), Reservation([19042, 17000]) as reservation:
        placed = cluster._placed(known, settings, reservation)
    assert placed.addresses == ("127.97.0.3", "127.97.0.2")
    assert placed.cluster_name == known.cluster_name


class Server(threading.Thread):
    """Answers each request on one connection with the next of `replies`."""

    def __init__(self, replies):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.replies = replies

    def run(self):
        connection, _ = self.listener.accept()
        with connection:
            for reply in self.replies:
                connection.recv(4096)
                connection.sendall(reply)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_exc):
        self.join(10)
        self.listener.close()


def frame(opcode, body=b""):
    return struct.pack(">BBhBi", 0x84, 0, 0, opcode, len(body)) + body


HANDSHAKE = [frame(6, b"\0\0"), frame(2)]


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ([*HANDSHAKE, frame(8, b"...cqueue-dev-test...")], True),
        ([*HANDSHAKE, frame(8, b"...somebody-else...")], False),
        ([*HANDSHAKE, frame(0, b"error cqueue-dev-test")], False),
        ([frame(6), frame(3)], False),  # wants a password: not ours
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], False),
        ([frame(6)[:4]], False),
    ],
)
def test_only_our_own_cluster_counts(replies, expected):
    """A node is up when it answers a query with our cluster's name; nothing else is."""
    with Server(replies) as server:
        assert probe.answers(probe.Node("127.0.0.1", server.port), "cqueue-dev-test") is expected


def test_nobody_listening_is_no_answer():
    """A closed port is a node that is not up, not an error."""
    assert not probe.answers(probe.Node("127.0.0.1", 1), "any")


def test_status_as_json(tmp_path):
    """Scripts read state, nodes, pids and URL from `status --json`, by its own or the global option."""
    record.save(tmp_path, RECORD)
    own = CliRunner().invoke(app, ["status", "--dir", str(tmp_path), "--json"])
    shared = CliRunner().invoke(app, ["status", "--dir", str(tmp_path)], obj=CliContext(json=True))
    assert own.exit_code == shared.exit_code == 0
    assert own.stdout == shared.stdout
    assert json.loads(own.stdout) == {
        "state": "stopped",
        "nodes": [{"number": 1, "address": "127.99.0.1", "port": 9042, "pid": None, "state": "down"}],
        "url": "cassandra://127.99.0.1:9042/cqueue?local_dc=datacenter1",
    }


def test_commands_work_without_the_main_program(tmp_path):
    """Each command runs on an empty directory with no context object, and says what is there."""
    for command in (["status"], ["stop"], ["wipe", "--yes"]):
        result = CliRunner().invoke(app, [*command, "--dir", str(tmp_path)])
        assert result.exit_code == 0, result.output
        assert "Cassandra: stopped" in result.stdout


def test_a_wipe_asks_first(tmp_path, monkeypatch):
    """A script that forgot --yes deletes nothing. Where other commands connect to does not matter."""
    monkeypatch.setenv("CQUEUE_URL", "nonsense")
    record.save(tmp_path, RECORD)
    with pytest.raises(BadInput, match=r"asks before it acts.*--yes"):
        CliRunner().invoke(app, ["wipe", "--dir", str(tmp_path)], catch_exceptions=False)
    assert record.load(tmp_path) == RECORD
