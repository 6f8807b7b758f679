"""One simulated run: a queue, its dead-letter queue, programs that use them, faults; then quiet.

Everything follows from the seed: parameters are drawn first, then every delay, order and fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from unittest.mock import patch

from cqueue import ids
from cqueue.protocol import claim_draft, registry, row_memory, unclaimed
from cqueue.protocol.claim_draft import Claim
from cqueue.protocol.lease import Taken
from cqueue.protocol.row_memory import Hint
from cqueue.protocol.send import Flush, Outgoing
from cqueue.protocol.spec import QueueSpec
from cqueue.store import cassandra, packs
from cqueue.store.operations import CreateQueue, Pause, QueueRow, ReadHead, ReadQueue, ReadShards, Together
from tests.simulation import hints
from tests.simulation.cluster import Cluster
from tests.simulation.consumer import Consumer
from tests.simulation.control import Controller
from tests.simulation.oracle import Oracle, Violation, key_of
from tests.simulation.params import Params, draw, with_controls, with_packs
from tests.simulation.producer import Producer, purge
from tests.simulation.replica import ALL, BITS
from tests.simulation.rows import RowStore
from tests.simulation.world import Client, Script, World

DAY_US = 86_400_000_000
BASE_US = 20_000 * DAY_US  # a midnight, so that a day's epoch of open wide rows ends in the run
QUIET_POLL_S = 0.5
SWIFT = {Together: 0.2, ReadHead: 0.2, ReadShards: 0.7, ReadQueue: 0.9}
"""How likely operations take no time: most of an idle consumer's are of no interest."""
SWIFT_WHEN_QUIET = 0.8
SHORT = (
    (packs, "FIRST_ROWS"), (packs, "LEAST_IDS"), (packs, "MOST_ROWS"),
    (cassandra, "FEW_ROWS"), (cassandra, "PACKS_AT_ONCE"),
)  # fmt: skip
"""How many rows one request asks for."""
FORGET_STOP_US = 1_000_000
"""A program that stood still takes so long until it goes on as if it had not."""


class Simulation:
    """A run in progress."""

    def __init__(self, seed: int, params: Params | None = None, *, trace: bool = False) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.params = params or with_controls(with_packs(draw(self.rng), Random(~seed)), Random(-seed - 2))
        p = self.params
        start_us = BASE_US + (1_000_000 if p.away else -self.rng.randint(0, 8_000_000))
        self.world = world = World(self.rng, p.skew_ms * 1000, start_us)
        world.longest_pause_us, world.extreme, world.replays = p.longest_pause_us, p.extreme, p.replays
        world.trace = [f"seed {seed} {p}"] if trace else None
        world.swift = SWIFT
        self.oracle = Oracle(world)
        self.oracle.grace_us, self.oracle.marker_us = p.gc_grace_s * 1_000_000, p.marker_s * 1_000_000
        world.watch = self.oracle.watch
        self.cluster = world.cluster = Cluster(world, self.oracle)
        self.cluster.marker_us = p.marker_s * 1_000_000
        skew_us = p.node_skew_us
        self.cluster.skews_us = (self.rng.randint(-skew_us, skew_us), 0, 0) if skew_us else (0, 0, 0)
        self.spec = self._queue("q", start_us)
        self.dead_spec = self._queue("q.dead", start_us)
        self.quiet = False
        self.names = 0
        self.derived: list[Outgoing] = []
        self.producing = p.producers
        self.poll_s = p.poll_s
        self.longest_idle_s = 2.0
        self.clients = 0
        self.consumers: list[Consumer] = []
        self.senders: list[Producer] = []
        self.rows = {spec.name: self.stored(spec) for spec in (self.spec, self.dead_spec)}

    def _queue(self, name: str, start_us: int) -> QueueSpec:
        p = self.params
        spec = QueueSpec(
            packs=True,
            name=name,
            incarnation="1",
            shards=p.shards,
            width_ms=p.width_ms,
            epoch_ms=p.width_ms * (p.epoch_widths if name == "q" else 60),
            open_shards=1,
            visibility_ms=p.visibility_ms,
            lease_ms=1000,
            max_attempts=0 if name.endswith(".dead") else p.max_attempts,
            settle_us=p.settle_ms * 1000,
            skew_us=p.skew_ms * 1000,
            gc_grace_us=p.gc_grace_s * 1_000_000,
            derived_sends=p.derived,
        )
        before_ms = start_us // 1000 - p.settle_ms - p.skew_ms
        row = QueueRow(
            name, "1", 1, "active", "{}", spec.epoch_ms, registry.epoch_at(spec, before_ms),
            registry.epoch_at(spec, before_ms - p.gc_grace_s * 1000, open_=True),
        )  # fmt: skip
        self.cluster.execute(CreateQueue(row))
        return spec

    def stored(self, spec: QueueSpec) -> QueueRow:
        """The queue's row."""
        row: QueueRow = self.cluster.execute(ReadQueue(spec.name))
        return row

    # ── clients ──

    def client(self, kind: str) -> Client:
        """A new program with a clock of its own."""
        self.clients += 1
        p = self.params
        client = Client(f"{kind}{self.clients}", RowStore(self.cluster), p.pauses)
        if p.at_the_edge:
            client.slow, client.slow_us = 0.5 if kind == "p" else 0.1, p.settle_ms * 1000
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
        self.world.happened["crash"] += 1
        self.world.note(consumer.client.name, "CRASH")
        self.consumers.remove(consumer)
        wait_us = self.rng.randint(10_000, 1_500_000)
        self.world.at(self.world.now_us + wait_us, self.start_consumer, consumer.spec)

    def ring(self, flush: Flush) -> Script:
        """Tell a consumer what was sent, some time after the answer: with luck, and if nobody lies."""
        if self.params.late_hints_s:
            yield Pause(self.rng.random() ** 3 * self.params.late_hints_s)
        (fate,) = self.rng.choices(tuple(hints.FATES), tuple(hints.FATES.values()))
        self.world.happened[f"hint: {fate}"] += 1
        for wait_s, hint in hints.deliveries(hints.hint_of(flush), fate, self.rng, self.params.width_ms):
            if wait_s:
                yield Pause(wait_s)
            self._tell(hint)

    def _tell(self, hint: Hint) -> None:
        mine = [consumer for consumer in self.consumers if consumer.spec is not self.dead_spec]
        if mine:
            (mine[0] if self.params.late_hints_s else self.rng.choice(mine)).told.append(hint)

    def claimed(self, consumer: Consumer, claimed: Claim) -> None:
        """A consumer's claim gave something; where nothing fails at present, others' turns are counted."""
        world, client = self.world, consumer.client
        if world.faults or world.pausing or world.torn or world.now_us < client.stopped_us + FORGET_STOP_US:
            self.oracle.fairness.pop(client, None)
        else:
            self.oracle.check_turns(client, claimed, self.cluster.parts, self.spec.skew_us)

    def acknowledged(self, flush: Flush) -> None:
        """A producer was told that its messages are stored."""
        self.world.note("", "SENT", [row.headers for row in flush.rows], flush.wide_row)
        self.oracle.acknowledged(flush, self.cluster)

    def check_body(self, taken: Taken, bodies: dict[int, bytes]) -> None:
        """A large body is there as long as its message is."""
        if taken.row.id not in bodies and key_of(taken) not in self.oracle.deleted:
            self.oracle.fail(f"{key_of(taken)} has lost its body")

    def buried(self, name: bytes) -> None:
        """A message is on its way to the dead-letter queue, which somebody has to read."""
        self.oracle.buried.add(name)
        if all(consumer.spec is not self.dead_spec for consumer in self.consumers):
            self.start_consumer(self.dead_spec)

    # ── trouble ──

    def _disturb(self, _: object) -> None:
        """Now and then a clock is set right or stands still, a consumer dies, the shards change."""
        rng, p = self.rng, self.params
        if self.quiet:
            return
        self.world.at(self.world.now_us + 200_000, self._disturb)
        if rng.random() < p.crashes / 5 and self.consumers:
            self.crash(rng.choice(self.consumers))
        programs = [*self.consumers, *self.senders]
        if not programs:
            return
        one = rng.choice(programs).client
        if rng.random() < 0.1:
            self.world.sync(one)
        if p.pauses and rng.random() < 0.05:
            one.frozen_us += rng.randint(0, 4_000_000)
            self.world.happened["clock stands still"] += 1
        if rng.random() < p.stops:
            self._stop(one)
        if rng.random() < 0.03:
            self.spec = replace(self.spec, shards=rng.randint(1, 3))
        if p.downs and rng.random() < p.downs:
            self._lose_node()

    def _stop(self, client: Client) -> None:
        stop_us = int(self.params.longest_stop_us * self.rng.random())
        # Its events wait for the end of an earlier stop, which a shorter one must not hide.
        client.stopped_us = max(client.stopped_us, self.world.now_us + stop_us)
        self.world.happened["program stopped"] += 1
        self.world.note(client.name, "STOPPED", f"for {stop_us / 1e6:.1f} s")

    def _lose_node(self) -> None:
        """A node stops for a while; with luck hints are kept for it."""
        if self.cluster.up != ALL:
            return
        self.cluster.go_down(self.rng.randrange(3))
        self.world.happened["node down"] += 1
        self.world.note("", "DOWN", f"{self.cluster.up:03b}")
        self.world.at(self.world.now_us + self.rng.randint(100_000, 3_000_000), self._regain_node)

    def _regain_node(self, _: object) -> None:
        self.cluster.come_back()
        self.world.note("", "BACK")

    def _send_away(self) -> None:
        """One node stops for longer than gc_grace, while the others compact; then it is rebuilt."""
        replica, grace_us = self.rng.randrange(3), self.params.gc_grace_s * 1_000_000
        leaves_us = self.world.now_us + self.rng.randint(0, self.params.busy_us)
        self.world.happened["node away beyond gc_grace"] += 1
        self.world.at(leaves_us, self.cluster.go_down, replica)
        self.world.at(leaves_us + grace_us + 2_000_000, self._compact)
        self.world.at(leaves_us + grace_us + 3_000_000, self._return, replica)

    def _compact(self, _: object = None) -> None:
        self.cluster.compact(self.params.gc_grace_s * 1_000_000)
        self.world.note("", "COMPACTED")

    def _return(self, replica: int) -> None:
        self.cluster.rebuild(replica)
        self.world.note("", "BACK", f"{BITS[replica]:03b}")

    # ── the run ──

    def run(self) -> Simulation:
        """Trouble, then quiet; raises Violation."""
        for_so_long = self.params.rivals_us or row_memory.RIVAL_WINDOW_US
        with (
            patch.object(row_memory, "RIVAL_WINDOW_US", for_so_long),
            patch.object(claim_draft, "MAX_LISTED", self.params.most_listed),
            patch.object(unclaimed, "MAX_LISTED", self.params.most_listed),
            patch.object(unclaimed, "READ_BYTES", self.params.read_bytes),
            self._short_requests(),
        ):
            return self._run()

    @contextlib.contextmanager
    def _short_requests(self) -> Iterator[None]:
        """Reads that take several requests, each answered by other replicas."""
        rows = self.params.rows_at_once
        with contextlib.ExitStack() as stack:
            for module, name in SHORT if rows else ():
                stack.enter_context(patch.object(module, name, rows))
            yield

    def _run(self) -> Simulation:
        p, world, cluster = self.params, self.world, self.cluster
        self.senders = [Producer(self, self.client("p")) for _ in range(p.producers)]
        world.faults, world.pausing, world.torn = p.faults, p.pauses > 0, p.torn
        cluster.lag, cluster.lost_hints = p.lag, p.lost_hints
        for sender in self.senders:
            world.spawn(sender.client, sender.main())
        for _ in range(p.consumers):
            self.start_consumer(self.spec)
        if p.purges:
            world.spawn(self.client("a"), purge(self))
        if p.controls_s:
            world.spawn((program := self.client("x")), Controller(self, program).main())
        if p.away:
            self._send_away()
        self._disturb(None)
        world.run(world.now_us + p.busy_us)
        self._calm()
        self.oracle.quiet_us = world.now_us
        if not p.poison:  # what kills consumers keeps the others waiting
            world.at(world.now_us + self._bound_us(), self._check_claimed)
        self._until(90_000_000, self._drained)
        self.oracle.final()
        if self.oracle.buried:
            self._only(self.dead_spec)
            self._until(60_000_000 + p.gc_grace_s * 1_000_000 + p.width_ms * 10_000, self._dead_drained)
        return self

    def _bound_us(self) -> int:
        """6: how long a message may wait when all is well: a sweep comes W + ε later, a poll every 2 s."""
        p = self.params
        stopped_us = max((c.client.stopped_us - self.world.now_us for c in self.consumers), default=0)
        return (p.settle_ms + p.skew_ms) * 1000 + 8_000_000 + max(0, stopped_us)

    def _check_claimed(self, _: object) -> None:
        self.oracle.check_claimed(self.cluster.parts, self.spec.partition)

    def _until(self, within_us: int, done: object) -> None:
        if not self.world.run(self.world.now_us + within_us, done):
            self.oracle.fail(f"6: {self._left()}")

    def _calm(self) -> None:
        """Faults stop, clocks are right, one consumer of each queue goes on."""
        self.world.note("", "QUIET")
        self.quiet = True
        self.poll_s = QUIET_POLL_S
        world = self.world
        world.faults = world.torn = 0.0
        world.pausing = False
        world.swift, world.swift_else = {}, SWIFT_WHEN_QUIET
        if not self.params.away:
            self.cluster.come_back()
            self.cluster.repair()
        self.cluster.lag = 0.0
        awake = [consumer for consumer in self.consumers if consumer.client.stopped_us <= world.now_us]
        for spec in () if self.params.poison else (self.spec, self.dead_spec):
            for consumer in [one for one in awake if one.spec.name == spec.name][1:]:
                consumer.client.dead = True
        for program in (*self.consumers, *self.senders):
            program.client.slow = 0.0
            world.sync(program.client)

    def _only(self, spec: QueueSpec) -> None:
        """The programs of the other queue end."""
        self.longest_idle_s = 20.0
        for consumer in self.consumers:
            consumer.client.dead |= consumer.spec.name != spec.name

    def _drained(self) -> bool:
        if self.producing or self.oracle.left():
            return False
        stopped = any(consumer.client.stopped_us > self.world.now_us for consumer in self.consumers)
        if stopped or self.cluster.up != ALL:
            return False
        registered = self.cluster.registered(self.spec.partition, self.stored(self.spec))
        return all(row.shard < 0 for row in registered)  # open ones stay for gc_grace

    def _dead_drained(self) -> bool:
        return not self.cluster.registered(self.dead_spec.partition, self.stored(self.dead_spec))

    def _left(self) -> str:
        registered = [
            row
            for spec in (self.spec, self.dead_spec)
            for row in self.cluster.registered(spec.partition, self.stored(spec))
        ]
        live = [(key[0], ids.time_us(key[2]) / 1e6) for key in self.cluster.live(self.spec.partition)]
        dead = len(self.cluster.live(self.dead_spec.partition))
        return (
            f"not drained: unsettled {sorted(self.oracle.left())}, registered {registered}, live {live}, "
            f"dead letters {dead}, producers {self.producing}, nodes {self.cluster.up:03b}"
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
        simulation.world.note("", f"VIOLATION {exc}")
    return "\n".join(simulation.world.trace or [])
