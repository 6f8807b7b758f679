"""The choices of an operator about a keyspace, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cqueue.errors import ConfigError
from cqueue.runtime.clock import MAX_ROUND_TRIP_US
from cqueue.runtime.texts import quoted, typed_json
from cqueue.settings import CONSISTENCY_OF, SerialConsistency

HINT_WINDOW_S: Final = 3 * 3600
"""Seconds for which Cassandra keeps the writes that a node has missed, by default."""
DEFAULT_GC_GRACE_S: Final = 86_400
"""Seconds for which deletions are kept: a day, in which a node must be repaired or replaced."""
DEFAULT_SETTLE_MS: Final = 2_000
"""W, in ms: an acknowledged send is readable after it. A send that is answered later is sent again."""
DEFAULT_SKEW_MS: Final = 500
"""Ms by which two corrected clocks may disagree (ε): ample with NTP."""
MAX_GC_GRACE_S: Final = 365 * 86_400
"""Upper limit: a year of tombstones."""
MAX_SETTLE_MS: Final = 60_000
"""Upper limit: consumers look back over this span at each poll."""
MIN_SKEW_MS: Final = MAX_ROUND_TRIP_US // 1000
"""Lower limit in ms (200): a clock may be off by half of the longest round trip, and another one too."""
MAX_SKEW_MS: Final = 10_000
"""Upper limit: a lease is reclaimed later by as much."""

COMPACTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "ucs": {"class": "UnifiedCompactionStrategy"},
    "lcs": {"class": "LeveledCompactionStrategy"},
    "stcs": {"class": "SizeTieredCompactionStrategy"},
}
"""Short names of compaction strategies."""
DEFAULT_COMPACTION: Final = COMPACTIONS["ucs"]
"""Strategy of the large tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Choices about a keyspace. None keeps the present value, or takes the default of a new keyspace.

    Attributes:
        replication: copies by data centre, 1 to 99.
        compaction: compaction map of the large tables.
        gc_grace_s: seconds for which deletions are kept, 3 h to 365 days; more than the hint window, or
            deleted messages come back.
        serial_consistency: of all conditional mutations; fixed at bootstrap.
        settle_ms: W, the longest time in ms until an acknowledged send is readable; 1 to 60,000.
        skew_ms: ε, the largest disagreement of two corrected clocks in ms; 200 to 10,000.

    Raises:
        ConfigError: a value is out of range.
    """

    replication: Mapping[str, int] | None = None
    compaction: Mapping[str, str] | None = None
    gc_grace_s: int | None = None
    serial_consistency: SerialConsistency | None = None
    settle_ms: int | None = None
    skew_ms: int | None = None

    def __post_init__(self) -> None:
        _within(
            "gc_grace", self.gc_grace_s, HINT_WINDOW_S + 1, MAX_GC_GRACE_S, "s, above the hint window of 3 h"
        )
        _within("settle", self.settle_ms, 1, MAX_SETTLE_MS, "ms")
        _within("skew", self.skew_ms, MIN_SKEW_MS, MAX_SKEW_MS, "ms")
        if self.serial_consistency is not None and self.serial_consistency not in CONSISTENCY_OF:
            raise ConfigError(f"serial consistency {self.serial_consistency!r}: use local_serial or serial.")
        if self.replication is not None:
            _check_replication(self.replication)
        if self.compaction is not None:
            _check_compaction(self.compaction)


def parse_replication(text: str) -> dict[str, int]:
    """Return `dc1=3,dc2=3` as a mapping.

    Raises:
        ConfigError: the text has another form, or names a data centre twice.
    """
    copies: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not (name and equals and number.isascii() and number.isdigit() and len(number) <= 2):
            raise ConfigError(f"replication {quoted(text)}: write dc1=3,dc2=3 (data centre = copies).")
        if name in copies:
            raise ConfigError(f"replication {text!r} names {name} twice.")
        copies[name] = int(number)
    return copies


def parse_compaction(text: str) -> dict[str, str]:
    """Return the compaction map of `ucs`, `lcs`, `stcs`, or of a JSON object with the class.

    Raises:
        ConfigError: the text is none of them.
    """
    known = COMPACTIONS.get(text.strip().lower())
    if known is not None:
        return dict(known)
    try:
        value = typed_json(text)
    except (ValueError, RecursionError) as exc:  # of numbers of thousands of digits, of deep nesting
        why = f": {exc}." if text.lstrip().startswith("{") else "."
        raise ConfigError(f"compaction {quoted(text)}: use ucs, lcs, stcs or a JSON object{why}") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"compaction {quoted(text)}: the JSON must be an object.")
    return {key: _option_text(key, item) for key, item in value.items()}


def _option_text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"compaction: {key} must be text, a number or true/false.")


def _within(name: str, value: int | None, low: int, high: int, unit: str) -> None:
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{name}={value}: from {low} to {high} {unit}.")


def _check_replication(copies: Mapping[str, int]) -> None:
    if not copies:
        raise ConfigError("replication names no data centre.")
    for name, number in copies.items():
        if not 1 <= number <= 99:
            raise ConfigError(f"replication {name}={number}: from 1 to 99 copies.")


def _check_compaction(compaction: Mapping[str, str]) -> None:
    name = compaction.get("class", "").rpartition(".")[2]
    if not name:
        raise ConfigError("compaction needs a class, such as UnifiedCompactionStrategy.")
    if name == "TimeWindowCompactionStrategy":
        raise ConfigError(
            "TimeWindowCompactionStrategy does not work here: write timestamps follow the due times of "
            "messages, which may lie years ahead. Use ucs."
        )
