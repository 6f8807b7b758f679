"""What `cqueue dev` finds on the machine: addresses, processes, Java, places, jars."""

from __future__ import annotations

import os
import signal
import socket
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from cqueue.dev import addresses, jars, java, paths, processes
from cqueue.dev.addresses import Reservation
from cqueue.dev.jvm import MARKER
from cqueue.errors import DevError


@pytest.fixture
def port():
    """A port that is free on all loopback addresses, most likely."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def first():
    """A loopback network of this test's own."""
    return f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}.1"


def listen(address, port):
    return socket.create_server((address, port))


def after(address):
    head, last = address.rsplit(".", 1)
    return f"{head}.{int(last) + 1}"


def test_taken_address_is_passed_over(port, first):
    """Where somebody listens, we go elsewhere; a server that is not ours is never adopted."""
    with listen(first, port), Reservation([port]) as reservation:
        assert reservation.take_from(first, 2) == [after(first), after(after(first))]


def test_both_ports_must_be_free(port, first):
    """An address is only good if the nodes can talk to each other there as well."""
    with listen(first, port), Reservation([port + 1, port]) as reservation:
        assert reservation.take_from(first, 1) == [after(first)]


def test_two_starts_never_choose_the_same(port, first):
    """Between choosing and listening, another start on this machine is told to go elsewhere."""
    with Reservation([port]) as one, Reservation([port]) as other:
        assert one.take(first)
        assert not other.take(first)
        assert other.take_from(first, 1) == [after(first)]
    with Reservation([port]) as later:
        assert later.take(first), "the end of a start gives the address back"


def test_starts_with_other_ports_share_an_address(port, first):
    """They are in nobody's way. A node that was killed could not be started again beside another's start."""
    with Reservation([port, port + 1]) as one, Reservation([port + 2, port + 3]) as other:
        assert one.take(first)
        assert other.take(first)


def test_an_address_that_is_not_free_whole_is_not_held(port, first):
    with Reservation([port]) as one, Reservation([port + 1, port]) as two, Reservation([port + 1]) as three:
        assert one.take(first)
        assert not two.take(first)
        assert three.take(first)


def test_port_taken_everywhere(port, first):
    """If somebody listens on all addresses, the error names the options that help."""
    everywhere = socket.create_server(("0.0.0.0", port))  # noqa: S104
    refused = pytest.raises(DevError, match="--cql-port")
    with everywhere, Reservation([port]) as reservation, refused:
        reservation.take_from(first, 1)


def test_own_networks_are_apart():
    """Clusters of different directories look for addresses at different places, always the same."""
    networks = {addresses.own_network(Path(f"/dir{number}")) for number in range(100)}
    assert len(networks) > 90
    assert addresses.own_network(Path("/dir1")) in networks
    assert all(name.startswith("127.") and name.endswith(".1") for name in networks)


def process_entry(proc, pid, *arguments):
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes(b"".join(part.encode() + b"\0" for part in arguments))


def test_only_the_exact_directory_is_ours(tmp_path):
    """A pid is ours only if its command line names exactly our directory."""
    home = Path("/data/node1")
    process_entry(tmp_path, 10, "java", f"{MARKER}/data/node11")
    process_entry(tmp_path, 11, "vi", "/data/node1/node.log")
    process_entry(tmp_path, 12, "java", f"-Dx={MARKER}/data/node1")
    process_entry(tmp_path, 13)
    (tmp_path / "self").mkdir()
    (tmp_path / "14").mkdir()  # vanished while we looked
    assert processes.find(home, tmp_path) is None
    process_entry(tmp_path, 15, "java", f"{MARKER}/data/node1", "-cp", "x")
    assert processes.find(home, tmp_path) == 15


def test_a_node_that_is_just_starting_is_found(tmp_path):
    """Another start would take it for dead, and put a second node on its directory."""
    process_entry(tmp_path, 16)
    (tmp_path / "16" / "cwd").symlink_to("/data/node1")
    assert processes.find(Path("/data/node11"), tmp_path) is None
    assert processes.find(Path("/data/node1"), tmp_path) == 16


def sleeper(home, script="import time; time.sleep(60)"):
    command = [sys.executable, "-c", script, MARKER + str(home)]
    return processes.spawn(command, home=home, log=home / "log", environ=os.environ)


def test_process_is_on_its_own(tmp_path):
    """A node survives the command that started it: its own session, its parent is not us."""
    pid = sleeper(tmp_path)
    try:
        assert processes.find(tmp_path) == pid
        assert os.getsid(pid) != os.getsid(0)
        assert f"PPid:\t{os.getpid()}\n" not in Path(f"/proc/{pid}/status").read_text()
    finally:
        processes.kill([tmp_path])
    assert processes.find(tmp_path) is None
    assert processes.is_gone(pid)
    assert processes.send_signal(tmp_path, signal.SIGTERM) is None, "there is nobody to signal any more"


def test_a_node_sleeps_no_shorter_than_its_machine_can_bear(tmp_path):
    """Its threads inherit a timer slack, as Cassandra's idle workers would wake all the time."""
    pid = sleeper(tmp_path)
    try:
        assert int(Path(f"/proc/{pid}/timerslack_ns").read_text()) == processes.TIMER_SLACK_NS
        assert int(Path("/proc/self/timerslack_ns").read_text()) != processes.TIMER_SLACK_NS, "only its"
    finally:
        processes.kill([tmp_path])


@pytest.mark.parametrize(
    ("state", "threads", "gone"), [("S", 1, False), ("Z", 2, False), ("Z", 1, True), ("R", 9, False)]
)
def test_a_killed_process_is_gone_when_its_ports_are(tmp_path, state, threads, gone):
    """A process that has lost its command line, but not its threads, may still hold its ports."""
    for thread in range(threads):
        (tmp_path / "7" / "task" / str(thread)).mkdir(parents=True)
    (tmp_path / "7" / "stat").write_text(f"7 (odd) name) {state} 1 2 3")
    assert processes.is_gone(7, tmp_path) is gone
    assert processes.is_gone(8, tmp_path)


def test_deaf_process_is_killed_after_the_grace(tmp_path):
    """`stop` always ends: who does not hear SIGTERM in time is killed."""
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    sleeper(tmp_path, deaf)
    while "deaf" not in (tmp_path / "log").read_text():
        assert processes.find(tmp_path)
    processes.terminate([tmp_path], timedelta(milliseconds=200))
    assert processes.find(tmp_path) is None


def test_stopped_process_hears_the_request(tmp_path):
    """A node that a test stopped by SIGSTOP still ends within the grace, not by SIGKILL."""
    polite = (
        "import signal, sys, time\n"
        "signal.signal(15, lambda *_: (print('bye', flush=True), sys.exit()))\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    sleeper(tmp_path, polite)
    while "ready" not in (tmp_path / "log").read_text():
        assert processes.find(tmp_path)
    processes.send_signal(tmp_path, signal.SIGSTOP)
    processes.terminate([tmp_path], timedelta(seconds=20))
    assert "bye" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("no such thing", None),
    ],
)
def test_java_version_is_read(text, major):
    """Old and new styles of version are understood."""
    assert java.java_major(text) == major


def fake_tool(directory, name, script):
    directory.mkdir(parents=True, exist_ok=True)
    tool = directory / name
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return tool


def test_java_home_comes_first(tmp_path):
    """JAVA_HOME decides, and an empty one counts as unset."""
    home = fake_tool(tmp_path / "home" / "bin", "java", "echo 'version \"17.0.1\"' >&2")
    path = fake_tool(tmp_path / "path", "java", "echo 'version \"17.0.2\"' >&2")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert java.find_java(environ) == home
    assert java.find_java({**environ, "JAVA_HOME": ""}) == path


def test_missing_or_wrong_java_has_a_remedy(tmp_path):
    """One message says what is there, what is needed and how to get it."""
    with pytest.raises(DevError, match=r"No `java` in PATH.*apt install openjdk-17"):
        java.find_java({"PATH": str(tmp_path)})
    fake_tool(tmp_path, "java", "echo 'version \"21.0.1\"' >&2")
    with pytest.raises(DevError, match=r"is Java 21; Cassandra needs 17"):
        java.find_java({"PATH": str(tmp_path)})


def test_places_follow_xdg(monkeypatch, tmp_path):
    """XDG variables, then HOME, then the working directory; empty and relative values do not count."""
    monkeypatch.chdir(tmp_path)
    assert paths.cache_root({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/cqueue")
    assert paths.cache_root({"XDG_CACHE_HOME": "", "HOME": "/h"}) == Path("/h/.cache/cqueue")
    assert paths.default_directory({"XDG_DATA_HOME": "rel", "HOME": "/h"}) == Path(
        "/h/.local/share/cqueue/dev"
    )
    assert paths.default_directory({"HOME": ""}) == tmp_path / ".cqueue" / "dev"


def test_a_command_says_which_cluster_unless_it_is_the_usual_one(monkeypatch, tmp_path):
    """People copy it out of an error."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert paths.command("stop", (tmp_path / "cqueue" / "dev").resolve()) == "`cqueue dev stop`"
    assert paths.command("stop", Path("/a b")) == "`cqueue dev stop --dir '/a b'`"


@pytest.fixture
def maven(monkeypatch, tmp_path):
    """A Maven of our own; returns a function that sets what it does. Calls are counted in a file."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def does(script):
        count = f"echo run >> {tmp_path}/calls"
        target = 'for a; do case $a in -DoutputDirectory=*) d="${a#*=}";; esac; done'
        fake_tool(tmp_path / "bin", "mvn", f"{count}\n{target}\n{script}")
        return lambda: len((tmp_path / "calls").read_text().splitlines())

    return does


def test_maven_runs_once(maven):
    """The second time no Maven is needed, and the jars are those of the first time."""
    calls = maven("echo one > $d/a.jar; echo two > $d/b.jar")
    seen: list[str] = []
    first = jars.ensure_jars(seen.append)
    assert [jar.name for jar in first] == ["a.jar", "b.jar"]
    assert jars.ensure_jars() == first
    assert calls() == 1
    assert seen, "something was shown while Maven ran"


def test_failed_download_looks_incomplete(maven):
    """An interrupted download leaves nothing that looks complete; the next try repeats it."""
    maven("echo one > $d/a.jar; echo '[ERROR] no route to host'; exit 1")
    with pytest.raises(DevError, match=r"(?s)no route to host.*Check the network"):
        jars.ensure_jars()
    assert not jars.jars_directory().exists()
    assert not list(jars.jars_directory().parent.iterdir())
    maven("echo one > $d/a.jar")
    assert len(jars.ensure_jars()) == 1


def test_an_interrupted_download_leaves_neither_maven_nor_half_of_it(maven, tmp_path):
    """A SIGTERM reaches this process alone."""

    def interrupted(line):
        if "files" in line:
            raise KeyboardInterrupt

    maven(f"echo $$ > {tmp_path}/pid; echo one > $d/a.jar; echo Downloaded from central; exec sleep 60")
    with pytest.raises(KeyboardInterrupt):
        jars.ensure_jars(interrupted)
    assert processes.is_gone(int((tmp_path / "pid").read_text()))
    assert not list(jars.jars_directory().parent.iterdir())


def test_a_cache_that_takes_no_more_has_a_remedy(maven):
    maven(f"mkdir $d/{jars.MANIFEST}; echo one > $d/a.jar")  # no file can be written there
    with pytest.raises(DevError, match="XDG_CACHE_HOME"):
        jars.ensure_jars()


def test_two_starts_fetch_at_the_same_time(maven):
    """What the other one fetches may be gone, as it is complete, between two looks at it."""
    jars.jars_directory().parent.mkdir(parents=True)
    (jars.jars_directory().parent / "partial-gone").symlink_to("nowhere")
    maven("echo one > $d/a.jar")
    assert len(jars.ensure_jars()) == 1


@pytest.mark.parametrize("damage", [Path.unlink, lambda jar: jar.write_text("cut")])
def test_damaged_cache_is_fetched_again(maven, damage):
    """A jar that is missing or has another size is noticed."""
    calls = maven("echo whole > $d/a.jar")
    (jar,) = jars.ensure_jars()
    damage(jar)
    assert jars.ensure_jars() == [jar]
    assert jar.read_text() == "whole\n"
    assert calls() == 2


def test_another_pom_is_another_set(maven, monkeypatch, tmp_path):
    """A changed pom.xml is not answered with the jars of the old one."""
    calls = maven("echo whole > $d/a.jar")
    jars.ensure_jars()
    changed = tmp_path / "pom.xml"
    changed.write_text(jars.POM.read_text() + "<!-- another -->\n")
    monkeypatch.setattr(jars, "POM", changed)
    jars.ensure_jars()
    assert calls() == 2


def test_no_maven(monkeypatch, tmp_path):
    """Without Maven one line says how to get it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DevError, match="apt install maven"):
        jars.ensure_jars()


def test_version_is_a_released_one():
    """The pinned server is a release of 5.0."""
    assert jars.cassandra_version().startswith("5.0.")
