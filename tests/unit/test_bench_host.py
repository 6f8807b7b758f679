"""What other machines of the host took away, from the kernel's counters; how long a soak has to be."""

from contextlib import nullcontext

import pytest

from benchmarks import soak_dispatch
from cqueue.bench.host import CpuTime, cpu_time, stolen_percent

#       user nice system idle iowait irq softirq steal guest guest_nice
LINE = "cpu  100 20 30 4000 500 6 7 80 90 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n"


def test_what_was_used_and_what_was_stolen(tmp_path):
    """Waiting for a disk is idleness; guests are counted as users already."""
    counters = tmp_path / "stat"
    counters.write_text(LINE)
    assert cpu_time(counters) == CpuTime(used=100 + 20 + 30 + 6 + 7, stolen=80)


@pytest.mark.parametrize("text", ["", "cpu 1 2 3\n", "cpu a b c d e f g h\n"])
def test_counters_that_say_nothing_of_it(tmp_path, text):
    counters = tmp_path / "stat"
    counters.write_text(text)
    assert cpu_time(counters) is None


def test_a_system_without_counters(tmp_path):
    assert cpu_time(tmp_path / "none") is None


def test_the_share_of_what_was_wanted():
    assert stolen_percent(CpuTime(100, 10), CpuTime(190, 20)) == 10.0
    assert stolen_percent(CpuTime(100, 10), CpuTime(100, 10)) == 0.0
    assert stolen_percent(None, CpuTime(100, 10)) is None
    assert stolen_percent(CpuTime(100, 10), None) is None


@pytest.mark.parametrize(
    ("words", "fits"), [("--minutes 5", True), ("--minutes 4", False), ("--every 1", True)]
)
def test_a_soak_that_shows_too_little_to_judge_is_refused(monkeypatch, capsys, words, fits):
    """Before it has run, and not by an error at its end."""
    monkeypatch.setattr("sys.argv", ["soak_dispatch", *words.split()])
    with nullcontext() if fits else pytest.raises(SystemExit):
        soak_dispatch._options()
    assert ("too few for 4 lines" in capsys.readouterr().err) is not fits
