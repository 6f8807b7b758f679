"""Answers that lie: row 12."""

from __future__ import annotations

from datetime import timedelta

import pytest

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(300)]


@pytest.mark.parametrize("percent", [1, 10, 30])
@pytest.mark.row(12, "timeouts, executed or not, of every statement")
def test_injected_timeouts_break_no_promise(start_run, row, percent):
    """Every statement times out at this rate, half of the writes after they were executed."""
    run = start_run(visibility=timedelta(seconds=5), lease=timedelta(seconds=2), max_attempts=0)
    run.start_all(2, "consume", batch=20, mix=0.1, flaky=percent / 100)
    producers = run.start_all(2, "produce", batch=10, count=1000, flaky=percent / 100, repeat_unknown=True)
    for child in producers:
        child.join(150)
    run.await_empty(limit_s=150)
    report = run.finish()
    assert report.clean, str(report)
    row(
        rate=f"{percent} %",
        messages=report.sends,
        unknown_sends=report.unknown_sends,
        duplicates=len(report.duplicated),
        reasons=", ".join(f"{count} {reason}" for reason, count in sorted(report.reasons.items())) or "none",
    )
