"""Each rule of the protocol that is marked (!) is needed, and is kept: see `rules` for the table."""

from collections.abc import Callable

import pytest

from cqueue.protocol import policy, unclaimed
from tests.simulation import (
    breakages,
    breakages_control,
    breakages_packs,
    breakages_time,
    points,
    scenarios,
    scenarios_packs,
)
from tests.simulation.oracle import Violation
from tests.simulation.rules import RULES, SEARCHED, TOLD, Rule
from tests.simulation.sim import Simulation
from tests.simulation.test_simulation import DEFAULT_RUN

MOST = 500
"""Schedules of the default run in which a broken rule has to show."""


def name_of(rule: Rule) -> str:
    return rule.name


@pytest.mark.parametrize("rule", TOLD, ids=name_of)
def test_rule_in_a_scenario(rule: Rule):
    """The scenario's promise is kept, and is broken once the rule is taken out."""
    rule.scenario()
    with rule.taken_out(), pytest.raises(AssertionError):
        rule.scenario()


@pytest.mark.slow
@pytest.mark.parametrize("rule", SEARCHED, ids=name_of)
def test_rule_in_the_default_run(rule: Rule):
    """Without the rule, some schedule of the default run breaks a promise.

    The search begins near a schedule that is known to, and goes on through those that follow.
    """
    assert rule.seed + MOST <= DEFAULT_RUN
    for seed in range(rule.seed, rule.seed + MOST):
        with rule.breakage():
            points.calls.clear()
            try:
                Simulation(seed).run()
            except Violation:
                points.check_reached()
                break
    else:
        pytest.fail(f"{rule.says}: no schedule of {MOST} shows that it is missing")


def test_all_breakages_are_used():
    """Every way to break the protocol is in the table, and is proven."""
    known = {
        value
        for module in (breakages, breakages_control, breakages_packs, breakages_time)
        for name, value in vars(module).items()
        if isinstance(value, Callable) and value.__module__ == module.__name__ and name[0].islower()
    }
    assert {rule.breakage for rule in RULES} == known
    assert {rule.name for rule in (*TOLD, *SEARCHED)} == {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_that_is_not_reached_fails_loudly(rule: Rule):
    """A run that never comes to where a rule is kept proves nothing, and says so."""
    with pytest.raises(points.PointLostError, match="not called once"), rule.taken_out():
        pass


def test_every_point_keeps_a_rule():
    """Each function in the table of points is what some rule replaces; the table names no other."""
    used = set()
    for rule in RULES:
        with rule.breakage():
            used.update(points.out())
    assert used == set(points.POINTS)


def test_a_point_that_is_gone_fails_loudly(monkeypatch: pytest.MonkeyPatch):
    """A rule whose function was removed, or renamed, is not forgotten."""
    monkeypatch.delattr(policy, "horizon")
    with pytest.raises(points.PointLostError, match=r"policy.horizon, is gone"):
        points.check_homes()


def test_a_point_under_another_name_fails_loudly(monkeypatch: pytest.MonkeyPatch):
    """A module that calls a rule's function by a name of its own would go on to keep the rule."""
    monkeypatch.setattr(unclaimed, "_horizon", policy.horizon, raising=False)
    with pytest.raises(points.PointLostError, match=r"another name in cqueue\.protocol\.unclaimed"):
        points.check_homes()


def test_suspect_under_extension():
    """A process waits for the answer before it takes the next suspect."""
    scenarios.suspect_is_held_while_it_is_extended()


def test_late_marks():
    """Marks that outlive the tombstone of their row bring nothing back."""
    scenarios_packs.late_marks_revive_nothing()


def test_rest_of_a_pack():
    """What is left of a pack that landed behind the cursor keeps its wide row until it is delivered."""
    scenarios_packs.rest_of_a_row_is_not_dropped()


def test_late_neighbour():
    """A message that landed just below the boundary does not wait for the sweep."""
    scenarios.late_neighbour_is_found_at_once()
