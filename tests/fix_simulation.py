"""Which schedules of the simulator a run of the tests draws.

`make test` runs 2,000 whose seeds follow from the commit, so that each commit looks at others; a seed that
fails is printed with the command that repeats it. `make test-all` runs seeds 0 to 9,999 as well, the ones in
which every rule's absence has to show.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

OF_COMMIT = 2_000
"""Schedules with seeds of the commit's own: what two cores run in a quarter of a minute."""
DEFAULT_RUN = 10_000
"""Schedules whose seeds never change."""
STEPS = 1_000_000
"""How many places a commit's seeds can begin at; those of two commits overlap only if both get the same."""


@cache
def first_of_commit() -> int:
    """The first seed of this commit; the same in all processes of a run. Without git, always the same."""
    found = subprocess.run(
        ["git", "-C", Path(__file__).parent, "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    commit = found.stdout.strip() or "0"
    return DEFAULT_RUN + int(commit, 16) % STEPS * OF_COMMIT


def pytest_report_header():
    """The seeds: what one asks for when a schedule fails."""
    first = first_of_commit()
    return f"simulator: seeds {first} to {first + OF_COMMIT - 1} of this commit"
