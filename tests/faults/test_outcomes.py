"""Answers that lie: row 12."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta

import pytest

from tests.faults.lengths import FULL, full
from tests.faults.stores import WRITES

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.quick, pytest.mark.timeout(480)]

ENOUGH = 10  # percent at which each kind of statement is hit in both ways; at 30 too few are sent for it


@pytest.mark.parametrize("percent", full([1, 10, 30], [10, 30]))
@pytest.mark.row(12, "timeouts, executed or not, of every statement")
def test_injected_timeouts_break_no_promise(start_run, row, tmp_path, percent):
    """Every statement times out at this rate, half of the writes after they were executed.

    Time shards are of one second, so that registrations and retirements are among them.
    """
    run = start_run(
        visibility=timedelta(seconds=5),
        lease=timedelta(seconds=2),
        max_attempts=0,
        time_shard=timedelta(seconds=1),
        shards=2,
    )
    # Messages of a claim whose outcome stays unknown come again alone, one after the other.
    count = full(10_000 if percent <= ENOUGH else 1_000, 400)
    told = [tmp_path / f"fates-{number}" for number in range(4)]
    for file in told[:2]:
        run.start("consume", batch=70, mix=0.1, flaky=percent / 100, fates=str(file))
    lying = {"flaky": percent / 100, "repeat_unknown": True, "rate": 500}
    producers = [run.start("produce", count=count, fates=str(file), **lying) for file in told[2:]]
    for child in producers:
        child.join(200)
    run.await_empty(limit_s=200)
    report = run.finish()
    assert report.clean, str(report)
    fates = sum((Counter(json.loads(file.read_text())) for file in told), Counter())
    if FULL and percent == ENOUGH:
        assert all(fates[f"{kind} {fate}"] for kind in WRITES for fate in ("executed", "not")), fates
    row(
        rate=f"{percent} %",
        messages=report.sends,
        unknown_sends=report.unknown_sends,
        duplicates=len(report.duplicated),
        reasons=", ".join(f"{count} {reason}" for reason, count in sorted(report.reasons.items())) or "none",
        executed_and_not=", ".join(_both(fates)),
    )


def _both(fates):
    """For each kind of statement, how often it was executed before it timed out, and how often not."""
    for kind in sorted({key.rpartition(" ")[0] for key in fates}):
        yield f"{kind} {fates[f'{kind} executed']} + {fates[f'{kind} not']}"
