"""A consumer in the simulation: the rounds that every consumer runs, interleaved at every operation."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cqueue.errors import LeaseLost, NotDone, OutcomeUnknown
from cqueue.protocol import ack as acks
from cqueue.protocol.claim_draft import Claim
from cqueue.protocol.dead import bury, why_dead
from cqueue.protocol.lease import Lease, SuspectGate, Taken
from cqueue.protocol.poll import Poll
from cqueue.protocol.row_memory import Hint
from cqueue.protocol.spec import QueueSpec
from cqueue.store.operations import Pause, QueueRow, ReadBodies, ReadQueue
from tests.simulation.oracle import body_of
from tests.simulation.world import Client, Script

if TYPE_CHECKING:
    from tests.simulation.sim import Simulation

FAILED = (NotDone, OutcomeUnknown)
SHUT = SuspectGate(shut=True)
ACTIONS = ("ack", "nack", "snooze", "extend", "bury", "release", "abandon", "both")


class Consumer:
    """Receives, and does to messages whatever a program may do."""

    def __init__(self, sim: Simulation, client: Client, spec: QueueSpec) -> None:
        self.sim = sim
        self.client = client
        self.spec = spec
        self.gate = SuspectGate()
        self.shared = acks.Shared()
        self.told: deque[Hint] = deque()
        self.busy: set[Lease] = set()  # leases that are being changed: one change at a time
        self.poll: Poll | None = None
        self.stale_row: QueueRow | None = None

    # ── receive ──

    def main(self) -> Script:
        """Poll for ever."""
        row = self.stale_row or (yield from self._insist(lambda: iter(ReadQueue(self.spec.name))))
        self.poll = Poll(row, self.spec, self.gate)
        idle = 0
        while True:
            got = False
            with contextlib.suppress(FAILED):
                got = yield from self._round(self.poll)
            idle = 0 if got else idle + 1
            if self.sim.params.late_hints_s and not self.sim.quiet:
                yield from self._await_hint(self._idle_s(self.poll, idle))
            else:
                yield Pause(0.002 if got else self._idle_s(self.poll, idle))

    def _await_hint(self, longest_s: float) -> Script:
        """Wait for a hint, `longest_s` at most."""
        until_us = self.sim.world.now_us + longest_s * 1e6
        while not self.told and self.sim.world.now_us < until_us:
            yield Pause(0.002)

    def _idle_s(self, poll: Poll, idle: int) -> float:
        """When to look again: when all is quiet, as soon as something can have changed."""
        sim = self.sim
        if not sim.quiet:
            return sim.rng.random() * min(sim.params.longest_idle_s, sim.poll_s * 2 ** min(idle, 5))
        now_us = sim.world.now_us
        views = poll.registry.rows.values()
        rests = [max(view.rest_until_us, view.wide_row.time_shard * 1000) for view in views]
        wake_us = min(rests, default=now_us + 1_000_000 * int(sim.longest_idle_s))
        return max(sim.poll_s, min(sim.longest_idle_s, (wake_us - now_us) / 1e6 + 0.001))

    def _insist(self, make) -> Script:
        while True:
            try:
                return (yield from make())
            except FAILED:
                yield Pause(0.1)

    def _round(self, poll: Poll) -> Script:
        params, rng = self.sim.params, self.sim.rng
        want, stay = rng.randint(1, params.want), rng.random() < params.stays
        ahead = params.claims_ahead and rng.random() < 0.3
        poll.gate = SHUT if ahead else self.gate
        yield from poll.begin(self.spec, self._hints())
        alone = poll.has_left_suspects and self.sim.rng.random() < 0.5
        while True:
            began = self.sim.world.step
            self.sim.oracle.claims.pop(self.client, None)
            if alone:
                claimed, alone = (yield from poll.claim_suspect(self.spec, want)), False
            else:
                claimed = yield from poll.next_claim(self.spec, want, stay=stay, hints=self._hints)
            finished = [lease for memory in poll.registry.rows.values() for lease in memory.finished]
            self.sim.oracle.claim_over(self.client, claimed, self.sim.cluster, finished)
            if claimed is None:
                break
            if claimed.taken or claimed.dead or claimed.expired:
                self.sim.claimed(self, claimed)
            if (yield from self._accept(claimed, began)):
                return True
        yield from poll.tidy(at_once=self.sim.rng.random() < 0.5)
        return False

    def _hints(self) -> list[Hint]:
        told = list(self.told)
        self.told.clear()
        return told

    def _accept(self, claimed: Claim, began: int) -> Script:
        for taken in claimed.dead:
            self.sim.world.spawn(self.client, self._bury(taken))
        if claimed.expired:
            self.sim.world.spawn(self.client, self._settle("ack", list(claimed.expired)))
        for taken in claimed.taken:
            self.sim.oracle.delivered(taken, began, self.client)
        if claimed.taken:
            self.sim.world.note(self.client.name, "TOOK", [body_of(taken.row) for taken in claimed.taken])
            handling = self._handle(list(claimed.taken))
            if self.sim.params.serial:
                yield from handling
            else:
                self.sim.world.spawn(self.client, handling)
        return bool(claimed.taken)

    def _settled(self, leases: Iterable[Lease]) -> None:
        if self.poll is not None:
            self.poll.finished.extend(leases)

    # ── handlers ──

    def _handle(self, messages: list[Taken]) -> Script:
        sim, rng = self.sim, self.sim.rng
        large = [one for one in messages if one.row.body is None]
        for one in large:
            bodies = yield from self._insist(
                lambda one=one: iter(ReadBodies(one.lease.wide_row, (one.row.id,)))
            )
            sim.check_body(one, bodies)
        rng.shuffle(messages)
        together = None if sim.quiet or rng.random() < 0.5 else self._action()
        if together in ("ack", "nack", "snooze"):
            yield from self._settle(together, messages)
            return
        for one in messages:
            if body_of(one.row).startswith(b"poison") and not self.spec.is_dead_letter:
                sim.crash(self)
                return
            if rng.random() < 0.3 and not (sim.quiet and sim.params.serial):  # else others wait for it
                yield Pause(rng.random() ** 2 * sim.params.work_s)
            if sim.quiet:
                yield from self._settle("ack", [one])
            elif rng.random() < 0.3:  # on a thread of its own
                sim.world.spawn(self.client, self._settle(self._action(), [one]))
            else:
                yield from self._settle(self._action(), [one])

    def _action(self) -> str:
        return self.sim.rng.choices(ACTIONS, self.sim.params.actions)[0]

    def _settle(self, action: str, messages: list[Taken]) -> Script:
        try:
            if action == "ack":
                yield from self._ack(messages)
            elif action == "both":  # ack on one thread, nack on another
                self.sim.world.spawn(self.client, self._settle("ack", messages))
                yield from self._change("nack", messages)
            elif action != "abandon":
                yield from self._change(action, messages)
        except (NotDone, OutcomeUnknown, LeaseLost) as exc:
            self.sim.world.note(self.client.name, action, exc)

    def _ack(self, messages: list[Taken]) -> Script:
        for one in messages:
            self.sim.oracle.through(body_of(one.row))
        emptied = yield from acks.ack(messages)
        for one in messages:
            self.sim.oracle.ack_confirmed(one)
        self._settled(emptied)

    def _change(self, action: str, messages: list[Taken]) -> Script:
        by_lease: dict[Lease, list[Taken]] = {}
        for one in messages:
            by_lease.setdefault(one.lease, []).append(one)
        for lease, ones in by_lease.items():
            while lease in self.busy:
                yield Pause(0.01)
            self.busy.add(lease)
            try:
                yield from self._change_lease(action, lease, ones)
            finally:
                self.busy.discard(lease)

    def _change_lease(self, action: str, lease: Lease, ones: list[Taken]) -> Script:
        rng = self.sim.rng
        if action in ("nack", "snooze"):
            delay_ms = rng.choice((0, 0, 100, 700, 2500))
            chosen = [one.row.id for one in ones]
            yield from acks.nack(lease, chosen, delay_ms, self.shared, count=action == "nack")
        elif action == "extend":
            yield from acks.extend(lease, rng.randint(500, 4000))
            yield Pause(rng.random())
            yield from self._ack(ones)
        elif action == "release":
            yield from acks.release(lease)
        elif action == "bury" and not self.spec.is_dead_letter:
            for one in ones:
                self._settled((yield from self._bury_one(one, "asked for")))

    def _bury(self, taken: Taken) -> Script:
        try:
            self._settled((yield from self._bury_one(taken, "spent")))
        except (NotDone, OutcomeUnknown, LeaseLost) as exc:
            self.sim.world.note(self.client.name, "bury", exc)

    def _bury_one(self, taken: Taken, reason: str) -> Script:
        self.sim.buried(body_of(taken.row))
        name = f"{taken.lease.wide_row} {taken.row.priority} {taken.row.id}"
        why = why_dead(reason, self.spec.name, taken.lease.attempt, name)
        return (yield from bury(self.spec, self.sim.dead_spec, taken, why))
