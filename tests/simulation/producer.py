"""A producer in the simulation: it sends, and repeats what it does not know to be stored."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol.inspection import purge as purge_all
from cqueue.protocol.send import INLINE_BODY, Outgoing, ProducerState, send
from cqueue.store.operations import DeleteMessages, Now, Pause, Together
from tests.simulation.world import Client, Script

if TYPE_CHECKING:
    from tests.simulation.sim import Simulation

LARGE = bytes(INLINE_BODY + 1)


class Producer:
    """Sends a few batches, some of them delayed."""

    def __init__(self, sim: Simulation, client: Client) -> None:
        self.sim = sim
        self.client = client
        self.spec = sim.spec  # may grow old
        self.state = ProducerState(turn=sim.rng.randrange(4))

    def main(self) -> Script:
        """Send, now and then, until the quota is used up."""
        sim, rng = self.sim, self.sim.rng
        for _ in range(sim.params.batches):
            yield from self._wait()
            if rng.random() < 0.5:
                self.spec = sim.spec
            outgoing = yield from self._batch()
            yield from self._send(outgoing)
        sim.producing -= 1

    def _wait(self) -> Script:
        """For some time; or until shortly before a time shard ends, which is when sending is delicate."""
        sim, rng = self.sim, self.sim.rng
        wait_s = rng.random() * sim.params.gap_s
        if sim.params.at_the_edge:
            width_us, settle_us = self.spec.width_ms * 1000, sim.params.settle_ms * 1000
            at_us = rng.random() * settle_us if rng.random() < 0.4 else width_us - rng.random() * settle_us
            wait_s = (at_us - sim.world.now_us) % width_us / 1e6
        yield Pause(wait_s)

    def _batch(self) -> Script:
        sim, rng = self.sim, self.sim.rng
        batch = []
        for _ in range(rng.randint(1, sim.params.batch)):
            delayed = rng.random() < sim.params.delayed
            due_us = None
            if delayed:
                due_us = (yield Now()) + rng.randint(0, sim.params.longest_delay_us)
            batch.append((yield from self._message(due_us)))
        if sim.params.packed:
            batch = [one for first in batch for one in (first, *self._alike(first))]
        return batch

    def _alike(self, first: Outgoing) -> list[Outgoing]:
        """Some more messages that differ from this one in their bodies only."""
        if first.headers or first.source is not None:
            return []
        more = self.sim.rng.randrange(self.sim.params.packed)
        return [first._replace(body=self._name().encode()) for _ in range(more)]

    def _name(self) -> str:
        name = f"m{self.sim.names}"
        self.sim.names += 1
        self.sim.oracle.sent.add(name.encode())
        return name

    def _message(self, due_us: int | None) -> Script:
        sim, rng = self.sim, self.sim.rng
        if sim.params.derived and sim.derived and rng.random() < 0.5:
            return rng.choice(sim.derived)  # somebody else's, sent again
        name = f"m{sim.names}"
        sim.names += 1
        if rng.random() < sim.params.poison:
            name = f"poison{name}"
        sim.oracle.sent.add(name.encode())
        body = LARGE if rng.random() < sim.params.large else b""
        source = None
        if sim.params.derived and rng.random() < 0.8:
            source, body, due_us = name.encode(), b"", (yield Now()) - rng.randint(0, 500_000)
        outgoing = Outgoing(
            body=name.encode() + body,
            priority=rng.choice(sim.params.priorities),
            due_us=due_us,
            headers=None if sim.params.packed and not body else {"name": name},
            ttl_ms=rng.randint(500, 6000) if rng.random() < sim.params.ttl else None,
            source=source,
        )
        if source is not None:
            sim.derived.append(outgoing)
        return outgoing

    def _send(self, outgoing: list[Outgoing]) -> Script:
        sim = self.sim
        for _ in range(2):
            try:
                flushes = yield from send(self.spec, self.state, outgoing)
            except NotDone:
                continue
            again = []
            for flush in flushes:
                if flush.error is None:
                    sim.acknowledged(flush)
                    if sim.rng.random() < 0.5:
                        sim.world.spawn(self.client, sim.ring(flush))
                else:
                    again += [outgoing[index] for index in flush.indexes]
            if not again or sim.rng.random() < 0.5:
                return
            outgoing = again


def purge(sim: Simulation) -> Script:
    """Somebody empties the queue now and then; what is deleted has been asked to go."""
    while not sim.quiet:
        yield Pause(sim.rng.random() * 2)
        with contextlib.suppress(NotDone, OutcomeUnknown):
            yield from _purge_once(sim)


def _purge_once(sim: Simulation) -> Script:
    script = purge_all(sim.spec)
    operation = next(script, None)
    while operation is not None:
        for one in operation.operations if type(operation) is Together else (operation,):
            if type(one) is DeleteMessages:
                promised = sim.oracle.promised_keys.get(one.wide_row, {})
                for id_ in one.ids:
                    sim.oracle.purged(one.wide_row, one.priority, id_, promised)
        try:
            value = yield operation
        except (NotDone, OutcomeUnknown) as exc:
            operation = _next(script.throw, exc)
        else:
            operation = _next(script.send, value)


def _next(go_on: Callable[[Any], Any], with_: Any) -> Any:
    try:
        return go_on(with_)
    except StopIteration:
        return None
