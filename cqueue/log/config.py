"""A log's configuration: validated whole when it is made, and stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import index
from typing import Any, TypeVar

from cqueue.config import (
    check_changes,
    check_width,
    readable,
    settings_json,
    settings_of,
    stored_values,
    to_ms,
)
from cqueue.errors import ConfigError
from cqueue.log.protocol.spec import EarlierTtl, Growth
from cqueue.runtime.durations import given

Note = TypeVar("Note")

MAX_PARTITIONS = 32_767
"""Partitions of a log at most: a partition's number is stored in 16 bits."""
DEFAULT_TTL = timedelta(days=7)
"""How long a log keeps records by default: time enough to notice a broken reader and mend it."""
DEFAULT_TIME_SHARD = timedelta(minutes=10)
"""Width of a time shard by default: about 1,000 Cassandra partitions a week and log partition."""
LONGEST_TTL = timedelta(days=3650)
"""The longest ttl: ten years, within Cassandra's limit of 20."""
_DURATIONS = ("ttl", "time_shard")
EARLIER_TTLS = "earlier_ttls"
"""Name of the earlier ttls in the stored form; no setting."""
MOST_EARLIER = 20
"""Earlier ttls that are remembered: more changes than are made while the first of them matters."""
GROWTHS = "growths"
"""Name of the changes of partitions in the stored form; no setting. All but the last few matter no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How a log is laid out, and how long it remembers.

    Raises:
        ConfigError: a value is out of its range, or does not fit another one.
    """

    # Partitions, 1 to 32,767: the number of members that can read side by side. They can only become more.
    partitions: int = 16
    # How long records are kept, 1 min to 10 years; None for ever. A change applies to new records:
    # older ones end by the ttl that they were appended with.
    ttl: timedelta | None = DEFAULT_TTL
    # Width of a time shard, 1 s to 30 days: divides an hour, or is a multiple of one. Fixed.
    time_shard: timedelta = DEFAULT_TIME_SHARD

    def __post_init__(self) -> None:
        """Check every field."""
        if type(self.partitions) is not int or not 1 <= self.partitions <= MAX_PARTITIONS:
            raise ConfigError(f"partitions is {self.partitions!r}; it takes 1 to {MAX_PARTITIONS:,}")
        if self.ttl is not None and (
            not isinstance(self.ttl, timedelta) or not timedelta(minutes=1) <= self.ttl <= LONGEST_TTL
        ):
            raise ConfigError(
                f"ttl is {given(self.ttl)}; "
                "it takes 1 minute to 10 years, or None (forever on the command line)"
            )
        if not isinstance(self.time_shard, timedelta) or self.time_shard % timedelta(milliseconds=1):
            raise ConfigError(f"time_shard is {given(self.time_shard)}; it takes whole milliseconds")
        check_width(self.time_shard)

    @property
    def time_shard_ms(self) -> int:
        """Return the width of a time shard in ms."""
        return to_ms(self.time_shard)

    @property
    def ttl_s(self) -> int:
        """Return the time to live in s; 0 for ever."""
        return 0 if self.ttl is None else int(self.ttl.total_seconds())

    def altered(self, changes: Mapping[str, Any]) -> LogConfig:
        """Return this configuration with some values changed.

        Raises:
            ConfigError: a setting is unknown, fixed or out of range; or the log would have fewer partitions.
        """
        check_changes(self, changes, ("time_shard",), "log")
        new = replace(self, **changes)
        if new.partitions < self.partitions:
            raise ConfigError(f"the log has {self.partitions} partitions; they can only become more")
        return new

    def to_json(self, stored: str = "{}") -> str:
        """Return the stored form: durations in ms as `<name>_ms`; unknown settings of `stored` are kept."""
        return settings_json(self, _DURATIONS, stored)

    @classmethod
    def from_json(cls, text: str) -> LogConfig:
        """Read what `to_json` wrote, without settings that only newer versions know.

        Raises:
            DamagedRow: the text is no configuration of a log.
        """
        values = stored_values(text)
        with readable(text):
            return cls(**settings_of(cls, _DURATIONS, values))


def earlier_ttls(text: str) -> tuple[EarlierTtl, ...]:
    """Read the earlier ttls of a stored configuration.

    Raises:
        DamagedRow: the text holds something else in their place.
    """
    return _noted(text, EARLIER_TTLS, EarlierTtl)


def growths(text: str) -> tuple[Growth, ...]:
    """Read the changes of partitions of a stored configuration.

    Raises:
        DamagedRow: the text holds something else in their place.
    """
    return _noted(text, GROWTHS, Growth)


def _noted(text: str, name: str, kind: Callable[..., Note]) -> tuple[Note, ...]:
    stored = stored_values(text).get(name, [])
    with readable(text):
        return tuple(kind(*map(index, each)) for each in stored)


def with_growth(text: str, now_ms: int, before: int) -> str:
    """Return a stored configuration that says, too, that the log had `before` partitions until now."""
    grown = [*growths(text), Growth(now_ms, before)][-MOST_EARLIER:]
    return json.dumps(stored_values(text) | {GROWTHS: grown}, sort_keys=True)


def with_earlier_ttl(text: str, created_ms: int, now_ms: int, ttl_s: int) -> str:
    """Return a stored configuration that says, too, that another ttl applied until now.

    Args:
        text: the stored configuration.
        created_ms: when the log was created, in ms since 1970.
        now_ms: the present, in ms since 1970.
        ttl_s: the ttl until now, in s; 0 for ever.
    """
    earlier = earlier_ttls(text)
    ended = EarlierTtl(earlier[-1].until_ms if earlier else created_ms, now_ms, ttl_s)
    return json.dumps(stored_values(text) | {EARLIER_TTLS: [*earlier, ended][-MOST_EARLIER:]}, sort_keys=True)
