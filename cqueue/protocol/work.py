"""Keep the wide rows that a consumer knows to have work, in a fair order.

A wide row joins the end of the list when it is found to have work, and again when a claim leaves something
in it. So a consumer claims from it after at most `TURNS` claims of each wide row before it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from cqueue.protocol.hint import Hint
from cqueue.protocol.row_memory import RowMemory
from cqueue.store.operations import WideRow

TURNS = 4
"""Claims in a row from the wide row whose lock is held, while others wait.

Each change of the wide row costs a read of its head; more than four would make the others wait too long.
"""


class Reason(Enum):
    """Why a wide row is on the work list."""

    HINT = "hint"  # a sender named it
    FOUND = "found"  # a probe found work
    LEFT = "left"  # this consumer's claim left messages
    SUSPECT = "suspect"  # it holds a suspect, which only some claims may take


class Work(NamedTuple):
    """A wide row to claim from, and why. hint: all that is known of it, if hints alone brought it here."""

    memory: RowMemory
    reason: Reason
    hint: Hint | None = None


class WorkList:
    """Wide rows to claim from, each at most once. Not thread-safe."""

    def __init__(self) -> None:
        self.held: RowMemory | None = None  # its lock is kept, as it has more messages
        self._turns = 0  # claims in a row from `held`
        self._waiting: dict[WideRow, Work] = {}
        self._suspects: dict[WideRow, RowMemory] = {}  # a claim ahead left a suspect there

    def __len__(self) -> int:
        """Return how many wide rows wait, `held` not counted."""
        return len(self._waiting)

    def __contains__(self, memory: RowMemory) -> bool:
        """Return whether a wide row is held, or waits."""
        return memory is self.held or memory.wide_row in self._waiting

    @property
    def has_suspects(self) -> bool:
        """Return whether a wide row waits because of a suspect."""
        return bool(self._suspects)

    def add(self, memory: RowMemory, reason: Reason, hint: Hint | None = None) -> None:
        """Put a wide row at the end. One that waits already keeps its place; a hint becomes its reason."""
        if reason is Reason.SUSPECT:
            self._suspects[memory.wide_row] = memory
        elif memory not in self:
            self._waiting[memory.wide_row] = Work(memory, reason, hint)
        elif reason is Reason.HINT and memory is not self.held:
            before = self._waiting[memory.wide_row].hint
            merged = before | hint if before and hint else None
            self._waiting[memory.wide_row] = Work(memory, reason, merged)

    def hold(self, memory: RowMemory | None) -> None:
        """Note that the last claim kept the lock of this wide row, or of none."""
        if memory is not self.held:
            self._turns = 0
        self.held = memory

    def is_last_turn(self, memory: RowMemory) -> bool:
        """Return whether the next claim of this wide row releases the lock, because others wait."""
        return bool(self._waiting) and (self._turns if memory is self.held else 0) + 1 >= TURNS

    def next(self, *, suspects: bool) -> Work | None:
        """Take out the next wide row to claim from; None if none is known to have work.

        suspects: whether the claim may take suspects.
        """
        work = self._next()
        if not suspects:
            return work
        if work is None:
            return self.next_suspect()
        self._suspects.pop(work.memory.wide_row, None)
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
        for wide_row, memory in self._suspects.items():
            del self._suspects[wide_row]
            return Work(memory, Reason.SUSPECT)
        return None
