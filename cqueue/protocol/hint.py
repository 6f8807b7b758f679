"""All that a consumer is told of what was sent: where to look, and nothing of what is there."""

from __future__ import annotations

from typing import NamedTuple

from cqueue.store.operations import WideRow


class Hint(NamedTuple):
    """Messages of these priorities may be due in this wide row.

    It may come late, twice, or without a reason: whoever is told reads before claiming anything.
    """

    wide_row: WideRow
    priorities: frozenset[int]
