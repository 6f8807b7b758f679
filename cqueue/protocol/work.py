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
        self._suspects: dict[WideRow, RowView] = {}  # besides: a claim ahead has left one there

    def __len__(self) -> int:
        """How many wide rows wait, besides the one that is held."""
        return len(self._waiting)

    def __contains__(self, view: RowView) -> bool:
        """Whether a wide row is held, or waits."""
        return view is self.held or view.wide_row in self._waiting

    @property
    def has_suspects(self) -> bool:
        """Whether there are suspects for a claim that may take them."""
        return bool(self._suspects)

    def add(self, view: RowView, reason: Reason) -> None:
        """Put a wide row at the end; one that waits already keeps its place, and a hint is its reason now."""
        if reason is Reason.SUSPECT:
            self._suspects[view.wide_row] = view
        elif view not in self or (reason is Reason.HINT and view is not self.held):
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
        work = self._next()
        if not suspects:
            return work
        if work is None:
            return self.next_suspect()
        self._suspects.pop(work.view.wide_row, None)
        return work

    def _next(self) -> Work | None:
        if self.held is not None and not (self._waiting and self._turns >= TURNS):
            self._turns += 1
            return Work(self.held, Reason.LEFT)
        for wide_row, work in self._waiting.items():
            del self._waiting[wide_row]
            return work
        return None

    def next_suspect(self) -> Work | None:
        """Take out the first wide row that has a suspect."""
        for wide_row, view in self._suspects.items():
            del self._suspects[wide_row]
            return Work(view, Reason.SUSPECT)
        return None
