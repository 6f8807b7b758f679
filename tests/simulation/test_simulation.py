"""Seeded schedules of the whole protocol under faults; a failure prints its seed and its trace.

`python -m tests.simulation --seed N --schedules M --trace` runs more of them.
"""

import pytest

from tests.simulation.sim import run_schedule, trace_of

PARTS = 6
SCHEDULES = 250


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_promise(part: int):
    """Whatever fails and whoever pauses, nothing acknowledged is lost and nothing is claimed twice."""
    for seed in range(part * SCHEDULES, (part + 1) * SCHEDULES):
        run_schedule(seed)


def test_a_seed_is_a_schedule():
    """The same seed gives the same run, event by event, so that a failure can be replayed."""
    assert trace_of(3) == trace_of(3)
