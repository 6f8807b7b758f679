"""`cqueue bench latency` and `processes`: what is measured between processes, and what is refused."""

import io
import json
import os
import re
from functools import partial
from types import SimpleNamespace

import pytest
from cassandra import OperationTimedOut
from rich.console import Console

from cqueue.bench import bare, children, followers, growth, latency, log, sends, throughput
from cqueue.bench.bare import Pace
from cqueue.bench.options import Options
from cqueue.bench.setup import open_bench, silent, times_ms
from cqueue.cli import bench as command
from cqueue.cli.context import AS_IT_IS, CliContext
from cqueue.cli.main import main
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.settings import load

SOON = Pace(1000, 0.003)


def process_id(_bench, signals):
    signals.begin.wait()
    return os.getpid()


def process_id_at_the_end(_bench, signals):
    signals.begin.wait()
    assert signals.over.wait(60)
    return os.getpid()


def unable(_bench, _signals):
    raise NotDone("it broke")


def measured(capsys, url, *words):
    """The result of a benchmark."""
    assert main(["--url", url, "bench", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def started(monkeypatch):
    """How many children each benchmark started, and whether they were processes; warming up is short."""
    found = []
    monkeypatch.setattr(latency, "WARM_UP", Pace(100, 0.1))
    for module in (latency, followers, growth):
        for name in ("children", "threads"):
            if real := getattr(module, name, None):
                note = partial(
                    lambda name, real, b, w: found.append((name, len(w))) or real(b, w), name, real
                )
                monkeypatch.setattr(module, name, note)
    return found


# ── children ──


@pytest.mark.cassandra
@pytest.mark.acceptance
def test_each_child_is_a_process_of_its_own_and_they_begin_together(keyspace):
    """None begins before the parent says so, each ends when it is told, and results keep their order."""
    with open_bench(load(keyspace.url)) as bench:
        with children.children(bench, [process_id_at_the_end] * 2) as started:
            started.begin()
            ids = started.results()
        assert len({os.getpid(), *ids}) == 3
        with pytest.raises(NotDone, match="it broke"), children.children(bench, [process_id, unable]) as some:
            some.begin()


def test_in_one_process_they_are_threads_of_it():
    with children.threads(None, [process_id, process_id_at_the_end]) as started:
        started.begin()
        assert started.results() == [os.getpid()] * 2


@pytest.mark.parametrize("works", [[unable, process_id], [process_id, unable]])
def test_a_child_that_fails_lets_nobody_wait_and_says_why(works, monkeypatch):
    """Its own error is raised, not that of a barrier that it broke."""
    monkeypatch.setattr(children, "START_S", 3600)
    with pytest.raises(NotDone, match="it broke"), children.threads(None, works) as started:
        started.begin()


def test_a_parent_that_fails_lets_no_child_wait():
    """Neither one that waits for the begin, nor one that waits for the end."""
    ended = []

    def work(_bench, signals):
        try:
            process_id_at_the_end(None, signals)
        finally:
            ended.append(True)

    def interrupted(*, begins):
        with children.threads(None, [work]) as started:
            if begins:
                started.begin()
            raise KeyboardInterrupt

    for begins in (False, True):
        with pytest.raises(KeyboardInterrupt):
            interrupted(begins=begins)
    assert ended == [True, True]


def test_those_that_are_never_ready_are_given_up(monkeypatch):
    monkeypatch.setattr(children, "START_S", 0.01)

    def late(_bench, signals):
        signals.over.wait(60)

    with children.threads(None, [late]) as started, pytest.raises(NotDone, match=r"not ready within 0\.01 s"):
        started.begin()


# ── paces and figures ──


def test_percentiles_are_of_nearest_rank():
    """The slowest of a hundred is not their 99th percentile, nor the slower of two their median."""
    assert times_ms([n / 1000 for n in range(100, 0, -1)]) == {"p50_ms": 50, "p99_ms": 99}
    assert times_ms([0.002, 0.001]) == {"p50_ms": 1, "p99_ms": 2}
    assert times_ms([0.001]) == {"p50_ms": 1, "p99_ms": 1}


def test_a_pace_goes_by_the_clock_and_who_is_late_makes_up_for_it(monkeypatch):
    """A slow send does not lower the rate: that would hide what comes behind it."""
    now_s, waited_s = [100.0], []

    def sleep(seconds):
        waited_s.append(round(seconds, 6))
        now_s[0] += seconds

    monkeypatch.setattr(bare.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(bare.time, "sleep", sleep)
    for number in Pace(10, 0.4).ticks():
        now_s[0] += 0.25 if number == 0 else 0.0  # the first send takes two periods and a half
    assert waited_s == [0, 0, 0, 0.05]


def test_each_rate_takes_twenty_seconds_or_thirty_messages():
    """Or what `--seconds` says."""
    assert [pace.count for pace in latency.Asked().paces()] == [30, 400, 4000]
    assert [pace.count for pace in latency.Asked(seconds=5).paces()] == [5, 100, 1000]


def test_messages_that_warm_up_are_not_counted(monkeypatch):
    """Each message carries when its send began, in the clock that all processes share."""
    monkeypatch.setattr(latency, "WARM_UP", Pace(100, 0.1))
    sent, took_s = [], []
    sends_s = latency.send_all(sent.append, SOON, 200)
    assert len(sends_s) == 3
    assert len(sent) == 3 + latency.WARM_UP.count
    assert {len(body) for body in sent} == {200}
    for body in sent:
        latency.note(body, took_s)
    assert len(took_s) == 3
    assert all(0 < one < 60 for one in took_s)


@pytest.mark.parametrize(("messages", "threads"), [(5, 16), (1000, 16), (48, 16), (7, 1)])
def test_as_many_are_sent_as_the_result_says(messages, threads):
    sent = []
    figures = sends._measured(sent.append, Options(messages, 200), threads, silent)
    assert len(sent) == messages
    assert figures["per_s"] > 0


def test_what_has_not_come_is_told_and_not_left_out_of_the_percentiles():
    with pytest.raises(NotDone, match="only 1 of 2 came to a follower at 1000/s"):
        latency.row("a follower", SOON, [0.001], [0.001, 0.001])


def test_the_table_fits_on_a_terminal_of_eighty_columns():
    """With a dozen dispatchers, and latencies of seconds."""
    row = latency.row("12 dispatchers", Pace(200, 20), [12.345678] * 4000, [0.001] * 4000)
    row |= {"floor_ms": 12.345, "p50_to_floor": 1000.08, "p99_to_floor": 1000.08}
    context, out = CliContext(), io.StringIO()
    context.console = Console(file=out, force_terminal=True, width=80, color_system=None, **AS_IT_IS)
    command._print(context, {"bench": "latency", "rows": [row], "nodes": 1})
    head, line, *_ = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert head.split("  ")[0] == "to"
    assert head.endswith("p99/floor")
    assert line.startswith("12 dispatchers")
    assert line.endswith("1,000.08")
    assert max(len(head), len(line)) <= 80


# ── the commands ──


@pytest.mark.parametrize("rate", ["0", "1,,2", "1.5", "-1", "fast", "1001", "1 2", "²"])
def test_a_rate_that_cannot_be_is_refused_before_anything_is_done(capsys, rate):
    assert main(["--url", "cassandra://nowhere.invalid/x", "bench", "latency", "--rate", rate]) == 2
    assert "no list of whole numbers from 1 to 1000" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("words", [("--one-process",), ("--dispatchers", "2")])
def test_followers_take_no_dispatchers(capsys, words):
    assert main(["--url", "cassandra://nowhere.invalid/x", "bench", "latency", "--followers", *words]) == 2
    assert "takes no --dispatchers and no --one-process" in " ".join(capsys.readouterr().err.split())


@pytest.mark.cassandra
@pytest.mark.parametrize(
    ("words", "to"),
    [
        pytest.param(("--dispatchers", "2"), "2 dispatchers", marks=pytest.mark.acceptance),
        (("--one-process",), "1 dispatcher, here"),
    ],
)
def test_latency_goes_between_processes_and_stands_beside_its_floor(keyspace, capsys, started, words, to):
    """All that was sent is counted; the floor is the sum of two medians of the same run."""
    found = measured(capsys, keyspace.url, "latency", "--seconds", "1", "--rate", "20,40", *words)
    assert started == [("threads", 1) if "--one-process" in words else ("children", 2)] * 2
    assert [(row["to"], row["rate_per_s"]) for row in found["rows"]] == [(to, 20), (to, 40)]
    for row in found["rows"]:
        assert row["received"] == row["rate_per_s"] == sum(count for _, count in row["histogram"])
        assert row["floor_ms"] == pytest.approx(row["bare_insert_p50_ms"] + row["bare_mutation_p50_ms"])
        assert row["p99_to_floor"] == pytest.approx(row["p99_ms"] / row["floor_ms"], rel=0.01, abs=0.01)
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert found["commitlog_sync"]


@pytest.mark.cassandra
def test_a_follower_and_a_subscription_listen_in_two_processes(keyspace, capsys, started):
    """Each is told of every append."""
    found = measured(capsys, keyspace.url, "latency", "--followers", "--seconds", "1")
    assert started == [("children", 2)]
    assert [(row["to"], row["rate_per_s"], row["received"]) for row in found["rows"]] == [
        ("follower", 20, 20),
        ("subscription", 20, 20),
    ]
    assert all("floor_ms" not in row for row in found["rows"])


@pytest.mark.cassandra
@pytest.mark.acceptance
def test_producers_and_consumers_work_at_once_each_a_process(keyspace, capsys, started, monkeypatch):
    """The few to warm up, then both numbers in turn; all that was sent comes back."""
    monkeypatch.setattr(growth, "PAIRS", (1, 2))
    words = ("processes", "--messages", "3001", "--batch", "50", "--receive", "100", "--rounds", "1")
    found = measured(capsys, keyspace.url, *words)
    assert started == [("children", 2), ("children", 2), ("children", 4)]
    assert found["ratio"] == pytest.approx(found["pairs_2"]["per_s"] / found["pairs_1"]["per_s"], abs=1e-3)


@pytest.mark.cassandra
@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    "words",
    [
        ("sends", "--messages", "32", "--rounds", "1"),
        ("latency", "--one-process", "--seconds", "1", "--rate", "20"),
    ],
    ids=lambda words: words[0],
)
def test_the_bare_driver_leaves_no_rows(keyspace, connection, capsys, words):
    """No queue has them, so nobody else would delete them: benchmarks run on clusters that people use."""
    measured(capsys, keyspace.url, *words)
    rows = connection.session.execute(f"SELECT queue FROM {keyspace.name}.messages")  # noqa: S608
    assert not [row for row in rows if row.queue.startswith("bench-floor")]


def test_bare_rows_are_deleted_also_after_ctrl_c():
    deleted = []
    session = SimpleNamespace(execute=lambda _text, key: deleted.append(key))
    with pytest.raises(KeyboardInterrupt), throughput.bare_rows(session) as name:
        raise KeyboardInterrupt
    assert deleted == [(name, shard) for shard in range(throughput.PARTITIONS)]


def test_bare_rows_that_cannot_be_deleted_are_named():
    """Ctrl-C in an outage is no bug of cqueue."""

    def execute(*_):
        raise OperationTimedOut

    with (
        pytest.raises(OutcomeUnknown, match=r"rows of 'bench-floor@.* may be left"),
        throughput.bare_rows(SimpleNamespace(execute=execute)),
    ):
        raise KeyboardInterrupt


def test_messages_that_did_not_come_back_are_told():
    share = growth._Share(9, 0.0, 1.0, [0.1])
    with pytest.raises(NotDone, match="only 9 of 10 messages"):
        growth._rate([share], Options(messages=10))


def test_a_benchmark_of_a_log_makes_its_bodies_as_they_are_taken(monkeypatch):
    """All of them may be more than the memory holds."""
    made, appended = [], []

    def bodies(_options):
        for turn in range(40):
            assert turn - len(appended) <= 8  # two batches for each thread
            made.append(turn)
            yield [b""]

    def append_many(batch):
        appended.append(batch)
        return SimpleNamespace(failed=[])

    target = SimpleNamespace(append_many=append_many)
    monkeypatch.setattr(log, "bodies", bodies)
    log._append(target, SimpleNamespace(messages=40), threads=4)
    assert len(appended) == len(made) == 40
