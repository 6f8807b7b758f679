"""What must be true, judged by somebody who sees everything.

Checked whenever a conditional mutation is decided, a send is acknowledged or a message is delivered,
and once more when all is quiet. A message is *live* here if some replica has it and none has its
delete: what quorum reads return in the end. The numbers are those of the invariants of the protocol page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cqueue import ids
from cqueue.protocol import claim_draft
from cqueue.protocol.bodies import HEADER_LOST
from cqueue.protocol.claim_draft import Claim
from cqueue.protocol.dead import HEADER_ID
from cqueue.protocol.lease import Lease, Taken
from cqueue.protocol.send import Flush
from cqueue.store.operations import (
    LockState,
    MessageRow,
    Mutate,
    SlotRow,
    SlotState,
    WideRow,
)
from tests.simulation.fairness import Fairness, is_kept, works_of
from tests.simulation.replica import Part

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.rows import Delete, Insert
    from tests.simulation.world import Client, World

Key = tuple[WideRow, int, int]  # wide row, priority, id
Slots = dict[tuple[int, int], SlotRow]
ENOUGH = frozenset({3, 5, 6, 7})
"""Sets of replicas that are a quorum."""


class Violation(AssertionError):
    """The protocol broke a promise."""


def body_of(row: MessageRow) -> bytes:
    """A message's name in the simulation: its body, or a header where bodies may be large.

    Messages whose headers differ share no row.
    """
    name = row.headers.get("name") if row.headers else None
    return name.encode() if name is not None else row.body or b""


def key_of(taken: Taken) -> Key:
    """Where a message that was taken stands."""
    return (taken.lease.wide_row, taken.row.priority, taken.row.id)


class Oracle:
    """Knows all that was sent, acknowledged, delivered and acked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: set[bytes] = set()
        self.promised: set[bytes] = set()  # acknowledged sends
        self.unsettled: set[bytes] = set()  # of these, what no handler was through with yet
        self.expires_us: dict[bytes, int] = {}
        self.promised_keys: dict[WideRow, dict[Key, bytes]] = {}
        self.written: dict[Key, bytes] = {}
        self.deleted: set[Key] = set()  # a delete was executed
        self.emptied: set[Key] = set()  # by somebody who empties the queue
        self.cancelled: set[Key] = set()  # a cancel was answered
        self.put_off: dict[Key, int] = {}  # a reschedule was answered: the due time, until the next claim
        self.foreign: set[Mutate] = set()  # made by somebody who holds nothing
        self.acked: dict[Key, int] = {}  # ack acknowledged → step
        self.settled: set[bytes] = set()  # a handler was through with it
        self.buried: set[bytes] = set()
        self.fences: dict[WideRow, int] = {}
        self.deliveries = 0
        self.granted: set[Key] = set()  # listed by a claim at any time
        self.again: set[tuple[bytes, Key]] = set()  # by which claim, what was dead: nothing may come of it
        self.applied: set[tuple[WideRow, int, int, int]] = set()  # revisions of slots that were stored
        self.dead_ids: dict[str, set[int]] = {}  # by original, under which ids it was buried
        self.claims: dict[Client, list[Mutate]] = {}  # applied before their clients were answered
        self.grace_us = 0
        self.marker_us = 0
        self.quiet_us = 0  # from when on all is well
        self.suspects: dict[Client, list[Lease]] = {}
        self.fairness: dict[Client, Fairness] = {}

    def fail(self, text: str) -> None:
        """A promise is broken."""
        raise Violation(f"at {self.world.now_us / 1e6:.6f} (step {self.world.step}): {text}")

    # ── plain writes, deliveries, acks ──

    def inserted(self, op: Insert) -> None:
        """Messages were stored."""
        for row in op.rows:
            key = (op.wide_row, row.priority, row.id)
            if key not in self.written:
                self._first(key, row)

    def _first(self, key: Key, row: MessageRow) -> None:
        if body_of(row) not in self.sent:
            self.fail(f"4: {body_of(row)!r} is stored but was never sent")
        if HEADER_LOST in (row.headers or {}) and body_of(row) in self.promised:
            self.fail(f"1: the body of {body_of(row)!r} was given up, and no replica has lost it")
        self.written[key] = body_of(row)
        original = (row.headers or {}).get(HEADER_ID)
        if original is not None:
            self._check_burial(original, row.id)

    def _check_burial(self, original: str, id_: int) -> None:
        """One death, one id: else a burial that was repeated leaves two copies."""
        others = self.dead_ids.setdefault(original, set())
        others.add(id_)
        for other in others - {id_}:
            if abs(ids.time_us(other) - ids.time_us(id_)) < self.grace_us // 2:
                self.fail(f"{original} was buried twice")

    def removed(self, op: Delete) -> None:
        """Messages were deleted: with a whole row only those that were to go, now or before."""
        for id_ in op.ids:
            self.deleted.add((op.wide_row, op.priority, id_))
        promised = self.promised_keys.get(op.wide_row, {})
        for row in op.rows if promised else ():
            for id_ in range(row, row + ids.pack_size(row)) if ids.is_packed(row) else ():
                key = (op.wide_row, op.priority, id_)
                if key in promised and key not in self.deleted:
                    self.fail(f"1: {promised[key]!r} was deleted with others of its row")

    def acknowledged(self, flush: Flush, cluster: Cluster) -> None:
        """A send was acknowledged: from now on its messages must not be lost."""
        part = cluster.part(flush.wide_row)
        for row in flush.rows:
            key, name = (flush.wide_row, row.priority, row.id), body_of(row)
            self.promised.add(name)
            if key in self.emptied:
                self.through(name)
            if name not in self.settled:
                self.unsettled.add(name)
            if row.expires is not None:
                self.expires_us[name] = row.expires * 1000
            self.promised_keys.setdefault(flush.wide_row, {})[key] = name
            if key not in self.deleted:
                self._check_promise(part, key, name)

    def _check_promise(self, part: Part, key: Key, name: bytes) -> None:
        """1, 2: a quorum has it, and a consumer will look there."""
        _, priority, id_ = key
        if id_ not in part.alive(priority):
            self.fail(f"1: {name!r} was acknowledged but is gone")
        row = ids.pack_of(id_) if ids.is_packed(id_) else id_
        if part.of(priority).cells[row].whole not in ENOUGH:
            self.fail(f"1: {name!r} was acknowledged but one replica has it")
        cursor = part.state.cursors.get(priority)
        if cursor and id_ <= cursor.cursor and (priority, id_) not in _listed(part.state.slots):
            self.fail(f"2: {name!r} was acknowledged behind the cursor, and nothing lists it")

    def delivered(self, taken: Taken, began_step: int, client: Client) -> None:
        """A claim gave a message to a handler."""
        key = key_of(taken)
        self.deliveries += 1
        if taken.lease.suspect:
            self._check_suspects(taken.lease, client)
        if (key[0], key[1], taken.lease.slot.number, taken.lease.slot.rev) not in self.applied:
            self.fail(f"3: {key} was delivered by a claim that was never applied")
        if key not in self.written:
            self.fail(f"4: {key} was delivered but never stored")
        if self.written[key] != body_of(taken.row):
            self.fail(f"4: {key} was delivered as {body_of(taken.row)!r}, and is {self.written[key]!r}")
        if self.acked.get(key, began_step) < began_step:
            self.fail(f"4: {body_of(taken.row)!r} was delivered by a claim that began after its ack")

    def through(self, name: bytes) -> None:
        """A handler says that it is through with a message, or its sender that it is to go."""
        self.settled.add(name)
        self.unsettled.discard(name)

    def _check_suspects(self, lease: Lease, client: Client) -> None:
        """What may kill its worker is held alone."""
        now_ms = max(self.world.clock_us(client), client.told_us) // 1000
        held = [one for one in self.suspects.get(client, ()) if one.is_held]
        if any(one.due_ms > now_ms for one in held if one is not lease):
            self.fail(f"{client.name} holds two messages that may have killed their holders")
        self.suspects[client] = [*held, lease]

    def check_claimed(self, parts: dict[WideRow, Part], queue: str) -> None:
        """6: what was due when all became quiet has been claimed by now."""
        latest = ids.highest_at(self.quiet_us)
        for wide_row, promised in self.promised_keys.items():
            if wide_row.queue == queue and wide_row in parts:
                for key in promised:
                    if key[2] <= latest and key not in self.granted and key not in self.deleted:
                        self.fail(f"6: {promised[key]!r} of {wide_row} is due, and nobody claims it")

    def check_turns(self, client: Client, claimed: Claim, parts: dict[WideRow, Part], skew_us: int) -> None:
        """6: a consumer that has made a claim, while nothing fails, comes to all other wide rows in time."""
        fairness, now_us = self.fairness.setdefault(client, Fairness()), self.world.now_us
        (own,) = {taken.lease.wide_row for taken in _all_of(claimed)}
        fairness.count_rows(sum(row.queue == own.queue and is_kept(part) for row, part in parts.items()))
        for wide_row, promised in self.promised_keys.items():
            if wide_row.queue == own.queue and wide_row in parts:
                works = works_of(wide_row, parts[wide_row], promised, self.deleted, now_us - skew_us)
                if wide_row == own and claimed.more:
                    fairness.left(wide_row, works, now_us)
                else:
                    fairness.found(wide_row, works, now_us)
        late = fairness.passed_over(own, now_us)
        if late is not None:
            count = fairness.waiting[late].claims
            self.fail(f"6: {client.name} made {count} claims while {late} waited with work, and others too")

    def purged(self, wide_row: WideRow, priority: int, id_: int, promised: dict[Key, bytes]) -> None:
        """Somebody empties the queue: a message is to go."""
        name = promised.get((wide_row, priority, id_))
        if name is not None:
            self.through(name)
        self.deleted.add((wide_row, priority, id_))
        self.emptied.add((wide_row, priority, id_))

    def rescheduled(self, keys: Iterable[Key], due_us: int) -> None:
        """A reschedule was answered: until its due time nobody claims the message."""
        self.put_off.update(dict.fromkeys(keys, due_us))

    def ack_confirmed(self, taken: Taken) -> None:
        """A handler's ack was acknowledged."""
        self.acked.setdefault(key_of(taken), self.world.step)

    # ── what became of claims ──

    def watch(self, client: Client, op: Mutate, applied: bool) -> None:  # noqa: FBT001 - as World calls it
        """A client's mutation was applied while it waited for the answer."""
        if applied and op.lock is not None and any(change.row.ids for change in op.slots):
            self.claims.setdefault(client, []).append(op)

    def claim_over(
        self, client: Client, claimed: Claim | None, cluster: Cluster, finished: Iterable[Lease] = ()
    ) -> None:
        """A client has made up its mind about its claims: what was applied and stands, it must know of.

        finished: leases whose slots it is about to free, perhaps as nothing lived that they list.
        """
        for one in _all_of(claimed) if claimed else ():
            if (one.lease.slot.owner, key_of(one)) in self.again:
                self.fail(f"3, 7: {key_of(one)} was dead or put off, and is claimed and taken")
        ops = self.claims.pop(client, None)
        if not ops:
            return
        leases = {one.lease.slot.owner for part in (claimed,) if part for one in _all_of(part)}
        leases |= {lease.slot.owner for lease in finished}
        for op in ops:
            mine = [c.row for c in op.slots if c.row.state is SlotState.CLAIMED and c.row.owner not in leases]
            mine = [row for row in mine if row.due_ms * 1000 > self.world.now_us]
            slots = cluster.part(op.wide_row).state.slots
            standing = [row for row in mine if slots.get((row.priority, row.number)) == row]
            if standing and len(standing) == len([c for c in op.slots if c.row.ids]):
                self.fail(f"6: a claim of {op.wide_row} was applied, and its maker took it for not applied")

    # ── conditional mutations ──

    def mutated(self, op: Mutate, before: Slots, part: Part) -> None:
        """A conditional mutation was applied to a wide row whose slots were `before`."""
        if op.lock is not None:
            self._check_lock(op, before)
        if not part.state.head(0).is_whole:
            self.fail(f"the tallies of {op.wide_row} do not add up")
        if op.retire:
            self._check_retired(op.wide_row, before)
            return
        if not op.slots and not op.cursors:
            return
        if op.lock is not None:
            for fairness in self.fairness.values():
                fairness.served(op.wide_row)
        listed = _listed(before)
        for change in op.slots:
            self._check_change(op, change.row, before, listed)
        self._check_listed(op.wide_row, listed, part)
        if op in self.foreign:
            self._check_foreign(op, before, part)

    def _check_lock(self, op: Mutate, before_slots: Slots) -> None:
        lock = op.lock
        if lock is None:
            return
        before = self.fences.get(op.wide_row, 0)
        # A program that stood still between making up a lock and sending it, for longer than the marker
        # of a retired wide row stays, leaves litter there. It claims nothing: its next fence is of then.
        litter = self.world.held_us > self.marker_us and not op.slots
        listing = {(change.row.priority, id_) for change in op.slots for id_ in change.row.ids}
        lists = bool(listing - _listed(before_slots)) or not (op.slots or op.cursors)
        if lock.fence < before + lists and not litter:
            self.fail(f"the fence of {op.wide_row} went back to {lock.fence}, or stands beside new ids")
        self.fences[op.wide_row] = max(lock.fence, before)
        if op.retire and lock.state is not LockState.RETIRED:
            self.fail("retired without the marker")

    def _check_retired(self, wide_row: WideRow, before: Slots) -> None:
        for key, name in self.promised_keys.get(wide_row, {}).items():
            if key not in self.deleted:
                self.fail(f"1: {name!r} was dropped with its wide row")
        for priority, id_ in _listed(before):
            if (wide_row, priority, id_) in self.written and (wide_row, priority, id_) not in self.deleted:
                self.fail(f"{wide_row} was dropped while a slot of it listed {id_}")

    def _check_change(self, op: Mutate, row: SlotRow, before: Slots, listed: set[tuple[int, int]]) -> None:
        """3: who takes messages over may do so only when their timeout is over, or they were given up."""
        old = before.get((row.priority, row.number))
        if old is not None and row.rev <= old.rev:
            self.fail(f"revision of {op.wide_row} slot {row.number} went back")
        self.applied.add((op.wide_row, row.priority, row.number, row.rev))
        if op.lock is None or row.state is not SlotState.CLAIMED:
            return
        if len(row.ids) > claim_draft.MAX_LISTED:
            self.fail(f"slot {row.number} of {op.wide_row} lists {len(row.ids)} messages")
        for id_ in row.ids:
            key = (op.wide_row, row.priority, id_)
            if (row.priority, id_) not in listed and key in self.granted:
                if key in self.written and key not in self.deleted:
                    self.fail(f"3: {key} was claimed before, and is claimed again though no slot listed it")
                self.again.add((row.owner, key))
            self.granted.add(key)
            self._check_control(key, row.owner)
        for slot in before.values():
            held = slot.state is SlotState.CLAIMED and slot.due_ms != row.due_ms
            if held and slot.priority == row.priority:
                common = set(slot.ids).intersection(row.ids)
                if common and self.world.now_us < slot.due_ms * 1000:
                    self.fail(f"3: {op.wide_row}: {sorted(common)} are claimed twice")

    def _check_control(self, key: Key, owner: bytes) -> None:
        """7: what was cancelled is not claimed any more, nor what was put off before its time."""
        due_us = self.put_off.pop(key, 0)
        is_early = self.world.now_us < due_us - self.world.skew_us
        if is_early and key not in self.deleted:
            self.fail(f"7: {key} was put off until {due_us / 1e6:.6f}, and is claimed")
        if is_early or key in self.cancelled:
            self.again.add((owner, key))

    def _check_foreign(self, op: Mutate, before: Slots, part: Part) -> None:
        """7: somebody who holds nothing takes from a holder only what is deleted."""
        for key, slot in before.items():
            if slot.state is SlotState.CLAIMED and self.world.now_us < slot.due_ms * 1000:
                after = part.state.slots[key]
                stays = set(after.ids) if after.state is SlotState.CLAIMED else set()
                if taken := set(slot.ids).intersection(part.alive(slot.priority)) - stays:
                    self.fail(f"7: {op.wide_row}: {sorted(taken)} were taken from their holder")

    def _check_listed(self, wide_row: WideRow, before: set[tuple[int, int]], part: Part) -> None:
        """2: no live message is listed twice, or was listed and is not, or lies behind a cursor unlisted."""
        after: set[tuple[int, int]] = set()
        alive: dict[int, list[int]] = {priority: part.alive(priority) for priority in part.messages}
        for slot in part.state.slots.values():
            for id_ in slot.ids if slot.state is not SlotState.FREE else ():
                if (slot.priority, id_) in after and id_ in alive.get(slot.priority, ()):
                    self.fail(f"{wide_row}: two slots list {id_}")
                after.add((slot.priority, id_))
        for priority, id_ in before - after:
            if id_ in alive.get(priority, ()):
                self.fail(f"2: {wide_row}: {id_} is live, and its slot lists it no more")
        promised = self.promised_keys.get(wide_row, {})
        for priority, row in part.state.cursors.items() if promised else ():
            for id_ in alive.get(priority, ()):
                if id_ <= row.cursor and (priority, id_) not in after:
                    name = promised.get((wide_row, priority, id_))
                    if name is not None:
                        self.fail(f"2: the cursor of {wide_row} passed {name!r}, and nothing lists it")

    # ── the end ──

    def left(self) -> set[bytes]:
        """Acknowledged messages that are neither through nor over their own time to live."""
        if not self.expires_us:
            return self.unsettled
        now_us = self.world.now_us
        return {name for name in self.unsettled if self.expires_us.get(name, now_us + 1) > now_us}

    def final(self) -> None:
        """1: all is quiet, and everything that was acknowledged has reached a handler's end."""
        lost = sorted(self.left())
        if lost:
            self.fail(f"1: acknowledged sends were lost: {lost}")


def _all_of(claimed: Claim) -> list[Taken]:
    return [*claimed.taken, *claimed.dead, *claimed.expired]


def _listed(slots: Slots) -> set[tuple[int, int]]:
    return {
        (slot.priority, id_)
        for slot in slots.values()
        if slot.state is not SlotState.FREE
        for id_ in slot.ids
    }
