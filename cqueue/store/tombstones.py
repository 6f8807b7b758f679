"""Read from Cassandra's warnings how many tombstones a read crossed.

Cassandra tells the number only in a warning to the client, above `tombstone_warn_threshold` (1,000). The
driver logs every warning. cqueue uses these as part of the answer, and keeps them out of the log, where each
read of a busy wide row would add one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

# The coordinator's own read, or what it was told by replicas (`read_thresholds_enabled`).
_WARNING = re.compile(r"Read \d+ live rows and (\d+) tombstone cells|scanned up to (\d+) tombstones")


def crossed(warnings: Iterable[str] | None) -> int:
    """Return the largest number of tombstones in an answer's warnings, or 0."""
    found = (_WARNING.search(warning) for warning in warnings or ())
    return max((int(match[1] or match[2]) for match in found if match), default=0)


def silence() -> None:
    """Keep these warnings, and no others, out of the driver's log."""
    logging.getLogger("cassandra.protocol").addFilter(_is_other)  # adding it again does nothing


def _is_other(record: logging.LogRecord) -> bool:
    return _WARNING.search(record.getMessage()) is None
