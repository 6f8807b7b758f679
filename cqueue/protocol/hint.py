"""Define the hint: all that a consumer is told of a send. It says where to look, not what is there."""

from __future__ import annotations

from typing import NamedTuple

from cqueue.store.operations import WideRow


class Hint(NamedTuple):
    """A wide row in which messages of these priorities may be due.

    A hint may be late, repeated or wrong, so a consumer reads the wide row before it claims anything.
    """

    wide_row: WideRow
    priorities: frozenset[int]
