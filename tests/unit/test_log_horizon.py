"""A reader at the stable horizon misses no acknowledged append: seeded schedules, and rules taken away.

Every operation of appenders and readers is an event of its own: it happens some time after it was asked for,
and is answered some time after that, or never. Clocks differ by up to the skew. A schedule replays from its
seed.
"""

import heapq
import itertools
from random import Random

import pytest

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.log.protocol.append import Entry, append
from cqueue.log.protocol.following import Following
from cqueue.log.protocol.merge import Merge
from cqueue.log.protocol.source import in_order
from cqueue.log.protocol.spec import LogSpec
from cqueue.protocol import writing
from cqueue.protocol.writing import WriterState
from cqueue.store.log_operations import AppendRecords, DeleteRecords, RegisterLogShard
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import Now, Pause, RandomBits, Together
from tests.properties import examples

NOON_US = 1_800_000_000_000_000
W_US, SKEW_US, SECOND_US = 2_000_000, 500_000, 1_000_000
SPEC = LogSpec("events", "1", 3, 10_000, 0, NOON_US // 1000, W_US, SKEW_US)
APPENDS, APPENDERS = 12, 3
DELAYS_US = (0, 10_000, 300_000, W_US - 300_000, W_US - 50_000, 3 * SECOND_US, 6 * SECOND_US)
WRITES = (AppendRecords, DeleteRecords, RegisterLogShard)
SEEDS = range(examples(60))
ENOUGH = range(400)


class World:
    """True time, one store, and the events still to happen."""

    def __init__(self, seed):
        self.rng = Random(seed)
        self.time_us = NOON_US
        self.store = MemoryStore(lambda: self.time_us)
        self.appending = APPENDERS
        self._events = []
        self._numbers = itertools.count()

    def after(self, delay_us, happen):
        heapq.heappush(self._events, (self.time_us + delay_us, next(self._numbers), happen))

    def run(self):
        while self._events:
            self.time_us, _, happen = heapq.heappop(self._events)
            happen()


class Process:
    """A process that runs a generator: its clock is off, and each of its operations takes time."""

    def __init__(self, world, script):
        self.world = world
        self.script = script
        self.clock_us = world.rng.choice((-1, -1, 0, 1, 1)) * SKEW_US // 2
        world.after(world.rng.randrange(SECOND_US), lambda: self.go(None))

    def go(self, answer):
        """Send an answer, and run the process up to its next operation that takes time."""
        rng = self.world.rng
        while True:
            try:
                failed = isinstance(answer, Exception)
                asked = self.script.throw(answer) if failed else self.script.send(answer)
            except StopIteration:
                return
            if type(asked) is Now:
                answer = self.world.time_us + self.clock_us
            elif type(asked) is RandomBits:
                answer = rng.getrandbits(asked.bits)
            else:
                break
        if type(asked) is Pause:
            self.world.after(int(asked.seconds * SECOND_US), lambda: self.go(None))
        elif type(asked) is Together:
            self._all(asked.operations)
        else:
            self._one(asked, self.go)

    def _all(self, operations):
        answers = [None] * len(operations)
        left = [len(operations)]

        def answered(place, answer):
            answers[place] = answer
            left[0] -= 1
            if not left[0]:
                self.go(answers)

        for place, each in enumerate(operations):
            self._one(each, lambda answer, place=place: answered(place, answer))

    def _one(self, operation, answered):
        """Let an operation happen later and answer later still, or lose its answer, or answer first."""
        rng, world = self.world.rng, self.world
        before_us = rng.choice(DELAYS_US)
        after_us = rng.choice((0, 1000, 40_000))
        if not isinstance(operation, WRITES):
            before_us, after_us = rng.randrange(50_000), 0
        fate = rng.random()

        def happen(*, answer_it=True):
            result = world.store.execute(operation)
            if answer_it:
                world.after(after_us, lambda: answered(result))

        if isinstance(operation, WRITES) and fate < 0.1:
            world.after(before_us, lambda: happen(answer_it=False))
            world.after(rng.choice((100_000, SECOND_US)), lambda: answered(OutcomeUnknown("no answer")))
        elif fate < 0.15:
            world.after(before_us, lambda: answered(NotDone("no")))
        else:
            world.after(before_us, happen)


def appender(world, number, acknowledged):
    """Append records one after the other, and note which were acknowledged."""
    state = WriterState(turn=number)
    for turn in range(APPENDS):
        entry = Entry("t", b"%d-%d" % (number, turn), None, world.rng.choice((None, 0)))
        for write in (yield from append(SPEC, state, [entry])):
            if write.error is None:
                acknowledged.extend(row.body for row in write.rows)
        yield Pause(world.rng.choice((0.0, 0.4, 2.0)))
    world.appending -= 1


def reader(world, found):
    """Read up to the horizon again and again."""
    merge = Merge(SPEC, dict.fromkeys(range(SPEC.partitions), ids.lowest_at(NOON_US - SECOND_US)))
    last_us = None
    while last_us is None or world.time_us < last_us:
        if not world.appending and last_us is None:
            last_us = world.time_us + 20 * SECOND_US
        now_us = yield from Now()
        end = SPEC.horizon(now_us)
        try:
            while (more := (yield from merge.more(SPEC, end, now_us))) is not None:
                found.extend(record.row for record in in_order(more))
        except NotDone:
            pass
        yield Pause(world.rng.choice((0.02, 0.1, 0.3)))


def early_reader(world, found):
    """Follow beyond the horizon, with right, wrong or missing hints of partitions."""
    start = dict.fromkeys(range(SPEC.partitions), ids.lowest_at(NOON_US - 10 * SECOND_US))
    following = Following(SPEC, start, beyond_horizon=True)
    positions, last_us = following.positions(), None
    while last_us is None or world.time_us < last_us:
        if not world.appending and last_us is None:
            last_us = world.time_us + 20 * SECOND_US
        told = world.rng.sample(range(SPEC.partitions + 1), world.rng.randrange(3))
        try:
            if world.rng.random() < 0.5:
                got = yield from following.read_hinted(SPEC, told)
            else:
                got = yield from following.read(SPEC, told)
            found.extend(record.row for record in got.records)
        except NotDone:
            pass
        now_us = yield from Now()
        moved = following.positions()
        assert all(positions[each] <= moved[each] <= SPEC.horizon(now_us) for each in moved), "the horizon"
        positions = moved
        yield Pause(world.rng.choice((0.001, 0.02, 0.3)))


def played(seed, read):
    """Run one schedule; return what was acknowledged, and what was read."""
    world = World(seed)
    acknowledged, found = [], []
    for number in range(APPENDERS):
        Process(world, appender(world, number, acknowledged))
    Process(world, read(world, found))
    world.run()
    assert len(acknowledged) > APPENDS, "nothing was tried"
    return acknowledged, found


def missed(seed):
    """Run one schedule; return what was acknowledged and not read."""
    acknowledged, found = played(seed, reader)
    assert [row.id for row in found] == sorted({row.id for row in found}), "order, and each once"
    return set(acknowledged) - {row.body for row in found}


@pytest.mark.parametrize("seed", SEEDS)
def test_no_acknowledged_append_is_missed(seed):
    """However late writes land and however long appenders pause, while clocks stay within the skew."""
    assert missed(seed) == set()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_that_reads_early_misses_nothing_and_repeats_nothing(seed):
    """Any hints and failures change nothing, and positions stay at the horizon."""
    acknowledged, found = played(seed, early_reader)
    assert len({row.id for row in found}) == len(found)
    assert set(acknowledged) <= {row.body for row in found}


def without_settle(monkeypatch):
    monkeypatch.setattr(LogSpec, "horizon", lambda self, us: ids.lowest_at(us - self.skew_us))


def without_skew(monkeypatch):
    monkeypatch.setattr(LogSpec, "horizon", lambda self, us: ids.lowest_at(us - self.settle_us))


def with_late_acknowledgements(monkeypatch):
    monkeypatch.setattr(writing, "in_time", lambda *_: True)


@pytest.mark.parametrize("broken", [without_settle, without_skew, with_late_acknowledgements])
def test_each_part_of_the_rule_is_needed(monkeypatch, broken):
    """Without a part of the rule, some schedule misses a record: the schedules would notice."""
    broken(monkeypatch)
    assert any(missed(seed) for seed in ENOUGH)
