"""What a sender tells a consumer: that a wide row has just got messages.

A hint says where to look first, and nothing else hangs on it. Polling stays the truth: a hint that is lost,
late, repeated or wrong costs at most one look.
"""

from __future__ import annotations

from typing import NamedTuple

from cqueue.store.operations import WideRow


class Hint(NamedTuple):
    """Messages of these priorities were stored in this wide row, and are due."""

    wide_row: WideRow
    priorities: frozenset[int]
