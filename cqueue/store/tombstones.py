"""How many tombstones a read crossed, as far as Cassandra says so.

It says so only in a warning to the client, above a threshold (`tombstone_warn_threshold`, 1,000). The driver
logs every warning; these are part of an answer here, and would come with every read of a busy wide row.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

# The coordinator's own read, or what it was told by replicas (`read_thresholds_enabled`).
_WARNING = re.compile(r"Read \d+ live rows and (\d+) tombstone cells|scanned up to (\d+) tombstones")


def crossed(warnings: Iterable[str] | None) -> int:
    """The largest number in an answer's warnings; 0 when there is none."""
    found = (_WARNING.search(warning) for warning in warnings or ())
    return max((int(match[1] or match[2]) for match in found if match), default=0)


def silence() -> None:
    """Keep these warnings, and no others, out of the driver's log."""
    logging.getLogger("cassandra.protocol").addFilter(_is_other)  # adding it again does nothing


def _is_other(record: logging.LogRecord) -> bool:
    return _WARNING.search(record.getMessage()) is None
