"""How long the tests are: `make faults` runs all of them in full, `make test-all` the quick ones in short."""

from __future__ import annotations

import os

FULL = bool(os.environ.get("CQUEUE_FAULTS"))

# What a machine that runs other tests beside these may add to any time that is asked for.
NOISE_S = 0.0 if FULL else 8.0


def full(whole, short):
    """One value for `make faults`, another for the short version that runs in `make test-all`."""
    return whole if FULL else short
