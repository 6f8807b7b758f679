"""`cqueue dispatch` as it is deployed: real processes, real signals, a real Cassandra."""

import json
import os
import signal
import socket
import time
import urllib.request
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

import cqueue
from cqueue.dispatcher.service.supervisor import SILENT_AFTER_S
from tests.acceptance.daemons import PATIENCE_S, VISIBILITY, Site, at

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(400)]

OBEYED_S = 2.0 + 8.0
"""Within two seconds a pause is obeyed; eight more for a busy machine to handle what was received before."""


@pytest.fixture
def site(tmp_path, keyspace):
    """A site where a slow machine's messages do not time out; some tests set a shorter timeout."""
    site = Site(tmp_path, keyspace.url, visibility=timedelta(minutes=1))
    yield site
    site.close()


# ── Handlers that kill, processes that are killed ──


def test_a_handler_that_kills_its_process_ends_as_a_dead_letter_and_its_neighbours_finish(site):
    """After max_attempts, with processes that are replaced; the log names what each was handling."""
    site.client.queue("deadly").alter(visibility=VISIBILITY)
    site.send("deadly", 20)
    daemon = site.start("--processes", 2, "--queues", "deadly", "--threads", 4)
    dead = site.client.queue("deadly.dead")
    site.wait(lambda: dead.stats(exact=True).live == 1, 120)
    neighbours = set(range(20)) - {7}
    site.wait(lambda: {row[3] for row in site.journal("deadly")} == neighbours, 60)
    kills = [row for row in site.journal("began") if row[3] == 7]
    assert len(kills) == 3
    site.wait(lambda: site.client.queue("deadly").stats(exact=True).live == 0)
    daemon.signal()
    assert daemon.end() == 0
    deaths = [line["running"] for line in daemon.lines("child_ended") if line["code"] != 0]
    assert len(deaths) == 3
    named = set.intersection(*({(run["task"], run["message_id"]) for run in runs} for runs in deaths))
    assert [task for task, _ in named] == ["deadly"]  # the one message that all of them had begun


def test_a_killed_child_is_replaced_as_it_ends(site):
    """Before the parent could have noticed its silence; test_supervisor.py times it on a virtual clock."""
    daemon = site.start("--processes", 2)
    daemon.until("child_ready", count=2)
    child = daemon.lines("child_started")[0]
    killed_s = time.time()
    os.kill(child["pid"], signal.SIGKILL)
    replaced = daemon.until("child_started", count=3)
    assert at(replaced) - killed_s < SILENT_AFTER_S
    daemon.until("child_ready", count=3)
    daemon.signal()
    assert daemon.end() == 0


def test_children_of_a_killed_parent_drain_by_themselves(site):
    """Nobody is left to work without somebody who watches over it."""
    site.app.tasks["slow"].enqueue(1, 1.0)
    daemon = site.start("--processes", 2)
    site.wait(lambda: site.journal("began"), 60)
    children = [line["pid"] for line in daemon.lines("child_started")]
    daemon.signal(signal.SIGKILL)
    site.wait(lambda: not any(map(is_running, children)), 60)
    assert site.journal("slow")


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"


def test_a_cron_fires_every_tick_though_one_of_three_daemons_is_killed(site):
    """Once a second, each at least once; what the killed one had, and nothing else, may come once more."""
    site.client.queue("ticks").alter(visibility=timedelta(seconds=20))
    message = site.app.tasks["tick"].message()
    daemons = [site.start("--queues", "ticks", "--threads", 2) for _ in range(3)]
    for daemon in daemons:
        daemon.until("daemon_ready")
    schedules = site.client.queue("ticks").schedules
    every_second = cqueue.Cron("* * * * * *", misfire="all")
    schedules.add("tick", every_second, message.body, task=message.task, codec=message.codec)
    site.wait(lambda: len(site.journal("tick")) >= 5)
    victim = next(daemon for daemon in daemons if daemon.pid == site.journal("tick")[-1][1])
    victim.signal(signal.SIGKILL)
    enough = max(site.numbers("tick")) + 15

    def is_complete():
        ticks = site.numbers("tick")
        return max(ticks) >= enough and len(ticks) > max(ticks) - min(ticks)

    site.wait(is_complete)
    for daemon in daemons:
        if daemon is not victim:
            daemon.signal()
            assert daemon.end() == 0
    ticks = Counter(row[3] for row in site.journal("tick"))
    assert sorted(ticks) == list(range(min(ticks), max(ticks) + 1)), "a tick is missing"
    assert max(ticks.values()) <= 2
    by_victim = {row[3] for row in site.journal("tick") if row[1] == victim.pid}
    assert {tick for tick, calls in ticks.items() if calls == 2} <= by_victim


# ── Signals ──


@pytest.mark.feature
def test_sigterm_drains_what_runs_and_leaves_the_rest_at_once_with_no_attempt_used(site):
    """With a hundred in flight: what runs ends within the grace, what was not started is there for others."""
    site.send("slow", 100)
    daemon = site.start("--queues", "slow", "--threads", 10, "--grace", "60s")
    site.wait(lambda: len(site.journal("began")) >= 15, 60)
    daemon.signal()
    assert daemon.end() == 0  # 1 if the grace had passed
    began, done = ({row[3] for row in site.journal(what)} for what in ("began", "slow"))
    assert began == done
    rest = []
    with site.client.queue("slow").consumer() as consumer:
        while len(rest) < 100 - len(done):
            messages = consumer.receive(100, wait=timedelta(seconds=20))
            assert messages, f"{100 - len(done) - len(rest)} are not there"
            rest += messages
            consumer.ack(messages)
    assert {message.attempt for message in rest} == {1}  # given back: no timeout has passed


def test_a_second_signal_leaves_at_once(site):
    """Long before the handler ends or the grace of 30 s is over, after which the code would be 1."""
    site.app.tasks["slow"].enqueue(1, 60.0)
    daemon = site.start("--queues", "slow")
    site.wait(lambda: site.journal("began"), 60)
    daemon.signal(signal.SIGTERM)
    daemon.until("daemon_stopping")
    daemon.signal(signal.SIGINT)
    assert daemon.end() == 130


def test_the_grace_passes_with_a_handler_running_and_the_code_is_1(site):
    site.app.tasks["slow"].enqueue(1, 60.0)
    daemon = site.start("--queues", "slow", "--grace", "500ms")
    site.wait(lambda: site.journal("began"), 60)
    daemon.signal()
    assert daemon.end() == 1  # 0 if it had waited for the handler


def test_sighup_replaces_all_processes_and_no_message_runs_twice(site):
    daemon = site.start("--processes", 2)
    daemon.until("child_ready", count=2)
    site.send("quick", 50)
    daemon.signal(signal.SIGHUP)
    site.send("quick", 50)
    daemon.until("child_ready", count=4)
    site.wait(lambda: len(site.journal("quick")) >= 100, 60)
    daemon.signal()
    assert daemon.end() == 0
    assert Counter(row[3] for row in site.journal("quick")) == dict.fromkeys(range(50), 2)


def test_changed_code_is_run(site):
    daemon = site.start("--watch", ".")
    daemon.until("child_ready")
    work = site.directory / "work.py"
    work.write_text(work.read_text().replace('note("quick", number)', 'note("changed", number)'))
    daemon.until("child_ready", count=2)
    site.app.tasks["quick"].enqueue(1)
    site.wait(lambda: site.journal("changed"), 60)


# ── Many together ──


def test_who_is_at_work_is_shown_and_queues_are_paused_for_all(site, cli_here):
    """Three daemons: each has a row; all obey a pause within two seconds, and a resume.

    What a daemon had received by then is handled a little later on a busy machine.
    """
    daemons = [site.start("--queues", "quick") for _ in range(3)]
    for daemon in daemons:
        daemon.until("members_changed", queue="quick", workers=3)
    rows = own_rows(cli_here)
    assert sorted(row["pid"] for row in rows) == sorted(daemon.pid for daemon in daemons)
    assert all(row["queues"] == ["quick"] and row["state"] == "running" for row in rows)
    assert all(row["age_s"] < 15 for row in rows)
    queue = site.client.queue("quick")
    queue.pause()
    paused_s, sent = time.time(), 0
    while time.time() - paused_s < OBEYED_S + 1:
        site.app.tasks["quick"].enqueue(sent)
        sent += 1
        time.sleep(0.02)
    assert not [row for row in site.journal("quick") if row[0] > paused_s + OBEYED_S]
    queue.resume()
    resumed_s = time.time()
    site.wait(lambda: len(site.numbers("quick")) == sent)
    first_s = min(row[0] for row in site.journal("quick") if row[0] > paused_s + OBEYED_S)
    assert first_s - resumed_s <= OBEYED_S
    daemons[0].signal()
    assert daemons[0].end() == 0
    assert len(own_rows(cli_here)) == 2


def own_rows(cli_here):
    """Without those of daemons that other tests have killed."""
    return [row for row in cli_here("workers") if row["queues"] == ["quick"]]


@pytest.fixture
def cli_here(keyspace, capsys):
    """Run a command, and read its JSON."""
    from cqueue.cli.main import main

    def run(*args):
        assert main(["--url", keyspace.url, "--json", *args]) == 0
        return json.loads(capsys.readouterr().out)

    return run


# ── What it says ──


@pytest.mark.feature
def test_drain_ends_with_all_done(site):
    site.send("quick", 200)
    daemon = site.start("--drain")
    assert daemon.end() == 0
    assert sorted(row[3] for row in site.journal("quick")) == list(range(200))


def test_systemd_is_told_and_its_watchdog_fed(site):
    address = f"@cqueue-acceptance-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + address[1:])
        systemd.settimeout(PATIENCE_S)
        daemon = site.start(env={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})

        def hear(notice):
            while systemd.recv(1000) != notice:
                pass

        hear(b"READY=1")  # it is fed before that as well, if the start takes long
        hear(b"WATCHDOG=1")
        daemon.signal()
        hear(b"STOPPING=1")
    assert daemon.end() == 0


def test_probes_and_metrics_of_several_processes(site):
    daemon = site.start("--processes", 2, "--health-port", 0)
    port = daemon.until("health_listening")["port"]
    daemon.until("child_ready", count=2)
    site.send("quick", 30)
    site.wait(lambda: len(site.journal("quick")) == 30)

    def get(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.read().decode()

    assert json.loads(get("/livez"))["alive"]
    assert json.loads(get("/readyz"))["ready"]
    done = 'cqueue_messages_total{outcome="succeeded",queue="quick"} 30.0'
    site.wait(lambda: done in get("/metrics"))
    assert "cqueue_processes 2.0" in get("/metrics")


@pytest.mark.feature
def test_lines_carry_the_message_and_never_its_content(site):
    site.app.tasks["slow"].enqueue("secret-payload", "no number")
    daemon = site.start()
    line = daemon.until("message_retried")
    assert line["queue"] == "slow"
    assert line["task"] == "slow"
    assert line["attempt"] == 1
    assert line["message_id"]
    daemon.signal()
    assert daemon.end() == 0
    assert "secret-payload" not in daemon.log.read_text()
