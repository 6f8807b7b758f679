"""How often the properties are tried."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """Return `count`, of which a profile of Hypothesis takes as large a part as of its usual hundred."""
    return max(1, count * settings.default.max_examples // 100)
