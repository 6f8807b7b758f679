"""Values of `system_views.settings`, and which nodes have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from cqueue.runtime.sequences import grouped

NodeSettings = Mapping[str, Mapping[str, str | None]]
"""By node: the value of each setting by its name. None: the setting has none."""

_SECONDS: Final = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0
}  # fmt: skip
_BYTES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_QUANTITY: Final = re.compile(r"(-?\d+)\s*(\w*)")


def seconds(text: str | None) -> float | None:
    """Return a duration such as `3h` or `10000ms` in seconds; None if there is none, or it is none."""
    return _quantity(text, _SECONDS)


def size(text: str | None) -> float | None:
    """Return a size such as `512KiB` in bytes; None if there is none, or it is none."""
    return _quantity(text, _BYTES)


def number(text: str | None) -> float | None:
    """Return a number; None if there is none, or it is none."""
    return _quantity(text, {"": 1})


def _quantity(text: str | None, units: Mapping[str, float]) -> float | None:
    found = _QUANTITY.fullmatch(text or "")
    return int(found[1]) * units[found[2]] if found and found[2] in units else None


def by_value(settings: NodeSettings, name: str) -> dict[str | None, list[str]]:
    """Return, for each value of a setting, the nodes that have it. A node without the setting is left out."""
    return grouped((values[name], node) for node, values in settings.items() if name in values)


def on(nodes: Iterable[str], settings: NodeSettings) -> str:
    """Return where a value holds, as text: `on all nodes`, `on 10.0.0.1, 10.0.0.2`."""
    some = sorted(nodes)
    return "on all nodes" if len(some) == len(settings) > 1 else f"on {', '.join(some)}"
