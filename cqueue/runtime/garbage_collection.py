"""Tune Python's cycle collector in processes that this library owns, such as the dispatcher's daemon.

Reference counts free everything that a message leaves behind; a dispatcher makes no reference cycles. With
Python's defaults the collector scans the few thousand objects of messages in progress over and over. After
some hundred thousand objects it scans everything ever imported, 40 ms at a time. Together that took a fifth
of the time of a dispatcher whose handlers do little.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 10_000
"""Objects allocated between two scans of the youngest generation: more than the messages of two batches
have."""
_DEFAULTS: Final = {(700, 10, 10), (2000, 10, 10), (2000, 10, 0)}
"""Default thresholds of Python 3.11 to 3.14; other values were set by the application, and are kept."""


def settle() -> None:
    """Exclude all present objects from garbage collection, and scan new ones less often.

    The thresholds stay as they are if the application has changed them.
    """
    gc.unfreeze()  # an earlier call may have frozen objects that are garbage now
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    if thresholds in _DEFAULTS:
        gc.set_threshold(YOUNG, *thresholds[1:])
