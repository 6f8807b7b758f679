"""Options of benchmarks, which are those of their commands; this module imports no driver."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Final

from cqueue.errors import ConfigError

_RANGES: Final = {
    "messages": (1, 100_000_000),
    "size": (0, 1 << 20),
    "batch": (1, 10_000),
    "receive": (1, 1000),
    "shards": (1, 64),
}


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages of a benchmark, and the batches in which they are sent and received.

    Raises:
        ConfigError: a value is out of its range.
    """

    messages: Annotated[int, "How many messages."] = 20_000
    size: Annotated[int, "Bytes of a body."] = 200
    batch: Annotated[int, "Messages a send."] = 100
    receive: Annotated[int, "Messages a receive."] = 500

    def __post_init__(self) -> None:
        """Check ranges."""
        for field in fields(self):
            (low, high), value = _RANGES[field.name], getattr(self, field.name)
            if not low <= value <= high:
                raise ConfigError(f"--{field.name} is {value}; it goes from {low:,} to {high:,}")


@dataclass(frozen=True, slots=True)
class Options(Rows):
    """Messages of a benchmark, and the shards of their queue."""

    shards: Annotated[int, "Concurrency shards."] = 4
