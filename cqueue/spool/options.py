"""The options of a spool, checked as a whole when they are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypedDict

from cqueue.errors import ConfigError

_MIB: Final = 1024 * 1024
_MODE: Final = re.compile(r"always|os|interval:(\d+)ms")
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
        if not _MODE.fullmatch(self.fsync) or self.interval_s == 0:
            raise ConfigError(f'fsync is "always", "os" or "interval:100ms", not {self.fsync!r}')
        if not 4096 <= self.segment_bytes <= 1024 * _MIB:
            raise ConfigError("segment_bytes lies between 4,096 and 1 GiB")
        if self.max_bytes < 1 or self.max_records < 1 or self.disk_reserve < 0:
            raise ConfigError("max_bytes and max_records are at least 1, disk_reserve at least 0")
        if self.on_full not in {"block", "raise"}:
            raise ConfigError(f'on_full is "block" or "raise", not {self.on_full!r}')
        if self.expire_unconsumed and self.retention is None:
            raise ConfigError("expire_unconsumed needs a retention: how old is too old?")
        if self.block_timeout < timedelta() or (self.retention or timedelta()) < timedelta():
            raise ConfigError("block_timeout and retention are not negative")

    @property
    def interval_s(self) -> float | None:
        """The seconds between two fdatasync calls of "interval"; None in the other modes."""
        match = _MODE.fullmatch(self.fsync)
        return int(match[1]) / 1000 if match and match[1] else None
