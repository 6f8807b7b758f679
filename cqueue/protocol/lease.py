"""Define the lease, a timeout slot as its holder knows it, and the gate that admits one suspect at a time."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from cqueue.errors import LeaseLost
from cqueue.protocol import policy
from cqueue.store.operations import MessageRow, SlotRow, SlotState, WideRow


class Change(NamedTuple):
    """A change of a lease's slot, with the slots as they will be.

    source: the lease's slot. target: the slot that lists the moved messages then, perhaps the same one.
    moving: the messages that leave the lease.
    """

    source: SlotRow
    target: SlotRow
    moving: tuple[int, ...]


class Holding(Enum):
    """The state of a lease's slot. Only a held slot can be given back or lost."""

    HELD = "held"
    GIVEN = "given"  # back to the queue as a whole: this holder does not free the slot
    LOST = "lost"  # another client has changed the slot


TAKEN_OVER = "the visibility timeout passed and the message was given to another consumer"
"""The text of `LeaseLost` for a lost slot."""
CANCELLED = "the message was cancelled while it was held"
"""The text of `LeaseLost` for a cancelled message."""


@dataclass(slots=True, eq=False)
class Lease:
    """One timeout slot as its holder knows it; the slot's messages refer to the lease.

    The holder makes one change of the slot after the other. Acks may come meanwhile, on any thread.

    slot: as the holder last wrote it. fence: of the claim. gate: the gate that admitted a suspect; else None.
    keyed: the queue is, so an acked message's key has to be forgotten.
    abandoned: of a message to bury: its last holder let it expire.
    due_again_ms: when the slot came due that listed the messages before; None: no slot did.
    """

    wide_row: WideRow
    slot: SlotRow
    fence: int
    gate: SuspectGate | None = None
    keyed: bool = False
    state: Holding = Holding.HELD
    abandoned: bool = False
    due_again_ms: int | None = None
    outstanding: set[int] = field(init=False)  # ids neither acked nor moved to another slot
    cancelled: set[int] = field(default_factory=set)  # ids that are known to have been cancelled by others
    unresolved: dict[int, Change] = field(default_factory=dict)  # by new revision: outcome unknown

    def __post_init__(self) -> None:
        """Begin with all listed messages outstanding."""
        self.outstanding = set(self.slot.ids)

    # ── questions ──

    @property
    def due_ms(self) -> int:
        """Return when the visibility timeout passes, in ms of cluster time."""
        return self.slot.due_ms

    @property
    def attempt(self) -> int:
        """Return the number of this delivery of the messages, from 1."""
        return self.slot.attempt

    @property
    def suspect(self) -> bool:
        """Return whether an earlier holder let the message expire, so that it is held alone."""
        return self.gate is not None

    @property
    def lost(self) -> bool:
        """Return whether another client is known to have changed the slot."""
        return self.state is Holding.LOST

    @property
    def is_held(self) -> bool:
        """Return whether a message is outstanding, as far as this process knows."""
        return self.state is Holding.HELD and bool(self.outstanding)

    def held(self, ids_: AbstractSet[int]) -> tuple[int, ...]:
        """Return those of these messages that are outstanding, in order.

        Raises:
            LeaseLost: none is outstanding.
        """
        if self.lost:
            self.check_uncancelled(ids_)
            raise LeaseLost(TAKEN_OVER)
        if self.outstanding.isdisjoint(ids_):
            self.check_uncancelled(ids_)
            raise LeaseLost(f"already acked, nacked or given back: {len(ids_)} message(s)")
        return tuple(sorted(self.outstanding & ids_))

    def check_uncancelled(self, ids_: Iterable[int]) -> None:
        """Raise `LeaseLost` if one of these messages is known to have been cancelled by others."""
        if not self.cancelled.isdisjoint(ids_):
            raise LeaseLost(CANCELLED)

    # ── events ──

    def acked(self, ids_: Iterable[int]) -> bool:
        """Note deleted messages; return whether they were the last, so that the slot can be freed."""
        gone = set(ids_)
        if self.outstanding.isdisjoint(gone):
            return False
        self.outstanding.difference_update(gone)
        return not self.outstanding and self.state is Holding.HELD

    def changed(self, change: Change) -> None:
        """Note that a change was applied."""
        # The state changes before the ids go: an ack on another thread must not take the lease for finished.
        if change.source.state is SlotState.CLAIMED:
            self.slot = change.source
        else:
            self.state = Holding.GIVEN
        self.outstanding.difference_update(change.moving)
        self.unresolved.clear()

    def note_unresolved(self, change: Change) -> None:
        """Remember a change of unknown outcome, to tell it from another client's change later."""
        self.unresolved[change.source.rev] = change

    def is_slot(self, stored: SlotRow | None) -> bool:
        """Return whether a stored slot is as the holder left it, if only by a change of unknown outcome."""
        if stored is not None and stored.rev == self.slot.rev:
            return True
        if (change := self._standing(stored)) is not None:
            self.changed(change)
        return self._is_edited(stored) or (change is not None and self.state is Holding.HELD)

    def found(self, stored: SlotRow | None) -> Change | None:
        """Compare the slot with the stored one; return the change of unknown outcome that was applied, if
        any.

        Raises:
            LeaseLost: another client has changed the slot.
        """
        if stored is not None and stored.rev == self.slot.rev:
            return None
        if self._is_edited(stored):
            return None
        change = self._standing(stored)
        if change is None:
            self.state = Holding.LOST
            self.check_uncancelled(self.slot.ids)
            raise LeaseLost(TAKEN_OVER)
        self.changed(change)
        return change

    def _is_edited(self, stored: SlotRow | None) -> bool:
        """Take over what a change by id has left of the slot; return whether the slot is still the holder's.

        Only such a change keeps the owner. It makes the slot waiting if it has cancelled all messages.
        """
        if stored is None or stored.owner != self.slot.owner or self.state is not Holding.HELD:
            return False
        holds = stored.state is SlotState.CLAIMED
        self.cancelled |= self.outstanding.difference(stored.ids) if holds else self.outstanding
        if holds:
            self.slot = stored
        else:
            self.state = Holding.LOST
        self.outstanding.difference_update(self.cancelled)
        return holds

    def _standing(self, stored: SlotRow | None) -> Change | None:
        """Return the change of unknown outcome that a stored slot shows."""
        change = self.unresolved.get(stored.rev) if stored is not None else None
        return change if stored is not None and change and change.source.owner == stored.owner else None


class SuspectGate:
    """Admits at most one suspect to a process at a time.

    So a message that kills its worker cannot use up the attempts of other messages.

    mutex: a reentrant lock, where several threads share the gate.
    shut: the gate admits no suspect, where claimed messages are not started at once.
    """

    def __init__(self, mutex: AbstractContextManager[Any] | None = None, *, shut: bool = False) -> None:
        self._mutex = mutex or nullcontext()
        self._lease: Lease | None = None
        self._until_ms = 0  # when the suspect's timeout passes, extensions under way included
        self._reserved = False
        self._shut = shut

    def busy(self, now_ms: int) -> bool:
        """Return whether a suspect is held or being claimed; forget one whose timeout has passed."""
        with self._mutex:
            if self._lease is not None and not (self._lease.is_held and now_ms < self._until_ms):
                self._lease = None
            return policy.is_suspect_held(self._lease, reserved=self._reserved or self._shut)

    def reserve(self, now_ms: int) -> bool:
        """Take the right to claim one suspect, if it is free; the claim ends it with `end_reservation`."""
        with self._mutex:
            if self.busy(now_ms):
                return False
            self._reserved = True
            return True

    def end_reservation(self) -> None:
        """End the reservation. From now on only the lease of a granted suspect keeps the gate busy."""
        self._reserved = False

    def hold(self, lease: Lease) -> None:
        """Note that a claim has granted a suspect."""
        with self._mutex:
            self._lease, self._until_ms = lease, lease.due_ms

    def extend(self, lease: Lease, due_ms: int) -> None:
        """Note that a suspect is about to be extended.

        Raises:
            LeaseLost: its timeout has passed, and the process may hold the next suspect.
        """
        with self._mutex:
            if self._lease is not lease:
                lease.state = Holding.LOST
                raise LeaseLost("the visibility timeout passed, and the next suspect may have been taken")
            self._until_ms = max(self._until_ms, due_ms)


class Taken:
    """A claimed message with its lease."""

    __slots__ = ("lease", "row")

    def __init__(self, row: MessageRow, lease: Lease) -> None:
        self.row = row
        self.lease = lease
