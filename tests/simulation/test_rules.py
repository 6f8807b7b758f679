"""Each rule of the protocol that is marked (!) is needed, and is kept: see `rules` for the table."""

import pytest

from tests.simulation import scenarios
from tests.simulation.breakages import ALL
from tests.simulation.oracle import Violation
from tests.simulation.rules import PROFILES, SEARCHED, TOLD, Searched, Told
from tests.simulation.sim import Simulation, run_schedule

MOST = 600
"""Schedules in which a broken rule has to show; most take fewer than fifty."""


def name_of(rule: Told | Searched) -> str:
    return rule.breakage.__name__


@pytest.mark.parametrize("told", TOLD, ids=name_of)
def test_rule_in_a_scenario(told: Told):
    """The scenario's promise is kept, and is broken once the rule is taken out."""
    told.scenario()
    with told.breakage(), pytest.raises(AssertionError):
        told.scenario()


@pytest.mark.parametrize("searched", SEARCHED, ids=name_of)
def test_rule_in_simulated_runs(searched: Searched):
    """Without the rule, some schedule breaks a promise."""
    for seed in range(MOST):
        try:
            with searched.breakage():
                Simulation(seed, searched.profile).run()
        except Violation:
            break
    else:
        pytest.fail(f"{searched.rule}: no schedule of {MOST} shows that it is missing")


@pytest.mark.parametrize("profile", PROFILES)
def test_profile_with_all_rules(profile: str):
    """The profiles in which broken rules show do not break a promise by themselves."""
    for seed in range(100):
        run_schedule(seed, PROFILES[profile])


def test_all_breakages_are_used():
    """Every way to break the protocol is in the table."""
    assert {name_of(rule) for rule in (*TOLD, *SEARCHED)} == set(ALL)


def test_late_neighbour():
    """A message that landed just below the boundary does not wait for the sweep."""
    scenarios.late_neighbour_is_found_at_once()
