"""The protocol with one rule taken out: each a context in which runs are broken.

The production code has no switches; a rule is broken here by replacing the function that keeps it, or by
rewriting what the store does. `points` says where those are, and `rules` gives each breakage a name.
"""

# ruff: noqa: ARG001, ARG005 - a replacement takes the arguments of what it replaces
from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol import ack, registry
from cqueue.protocol.claim_draft import Draft
from cqueue.protocol.poll import Reason, Work, WorkList
from cqueue.store.operations import (
    DeleteMessages,
    Head,
    IdSlice,
    InsertMessages,
    LockRow,
    MessageRow,
    Mutate,
    Now,
    Operation,
    RandomBits,
    ReadHead,
    ReadIds,
    ReadMessages,
    ReadSlice,
    Slice,
    SlotRow,
    SlotState,
    Together,
    WideRow,
)
from tests.simulation import points
from tests.simulation.cluster import Cluster, Known
from tests.simulation.points import all_of, replaced, right

Breakage = Callable[[], contextlib.AbstractContextManager[Any]]


def only_live_timeouts_skipped() -> Any:
    """Ids of expired slots count as unlisted."""
    return replaced("skipped", lambda slot, now_ms: slot.in_use and slot.due_ms > now_ms)


def takeover_without_rev() -> Any:
    """A claim overwrites slots whatever their revisions are."""
    return _without_rev(lambda op, _: op.lock is not None)


def nack_without_target_rev() -> Any:
    """A nack that joins a shared slot looks at the revision of its own slot only."""
    return _without_rev(lambda op, change: op.lock is None and len(op.slots) == 2 and change is op.slots[1])


def extended_without_rev() -> Any:
    """An extension does not look at the revision of the slot."""
    return _without_rev(
        lambda op, change: op.lock is None and len(op.slots) == 1 and change.row.state is SlotState.CLAIMED
    )


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
    (store, in_memory), (cluster, in_cluster) = points.POINTS["mutation"]
    apply, decide = getattr(store, in_memory), getattr(cluster, in_cluster)

    def rewritten(op: Mutate, slots: Mapping[Any, SlotRow], lock: LockRow | None) -> Mutate:
        new = rewrite(op, slots, lock)
        if new != op:
            points.reached("mutation")
        return new

    def mutate(self: Any, op: Mutate) -> bool:
        part = self._partition(op.wide_row)
        return apply(self, rewritten(op, part.slots, part.lock))

    def mutate_cluster(self: Cluster, op: Mutate, reach: int) -> bool:
        state = self.part(op.wide_row).state
        return decide(self, rewritten(op, state.slots, state.lock), reach)

    return replaced("mutation", mutate, mutate_cluster, tells=True)


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
            for operation in registry.registration(spec, target, lease.slot.priority):
                yield from operation
            with contextlib.suppress(OutcomeUnknown):
                yield from InsertMessages(target, (row,))
            yield from DeleteMessages(lease.wide_row, lease.slot.priority, (id_,))
            lease.outstanding.discard(id_)

    return replaced("nack", nack)


class _NackSpec:
    """As much of a queue's spec as registering takes."""

    epoch_ms = 2000


NACK_SPEC: Any = _NackSpec()


def deliver_before_known() -> Any:
    """A claim whose outcome is unknown is delivered."""
    look = right("unanswered")

    def read_outcome(mutation: Mutate, unknown: OutcomeUnknown) -> Any:
        if mutation.lock is not None and mutation.slots:
            return True
        return (yield from look(mutation, unknown))

    return replaced("unanswered", read_outcome)


def blind_retry() -> Any:
    """A conditional mutation without an answer is sent again."""

    def read_outcome(mutation: Mutate, unknown: OutcomeUnknown) -> Any:
        for _ in range(4):
            try:
                return (yield from mutation)
            except OutcomeUnknown:
                continue
        raise NotDone("gave up") from unknown

    return replaced("unanswered", read_outcome)


def sweep_is_no_work() -> Any:
    """A sweep that is due is no reason to lock a wide row."""
    return replaced("sweep due", lambda at, spec, now_us: False)


def expired_is_no_work() -> Any:
    """An expired timeout is no reason to lock a wide row."""
    return replaced("work of a slot", lambda slot, spec, gate, now_us: False)


def release_unlists() -> Any:
    """Releasing frees the slot."""

    def release(lease: Any) -> Any:
        lease.outstanding.clear()
        yield from ack.free([lease])

    return replaced("release", release)


def free_unlists() -> Any:
    """A slot of which one message is left is freed all the same."""
    return replaced("rest of a slot", lambda rest: ())


def suspects_together() -> Any:
    """What a holder let expire is taken over as it was."""

    def take(d: Draft, slot: Any) -> Any:
        rows = yield from ReadMessages(d.memory.wide_row, slot.priority, slot.ids)
        if rows:
            d.grant(slot.priority, rows, slot.attempt + 1, within=slot, suspect=True)
        else:
            d.head.keep(slot, ())

    return replaced("suspect taken", take)


def suspects_prefetched() -> Any:
    """A process takes as many suspects as it finds."""
    return replaced("suspect held", lambda held, *, reserved: False)


def suspect_extended_late() -> Any:
    """A suspect is extended whenever its slot is unchanged, whatever was taken meanwhile."""
    return replaced("suspect extended", lambda gate, lease, due_ms: None)


def remembered_head_is_older() -> Any:
    """A claim goes by a head that lacks what the last claim listed."""
    after = right("slots after a claim")

    def slots_after(slots: Any, changes: Any) -> Any:
        return {key: slot._replace(ids=()) for key, slot in after(slots, changes).items()}

    return replaced("slots after a claim", slots_after)


def listed_kept_ahead() -> Any:
    """What was read ahead is kept although a slot lists it."""
    return replaced("read ahead, unlisted", lambda rows, listed: rows)


def claimed_without_a_fence() -> Any:
    """A claim is made up where nobody has claimed yet, on the condition that nobody has."""
    return replaced("locked first", lambda head, *, has_rival: has_rival)


def claim_unconditional_on_fence() -> Any:
    """A claim does not look at the fence."""

    def rewrite(op: Mutate, _: Mapping[Any, SlotRow], lock: LockRow | None) -> Mutate:
        if op.lock is not None and (op.slots or op.cursors):
            return replace(op, expect_fence=lock.fence if lock else None)
        return op

    return _rewritten(rewrite)


def fence_stands_beside_new_ids() -> Any:
    """A claim leaves the fence as it is, whatever it lists."""
    return replaced("fence stands", lambda *, takes, locked: not locked)


def head_read_in_pages() -> Any:
    """The slots are read in two pages, one after the other."""

    def read(wide_row: WideRow) -> Any:
        first = yield ReadHead(wide_row)
        second = yield ReadHead(wide_row)
        slots = [slot for slot in first.slots if slot.number < 2]
        later = [slot for slot in second.slots if slot.number >= 2]
        return Head(second.lock, second.cursors, (*slots, *later))

    return replaced("head read", read)


def torn_head_trusted() -> Any:
    """A head is taken as it was read."""
    return replaced("whole head", lambda head: True)


def messages_before_head() -> Any:
    """Messages are read first, and the head after them."""
    early: dict[WideRow, dict[int, list[MessageRow]]] = {}
    take = right("messages taken")

    def head(wide_row: WideRow) -> Any:
        everything = ids.highest_at(1 << 56)
        reads = tuple(ReadSlice(wide_row, priority, ids.START, everything, 100) for priority in (0, 5))
        answers = yield from Together(reads)
        found = [[] if isinstance(answer, Exception) else answer.rows for answer in answers]
        early[wide_row] = dict(zip((0, 5), found, strict=True))
        return (yield from ReadHead(wide_row))

    def taken(draft: Draft) -> Any:
        found = early.pop(draft.memory.wide_row, None)

        def read(op: Any) -> Any:
            if type(op) is Together:
                return Together(tuple(read(each) for each in op.operations), retried=op.retried)
            if type(op) not in {ReadSlice, ReadIds} or found is None:  # this claim has read no head
                return op
            known = found.get(op.priority, ())
            rows = [row for row in known if op.after < row.id <= op.upto][: op.limit]
            return Known(Slice(rows, 0) if type(op) is ReadSlice else IdSlice([row.id for row in rows], 0))

        return (yield from _asking(take(draft), read))

    return all_of(replaced("head read", head), replaced("messages taken", taken))


def _asking(
    script: Generator[Operation[Any], Any, Any], instead: Callable[[Operation[Any]], Operation[Any]]
) -> Any:
    """Run a generator that asks for something else instead of each operation."""
    value: Any = None
    error: Exception | None = None
    while True:
        try:
            operation = script.send(value) if error is None else script.throw(error)
        except StopIteration as stop:
            return stop.value
        value = error = None
        try:
            value = yield instead(operation)
        except (NotDone, OutcomeUnknown) as exc:
            error = exc


def outcome_by_quorum_read() -> Any:
    """What became of a mutation is looked up without finishing what is under way."""
    return replaced("outcome read", ReadHead)


def read_then_write() -> Any:
    """Conditions are checked when a mutation is sent: nobody's rounds see those of the others.

    As between clients with different serial consistency, or in two data centres.
    """
    right_send, right_hold = right("mutation sent"), right("conditions")
    verdicts: dict[int, tuple[Mutate, bool]] = {}

    def send(self: Any, process: Any, operation: Any, kind: type) -> None:
        if kind is Mutate:
            part = self.cluster.part(operation.wide_row)
            verdicts[id(operation)] = (operation, right_hold(part, operation))
        right_send(self, process, operation, kind)

    def hold(part: Any, op: Mutate) -> bool:
        known = verdicts.get(id(op))
        return known[1] if known and known[0] is op else right_hold(part, op)

    return all_of(replaced("mutation sent", send), replaced("conditions", hold))


def unrepaired_node() -> Any:
    """A node that was away for longer than gc_grace comes back as it was."""
    return replaced("node rebuilt", lambda self, replica: self.come_back(too_late=True))


def fence_from_one() -> Any:
    """The fence counts from one."""
    return replaced("fence", lambda stored, now_us: (stored or 0) + 1)


def held_row_first() -> Any:
    """A consumer goes on with the wide row whose lock it holds, for as long as there is more."""
    right_next = right("next wide row")

    def next_row(self: WorkList, *, suspects: bool) -> Work | None:
        return Work(self.held, Reason.LEFT) if self.held is not None else right_next(self, suspects=suspects)

    return replaced("next wide row", next_row)


def probed_only_when_idle() -> Any:
    """A consumer that knows of enough work probes no other wide rows."""
    return replaced("probing", lambda probed, *, found_enough: not found_enough)
