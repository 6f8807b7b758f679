"""Seeded schedules of the whole protocol under faults; a failure prints its seed and its trace.

`python -m tests.simulation --seed N --schedules M --trace` runs more of them.
"""

import pytest

from tests.simulation.sim import Params, run_schedule, trace_of

PARTS = 6
SCHEDULES = 250
KILLERS = Params(
    faults=0, pauses=0, crashes=0, poison=0.05, batch=6, max_attempts=2, work_s=0.5, gap_s=0.5,
    serial=True,
    actions=(1, 0, 0, 0, 0, 0, 0, 0),
)  # fmt: skip


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_promise(part: int):
    """Whatever fails and whoever pauses, nothing acknowledged is lost and nothing is claimed twice."""
    for seed in range(part * SCHEDULES, (part + 1) * SCHEDULES):
        run_schedule(seed)


def test_a_seed_is_a_schedule():
    """The same seed gives the same run, event by event, so that a failure can be replayed."""
    assert trace_of(3) == trace_of(3)


def test_messages_that_kill_workers_burn_nobody_elses_attempts():
    """What kills every worker is dead-lettered; messages claimed beside it never are.

    In a worker with several threads a message on its first attempt may kill what runs beside it, once.
    """
    killers = 0
    for seed in range(200):
        buried = run_schedule(seed, KILLERS).oracle.buried
        assert all(name.startswith(b"poison") for name in buried), f"seed {seed}: {buried}"
        killers += len(buried)
    assert killers > 20
