"""`cqueue demo`: its account is right, and it tells when something is wrong."""

import io
import itertools
import json
import re
import runpy
import signal
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from cqueue import AckUnknown, Client, Consumer, Queue, QueueNotFound, Unavailable, connect, dev
from cqueue.cli.failures import ExitCode
from cqueue.cli.interrupts import Interrupts
from cqueue.demo import Input, Ledger, accounting, cassandra, display, runner
from cqueue.demo.accounting import percentile_ms
from cqueue.dev import ClusterState
from cqueue.dispatcher.execution.actions import Retry
from cqueue.errors import DevError, SendUnknown
from cqueue.settings import named_url

TEXT = files("cqueue.cli").joinpath("demo.txt").read_text(encoding="utf-8")
QUICK = ("demo", "--json", "--messages", "300", "--rate", "0")


# ── the input ──


def test_the_text_comes_with_the_package():
    """10,000 lines, all different enough to notice a mix-up, below 1 MB."""
    assert len(TEXT.splitlines()) == 10_000
    assert len(TEXT.encode()) < 1_000_000
    assert len(set(TEXT.splitlines())) > 9_900


def test_the_text_is_what_its_script_writes():
    script = Path(__file__).parents[2] / "benchmarks" / "make_demo_text.py"
    assert list(runpy.run_path(str(script))["access_log"]()) == TEXT.splitlines()


@pytest.mark.parametrize("size", [1, 5, 100, 10_000, 25_000])
def test_every_message_is_one_of_its_own(size):
    """Its number can be read back from its body; a handful are poisonous, whatever the size."""
    given = Input.of_size(size)
    assert all(given.number_of(given.body(n)) == n for n in range(1, size + 1))
    assert 1 <= len(given.poison) <= 5
    assert given.poison <= set(range(1, size + 1))


def test_an_altered_body_has_no_number():
    given = Input.of_size(10)
    for body in (b"", b"7", b"x y", given.body(7) + b"!", b"11 " + given.lines[0].encode(), b"0 x"):
        assert given.number_of(body) is None


def test_one_in_a_hundred_fails_twice():
    given = Input.of_size(10_000)
    flaky = [n for n in range(1, 10_001) if given.fails(n, 1) and n not in given.poison]
    assert 95 <= len(flaky) <= 100
    assert all(given.fails(n, 2) and not given.fails(n, 3) for n in flaky)
    assert all(given.fails(n, 1000) for n in given.poison)


# ── the account ──


@pytest.fixture
def ledger():
    """Five messages; time passes by a second a call."""
    return Ledger(5, now=itertools.count().__next__)


def test_an_account_that_balances(ledger):
    ledger.sending(range(1, 6))
    ledger.stored(range(1, 6))
    ledger.delivered(range(1, 6))
    ledger.handled([1, 2, 3, 4])
    ledger.acked(n for n in (1, 2, 3, 4))
    ledger.dead([5])
    report = ledger.report(0, interrupted=False)
    assert (report.sent, report.acked, report.dead, report.lost) == (5, 4, 1, 0)
    assert report.balanced


def test_a_message_that_vanished_is_lost(ledger):
    """Stored, never handled, not dead, and not in the queue."""
    ledger.sending(range(1, 6))
    ledger.stored(range(1, 6))
    ledger.handled([1, 2, 3, 4])
    ledger.acked([1, 2, 3, 4])
    assert ledger.report(0, interrupted=False).lost == 1
    left = ledger.report(1, interrupted=False)
    assert (left.lost, left.left, left.balanced) == (0, 1, False)


def test_nothing_counts_as_lost_while_nobody_can_say_what_is_left(ledger):
    """After Ctrl-C in an outage most messages may well be in the queue."""
    ledger.sending(range(1, 6))
    ledger.stored(range(1, 6))
    ledger.handled([1, 2, 3, 4])
    ledger.acked([1, 2, 3, 4])
    report = ledger.report(None, interrupted=False)
    assert (report.left, report.lost, report.balanced) == (None, None, False)
    ledger.handled([5])
    assert ledger.report(None, interrupted=False).lost == 0


def test_an_unknown_send_counts_as_sent_when_it_is_seen(ledger):
    ledger.sending(range(1, 6))
    ledger.stored([1, 2, 3])
    ledger.send_unknown(4)
    ledger.send_unknown(5)
    ledger.delivered([4])
    report = ledger.report(0, interrupted=False)
    assert (report.sent, report.unsent) == (4, 1)


def test_an_unknown_ack_is_no_loss(ledger):
    """The message was handled; if it were still there, the count would show it."""
    ledger.sending([1])
    ledger.stored([1])
    ledger.delivered([1])
    ledger.handled([1])
    report = ledger.report(0, interrupted=False)
    assert (report.acked, report.ack_unknown, report.lost) == (0, 1, 0)


def test_duplicates_and_redeliveries_are_told_apart(ledger):
    """Again after a failure is redelivered; again after success is a duplicate as well."""
    ledger.sending([1, 2])
    ledger.delivered([1, 2])
    ledger.delivered([1])
    ledger.handled([1, 2])
    ledger.delivered([2])
    ledger.dead([2])
    report = ledger.report(0, interrupted=False)
    assert (report.redelivered, report.duplicates) == (2, 2)


def test_an_altered_body_never_balances(ledger):
    ledger.altered()
    assert ledger.report(0, interrupted=False).altered == 1


def test_a_second_that_was_not_fired_does_not_balance(ledger):
    """From the first that the schedule promised, to the last that was fired."""
    ledger.ticks_from(second(10))
    for number in (11, 12, 14, 14):
        ledger.tick(second(number))
    report = ledger.report(0, interrupted=False)
    assert (report.ticks, report.ticks_missed, report.ticks_repeated) == (3, 2, 1)
    assert not report.balanced


def second(number):
    return datetime.fromtimestamp(number, UTC)


def test_a_snapshot_counts_what_is_recent(ledger):
    ledger.sending([1, 2])  # at 1 s
    ledger.stored([1, 2])
    ledger.delivered([1])  # at 2 s
    ledger.acked([1])  # at 3 and 4 s
    snapshot = ledger.snapshot()  # at 5 s
    assert (snapshot.sent, snapshot.done, snapshot.depth) == (2, 1, 1)
    assert snapshot.per_second == pytest.approx(0.5)
    assert snapshot.p50_ms is None, "the delivery is older than two seconds"
    assert ledger.report(1, interrupted=True).p50_ms == 1000


def test_percentiles_are_of_nearest_rank():
    seconds = [n / 1000 for n in range(100, 0, -1)]
    assert (percentile_ms(seconds, 50), percentile_ms(seconds, 99), percentile_ms([], 50)) == (50, 99, None)


# ── the whole ──


@pytest.fixture
def demo(cli, monkeypatch):
    """Run `cqueue demo`, which looks more often than it does for people, and retries sooner."""
    monkeypatch.setattr(accounting, "WINDOW_S", 0.5)
    monkeypatch.setattr(runner, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(runner, "REPEAT_AFTER_S", 0.02)
    monkeypatch.setattr(runner, "RETRY", Retry(timedelta(milliseconds=20)))
    return cli


def test_the_demo_accounts_for_every_message(demo, cli_url):
    said = demo(*QUICK)
    assert (said.code, said.err) == (0, "")
    report = said.json
    assert report["balanced"]
    assert report["sent"] == report["messages"] == 300
    assert report["acked"] == 295
    assert report["dead"] == 5
    assert report["lost"] == report["left"] == report["duplicates"] == report["unsent"] == 0
    assert report["redelivered"] == 3 * 2 - (2 if 150 in Input.of_size(300).poison else 0) + 5 * 3
    assert 0 < report["p50_ms"] <= report["p99_ms"]
    assert report["ticks_missed"] == report["ticks_repeated"] == 0
    with connect(cli_url) as client:
        assert client.queues() == []


def test_for_people_it_prints_lines_and_a_table(demo):
    said = demo("demo", "--messages", "100")
    assert said.code == 0
    assert re.search(r"sent +100 ", said.out)
    assert "100 sent = 95 acked + 5 dead. Nothing is lost." in said.out
    assert re.search(r"^sent \d+ +done \d+ +depth", said.err, re.MULTILINE)


def test_it_accounts_also_where_standard_error_takes_nothing(demo, monkeypatch):
    """Its lines are lost on a full disk; the messages and the table are not."""

    class Full(io.StringIO):
        def write(self, _text):
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("sys.stderr", Full())
        said = demo("demo", "--messages", "100")
    assert (said.code, "Nothing is lost." in said.out) == (0, True)


@pytest.mark.slow
def test_a_cron_ticks_meanwhile(demo):
    """At 100 messages a second, 300 take three seconds: it fires in each."""
    report = demo("demo", "--json", "--messages", "300", "--rate", "100").json
    assert report["balanced"]
    assert 2 <= report["ticks"] <= 3 + report["seconds"]
    assert report["ticks_missed"] == 0


def test_a_lost_message_is_found(demo, cli_url, monkeypatch):
    """A producer is told that a message is stored, and it is not: exit code 1, and the queue is kept."""
    send_many = Queue.send_many
    first = itertools.count()

    def forgetful(self, messages):
        return send_many(self, list(messages)[0 if next(first) else 1 :])

    monkeypatch.setattr(Queue, "send_many", forgetful)
    said = demo(*QUICK)
    assert said.code == ExitCode.CHECK_FAILED
    assert (said.json["sent"], said.json["lost"], said.json["balanced"]) == (300, 1, False)
    with connect(cli_url) as client:
        assert said.json["queue"] in client.queues()


def test_a_send_that_was_not_done_is_repeated(demo, monkeypatch):
    """And one of unknown outcome is not: that could make a copy."""
    send_many = Queue.send_many
    errors = iter([Unavailable("no node"), SendUnknown("who knows")])

    def failing(self, messages):
        messages = list(messages)
        error = next(errors, None)
        if error is None:
            return send_many(self, messages)
        result = send_many(self, messages[1:] if isinstance(error, Unavailable) else messages)
        result.failed = [(0, error)]
        return result

    monkeypatch.setattr(Queue, "send_many", failing)
    said = demo(*QUICK, "--producers", "1")
    assert (said.code, said.json["sent"], said.json["errors"]) == (0, 300, 2)
    assert (said.json["lost"], said.json["duplicates"]) == (0, 0)


def test_dead_letters_whose_ack_is_unknown_are_not_lost(demo, monkeypatch):
    """They came out of the dead-letter queue, and none of them comes again."""
    ack = Consumer.ack

    def unanswered(self, messages):
        ack(self, messages)
        if self.name.endswith(".dead"):
            raise AckUnknown("who knows")

    monkeypatch.setattr(Consumer, "ack", unanswered)
    said = demo(*QUICK)
    assert (said.code, said.json["dead"], said.json["lost"]) == (0, 5, 0)


def test_an_unforeseen_error_in_a_thread_ends_it(demo, monkeypatch):
    def broken(_self, _messages):
        raise QueueNotFound("somebody deleted it")

    monkeypatch.setattr(Queue, "send_many", broken)
    said = demo(*QUICK)
    assert (said.code, said.out) == (2, "")
    assert "somebody deleted it" in said.err


def test_a_standstill_ends_with_an_account(demo, monkeypatch):
    """Nothing more comes out, though something is in: it is left, and the exit code is 1."""
    is_empty = runner.Demo._is_empty

    def never(self, queue):
        if is_empty(self, queue):  # from now on nothing moves
            monkeypatch.setattr(runner, "STUCK_AFTER_S", 0)
        return False

    monkeypatch.setattr(runner.Demo, "_is_empty", never)
    said = demo(*QUICK)
    assert said.code == ExitCode.CHECK_FAILED
    assert (said.json["left"], said.json["lost"]) == (5, 0), "the dead letters were not drained"


@pytest.mark.parametrize(
    ("rate", "producers", "stuck"), [(500, 2, True), (0, 64, True), (50, 64, False), (1.5, 2, False)]
)
def test_producers_that_wait_for_their_time_are_no_standstill(ledger, monkeypatch, rate, producers, stuck):
    """64 producers of 50 messages a second send 3,200 at once, and then nothing for a minute."""
    with connect("memory://") as client:
        queues = [client.create_queue(name, runner.CONFIG) for name in ("lines", "ticks")]
        demo = runner.Demo(client, *queues, runner.Options(rate=rate, producers=producers))
    later_s = runner.time.monotonic() + runner.STUCK_AFTER_S + 1
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: later_s))
    assert demo._is_stuck(ledger.snapshot()) is stuck


def test_ctrl_c_prints_the_account_so_far(demo, cli_url, monkeypatch):
    """It balances with what is left; the queue is gone."""

    @contextmanager
    def live(_console, *, silent):
        assert silent

        def watch(snapshot):
            if snapshot.sent >= 20:
                signal.raise_signal(signal.SIGINT)

        yield watch

    monkeypatch.setattr(display, "live", live)
    said = demo("demo", "--json", "--messages", "5000", "--rate", "200")
    assert said.code == ExitCode.INTERRUPTED
    report = said.json
    assert report["interrupted"]
    assert 20 <= report["sent"] < 5000
    assert report["sent"] == report["acked"] + report["dead"] + report["left"]
    assert report["lost"] == 0
    with connect(cli_url) as client:
        assert client.queues() == []


def test_in_an_outage_it_says_which_queues_are_left(demo, cli_url, monkeypatch):
    """The account stands; two queues that nobody knows of would stay for good."""

    def away(_self, _name):
        raise Unavailable("no host is up")

    monkeypatch.setattr(Client, "delete_queue", away)
    said = demo(*QUICK)
    assert (said.code, said.json["balanced"]) == (0, True)
    with connect(cli_url) as client:
        left = [name for name in client.queues() if not name.endswith(".dead")]
    assert len(left) == 2
    assert all(f"`cqueue queue delete {name}`" in said.err for name in left)


def test_keep_keeps_the_queue(demo, cli_url):
    name = demo(*QUICK, "--keep").json["queue"]
    with connect(cli_url) as client:
        assert client.queues() == [name, f"{name}.dead"]


def test_a_directory_goes_with_the_embedded_cassandra_only(demo, tmp_path):
    said = demo(*QUICK, "--dir", tmp_path)
    assert said.code == 2
    assert "--dir" in json.loads(said.err)["message"]


# ── where Cassandra is ──


def test_a_url_is_named_by_option_environment_or_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CQUEUE_URL", raising=False)
    monkeypatch.delenv("CQUEUE_CONFIG", raising=False)
    assert named_url(None) is None
    (tmp_path / "cqueue.toml").write_text('[cqueue]\nlocal_dc = "dc1"\n')
    assert named_url(None) is None
    (tmp_path / "cqueue.toml").write_text('[cqueue]\nurl = "memory://file"\n')
    assert named_url(None) == "memory://file"
    monkeypatch.setenv("CQUEUE_URL", "memory://environment")
    assert named_url(None) == "memory://environment"
    assert named_url("memory://option") == "memory://option"


class FakeCluster:
    """Records what is asked of it."""

    def __init__(self, state, directory):
        self.state, self.directory = state, directory
        self.calls = []
        self.url = "cassandra://fake/cqueue"

    def status(self):
        return self

    def start(self, _say):
        self.calls.append("start")
        return self

    def stop(self):
        self.calls.append("stop")


@pytest.mark.parametrize(
    ("state", "keep", "calls"),
    [
        (ClusterState.STOPPED, False, ["start", "stop"]),
        (ClusterState.STOPPED, True, ["start"]),
        (ClusterState.RUNNING, False, ["start"]),
        (ClusterState.STARTING, False, ["start"]),
        (ClusterState.DEGRADED, False, ["start"]),
    ],
)
def test_only_a_cassandra_that_it_started_is_stopped(monkeypatch, tmp_path, state, keep, calls):
    """Also when the demo ends by an exception."""
    cluster, remarks = FakeCluster(state, tmp_path), []
    monkeypatch.setattr(dev, "DevCluster", lambda _directory: cluster)

    with pytest.raises(KeyboardInterrupt):
        interrupt_in_cluster(remarks.append, keep=keep)
    assert cluster.calls == calls
    assert len(remarks) == (state is ClusterState.STOPPED)  # that it is started


@pytest.mark.parametrize("started_by_demo", [True, False])
def test_no_demo_runs_on_a_cassandra_that_another_one_stops(monkeypatch, tmp_path, started_by_demo):
    """Any number run on one that was there before."""
    cluster = FakeCluster(ClusterState.STOPPED if started_by_demo else ClusterState.RUNNING, tmp_path)
    monkeypatch.setattr(dev, "DevCluster", lambda _directory: cluster)
    monkeypatch.setattr(cassandra, "PATIENCE", timedelta(milliseconds=10))
    with embedded():
        cluster.state = ClusterState.RUNNING
        with pytest.raises(DevError, match="Wait for it") if started_by_demo else nullcontext(), embedded():
            pass
        assert "stop" not in cluster.calls
    with embedded():
        pass


def test_a_demo_that_waits_for_one_that_stops_starts_cassandra_itself(monkeypatch, tmp_path):
    """It would else leave it running: it looks once the other one has let go."""
    cluster = FakeCluster(ClusterState.RUNNING, tmp_path)

    @contextmanager
    def locked(*_):
        cluster.state = ClusterState.STOPPED
        yield

    monkeypatch.setattr(dev, "DevCluster", lambda _directory: cluster)
    monkeypatch.setattr(dev.record, "locked", locked)
    with embedded():
        pass
    assert cluster.calls == ["start", "stop"]


def test_an_error_of_the_system_in_a_demo_is_its_own(monkeypatch, tmp_path):
    """It is none of the directory of the lock."""
    monkeypatch.setattr(dev, "DevCluster", lambda _directory: FakeCluster(ClusterState.STOPPED, tmp_path))
    with pytest.raises(BrokenPipeError), embedded():
        raise BrokenPipeError


def embedded(remark=lambda _: None, *, keep=False):
    def status(_text):
        return nullcontext(lambda _: None)

    return cassandra.embedded(None, status, remark, Interrupts().step, keep=keep)


def interrupt_in_cluster(remark, *, keep):
    with embedded(remark, keep=keep) as url:
        assert url == "cassandra://fake/cqueue"
        raise KeyboardInterrupt


# ── how it looks ──


def test_a_terminal_shows_bars(ledger):
    ledger.sending([1])
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with display.live(console) as watch:
        watch(ledger.snapshot())
    shown = console.file.getvalue()
    assert "0 of 5" in shown
    assert "depth" in shown


def test_elsewhere_there_is_a_line_a_second(ledger):
    console = Console(file=io.StringIO(), width=100)
    with display.live(console) as watch:
        for _ in range(3):
            watch(ledger.snapshot())
    assert len(console.file.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    ("interrupted", "left", "says"),
    [(True, 3, "Interrupted:"), (False, 3, "does not balance"), (False, None, "Not known:")],
)
def test_the_summary_says_what_is_wrong(ledger, interrupted, left, says):
    ledger.sending([1])
    ledger.stored([1])
    console = Console(file=io.StringIO(), width=120)
    console.print(display.summary(ledger.report(left, interrupted=interrupted)))
    shown = console.file.getvalue()
    assert says in shown
    assert re.search(r"lost +(\S+)", shown).group(1) == ("?" if left is None else "0")


def test_long_latencies_are_shown_in_seconds():
    assert [display.show_ms(value) for value in (None, 0.4, 9999, 12345)] == [
        "–",
        "0 ms",
        "9,999 ms",
        "12.3 s",
    ]
