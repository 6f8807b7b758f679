"""The options of a spool, checked as a whole when they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypedDict, get_args

from cqueue.errors import ConfigError
from cqueue.runtime.durations import given

_MIB: Final = 1024 * 1024
_MODE: Final = re.compile(r"always|os|interval:(\d+)ms")
_LEAST: Final = {"segment_bytes": 4096, "max_bytes": 1, "max_records": 1, "disk_reserve": 0}
LARGEST_SEGMENT: Final = 1024 * _MIB
"""Bytes of a segment, at most."""
LONGEST: Final = timedelta(days=3650)
"""Longest `block_timeout` and `retention`, ten years, as of a delay: well within what waits accept."""
OnFull = Literal["block", "raise"]


class OptionValues(TypedDict, total=False):
    """The options as keyword arguments. `SpoolOptions` says what each means."""

    fsync: str
    segment_bytes: int
    max_bytes: int
    max_records: int
    on_full: OnFull
    block_timeout: timedelta
    disk_reserve: int
    retention: timedelta | None
    expire_unconsumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolOptions:
    """The options of a spool. Sizes are in bytes."""

    # When an append is done: "always" after fdatasync, "interval:<n>ms" and "os" when the kernel has it.
    fsync: str = "always"
    segment_bytes: int = 64 * _MIB
    # Limits of the backlog: messages not consumed. At 80 % of either, appends wait or are refused.
    max_bytes: int = 1024 * _MIB
    max_records: int = 10_000_000
    on_full: OnFull = "block"
    block_timeout: timedelta = timedelta(seconds=30)
    # No segment is created that would leave less than this free on the disk.
    disk_reserve: int = 256 * _MIB
    # How long consumed messages stay on the disk; None: until the next round of expiry, 10 s at most.
    retention: timedelta | None = None
    # Whether messages that were not consumed are deleted as well, once they are older than `retention`.
    expire_unconsumed: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.fsync, str) or not _MODE.fullmatch(self.fsync) or self.interval_s == 0:
            raise ConfigError(f'fsync is "always", "os" or "interval:100ms", not {self.fsync!r}')
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name} is {value!r}; it takes a whole number of at least {least:,}")
        if self.segment_bytes > LARGEST_SEGMENT:
            raise ConfigError(f"segment_bytes is {self.segment_bytes!r}; it is at most {LARGEST_SEGMENT:,}")
        if self.on_full not in get_args(OnFull):
            raise ConfigError(f'on_full is "block" or "raise", not {self.on_full!r}')
        if not isinstance(self.expire_unconsumed, bool):  # "no" would delete them
            raise ConfigError(f"expire_unconsumed is {self.expire_unconsumed!r}; it takes true or false")
        if self.expire_unconsumed and self.retention is None:
            raise ConfigError("expire_unconsumed needs a retention: how old is too old?")
        kept = {} if self.retention is None else {"retention": self.retention}
        for name, value in {"block_timeout": self.block_timeout, **kept}.items():
            if not isinstance(value, timedelta) or not timedelta() <= value <= LONGEST:
                raise ConfigError(f"{name} is {given(value)}; it goes from 0 to 10 years")

    @property
    def interval_s(self) -> float | None:
        """The seconds between two fdatasync calls of "interval"; None in the other modes."""
        match = _MODE.fullmatch(self.fsync)
        return int(match[1]) / 1000 if match and match[1] else None
