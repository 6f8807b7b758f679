"""A short run of the program of `make spool-crashes`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_twenty_kills_lose_and_invent_nothing():
    """A process that is killed while it appends, consumes, expires or recovers keeps what it acknowledged."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.spool.crashes", "--kills", "20", "--images", "20"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    stored, compared = map(int, re.findall(r"(\d+) (?:messages stored|reads compared)", done.stdout))
    assert stored > 100
    assert compared > 100
