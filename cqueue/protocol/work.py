"""The wide rows that a consumer knows to have work, in a fair order.

A wide row comes to the end of the line when it is found to have work, and again when a claim has left
something there. So each is claimed from after at most `TURNS` claims for every wide row before it, whatever
any of them gives.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from cqueue.protocol.view import RowView
from cqueue.store.operations import WideRow

TURNS = 4
"""Claims in a row of the wide row whose lock is held, while others wait: to change costs a read."""


class Reason(Enum):
    """Why a wide row is in the list."""

    HINT = "hint"  # a sender said so
    FOUND = "found"  # a probe has found something
    LEFT = "left"  # a claim of ours has left something
    SUSPECT = "suspect"  # only for a claim that may take what may have killed its last holder


class Work(NamedTuple):
    """A wide row to claim from, and why."""

    view: RowView
    reason: Reason


class WorkList:
    """Each wide row stands in it at most once. Not thread-safe."""

    def __init__(self) -> None:
        self.held: RowView | None = None  # we keep its lock, as more is there
        self._turns = 0  # claims of it in a row
        self._waiting: dict[WideRow, Work] = {}

    def __len__(self) -> int:
        """How many wide rows wait, besides the one that is held."""
        return len(self._waiting)

    def __contains__(self, view: RowView) -> bool:
        """Whether a wide row is held, or waits for any claim."""
        waiting = self._waiting.get(view.wide_row)
        return view is self.held or (waiting is not None and waiting.reason is not Reason.SUSPECT)

    @property
    def has_suspects(self) -> bool:
        """Whether a wide row waits for a claim that may take suspects."""
        return any(work.reason is Reason.SUSPECT for work in self._waiting.values())

    def add(self, view: RowView, reason: Reason) -> None:
        """Put a wide row at the end; one that waits already keeps its place."""
        if view in self or (reason is Reason.SUSPECT and view.wide_row in self._waiting):
            return
        self._waiting[view.wide_row] = Work(view, reason)

    def hold(self, view: RowView | None) -> None:
        """A claim is over: it has kept this lock, or none."""
        if view is not self.held:
            self._turns = 0
        self.held = view

    def is_last_turn(self, view: RowView) -> bool:
        """Whether the next claim of this wide row is to let go of the lock, as others wait."""
        return bool(self._waiting) and (self._turns if view is self.held else 0) + 1 >= TURNS

    def next(self, *, suspects: bool) -> Work | None:
        """Take out the wide row to claim from next; None if none is known to have work.

        suspects: the claim may take suspects.
        """
        waiting = (work for work in self._waiting.values() if suspects or work.reason is not Reason.SUSPECT)
        first = next(waiting, None)
        if self.held is not None and (first is None or self._turns < TURNS):
            self._turns += 1
            return Work(self.held, Reason.LEFT)
        return self.take(first)

    def next_suspect(self) -> Work | None:
        """Take out the first wide row that waits for a claim that may take suspects."""
        suspects = (work for work in self._waiting.values() if work.reason is Reason.SUSPECT)
        return self.take(next(suspects, None))

    def take(self, work: Work | None) -> Work | None:
        """Take out a wide row."""
        if work is not None:
            del self._waiting[work.view.wide_row]
        return work
