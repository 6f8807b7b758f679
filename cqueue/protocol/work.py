"""Keep the wide rows that a consumer knows to have work, in a fair order.

A wide row joins the end of the list when it is found to have work, and again when a claim leaves something
in it. One that a hint brings overtakes those that wait, for one claim, and then the first of them has its
turn. So a consumer claims from a wide row after at most `TURNS` claims for each one before it.
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
        self._turns = 0  # claims in a row from the last one taken out, with the one that overtook it
        self._hinted: dict[WideRow, Work] = {}
        self._others: dict[WideRow, Work] = {}
        self._overtakes = False  # the last one taken out came before others because a hint named it
        self._suspects: dict[WideRow, RowMemory] = {}  # a claim ahead left a suspect there

    def __len__(self) -> int:
        """Return how many wide rows wait, `held` not counted."""
        return len(self._hinted) + len(self._others)

    def __contains__(self, memory: RowMemory) -> bool:
        """Return whether a wide row is held, or waits."""
        return memory is self.held or memory.wide_row in self._hinted or memory.wide_row in self._others

    @property
    def has_suspects(self) -> bool:
        """Return whether a wide row waits because of a suspect."""
        return bool(self._suspects)

    def add(self, memory: RowMemory, reason: Reason, hint: Hint | None = None) -> None:
        """Put a wide row at the end. One that waits already keeps its place; a hint becomes its reason."""
        if reason is Reason.SUSPECT:
            self._suspects[memory.wide_row] = memory
        elif memory not in self:
            waiting = self._hinted if reason is Reason.HINT else self._others
            waiting[memory.wide_row] = Work(memory, reason, hint)
        elif reason is Reason.HINT and memory is not self.held:
            waiting = self._hinted if memory.wide_row in self._hinted else self._others
            before = waiting[memory.wide_row].hint
            waiting[memory.wide_row] = Work(memory, reason, before | hint if before and hint else None)

    def hold(self, memory: RowMemory | None) -> None:
        """Note that the last claim kept the lock of this wide row, or of none."""
        self.held = memory

    @property
    def is_last_turn(self) -> bool:
        """Whether the claim of the wide row just taken out releases the lock, because others wait."""
        return len(self) > 0 and (self._overtakes or self._turns >= TURNS)

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
        if self.held is not None and not (len(self) and self._turns >= TURNS):
            self._turns += 1
            return Work(self.held, Reason.LEFT)
        self._turns = 2 if self._overtakes else 1
        self._overtakes = bool(self._hinted and self._others) and not self._overtakes
        waiting = self._hinted if self._overtakes or not self._others else self._others
        for wide_row, work in waiting.items():
            del waiting[wide_row]
            return work
        return None

    def next_suspect(self) -> Work | None:
        """Take out the first wide row that has a suspect."""
        for wide_row, memory in self._suspects.items():
            del self._suspects[wide_row]
            return Work(memory, Reason.SUSPECT)
        return None
