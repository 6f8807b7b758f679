"""Seeded schedules of the whole protocol under faults; a failure prints its seed and its trace.

`make simulate N=100000 SEED=1` runs more of them.
"""

import pytest

from tests.fix_simulation import DEFAULT_RUN, OF_COMMIT, first_of_commit
from tests.simulation.oracle import Violation
from tests.simulation.params import SHARES, Params
from tests.simulation.rules import BY_NAME
from tests.simulation.run import replay, run_seeds
from tests.simulation.sim import Simulation, run_schedule, trace_of

PARTS = 20
KILLERS = Params(
    faults=0, pauses=0, crashes=0, poison=0.05, batch=6, max_attempts=2, work_s=0.5, gap_s=0.5,
    serial=True,
    actions=(1, 0, 0, 0, 0, 0, 0, 0),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_of_this_commit_breaks_a_promise(part: int):
    """Nothing acknowledged is lost and nothing is claimed twice, whatever fails and pauses."""
    first, size = first_of_commit(), OF_COMMIT // PARTS
    _run(range(first + part * size, first + (part + 1) * size))


@pytest.mark.acceptance
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_promise(part: int):
    """The same in those schedules in which the absence of each rule shows."""
    size = DEFAULT_RUN // PARTS
    _run(range(part * size, (part + 1) * size))


def _run(seeds: range):
    totals = run_seeds(seeds)
    for seed, text in totals.failed[:1]:
        pytest.fail(f"{trace_of(seed)}\nseed {seed}: {text}\n{replay(seed)}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [126_485, 129_470, 191_419, 237_738, 292_145])
def test_a_schedule_that_once_failed_holds(seed: int):
    """Found by long runs.

    A suspect that was held too long (237738), an unanswered move of the oldest epoch that was taken for
    done (129470), and mistakes of the model.
    """
    run_schedule(seed)


@pytest.mark.slow
def test_schedules_are_full_of_life():
    """Schedules are short, but things go wrong in them, and messages are delivered all the same."""
    totals = run_seeds(range(100))
    assert totals.deliveries > 5 * totals.schedules
    assert totals.happened.total() > 10 * totals.schedules
    profiles = {Simulation(seed).params.profile for seed in range(200)}
    assert profiles == {*SHARES, "packs"}


def test_a_seed_is_a_schedule():
    """The same seed gives the same run, event by event, so that a failure can be replayed."""
    assert trace_of(3) == trace_of(3)


def test_a_failure_can_be_replayed():
    """A violation says when it happened, and its trace ends with it."""
    rule = BY_NAME["ack-by-wall-clock"]
    with rule.breakage():
        (seed, text), *_ = run_seeds(range(20)).failed
        assert trace_of(seed).splitlines()[-1].endswith(text)
        with pytest.raises(Violation, match=f"seed {seed}"):
            run_schedule(seed)


@pytest.mark.slow
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
