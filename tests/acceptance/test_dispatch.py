"""`cqueue dispatch` as it is deployed: real processes, real signals, a real Cassandra."""

import importlib.util
import json
import os
import signal
import socket
import textwrap
import time
import urllib.request
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

import cqueue
from tests.acceptance.daemons import Dispatch, at, wait_for

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(240)]

VISIBILITY = timedelta(seconds=5)

WORK = """
    import os, time
    import cqueue
    from cqueue import Retry

    app = cqueue.App()

    def note(*words):
        line = " ".join(map(str, (time.time(), os.getpid(), *words))) + "\\n"
        out = os.open("journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(out, line.encode())
        os.close(out)

    @app.task(queue="quick", name="quick")
    def quick(number):
        note("quick", number)

    @app.task(queue="slow", name="slow")
    def slow(number, seconds=0.5):
        note("began", number)
        time.sleep(seconds)
        note("slow", number)

    @app.task(queue="deadly", name="deadly", retry=Retry(max_attempts=3))
    def deadly(number):
        note("began", number)
        if number == 7:
            os.kill(os.getpid(), 9)
        note("deadly", number)
"""


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "work.py").write_text(textwrap.dedent(WORK))
    return tmp_path


@pytest.fixture
def keyspace_url(keyspace):
    return keyspace.url


@pytest.fixture
def app(directory, keyspace_url, monkeypatch):
    """The application of the daemons, here to enqueue; its queues have a short timeout."""
    monkeypatch.chdir(directory)
    with cqueue.connect(keyspace_url) as client:
        for name, attempts in (("quick", 5), ("slow", 5), ("deadly", 3)):
            client.create_queue(name, cqueue.QueueConfig(visibility=VISIBILITY, max_attempts=attempts))
        work = load_here(directory / "work.py")
        work.app._client = client
        yield work.app
        for name in ("quick", "slow", "deadly"):
            client.delete_queue(name)


def load_here(path):
    """The module of that file, under no name that anybody else could find."""
    spec = importlib.util.spec_from_file_location("work", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def dispatch(directory, keyspace_url, app):  # noqa: ARG001 - the queues are there before
    """Start daemons; all are gone after the test."""
    started = []

    def start(*options, **more):
        started.append(Dispatch(directory, keyspace_url, *options, **more))
        return started[-1]

    yield start
    for daemon in started:
        daemon.close()


@pytest.fixture
def journal(directory):
    """What handlers have written: (time, process, what, number)."""

    def read(what=None):
        path = directory / "journal"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        rows = [(float(at_s), int(pid), name, int(number)) for at_s, pid, name, number in lines]
        return [row for row in rows if what in {None, row[2]}]

    return read


def send(task, count):
    for number in range(count):
        task.enqueue(number)


# ── Handlers that kill, processes that are killed ──


def test_a_handler_that_kills_its_process_ends_as_a_dead_letter_and_its_neighbours_finish(
    app, dispatch, journal
):
    """After max_attempts, with processes that are replaced each time."""
    send(app.tasks["deadly"], 20)
    daemon = dispatch("work:app", "--processes", 2, "--queues", "deadly", "--threads", 4)
    dead = app.client.queue("deadly.dead")
    wait_for(lambda: dead.stats(exact=True).live == 1, 120, daemon.log.read_text)
    neighbours = set(range(20)) - {7}
    wait_for(lambda: {row[3] for row in journal("deadly")} == neighbours, 60, daemon.log.read_text)
    kills = [row for row in journal("began") if row[3] == 7]
    assert len(kills) == 3
    wait_for(lambda: app.client.queue("deadly").stats(exact=True).live == 0)
    daemon.signal()
    assert daemon.end() == 0


def test_a_killed_child_is_replaced_within_two_seconds(dispatch):
    daemon = dispatch("work:app", "--processes", 2)
    daemon.until("child_ready", count=2)
    child = daemon.lines("child_started")[0]
    killed_s = time.time()
    os.kill(child["pid"], signal.SIGKILL)
    replaced = daemon.until("child_started", count=3)
    assert at(replaced) - killed_s < 2
    daemon.until("child_ready", count=3)
    daemon.signal()
    assert daemon.end() == 0


def test_children_of_a_killed_parent_drain_by_themselves(app, dispatch, journal):
    """Nobody is left to work without somebody who watches over it."""
    app.tasks["slow"].enqueue(1, 1.0)
    daemon = dispatch("work:app", "--processes", 2)
    wait_for(lambda: journal("began"), 60, daemon.log.read_text)
    children = [line["pid"] for line in daemon.lines("child_started")]
    daemon.signal(signal.SIGKILL)
    wait_for(lambda: not any(map(is_running, children)), 60, daemon.log.read_text)
    assert journal("slow")


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"


# ── Signals ──


def test_sigterm_drains_what_runs_and_leaves_the_rest_at_once_with_no_attempt_used(app, dispatch, journal):
    """With a hundred in flight: what runs ends within the grace, what was not started is there for others."""
    send(app.tasks["slow"], 100)
    daemon = dispatch("work:app", "--queues", "slow", "--threads", 10, "--grace", "10s")
    wait_for(lambda: len(journal("began")) >= 15, 60, daemon.log.read_text)
    daemon.signal()
    signalled_s = time.monotonic()
    assert daemon.end() == 0
    assert time.monotonic() - signalled_s < 10
    began, done = ({row[3] for row in journal(what)} for what in ("began", "slow"))
    assert began == done
    rest = []
    with app.client.queue("slow").consumer() as consumer:
        while len(rest) < 100 - len(done):
            messages = consumer.receive(100, wait=timedelta(seconds=4))
            assert messages, f"{100 - len(done) - len(rest)} are not there"
            rest += messages
            consumer.ack(messages)
    assert {message.attempt for message in rest} == {1}


def test_a_second_signal_leaves_at_once(app, dispatch, journal):
    app.tasks["slow"].enqueue(1, 60.0)
    daemon = dispatch("work:app", "--queues", "slow")
    wait_for(lambda: journal("began"), 60, daemon.log.read_text)
    daemon.signal(signal.SIGTERM)
    daemon.until("daemon_stopping")
    began_s = time.monotonic()
    daemon.signal(signal.SIGINT)
    assert daemon.end() == 130
    assert time.monotonic() - began_s < 2


def test_the_grace_passes_with_a_handler_running_and_the_code_is_1(app, dispatch, journal):
    app.tasks["slow"].enqueue(1, 60.0)
    daemon = dispatch("work:app", "--queues", "slow", "--grace", "500ms")
    wait_for(lambda: journal("began"), 60, daemon.log.read_text)
    daemon.signal()
    assert daemon.end(20) == 1


def test_sighup_replaces_all_processes_and_no_message_runs_twice(app, dispatch, journal):
    daemon = dispatch("work:app", "--processes", 2)
    daemon.until("child_ready", count=2)
    send(app.tasks["quick"], 50)
    daemon.signal(signal.SIGHUP)
    send(app.tasks["quick"], 50)
    daemon.until("child_ready", count=4)
    wait_for(lambda: len(journal("quick")) >= 100, 60, daemon.log.read_text)
    daemon.signal()
    assert daemon.end() == 0
    assert Counter(row[3] for row in journal("quick")) == dict.fromkeys(range(50), 2)


def test_changed_code_is_run(app, dispatch, journal, directory):
    daemon = dispatch("work:app", "--watch", ".")
    daemon.until("child_ready")
    work = directory / "work.py"
    work.write_text(work.read_text().replace('note("quick", number)', 'note("changed", number)'))
    daemon.until("child_ready", count=2)
    app.tasks["quick"].enqueue(1)
    wait_for(lambda: journal("changed"), 60, daemon.log.read_text)


# ── Many together ──


def test_who_is_at_work_is_shown_and_queues_are_paused_for_all(app, dispatch, journal, cli_here):
    """Three daemons: each has a row, a pause is obeyed by all within two seconds, and a resume."""
    daemons = [dispatch("work:app", "--queues", "quick") for _ in range(3)]
    for daemon in daemons:
        daemon.until("members_changed", queue="quick", workers=3)
    rows = own_rows(cli_here)
    assert sorted(row["pid"] for row in rows) == sorted(daemon.pid for daemon in daemons)
    assert all(row["queues"] == ["quick"] and row["state"] == "running" for row in rows)
    assert all(row["age_s"] < 15 for row in rows)
    queue = app.client.queue("quick")
    queue.pause()
    paused_s = time.time()
    for number in range(400):
        app.tasks["quick"].enqueue(number)
        if time.time() - paused_s > 3:
            break
    time.sleep(max(0.0, paused_s + 3 - time.time()))
    assert not [row for row in journal("quick") if row[0] > paused_s + 2]
    queue.resume()
    resumed_s = time.time()
    sent = number + 1
    wait_for(lambda: len({row[3] for row in journal("quick")}) == sent)
    late = min((row[0] for row in journal("quick") if row[0] > paused_s + 2.5), default=resumed_s)
    assert late - resumed_s <= 2
    daemons[0].signal()
    assert daemons[0].end() == 0
    assert len(own_rows(cli_here)) == 2


def own_rows(cli_here):
    """Without those of daemons that other tests have killed."""
    return [row for row in cli_here("workers").json if row["queues"] == ["quick"]]


@pytest.fixture
def cli_here(keyspace_url, capsys):
    from cqueue.cli.main import main

    class Said:
        def __init__(self, out):
            self.json = json.loads(out)

    def run(*args):
        assert main(["--url", keyspace_url, "--json", *args]) == 0
        return Said(capsys.readouterr().out)

    return run


# ── What it says ──


def test_drain_ends_with_all_done(app, dispatch, journal):
    send(app.tasks["quick"], 200)
    daemon = dispatch("work:app", "--drain")
    assert daemon.end() == 0
    assert sorted(row[3] for row in journal("quick")) == list(range(200))


def test_systemd_is_told_and_its_watchdog_fed(dispatch):
    address = f"@cqueue-acceptance-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + address[1:])
        systemd.settimeout(60)
        daemon = dispatch("work:app", env={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
        heard = []
        while b"WATCHDOG=1" not in heard:
            heard.append(systemd.recv(1000))
        daemon.signal()
        while b"STOPPING=1" not in heard:
            heard.append(systemd.recv(1000))
    assert heard.index(b"READY=1") < heard.index(b"WATCHDOG=1")
    assert daemon.end() == 0


def test_probes_and_metrics_of_several_processes(app, dispatch, journal):
    daemon = dispatch("work:app", "--processes", 2, "--health-port", 0)
    port = daemon.until("health_listening")["port"]
    daemon.until("child_ready", count=2)
    send(app.tasks["quick"], 30)
    wait_for(lambda: len(journal("quick")) == 30)

    def get(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.read().decode()

    assert json.loads(get("/livez"))["alive"]
    assert json.loads(get("/readyz"))["ready"]
    done = 'cqueue_messages_total{outcome="succeeded",queue="quick"} 30.0'
    wait_for(lambda: done in get("/metrics"), 20, lambda: get("/metrics"))
    assert "cqueue_processes 2.0" in get("/metrics")


def test_lines_carry_the_message_and_never_its_content(app, dispatch):
    app.tasks["slow"].enqueue("secret-payload", "no number")
    daemon = dispatch("work:app")
    line = daemon.until("message_retried")
    assert line["queue"] == "slow"
    assert line["task"] == "slow"
    assert line["attempt"] == 1
    assert line["message_id"]
    daemon.signal()
    assert daemon.end() == 0
    assert "secret-payload" not in daemon.log.read_text()
