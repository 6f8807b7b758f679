"""The table of `make bench-peers`, built from made-up results."""

import io
import json
import sys
import types
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console

from benchmarks.peers import tally
from benchmarks.peers.catalog import ENTRIES, Entry
from benchmarks.peers.run import file_system, measure_all
from benchmarks.peers.table import as_json, build, cells
from benchmarks.peers.workload import (
    Figures,
    PeerError,
    Round,
    Row,
    Workload,
    latency_of,
    percentile_ms,
    summarize,
)

MEASURED = Row(
    key="dyno-always",
    title="dyno-queues on Redis",
    durability="appendfsync always",
    client="Java [pipelines]",
    versions={"server": "Redis 7", "client": "dyno-queues 2"},
    figures=Figures(enqueue_per_s=43_300.4, drain_per_s=32_400, p50_ms=6.1, p99_ms=12.849, messages=2000),
)
SKIPPED = Row(key="rabbitmq-quorum", title="RabbitMQ, pika", reason="apt-get install rabbitmq-server")
FAILED = Row(key="rq", title="RQ on Redis", reason="3 messages [of 5] were handled", failed=True)


def shown(*rows: Row) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(build(rows, Workload(messages=2000, rounds=5)))
    return console.file.getvalue()


def test_a_row_names_the_queue_its_versions_its_durability_and_four_figures():
    """Every figure stands beside what it was taken under."""
    assert cells(MEASURED, Workload(messages=2000)) == (
        "dyno-queues on Redis\nRedis 7, dyno-queues 2",
        "appendfsync always",
        r"Java \[pipelines]",
        "43,300",
        "32,400",
        "6.10",
        "12.85",
    )


def test_the_table_shows_all_rows_and_the_workload():
    """One table, ours beside theirs."""
    text = shown(MEASURED, SKIPPED, FAILED)
    assert "2,000 messages of 200 B (200 where it says so), medians of 5 rounds in turn" in text
    assert "Java [pipelines]" in text
    assert [row.title in text for row in (MEASURED, SKIPPED, FAILED)] == [True] * 3


def test_a_peer_that_is_missing_is_shown_with_the_command_that_installs_it():
    """Nobody takes a table for complete that is not."""
    text = shown(SKIPPED)
    assert "skipped; to measure it: apt-get install rabbitmq-server" in text
    assert "rabbitmq-quorum" in text


def test_a_failure_is_not_shown_as_a_skip():
    """What went wrong stands in the table."""
    assert "failed: 3 messages [of 5] were handled" in shown(FAILED)


def test_the_json_holds_rows_workload_and_machine():
    """Programs find everything that the table has."""
    stored = json.loads(json.dumps(as_json([MEASURED, SKIPPED], Workload(messages=5), {"cores": 2})))
    assert stored["workload"]["messages"] == 5
    assert stored["machine"] == {"cores": 2}
    assert stored["rows"][0]["figures"]["drain_per_s"] == 32_400
    assert stored["rows"][1]["figures"] is None


def test_rounds_are_summarized_by_their_median_and_latency_by_nearest_rank():
    """One slow round changes nothing."""
    rounds = [Round(10_000, 1000), Round(100, 500), Round(5000, 250)]
    figures = summarize(1000, rounds, latency_of([n / 1000 for n in range(1, 101)]))
    assert (figures.enqueue_per_s, figures.drain_per_s) == (5000, 500)
    assert (figures.enqueues_per_s, figures.drains_per_s) == ((10_000, 100, 5000), (1000, 500, 250))
    assert (figures.p50_ms, figures.p99_ms, figures.messages) == (50, 99, 1000)
    assert percentile_ms([0.002], 99) == 2


def test_a_run_without_latencies_is_an_error():
    """A figure is never made up."""
    with pytest.raises(PeerError, match="no message"):
        latency_of([])


def test_one_that_cannot_start_costs_the_others_nothing(tmp_path):
    """It becomes a row that says why, and its directory is gone."""
    broken = Entry(key="x", title="Broken", factory="no_such_module:Peer")
    absent = Entry(key="y", title="Absent", factory="no_such_module:Peer", packages=("no_such_package_",))
    rows = measure_all([broken, absent], Workload(), tmp_path, lambda _: None)
    assert [(row.failed, bool(row.reason)) for row in rows] == [(True, True), (False, True)]
    assert "requirements.txt" in rows[1].reason
    assert list(tmp_path.iterdir()) == []


class Made:
    """A peer that notes what is asked of it; messages take a millisecond."""

    durability = client = ""
    warm_up = 250
    steps: ClassVar[list[tuple[str, str, int]]] = []

    def __init__(self, directory, name, fails=""):
        self.directory, self.name, self.fails = directory, name, fails

    def _step(self, what, messages=0):
        self.steps.append((self.name, what, messages))
        if what == self.fails:
            raise PeerError("it broke")
        return messages / 1000

    def start(self):
        self._step("start")

    def versions(self):
        self._step("versions")
        return {}

    def enqueue(self, messages, _size):
        return self._step("enqueue", messages)

    def drain(self, messages):
        return self._step("drain", messages)

    def latency(self, _rate, _seconds, _size):
        self._step("latency")
        return [0.001]

    def stop(self):
        assert self.directory.is_dir()
        self._step("stop")


def made(name, *, slow=False, **options):
    options = {"name": name, **options}
    return Entry(key=name, title=name, factory="made:Made", options=options, slow=slow)


@pytest.fixture
def steps(monkeypatch):
    """What made-up peers were asked for."""
    module = types.ModuleType("benchmarks.peers.made")
    module.Made = Made
    monkeypatch.setitem(sys.modules, module.__name__, module)
    Made.steps.clear()
    return Made.steps


def test_all_are_started_and_then_have_their_rounds_in_turn(tmp_path, steps):
    """Each is as often before another as behind it; a slow one gets a tenth of the messages."""
    workload = Workload(messages=100, rounds=2)
    rows = measure_all([made("a"), made("b", slow=True)], workload, tmp_path, lambda _: None)
    assert [row.figures.messages for row in rows] == [100, 10]
    assert {row.figures.drain_per_s for row in rows} == {1000}
    assert [(who, what) for who, what, _ in steps if what not in ("enqueue", "drain", "versions")] == [
        ("a", "start"), ("b", "start"), ("a", "latency"), ("b", "latency"), ("b", "stop"), ("a", "stop"),
    ]  # fmt: skip
    sent = [(who, messages) for who, what, messages in steps if what == "enqueue"]
    assert sent[:6] == [("a", 100), ("a", 100), ("a", 50), ("b", 100), ("b", 100), ("b", 50)]
    assert sent[6:] == [("a", 100), ("b", 10), ("b", 10), ("a", 100)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails", ["start", "drain", "latency", "versions", "stop"])
def test_one_that_fails_is_left_out_and_stopped(tmp_path, steps, fails):
    """The others are measured all the same, and nothing stays behind."""
    entries = [made("a", fails=fails), made("b")]
    bad, good = measure_all(entries, Workload(messages=10, rounds=1), tmp_path, lambda _: None)
    assert good.figures.drain_per_s == 1000
    assert (bad.failed, bad.reason) == ((False, "") if fails == "stop" else (True, "it broke"))
    assert [who for who, what, _ in steps if what == "stop"] == ["b", "a"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["latency", "stop"])
def test_an_interruption_stops_all(tmp_path, steps, monkeypatch, when):
    """Also one that comes while they are being stopped."""
    real, left = getattr(Made, when), [KeyboardInterrupt]

    def interrupt(self, *args):
        if left:
            raise left.pop()
        return real(self, *args)

    monkeypatch.setattr(Made, when, interrupt)
    with pytest.raises(KeyboardInterrupt):
        measure_all([made("a"), made("b")], Workload(messages=10, rounds=1), tmp_path, lambda _: None)
    assert [who for who, what, _ in steps if what == "stop"] == ["b", "a"]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_memory_is_refused():
    """A sync must reach a disk."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    points = [point for _, point, kind, *_ in mounts if kind == "tmpfs"]
    if not points:
        pytest.skip("nothing here is in memory")
    with pytest.raises(PeerError, match="in memory"):
        file_system(Path(points[-1]))


def test_keys_are_unique():
    """`--only` means one of them."""
    keys = [entry.key for entry in ENTRIES]
    assert len(set(keys)) == len(keys)


def test_a_body_has_its_size_and_carries_the_time(tmp_path, monkeypatch):
    """What a handler notes is what the harness reads."""
    seen = tally.Tally(tmp_path / "tally")
    monkeypatch.setenv(tally.FILE, str(seen.path))
    for body in tally.bodies(3, 200):
        assert len(body) == 200
        tally.handled(body.encode())
    seen.wait(3)
    assert len(seen.latencies_s(since_ns=0)) == 3
    assert all(0 <= latency < 60 for latency in seen.latencies_s(since_ns=0))
    assert seen.seconds() > 0
