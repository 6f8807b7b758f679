"""Python's garbage collector, in processes that are this library's own.

What a message leaves behind goes by reference counts; the collector has only cycles to find, and a
dispatcher makes none for a message. As Python sets it, it looks at the few thousand objects of the messages
under way again and again, and after some hundred thousand of them at all that was ever imported, which takes
40 ms at a time: together a fifth of the time of a dispatcher whose handlers do little.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 10_000
"""New objects between two looks at them: more than the messages of a batch or two have."""
_DEFAULTS: Final = {(700, 10, 10), (2000, 10, 10), (2000, 10, 0)}
"""Of Python 3.11 to 3.14."""


def settle() -> None:
    """Look at nothing any more that there is by now, and at new objects less often.

    How often stays as it is where somebody, such as the application, has changed it before.
    """
    gc.unfreeze()  # of an attempt before, which came to nothing
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    if thresholds in _DEFAULTS:
        gc.set_threshold(YOUNG, *thresholds[1:])
