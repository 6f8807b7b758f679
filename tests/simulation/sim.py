"""One simulated run: a queue, its dead-letter queue, programs that use them, faults; then quiet.

Everything follows from the seed. Parameters are small, so that rare states are common.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from cqueue import ids
from cqueue.protocol import shards
from cqueue.protocol.flush import Flush
from cqueue.protocol.spec import QueueSpec, Taken
from cqueue.store.operations import CreateQueue, QueueRow
from tests.simulation.consumer import Consumer
from tests.simulation.oracle import Oracle, SimStore, Violation
from tests.simulation.producer import Producer
from tests.simulation.world import Client, World

DAY_US = 86_400_000_000
BASE_US = 20_000 * DAY_US  # a midnight, so that a day's epoch of open wide rows ends in the run


@dataclass(frozen=True, slots=True)
class Params:
    """What a run is like; drawn from the seed unless given."""

    settle_ms: int = 500
    skew_ms: int = 100
    shards: int = 1
    max_attempts: int = 3
    gc_grace_s: int = 8
    epoch_widths: int = 2
    faults: float = 0.04
    pauses: float = 0.02
    longest_pause_us: int = 4_000_000
    crashes: float = 0.2  # a second
    busy_us: int = 5_000_000
    producers: int = 2
    consumers: int = 2
    batches: int = 3
    batch: int = 4
    gap_s: float = 1.5
    delayed: float = 0.3
    longest_delay_us: int = 3_000_000
    priorities: tuple[int, ...] = (0, 0, 5)
    poison: float = 0.0
    poll_s: float = 0.4
    want: int = 5
    work_s: float = 3.0
    serial: bool = False  # a consumer handles its messages before it asks for more
    actions: tuple[int, ...] = (60, 10, 5, 8, 5, 4, 5, 3)


def draw(rng: Random) -> Params:
    """Parameters of a run."""
    return Params(
        settle_ms=rng.choice((200, 500, 1000, 2000)),
        skew_ms=rng.choice((50, 200, 500)),
        shards=rng.choice((1, 1, 2)),
        max_attempts=rng.choice((2, 3, 3)),
        faults=rng.choice((0.0, 0.02, 0.05, 0.1)),
        pauses=rng.choice((0.0, 0.005, 0.02)),
        longest_pause_us=rng.choice((500_000, 2_000_000, 6_000_000)),
        crashes=rng.choice((0.0, 0.2, 0.6)),
        consumers=rng.choice((1, 2, 2, 3)),
        batch=rng.choice((1, 4, 6)),
        delayed=rng.choice((0.0, 0.3, 0.8)),
        longest_delay_us=rng.choice((300_000, 3_000_000)),
        priorities=rng.choice(((0,), (0, 0, 5))),
        poison=rng.choice((0.0, 0.0, 0.05)),
        poll_s=rng.choice((0.1, 0.4, 0.8)),
        want=rng.choice((1, 3, 5)),
        work_s=rng.choice((0.1, 3.0)),
    )


class Simulation:
    """A run in progress."""

    def __init__(self, seed: int, params: Params | None = None, *, trace: bool = False) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.params = params or draw(self.rng)
        p = self.params
        start_us = BASE_US - self.rng.randint(0, 8_000_000)
        self.world = World(self.rng, p.skew_ms * 1000, start_us)
        self.world.longest_pause_us = p.longest_pause_us
        self.world.trace = [f"seed {seed} {p}"] if trace else None
        self.oracle = Oracle(self.world)
        self.oracle.grace_us = p.gc_grace_s * 1_000_000
        self.store = SimStore(self.world, self.oracle)
        self.world.execute = self.store.execute
        self.world.accept = self.store.accept
        self.spec = self._queue("q", start_us)
        self.dead_spec = self._queue("q.dead", start_us)
        self.quiet = False
        self.names = 0
        self.producing = p.producers
        self.clients = 0
        self.consumers: list[Consumer] = []
        self.rows = {name: self.store._queues[name] for name in ("q", "q.dead")}

    def _queue(self, name: str, start_us: int) -> QueueSpec:
        p = self.params
        spec = QueueSpec(
            name=name,
            incarnation="1",
            shards=p.shards,
            width_ms=1000,
            epoch_ms=1000 * p.epoch_widths,
            open_shards=1,
            visibility_ms=2000,
            lease_ms=1000,
            max_attempts=0 if name.endswith(".dead") else p.max_attempts,
            settle_us=p.settle_ms * 1000,
            skew_us=p.skew_ms * 1000,
            gc_grace_us=p.gc_grace_s * 1_000_000,
        )
        before_ms = start_us // 1000 - p.settle_ms - p.skew_ms
        row = QueueRow(
            name, "1", 1, "active", "{}", spec.epoch_ms, shards.epoch_at(spec, before_ms),
            shards.epoch_at(spec, before_ms - p.gc_grace_s * 1000, open_=True),
        )  # fmt: skip
        self.store.execute(CreateQueue(row))
        return spec

    # ── clients ──

    def client(self, kind: str) -> Client:
        """A new program with a clock of its own."""
        self.clients += 1
        client = Client(f"{kind}{self.clients}")
        self.world.sync(client)
        return client

    def start_consumer(self, spec: QueueSpec) -> None:
        """Start a consumer that knows nothing, or only a stale configuration."""
        consumer = Consumer(self, self.client("c" if spec is not self.dead_spec else "d"), spec)
        if self.rng.random() < 0.3:
            consumer.stale_row = self.rows[spec.name]
        self.consumers.append(consumer)
        self.world.spawn(consumer.client, consumer.main())

    def crash(self, consumer: Consumer) -> None:
        """A consumer's program dies with all its threads, and another one is started."""
        if consumer.client.dead:
            return
        consumer.client.dead = True
        self.world.log(consumer.client.name, lambda: "CRASH")
        self.consumers.remove(consumer)
        wait_us = self.rng.randint(10_000, 1_500_000)
        self.world.at(self.world.now_us + wait_us, lambda: self.start_consumer(consumer.spec))

    def ring(self, flush: Flush) -> None:
        """Tell a consumer of the same process what was sent."""
        mine = [consumer for consumer in self.consumers if consumer.spec is not self.dead_spec]
        if mine:
            told = (flush.wide_row, frozenset(row.priority for row in flush.rows))
            self.rng.choice(mine).told.append(told)

    def acknowledged(self, flush: Flush) -> None:
        """A producer was told that its messages are stored."""
        self.world.log("", lambda: f"SENT {[row.headers for row in flush.rows]} {flush.wide_row}")
        self.oracle.acknowledged(flush, self.store)

    def check_body(self, taken: Taken, bodies: dict[int, bytes]) -> None:
        """A large body is there as long as its message is."""
        key = (taken.lease.wide_row, taken.row.priority, taken.row.id)
        if taken.row.id not in bodies and key not in self.oracle.deleted:
            self.oracle.fail(f"{key} has lost its body")

    # ── trouble ──

    def _disturb(self) -> None:
        """Now and then a clock is set right or stands still, a consumer dies, the shards change."""
        rng = self.rng
        if self.quiet:
            return
        self.world.at(self.world.now_us + 200_000, self._disturb)
        if rng.random() < self.params.crashes / 5 and self.consumers:
            self.crash(rng.choice(self.consumers))
        if rng.random() < 0.1 and self.consumers:
            self.world.sync(rng.choice(self._programs).client)
        if self.params.pauses and rng.random() < 0.05:
            rng.choice(self._programs).client.frozen_us += rng.randint(0, 4_000_000)
        if rng.random() < 0.03:
            self.spec = replace(self.spec, shards=rng.randint(1, 3))

    @property
    def _programs(self) -> list[Any]:
        return [*self.consumers, *self.senders]

    # ── the run ──

    def run(self) -> Simulation:
        """Trouble, then quiet; raises Violation."""
        p, world = self.params, self.world
        self.senders = [Producer(self, self.client("p")) for _ in range(p.producers)]
        world.faults, world.pauses = p.faults, p.pauses
        for sender in self.senders:
            world.spawn(sender.client, sender.main())
        for _ in range(p.consumers):
            self.start_consumer(self.spec)
        self.start_consumer(self.dead_spec)
        self._disturb()
        world.run(world.now_us + p.busy_us)
        self._calm()
        if not world.run(world.now_us + 90_000_000, self._drained):
            self.oracle.fail(self._left())
        self.oracle.final()
        if not world.run(world.now_us + 60_000_000 + p.gc_grace_s * 1_000_000, self._dead_drained):
            self.oracle.fail(self._left())
        return self

    def _calm(self) -> None:
        """Faults stop, clocks are right."""
        self.quiet = True
        self.world.faults = self.world.pauses = 0.0
        for program in self._programs:
            self.world.sync(program.client)

    def _drained(self) -> bool:
        return not (
            self.producing
            or self.store.registered(self.spec)
            or set(self.oracle.promised) - self.oracle.settled
            or self.store.live(self.dead_spec)
        )

    def _dead_drained(self) -> bool:
        return not self.store.registered(self.dead_spec)

    def _left(self) -> str:
        lost = sorted(set(self.oracle.promised) - self.oracle.settled)
        registered = self.store.registered(self.spec) + self.store.registered(self.dead_spec)
        live = [(key[0], ids.time_us(key[2]) / 1e6) for key in self.store.live(self.spec)]
        dead = len(self.store.live(self.dead_spec))
        return (
            f"not drained: unsettled {lost}, registered {registered}, live {live}, dead letters {dead}, "
            f"producers {self.producing}"
        )


def run_schedule(seed: int, params: Params | None = None) -> Simulation:
    """Run one schedule; a violation carries its trace."""
    try:
        return Simulation(seed, params).run()
    except Violation as exc:
        raise Violation(f"seed {seed}: {exc}\n{trace_of(seed, params)}") from exc


def trace_of(seed: int, params: Params | None = None) -> str:
    """All that happened in a schedule."""
    simulation = Simulation(seed, params, trace=True)
    try:
        simulation.run()
    except Violation as exc:
        text = f"VIOLATION {exc}"
        simulation.world.log("", lambda: text)
    return "\n".join(simulation.world.trace or [])
