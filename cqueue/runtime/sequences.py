"""Cut sequences into parts, and gather values by their keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S", bound=Sequence[Any])


def parts(items: S, most: int) -> Iterator[S]:
    """Yield the items in parts of `most`; the last part may be smaller."""
    for start in range(0, len(items), most):
        yield items[start : start + most]  # type: ignore[misc]  # a slice is of the sequence's class


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in the order in which they came; the keys in that of their first."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
