"""The protocol with one rule taken out: each a context in which runs are broken.

The production code has no switches; a rule is broken here by replacing the small function that keeps
it, or by rewriting what the store does. `rules` gives each of them a name.
"""

# ruff: noqa: ARG001, ARG005 - a replacement takes the arguments of what it replaces
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol import (
    ack,
    claim,
    draft,
    fresh,
    lock,
    probe,
    ripe,
    shards,
)
from cqueue.protocol.draft import Draft
from cqueue.protocol.early import Early
from cqueue.protocol.news import Heard
from cqueue.protocol.spec import SuspectGate
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import (
    DeleteMessages,
    Head,
    IdSlice,
    InsertMessages,
    LockRow,
    MessageRow,
    Mutate,
    Now,
    RandomBits,
    ReadHead,
    ReadMessages,
    ReadSlice,
    Slice,
    SlotRow,
    SlotState,
    Together,
    WideRow,
)
from tests.simulation.cluster import Cluster, Known
from tests.simulation.sim import Simulation
from tests.simulation.world import World

Breakage = Callable[[], contextlib.AbstractContextManager[Any]]


def only_live_timeouts_skipped() -> Any:
    """Ids of expired slots count as unlisted."""

    def skip_listed(self: Draft, head: Head) -> None:
        for slot in head.slots:
            if slot.state is not SlotState.FREE and slot.due_ms > self.now_ms:
                self.listed.setdefault(slot.priority, set()).update(slot.ids)

    return patch.object(Draft, "skip_listed", skip_listed)


def takeover_without_rev() -> Any:
    """A claim overwrites slots whatever their revisions are."""
    return _without_rev(lambda op, _: op.lock is not None)


def nack_without_target_rev() -> Any:
    """A nack that joins a shared slot looks at the revision of its own slot only."""
    return _without_rev(lambda op, change: op.lock is None and len(op.slots) == 2 and change is op.slots[1])


def _without_rev(dropped: Callable[[Mutate, Any], bool]) -> Any:
    def rewrite(op: Mutate, slots: Mapping[Any, SlotRow], _: LockRow | None) -> Mutate:
        changes = []
        for change in op.slots:
            stored = slots.get((change.row.priority, change.row.number))
            rev = stored.rev if stored else None
            changes.append(change._replace(expect_rev=rev) if dropped(op, change) else change)
        return replace(op, slots=tuple(changes))

    return _rewritten(rewrite)


Rewrite = Callable[[Mutate, Mapping[Any, SlotRow], LockRow | None], Mutate]


def _rewritten(rewrite: Rewrite) -> Any:
    """Conditional mutations are rewritten, knowing what is stored, before they are judged."""
    in_memory, in_cluster = MemoryStore._mutate, Cluster.mutate

    def mutate(self: MemoryStore, op: Mutate) -> bool:
        part = self._partition(op.wide_row)
        return in_memory(self, rewrite(op, part.slots, part.lock))

    def mutate_cluster(self: Cluster, op: Mutate, reach: int) -> bool:
        state = self.part(op.wide_row).state
        return in_cluster(self, rewrite(op, state.slots, state.lock), reach)

    return _all_of(
        contextlib.ExitStack(),
        patch.object(MemoryStore, "_mutate", mutate),
        patch.object(Cluster, "mutate", mutate_cluster),
    )


def nack_by_reinsert() -> Any:
    """A nack deletes the message and sends it again under a new id."""

    def nack(lease: Any, ids_: Any, delay_ms: int, shared: Any, *, count: bool = True) -> Any:
        now_us = yield Now()
        for id_ in [id_ for id_ in ids_ if id_ in lease.outstanding]:
            (row,) = (yield from ReadMessages(lease.wide_row, lease.slot.priority, (id_,))) or [None]
            if row is None:
                continue
            bits = yield from RandomBits(62)
            at_us = now_us + delay_ms * 1000
            row = row._replace(id=ids.from_ticks(at_us * 10, bits))
            target = WideRow(lease.wide_row.queue, at_us // 1_000_000 * 1000, max(0, lease.wide_row.shard))
            spec = NACK_SPEC
            for operation in shards.registration(spec, target, lease.slot.priority):
                yield from operation
            with contextlib.suppress(OutcomeUnknown):
                yield from InsertMessages(target, (row,))
            yield from DeleteMessages(lease.wide_row, lease.slot.priority, (id_,))
            lease.outstanding.discard(id_)

    return patch.object(ack, "nack", nack)


class _NackSpec:
    """As much of a queue's spec as registering takes."""

    epoch_ms = 2000


NACK_SPEC: Any = _NackSpec()


def deliver_before_known() -> Any:
    """A claim whose outcome is unknown is delivered."""

    def settle(mutation: Mutate) -> Any:
        try:
            return (yield from mutation)
        except OutcomeUnknown:
            return True

    return patch.object(claim, "settle", settle)


def blind_retry() -> Any:
    """A conditional mutation without an answer is sent again."""

    def settle(mutation: Mutate) -> Any:
        for _ in range(5):
            try:
                return (yield from mutation)
            except OutcomeUnknown:
                continue
        raise NotDone("gave up")

    return _everywhere("settle", settle, claim, ack, lock)


def _everywhere(name: str, value: Any, *modules: Any) -> Any:
    return _all_of(contextlib.ExitStack(), *(patch.object(module, name, value) for module in modules))


def sweep_is_no_work() -> Any:
    """A sweep that is due is no reason to lock a wide row."""
    return patch.object(probe, "_sweep_is_due", lambda at, spec, now_us: False)


def expired_is_no_work() -> Any:
    """An expired timeout is no reason to lock a wide row."""
    return patch.object(probe, "_can_take", lambda slot, spec, gate, now_us: False)


def release_unlists() -> Any:
    """Releasing frees the slot."""

    def release(lease: Any) -> Any:
        lease.outstanding.clear()
        yield from ack.free([lease])

    return patch.object(ack, "release", release)


def free_unlists() -> Any:
    """A slot of which one message is left is freed all the same."""
    right = draft.freed

    def keep(self: Draft, slot: Any, ids_: Any) -> None:
        self._overwrite(right(slot))

    return patch.object(Draft, "keep", keep)


def suspects_together() -> Any:
    """What a holder let expire is taken over as it was."""

    def take(d: Draft, slot: Any) -> Any:
        rows = yield from ReadMessages(d.view.wide_row, slot.priority, slot.ids)
        if rows:
            d.grant(slot.priority, rows, slot.attempt + 1, within=slot, suspect=True)
        else:
            d.keep(slot, ())

    return patch.object(ripe, "_take_suspect", take)


def suspects_prefetched() -> Any:
    """A process takes as many suspects as it finds."""
    return patch.object(SuspectGate, "busy", lambda self, now_ms: False)


def suspect_extended_late() -> Any:
    """A suspect is extended whenever its slot is unchanged, whatever was taken meanwhile."""
    return patch.object(SuspectGate, "extend", lambda self, lease, due_ms: None)


def remembered_head_is_older() -> Any:
    """A claim goes by a head that lacks what the last claim listed."""
    right = claim._remember

    def remember(draft: Draft, mutation: Mutate) -> None:
        right(draft, mutation)
        if draft.view.head is not None:
            slots = tuple(slot._replace(ids=()) for slot in draft.view.head.slots)
            draft.view.head = replace(draft.view.head, slots=slots)

    return patch.object(claim, "_remember", remember)


def old_news_trusted() -> Any:
    """What this process has sent is claimed unread, however long ago the send began."""
    right = Heard.hear
    return patch.object(Heard, "hear", lambda self, news: right(self, news._replace(began=1 << 60)))


def unstored_delivered() -> Any:
    """What is claimed while it is being written is delivered at once."""
    return patch.object(Early, "put_by", lambda self, claimed, heard: iter(()))


def listed_kept_ahead() -> Any:
    """What was read ahead is kept although a slot lists it."""
    return patch.object(Draft, "without_listed", lambda _, ahead, before=(): ahead)


def begun_read_trusted() -> Any:
    """What a read shows that was begun is taken, whatever slots listed when it began."""
    right = Draft.without_listed
    return patch.object(Draft, "without_listed", lambda self, ahead, before=(): right(self, ahead))


def own_claims_forgotten() -> Any:
    """What this process has sent is claimed unread, though a claim may have given it already."""
    right = Heard.claimable

    def claimable(self: Heard, now_us: int) -> list[MessageRow]:
        self.granted.clear()
        return right(self, now_us)

    return patch.object(Heard, "claimable", claimable)


def claim_unconditional_on_fence() -> Any:
    """A claim does not look at the fence."""

    def rewrite(op: Mutate, _: Mapping[Any, SlotRow], lock: LockRow | None) -> Mutate:
        if op.lock is not None and (op.slots or op.cursors):
            return replace(op, expect_fence=lock.fence if lock else None)
        return op

    return _rewritten(rewrite)


def head_read_in_pages() -> Any:
    """The slots are read in two pages, one after the other."""
    return patch.object(claim, "read_whole", _paged)


def torn_head_trusted() -> Any:
    """A head is taken as it was read."""

    def read(wide_row: WideRow, beside: Any = None) -> Any:
        return (yield from ReadHead(wide_row)), None

    return patch.object(claim, "read_whole", read)


def _paged(wide_row: WideRow, beside: Any = None) -> Any:
    first = yield ReadHead(wide_row)
    second = yield ReadHead(wide_row)
    slots = [slot for slot in first.slots if slot.number < 2]
    later = [slot for slot in second.slots if slot.number >= 2]
    return Head(second.lock, second.cursors, (*slots, *later)), None


def messages_before_head() -> Any:
    """Messages are read first, and the head after them."""
    early: dict[WideRow, dict[int, list[MessageRow]]] = {}

    def head(wide_row: WideRow, beside: Any = None) -> Any:
        everything = ids.highest_at(1 << 56)
        reads = tuple(ReadSlice(wide_row, priority, ids.START, everything, 100) for priority in (0, 5))
        answers = yield from Together(reads)
        found = [[] if isinstance(answer, Exception) else answer.rows for answer in answers]
        early[wide_row] = dict(zip((0, 5), found, strict=True))
        return (yield from ReadHead(wide_row)), None

    def rows(wide_row: WideRow, priority: int, after: int, upto: int, limit: int) -> list[MessageRow]:
        return [row for row in early[wide_row].get(priority, ()) if after < row.id <= upto][:limit]

    return _all_of(
        contextlib.ExitStack(),
        patch.object(claim, "read_whole", head),
        patch.object(fresh, "ReadSlice", lambda *which: Known(Slice(rows(*which), 0))),
        patch.object(fresh, "ReadIds", lambda *which: Known(IdSlice([r.id for r in rows(*which)], 0))),
    )


def outcome_by_quorum_read() -> Any:
    """What became of a mutation is looked up without finishing what is under way."""
    return patch.object(lock, "ReadHead", lambda wide_row, **_: ReadHead(wide_row))


def read_then_write() -> Any:
    """Conditions are checked when a mutation is sent: nobody's rounds see those of the others.

    As between clients with different serial consistency, or in two data centres.
    """
    right_send, right_hold = World._send, Cluster.conditions_hold
    verdicts: dict[int, tuple[Mutate, bool]] = {}

    def send(self: World, process: Any, operation: Any, kind: type) -> None:
        if kind is Mutate:
            part = self.cluster.part(operation.wide_row)
            verdicts[id(operation)] = (operation, right_hold(part, operation))
        right_send(self, process, operation, kind)

    def hold(part: Any, op: Mutate) -> bool:
        known = verdicts.get(id(op))
        return known[1] if known and known[0] is op else right_hold(part, op)

    return _all_of(
        contextlib.ExitStack(),
        patch.object(World, "_send", send),
        patch.object(Cluster, "conditions_hold", staticmethod(hold)),
    )


def unrepaired_node() -> Any:
    """A node that was away for longer than gc_grace comes back as it was."""
    return patch.object(Simulation, "unrepaired_node", True)


@contextlib.contextmanager
def _all_of(stack: contextlib.ExitStack, *patches: Any) -> Iterator[None]:
    with stack:
        for each in patches:
            stack.enter_context(each)
        yield


def fence_from_one() -> Any:
    """The fence counts from one."""
    return _everywhere("next_fence", lambda stored, now_us: (stored or 0) + 1, lock, draft, ack)
