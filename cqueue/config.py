"""A queue's configuration: one object, validated whole when it is made, stored as JSON.

`time_shard`, `max_shards` and `open_shards` are fixed once the queue exists. Every other setting can be
altered while the queue runs. Settings that only a newer version knows are not part of the object. They stay
in the JSON, because an alteration is written on top of the stored settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from cqueue.errors import ConfigError, DamagedRow
from cqueue.runtime.durations import given, show_duration

HOUR_MS = 3_600_000
MAX_EPOCH_ROWS = 10_000
"""Wide rows in one registry partition (epoch), at most: a reader reads it whole at every refresh."""

DEFAULT_TIME_SHARD = timedelta(seconds=30)
DEFAULT_VISIBILITY = timedelta(seconds=30)
DEFAULT_LEASE = timedelta(seconds=5)

FIXED = ("time_shard", "max_shards", "open_shards")
_DURATIONS = ("time_shard", "visibility", "lease")
_ONCE_TRUE = {
    "derived_sends": "messages may stand where nobody would look else",
    "keyed": "nobody would delete the keys of messages that are acked",
}
"""Settings that cannot be turned off again, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """How a queue is laid out and how it behaves.

    Raises:
        ConfigError: a value is out of its range, or does not fit another one.

    Example:
        client.create_queue("mails", QueueConfig(visibility=timedelta(minutes=2), max_attempts=10))
    """

    # Concurrency shards inside one time shard, 1 to max_shards: how many consumers can claim at once.
    shards: int = 4
    # Width of a time shard, 1 s to 30 days: divides an hour, or is a multiple of one. Fixed.
    time_shard: timedelta = DEFAULT_TIME_SHARD
    # How long a received message is invisible to others, 2 s to 12 h.
    visibility: timedelta = DEFAULT_VISIBILITY
    # Deliveries before a message goes to the dead-letter queue: 2 or more; 0 means for ever.
    max_attempts: int = 5
    # How long one consumer may hold a wide row while it claims, 1 s to visibility.
    lease: timedelta = DEFAULT_LEASE
    # Upper bound of `shards` for this queue's whole life, 1 to 1,000. Fixed.
    max_shards: int = 64
    # Shards of open wide rows, 1 to 64: for sends that may land late, such as dead letters. Fixed.
    open_shards: int = 1
    # Whether messages with a `source` may be sent (schedules do): consumers then read open wide rows as
    # well. Once true it stays so.
    derived_sends: bool = False
    # Whether messages can be looked up by their keys. Once true it stays so.
    keyed: bool = False
    # How long the history of its messages is kept, 1 min to 10 years; None: the queue keeps none.
    history: timedelta | None = None

    def __post_init__(self) -> None:
        """Check every field, then the combinations."""
        for name in _DURATIONS:
            self._check_duration(name)
        if self.history is not None:
            self._check_duration("history")
            if not timedelta(minutes=1) <= self.history <= timedelta(days=3650):
                raise ConfigError(
                    f"history is {given(self.history)}; "
                    "it takes 1 minute to 10 years, or None (0s on the command line)"
                )
        self._check_int("max_shards", 1, 1000)
        self._check_int("shards", 1, self.max_shards, ", the queue's max_shards (--max-shards)")
        self._check_int("open_shards", 1, 64)
        self._check_int("max_attempts", 0, 1_000_000)
        for name in _ONCE_TRUE:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it takes true or false")
        if self.max_attempts == 1:
            raise ConfigError(
                "max_attempts is 1, but a claim can apply after its consumer gave up on it, "
                "so with 1, messages could die unseen; use 2 or more, or 0 for no limit"
            )
        self._check_fit()

    def _check_duration(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, timedelta):
            raise ConfigError(f"{name} is {given(value)}")
        if value % timedelta(milliseconds=1):
            raise ConfigError(f"{name} is {given(value)}; it takes whole milliseconds")

    def _check_int(self, name: str, low: int, high: int, why: str = "") -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ConfigError(f"{name} is {value!r}; it takes a whole number from {low} to {high}{why}")

    def _check_fit(self) -> None:
        check_width(self.time_shard)
        if not timedelta(seconds=2) <= self.visibility <= timedelta(hours=12):
            raise ConfigError(f"visibility is {given(self.visibility)}; it takes 2 seconds to 12 hours")
        if not timedelta(seconds=1) <= self.lease:
            raise ConfigError(f"lease is {given(self.lease)}; it takes 1 second or more")

    @property
    def time_shard_ms(self) -> int:
        """Width of a time shard in ms."""
        return to_ms(self.time_shard)

    @property
    def visibility_ms(self) -> int:
        """Visibility timeout in ms."""
        return to_ms(self.visibility)

    @property
    def lease_ms(self) -> int:
        """Lease of a lock in ms; never above the visibility."""
        return min(to_ms(self.lease), self.visibility_ms)

    def epoch_ms(self) -> int:
        """Return the width of a registry epoch in ms: an hour, or less where that would exceed
        MAX_EPOCH_ROWS.
        """
        width = self.time_shard_ms
        if width >= HOUR_MS:
            return width
        per_hour = HOUR_MS // width
        most = MAX_EPOCH_ROWS // self.max_shards
        return width * max(n for n in range(1, per_hour + 1) if per_hour % n == 0 and n <= most)

    def altered(self, changes: Mapping[str, Any]) -> QueueConfig:
        """Return this configuration with some values changed.

        Raises:
            ConfigError: unknown name, a fixed value, or a value out of range.
        """
        check_changes(self, changes, FIXED, "queue")
        for name, why in _ONCE_TRUE.items():
            if getattr(self, name) and not changes.get(name, True):
                raise ConfigError(f"{name} stays true: {why}")
        return replace(self, **changes)

    def to_json(self, stored: str = "{}") -> str:
        """Write the JSON: durations in ms under `<name>_ms`. Settings in `stored` of a newer version are
        kept.
        """
        return settings_json(self, (*_DURATIONS, "history"), stored)

    @classmethod
    def from_json(cls, text: str) -> QueueConfig:
        """Read the JSON of `to_json`, without settings that only a newer version knows.

        Raises:
            DamagedRow: the text is not the configuration of a queue.
        """
        values = stored_values(text)
        with readable(text):
            values.setdefault("history_ms", None)  # a queue of an older version has none
            return cls(**settings_of(cls, (*_DURATIONS, "history"), values))


# ── shared with the configuration of a log ──


def check_width(time_shard: timedelta) -> None:
    """Raise ConfigError unless a time shard may have this width."""
    width = to_ms(time_shard)
    if not 1000 <= width <= 30 * 24 * HOUR_MS or (HOUR_MS % width and width % HOUR_MS):
        raise ConfigError(
            f"time_shard is {given(time_shard)}; it divides an hour or is a multiple of one, "
            "from 1 second to 30 days"
        )


def check_changes(config: Any, changes: Mapping[str, Any], fixed: Iterable[str], kind: str) -> None:
    """Raise ConfigError unless the settings are there, and those that are fixed stay. kind: queue or log."""
    known = {each.name for each in fields(config)}
    for name, value in changes.items():
        if name not in known:
            raise ConfigError(f"no such setting: {name}; there are {', '.join(sorted(known))}")
        if name in fixed and value != getattr(config, name):
            raise ConfigError(f"{name} is fixed when a {kind} is made; make a new {kind} and move over")


def settings_json(config: Any, durations: Iterable[str], stored: str) -> str:
    """Return the stored form: durations in ms as `<name>_ms`. Settings of `stored` that are unknown stay."""
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    for name in durations:
        value = values.pop(name)
        values[f"{name}_ms"] = None if value is None else to_ms(value)
    return json.dumps(stored_values(stored) | values, sort_keys=True)


def settings_of(kind: type, durations: Iterable[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a class of configurations among stored values. Raises as `readable` expects."""
    of_ms = {name: values[f"{name}_ms"] for name in durations}
    times = {name: None if ms is None else timedelta(milliseconds=ms) for name, ms in of_ms.items()}
    known = {each.name for each in fields(kind)}
    return {name: value for name, value in {**values, **times}.items() if name in known}


def stored_values(text: str) -> dict[str, Any]:
    """Return the settings of a stored configuration by their names in the JSON.

    Raises:
        DamagedRow: the text is no JSON object.
    """
    with readable(text):
        values = json.loads(text)
        if not isinstance(values, dict):
            raise TypeError(f"it is no JSON object but {type(values).__name__}")
        return values


@contextmanager
def readable(text: str) -> Iterator[None]:
    """Turn an error inside the block into a `DamagedRow` that quotes the stored text."""
    try:
        yield
    except KeyError as exc:
        raise DamagedRow(f"the stored configuration {text!r:.200} lacks {exc}") from exc
    except (ValueError, TypeError, OverflowError, RecursionError) as exc:
        raise DamagedRow(f"the stored configuration {text!r:.200} cannot be read: {exc}") from exc


def to_ms(duration: timedelta) -> int:
    """Return a duration in whole ms, rounded down."""
    return duration // timedelta(milliseconds=1)


def named_settings(config: Any) -> dict[str, Any]:
    """Return the settings of a queue's, or a log's, configuration that differ from their defaults.

    Only these are compared with what is there. A program that names one setting must not fail to start
    because an operator has altered another one. A configuration does not tell a default that was given from
    one that was not, so neither is compared. The price: a program that asks for a default is not told that
    the queue has another value.
    """
    values = {each.name: (getattr(config, each.name), each.default) for each in fields(config)}
    return {name: value for name, (value, default) in values.items() if value != default}


EXISTS = "exists already; exist_ok=True (--exist-ok) alone takes it as it is, and `alter` changes it"
"""What an error says of a queue or a log that was to be created."""


def with_other_settings(found: Any, named: Mapping[str, Any]) -> str:
    """Say, in an error, which named settings a queue or a log has otherwise; empty if it has all of them."""
    pairs = [(name, getattr(found, name), wanted) for name, wanted in named.items()]
    differ = "; ".join(f"{name} is {_shown(a)}, not {_shown(b)}" for name, a, b in pairs if a != b)
    return differ and f"with another configuration: {differ}. Alter it, or ask for no configuration"


def _shown(value: object) -> str:
    return show_duration(value) if isinstance(value, timedelta) else str(value)
