"""Somebody who holds no message changes messages by id: cancels, reschedules and extends them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol import by_id
from cqueue.store.operations import Mutate, Now, Pause, WideRow
from tests.simulation.world import Client, Script

if TYPE_CHECKING:
    from tests.simulation.sim import Simulation

LONGEST_DELAY_MS = 4000
"""ms by which messages are put off at most: they come before a run that is quiet counts them as late."""
KINDS = ("cancel", "reschedule", "reschedule", "extend")


class Controller:
    """Changes what was sent, also what a consumer holds."""

    def __init__(self, sim: Simulation, client: Client) -> None:
        self.sim = sim
        self.client = client

    def main(self) -> Script:
        """Change something now and then, until all is quiet."""
        while not self.sim.quiet:
            yield Pause(self.sim.rng.random() * self.sim.params.controls_s)
            chosen = self._choose()
            if chosen is not None:
                with contextlib.suppress(NotDone, OutcomeUnknown):
                    yield from self._change(*chosen)

    def _choose(self) -> tuple[WideRow, int, list[int]] | None:
        """Choose up to three messages of one wide row and priority."""
        rng, oracle = self.sim.rng, self.sim.oracle
        rows = [row for row in oracle.promised_keys if row.queue == self.sim.spec.partition]
        keys = [key for row in rows for key in oracle.promised_keys[row] if key not in oracle.deleted]
        if not keys:
            return None
        row, priority, _ = rng.choice(keys)
        alike = [key[2] for key in keys if key[:2] == (row, priority)]
        return row, priority, rng.sample(alike, min(len(alike), rng.randint(1, 3)))

    def _change(self, row: WideRow, priority: int, some: list[int]) -> Script:
        sim, kind = self.sim, self.sim.rng.choice(KINDS)
        oracle, keys = sim.oracle, {(row, priority, id_) for id_ in some}
        sim.world.note(self.client.name, kind, some)
        if kind == "cancel":
            for key in keys:
                oracle.purged(*key, oracle.promised_keys[row])
            changed = yield from self._seen(by_id.cancel(sim.spec, row, priority, some))
            oracle.cancelled |= {(row, priority, id_) for id_ in changed.done}
        elif kind == "reschedule":
            due_ms = max((yield Now()) // 1000 + sim.rng.randint(0, LONGEST_DELAY_MS), row.time_shard)
            for key in keys:
                oracle.put_off.pop(key, None)
            changed = yield from self._seen(by_id.reschedule(sim.spec, row, priority, some, due_ms))
            oracle.rescheduled([(row, priority, id_) for id_ in changed.done], due_ms * 1000)
        else:
            yield from self._seen(by_id.extend(sim.spec, row, priority, some, sim.rng.randint(500, 4000)))
        sim.world.happened[f"by id: {kind}"] += 1

    def _seen(self, script: Script) -> Script:
        """Run a change; the oracle learns which mutations are not a holder's own."""
        go_on: Callable[[Any], Any] = script.send
        value: Any = None
        while True:
            try:
                operation = go_on(value)
            except StopIteration as stop:
                return stop.value
            if type(operation) is Mutate:
                self.sim.oracle.foreign.add(operation)
            try:
                value, go_on = (yield operation), script.send
            except (NotDone, OutcomeUnknown) as exc:
                value, go_on = exc, script.throw
