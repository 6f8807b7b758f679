"""Change single messages by id, also those that a consumer holds: cancel, reschedule, extend.

Each change is what a claim or a holder does, made by somebody else: reads, then one conditional mutation. An
id that no slot lists is listed, or kept from claims that have read it, under the next fence, as a claim does
it. An id that a slot lists moves or leaves on the condition of the slot's revision, as a nack does it. So ids
and rows stay, nothing is copied, and the rules of claims hold for all that is changed here.

A change of a held slot keeps the slot's owner. No other change does. So a holder that finds a new revision
with its own owner knows that the slot is still its own, and what was taken out of it was cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from cqueue.errors import (
    CqueueError,
    DamagedRow,
    LeaseLost,
    MessageHeld,
    NotDone,
    OutcomeUnknown,
    looking_again,
)
from cqueue.protocol import lock as locks
from cqueue.protocol import policy
from cqueue.protocol.ack import SHARED_MS
from cqueue.protocol.claim_draft import MAX_LISTED, STAY_MS, free_number, freed
from cqueue.protocol.inspection import discard, is_expired
from cqueue.protocol.lock import acquire, mutate_once_or_unsure, new_owner, tally_share, unlock
from cqueue.protocol.registry import remember_row
from cqueue.protocol.row_memory import RowMemory, fence_of
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.runtime.sequences import grouped
from cqueue.store.operations import (
    Head,
    LockRow,
    LockState,
    MessageRow,
    Mutate,
    Now,
    Pause,
    RandomBits,
    ReadMessages,
    SlotChange,
    SlotRow,
    SlotState,
    WideRow,
    wrapped,
)

TRIES = 80
"""Most tries of a change. Each failed try needs another client's change of the wide row in that moment."""
LOCK_AFTER = 2
"""Failed tries after which a change takes the lock, as a claim does where others claim too."""
FREE_TAKE_OVER_AFTER = 10
"""Failed tries after which a change takes a free lock on no condition but its own fence: a consumer that
claims without a lock may come between each read and write. Before, changes that wait for it do not throw each
other out."""
TAKE_OVER_AFTER = 60
"""Tries after which a change takes the lock also from another change: its process may be dead.

A lock that a consumer keeps between claims it takes at once. Such a consumer claims anew in less time than a
change needs to read and write, so a change that waits for its turn may wait until the wide row is empty.
"""
PAUSE_S = 0.004
"""Mean seconds to wait after a failed try, times its number: about as long as another client's mutation."""
MOST_PAUSES = 6
"""Most times PAUSE_S that a change waits on average: it and others that wait for the lock get it by turns."""
AT_ONCE = 500
"""Messages of one wide row and priority that are changed together: half of what a slot may list."""


@dataclass(slots=True)
class Changed:
    """What became of the messages that a call named. Those in neither are gone: acked, dead or expired.

    fence: of the wide row, as the call saw it last.
    """

    done: set[int] = field(default_factory=set)
    failed: dict[int, CqueueError] = field(default_factory=dict)
    fence: int | None = None


class Edit:
    """The one mutation of a change, put together from a head: pure bookkeeping, no operations."""

    def __init__(
        self, head: Head, priority: int, now_us: int, owner: bytes, pick: int, *, is_unsure: bool = False
    ) -> None:
        self.now_us = now_us
        self.is_unsure = is_unsure  # an earlier try had no answer, and others wrote since
        self.changed = Changed(fence=fence_of(head))
        self.needs_fence = False  # an id that no slot lists is part of the change
        self._head = head
        self._priority = priority
        self._owner = owner
        self._pick = pick
        self._slots = {slot.number: slot for slot in head.slots if slot.priority == priority}
        self._rows: dict[int, SlotRow] = {}  # slots as they will be, by number

    @property
    def has_fence(self) -> bool:
        """Return whether the wide row has a fence; without one, no claim can have read messages yet."""
        return self._head.lock is not None

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to write."""
        return not (self._rows or self.needs_fence)

    def by_slot(self, ids_: Iterable[int]) -> list[tuple[SlotRow | None, list[int]]]:
        """Group ids by the slot that lists them, None if no slot does."""
        numbers = {id_: slot.number for id_, slot in self._head.listing(self._priority).items()}
        groups = grouped((numbers.get(id_), id_) for id_ in sorted(ids_))
        return [(None if number is None else self._slots[number], some) for number, some in groups.items()]

    def fail(self, ids_: Iterable[int], error: CqueueError) -> None:
        """Note that the change of these messages has failed, or may have."""
        self.changed.failed.update(dict.fromkeys(ids_, error))

    def write(self, slot: SlotRow) -> None:
        """Overwrite a slot; a held one keeps its owner."""
        stored = self._slots.get(slot.number)
        held = stored is not None and stored.state is SlotState.CLAIMED
        self._rows[slot.number] = slot if held else slot._replace(owner=self._owner)

    def take_out(self, slot: SlotRow, some: Sequence[int]) -> None:
        """Take ids, whose rows are dead or which another slot lists, out of the slot that lists them."""
        rest = tuple([id_ for id_ in slot.ids if id_ not in set(some)])
        self.write(slot._replace(ids=rest) if rest else freed(slot))

    def list_waiting(self, some: Sequence[int], due_ms: int, attempt: int) -> None:
        """List ids as waiting, in a slot of the same time and attempts, else in a free or a new one."""
        for slot in self._slots.values():
            alike = slot.state is SlotState.WAITING and (slot.due_ms, slot.attempt) == (due_ms, attempt)
            if alike and slot.number not in self._rows and len(slot.ids) + len(some) <= MAX_LISTED:
                self.write(slot._replace(ids=tuple(sorted({*slot.ids, *some}))))
                return
        number, ids_ = free_number(self._slots, self._rows, self._pick), tuple(sorted(some))
        self.write(SlotRow(self._priority, number, SlotState.WAITING, ids_, due_ms, attempt, self._owner, 0))

    def mutation(self, wide_row: WideRow) -> Mutate:
        """Return the mutation. With several rows, each row's tally changes, and their sum does not."""
        share, lock = tally_share(self._owner), self._head.lock
        rows = len(self._rows) + self.needs_fence
        adds = [share] * (rows - 1) + [-share * (rows - 1)]
        changes = []
        for row, add in zip(self._rows.values(), adds, strict=False):
            stored = self._slots.get(row.number)
            expect, tally = (stored.rev, stored.tally) if stored else (None, 0)
            rev = policy.next_fence(expect, self.now_us)
            changes.append(SlotChange(expect, row._replace(rev=rev, tally=wrapped(tally + add))))
        if not self.needs_fence or lock is None:
            return Mutate(wide_row, slots=tuple(changes))
        fence = policy.next_fence(lock.fence, self.now_us)
        new = LockRow(LockState.FREE, self._owner, 0, fence, wrapped(lock.tally + adds[-1]))
        return Mutate(wide_row, lock=new, expect_fence=lock.fence, slots=tuple(changes))


Plan = Callable[[Edit, Sequence[int]], None]
"""Writes into an `Edit` what becomes of these messages."""


# ── the three changes ──


def cancel(spec: QueueSpec, wide_row: WideRow, priority: int, ids_: Sequence[int]) -> Proto[Changed]:
    """Delete messages, and see to it that no claim that begins or ends later hands them out.

    A message that is being buried stays. A holder learns of the cancelling with its next change of the slot.
    Of several calls that cancel a message which a slot lists, the one that takes it out of there has done it.

    Raises:
        NotDone: nothing was deleted.
        OutcomeUnknown: messages may be deleted, or are, and may be handed out once more.
    """
    now_us = yield from Now()
    head = yield from locks.read_whole(wide_row)
    rows: list[MessageRow] = yield from ReadMessages(wide_row, priority, tuple(ids_))
    listing, changed = head.listing(priority), Changed()
    for row in rows:
        slot = listing.get(row.id)
        if slot is not None and slot.died_at_ms is not None:
            changed.failed[row.id] = NotDone("the message is being buried; drop its dead letter")
    rows = [row for row in rows if row.id not in changed.failed]
    if rows:
        yield from discard(spec, wide_row, priority, rows)
        dead = [row.id for row in rows]
        try:
            edited = yield from _mutate(spec, wide_row, priority, dead, _without, live=False)
        except NotDone as exc:
            raise OutcomeUnknown("deleted, but a consumer may be about to deliver it once more") from exc
        changed.failed |= edited.failed
        live = {row.id for row in rows if not is_expired(row, listing.get(row.id), now_us)}
        by_others = listing.keys() - edited.done
        unsure = OutcomeUnknown("deleted, but by this call or by another one")
        for id_ in live & by_others - changed.failed.keys():
            # A claim may have found the row deleted, and taken the id out of its slot, wherever others had
            # moved it. Claims change the fence; only a holder frees its slot without.
            if edited.fence != fence_of(head) or listing[id_].state is SlotState.CLAIMED:
                changed.failed[id_] = unsure
        changed.done = live - by_others - changed.failed.keys()
    return changed


def _without(edit: Edit, dead: Sequence[int]) -> None:
    """Take dead ids out of their slots; a claim that has read one that no slot lists fails on the fence."""
    for slot, some in edit.by_slot(dead):
        if slot is None:
            edit.needs_fence = edit.has_fence and policy.cancel_moves_fence(some)
            if edit.is_unsure:
                edit.fail(some, OutcomeUnknown("deleted, but by this call or by another one"))
            continue
        if slot.died_at_ms is not None:  # its burial began after this call had read the head
            edit.fail(some, OutcomeUnknown("deleted, but it was being buried; its dead letter may be stored"))
            continue
        edit.changed.done.update(some)
        if slot.state is SlotState.CLAIMED and len(some) == len(slot.ids):
            edit.write(slot._replace(state=SlotState.WAITING))  # the owner stays, to tell the holder
        elif slot.state is not SlotState.QUARANTINED:
            edit.take_out(slot, some)


def reschedule(
    spec: QueueSpec, wide_row: WideRow, priority: int, ids_: Sequence[int], due_ms: int
) -> Proto[Changed]:
    """Make messages due at another time, not before the wide row's time shard begins; attempts stay.

    A time ahead is rounded up to `SHARED_MS`, so that messages of about one time share a slot of the head.

    `MessageHeld` fails those that a consumer holds, or has let expire and nobody has taken over yet.

    Raises:
        NotDone, OutcomeUnknown: the messages are, or may be, due as before.
    """

    def plan(edit: Edit, live: Sequence[int]) -> None:
        at_ms = due_ms if due_ms * 1000 <= edit.now_us else -(-due_ms // SHARED_MS) * SHARED_MS
        moving: dict[int, list[int]] = {}  # by attempts
        for slot, some in edit.by_slot(live):
            if slot is not None and (error := _unmovable(slot)) is not None:
                if edit.is_unsure and isinstance(error, MessageHeld):
                    error = OutcomeUnknown(f"an earlier try may have moved it, and now {error}")
                edit.fail(some, error)
                continue
            edit.changed.done.update(some)
            if slot is None:
                edit.needs_fence = policy.reschedule_moves_fence(some)
                moving.setdefault(0, []).extend(some)
            elif len(some) == len(slot.ids):
                edit.write(slot._replace(state=SlotState.WAITING, due_ms=at_ms))
            else:
                edit.take_out(slot, some)
                moving.setdefault(slot.attempt, []).extend(some)
        for attempt, some in moving.items():
            edit.list_waiting(some, at_ms, attempt)

    return (yield from _mutate(spec, wide_row, priority, ids_, plan))


def _unmovable(slot: SlotRow) -> CqueueError | None:
    """Return why messages of a slot cannot be moved; None if they can."""
    if slot.state is SlotState.QUARANTINED:
        return DamagedRow("the timeout slot that lists the message is damaged; see `cqueue quarantine`")
    if policy.is_movable(slot):
        return None
    return MessageHeld("a consumer holds the message, or let its visibility timeout pass")


def extend(
    spec: QueueSpec, wide_row: WideRow, priority: int, ids_: Sequence[int], duration_ms: int
) -> Proto[Changed]:
    """Keep held messages invisible until `duration_ms` from now; never shorten that.

    Messages of one slot have one timeout, so those that were claimed together are extended together.
    `LeaseLost` fails those that nobody holds: their visibility timeout has passed, or they were given back.

    Raises:
        NotDone, OutcomeUnknown: the timeouts are, or may be, as before.
    """

    def plan(edit: Edit, live: Sequence[int]) -> None:
        due_ms = edit.now_us // 1000 + duration_ms
        for slot, some in edit.by_slot(live):
            held = slot is not None and slot.state is SlotState.CLAIMED and slot.died_at_ms is None
            if slot is None or not held or edit.now_us >= slot.due_ms * 1000:
                lost = LeaseLost("no consumer holds the message, or its visibility timeout has passed")
                edit.fail(some, lost)
                continue
            edit.changed.done.update(some)
            if due_ms > slot.due_ms:
                edit.write(slot._replace(due_ms=due_ms))

    return (yield from _mutate(spec, wide_row, priority, ids_, plan))


# ── read, decide, apply ──


def _mutate(
    spec: QueueSpec, wide_row: WideRow, priority: int, ids_: Sequence[int], plan: Plan, *, live: bool = True
) -> Proto[Changed]:
    """Read the head, then the messages, and apply what `plan` makes of them, until nobody comes between.

    live: only messages with a live row count; False: all do, as their rows have just been deleted.
    """
    memory = remember_row(spec, wide_row, frozenset({priority}))
    seen_fence, unknown = None, None
    for tries in range(TRIES):
        with looking_again(unknown):
            owner, pick, now_us = (yield from new_owner()), (yield from RandomBits(16)), (yield from Now())
            head = yield from locks.read_whole(wide_row)
            memory.remembered.note_read(head, now_us)
            if policy.is_retired(head, memory.end_us, now_us):
                return Changed(fence=fence_of(head))
            if live:
                ids_ = [row.id for row in (yield from ReadMessages(wide_row, priority, tuple(ids_)))]
            edit = Edit(head, priority, now_us, owner, pick, is_unsure=unknown is not None)
            plan(edit, ids_)
            if edit.needs_fence and not memory.remembered.locked:
                if head.lock is None or tries >= LOCK_AFTER:
                    yield from _get_lock(memory, spec, now_us, tries, pick)
                    continue  # the head is read again
                if policy.is_held(head.lock, spec, now_us) and head.lock.fence != seen_fence:
                    # A lock that overtook writes no tally, so the slots may be older than it. They are not in
                    # a read that begins once it was seen.
                    seen_fence = head.lock.fence
                    continue
            applied, is_sure = (
                (True, True) if edit.is_empty else (yield from mutate_once_or_unsure(edit.mutation(wide_row)))
            )
            if applied:
                if not edit.needs_fence:
                    yield from unlock(memory)  # somebody claimed the messages before the lock was taken
                return edit.changed
        if not is_sure:
            unknown = OutcomeUnknown("an earlier try had no answer, and may have been applied")
        yield from Pause(PAUSE_S * min(tries, MOST_PAUSES) * (0.5 + pick / 2**16))
    raise unknown or NotDone("others change the messages' wide row too fast; try again")


def _get_lock(memory: RowMemory, spec: QueueSpec, now_us: int, tries: int, pick: int) -> Proto[None]:
    """Take the lock of the head just read, or wait a while for one that another change holds."""
    lock = memory.remembered.head.lock if memory.remembered.head is not None else None
    is_free = not policy.is_held(lock, spec, now_us)
    if lock is None or (is_free and tries < FREE_TAKE_OVER_AFTER):
        yield from acquire(memory, spec)
    elif is_free or lock.until_ms <= now_us // 1000 + STAY_MS or tries >= TAKE_OVER_AFTER:
        yield from acquire(memory, spec, overtakes=True)
    else:
        yield from Pause(PAUSE_S * MOST_PAUSES * (0.5 + pick / 2**16))
