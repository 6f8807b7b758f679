"""A lease: one timeout slot as its holder knows it; and the gate that lets suspects through one at a time."""

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
    """A change of a lease's slot: its own slot, and the one that lists its messages then, as they will be.

    moving: the messages that leave the lease by it.
    """

    source: SlotRow
    target: SlotRow
    moving: tuple[int, ...]


class Holding(Enum):
    """Whose a lease's slot is. Only what is held can be given back or lost."""

    HELD = "held"
    GIVEN = "given"  # back to the queue as a whole: the slot is no longer ours to free
    LOST = "lost"  # somebody else has changed the slot


TAKEN_OVER = "the visibility timeout passed and the message was given to another consumer"


@dataclass(slots=True, eq=False)
class Lease:
    """One timeout slot as its holder knows it; its messages refer to it.

    Its holder makes one change of the slot after the other; acks may come meanwhile, on any thread.

    slot: as the holder wrote it last. fence: of the claim. gate: of a suspect, the gate that let it through.
    """

    wide_row: WideRow
    slot: SlotRow
    fence: int
    gate: SuspectGate | None = None
    state: Holding = Holding.HELD
    outstanding: set[int] = field(init=False)  # ids neither acked nor moved away
    tried: dict[int, Change] = field(default_factory=dict)  # of unknown outcome, by the revision they leave

    def __post_init__(self) -> None:
        """At first, all that the slot lists is outstanding."""
        self.outstanding = set(self.slot.ids)

    # ── what is asked ──

    @property
    def due_ms(self) -> int:
        """When the visibility timeout passes, in ms of cluster time."""
        return self.slot.due_ms

    @property
    def attempt(self) -> int:
        """Which delivery of its messages this is, from 1."""
        return self.slot.attempt

    @property
    def suspect(self) -> bool:
        """Whether an earlier holder let its message expire: it is held alone."""
        return self.gate is not None

    @property
    def lost(self) -> bool:
        """Whether its slot is known to be somebody else's."""
        return self.state is Holding.LOST

    @property
    def is_held(self) -> bool:
        """Whether something is outstanding, as far as this process knows."""
        return self.state is Holding.HELD and bool(self.outstanding)

    def held(self, ids_: AbstractSet[int]) -> tuple[int, ...]:
        """Those of these messages that are outstanding, in order.

        Raises:
            LeaseLost: none of them is.
        """
        if self.lost:
            raise LeaseLost(TAKEN_OVER)
        if self.outstanding.isdisjoint(ids_):
            raise LeaseLost(f"already acked, nacked or given back: {len(ids_)} message(s)")
        return tuple(sorted(self.outstanding & ids_))

    # ── what happens to it ──

    def acked(self, ids_: Iterable[int]) -> bool:
        """These messages are deleted; whether the last ones went by it, so that the slot can be freed."""
        gone = set(ids_)
        if self.outstanding.isdisjoint(gone):
            return False
        self.outstanding.difference_update(gone)
        return not self.outstanding and self.state is Holding.HELD

    def changed(self, change: Change) -> None:
        """A change stands."""
        # Before the ids go: an ack on another thread must not take the empty lease for a finished one.
        if change.source.state is SlotState.CLAIMED:
            self.slot = change.source
        else:
            self.state = Holding.GIVEN
        self.outstanding.difference_update(change.moving)
        self.tried.clear()

    def doubted(self, change: Change) -> None:
        """It is not known whether a change stands; remembered, to be told from a stranger's."""
        self.tried[change.source.rev] = change

    def is_slot(self, stored: SlotRow | None) -> bool:
        """Whether that is its slot as its holder left it, be it by a change whose outcome was unknown."""
        if stored is not None and stored.rev == self.slot.rev:
            return True
        if (change := self._standing(stored)) is not None:
            self.changed(change)
        return change is not None and self.state is Holding.HELD

    def found(self, stored: SlotRow | None) -> Change | None:
        """The slot was read: an earlier change that stands after all; None if the slot is as it was.

        Raises:
            LeaseLost: it is somebody else's.
        """
        if stored is not None and stored.rev == self.slot.rev:
            return None
        change = self._standing(stored)
        if change is None:
            self.state = Holding.LOST
            raise LeaseLost(TAKEN_OVER)
        self.changed(change)
        return change

    def _standing(self, stored: SlotRow | None) -> Change | None:
        """The change of unknown outcome that a slot shows."""
        change = self.tried.get(stored.rev) if stored is not None else None
        return change if stored is not None and change and change.source.owner == stored.owner else None


class SuspectGate:
    """At most one message that an earlier holder gave up is held by a process at a time.

    One that kills its worker then cannot burn the attempts of its neighbours.

    mutex: one that the same thread may take twice, where several threads share the gate.
    shut: it lets nothing through, where messages are claimed that are not to be started at once.
    """

    def __init__(self, mutex: AbstractContextManager[Any] | None = None, *, shut: bool = False) -> None:
        self._mutex = mutex or nullcontext()
        self._lease: Lease | None = None
        self._until_ms = 0  # it is held until then, or until its extension that is under way
        self._reserved = False
        self._shut = shut

    def busy(self, now_ms: int) -> bool:
        """Whether a suspect is held, or is just being claimed. One whose time has passed is let go of."""
        with self._mutex:
            if self._lease is not None and not (self._lease.is_held and now_ms < self._until_ms):
                self._lease = None
            return policy.is_suspect_held(self._lease, reserved=self._reserved or self._shut)

    def reserve(self, now_ms: int) -> bool:
        """Take the right to claim one suspect; to be settled by the claim."""
        with self._mutex:
            if self.busy(now_ms):
                return False
            self._reserved = True
            return True

    def settle(self) -> None:
        """The claim is over: from now on only the lease counts, if one was granted."""
        self._reserved = False

    def hold(self, lease: Lease) -> None:
        """A claim has granted a suspect."""
        with self._mutex:
            self._lease, self._until_ms = lease, lease.due_ms

    def extend(self, lease: Lease, due_ms: int) -> None:
        """A suspect is about to be extended.

        Raises:
            LeaseLost: it was let go of, and the process may hold the next one.
        """
        with self._mutex:
            if self._lease is not lease:
                raise LeaseLost("the visibility timeout passed, and the next suspect may have been taken")
            self._until_ms = max(self._until_ms, due_ms)


class Taken:
    """A message that a claim gave us, with the lease that it is held by."""

    __slots__ = ("lease", "row")

    def __init__(self, row: MessageRow, lease: Lease) -> None:
        self.row = row
        self.lease = lease
