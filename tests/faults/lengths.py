"""Which tests run, and how long they are.

`make faults` runs all of them in full, `make faults-quick` those of the storage in short, and `make test-all`
the quick ones in short.
"""

from __future__ import annotations

import os

FULL = os.environ.get("CQUEUE_FAULTS") == "1"
STORAGE = os.environ.get("CQUEUE_FAULTS") == "storage"

# What a machine that runs other tests beside these may add to any time that is asked for.
NOISE_S = 0.0 if FULL else 8.0


def full(whole, short):
    """One value for `make faults`, another for the short versions."""
    return whole if FULL else short
