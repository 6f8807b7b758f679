"""Senders of a unique key in any order of their steps, with crashes, lost answers, late writes and stalls.

Each sender is the protocol's own generator. A step of one of them, chosen at random, is executed on the store
in memory, under a clock that only the test moves; each sender's own clock is off by up to ε.
"""

import random

import pytest

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol.send import Flush, Outgoing, ProducerState
from cqueue.protocol.unique import Rule, send_unique
from cqueue.store.keys import Place, WriteReservation
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import DeleteMessages, InsertMessages, Now, Pause, RandomBits, Together
from tests.simulation.hand import NOON_US, Table

SPEC = Table().spec
SEEDS = 400
SENDERS = 5
STALL_US = SPEC.settle_us * 2


class Sender:
    """One send, a step at a time. result: what came of it; None while it is under way, or if it has died."""

    def __init__(self, world, rule, body):
        self.world = world
        self.skew_us = world.random.choice((-1, 1)) * SPEC.skew_us // 2
        self.generator = send_unique(SPEC, ProducerState(), Outgoing(body, 0, None, None, None), rule)
        self.value = None
        self.wakes_us = 0
        self.result = None
        self.over = False

    def step(self):
        """Execute the next operation, or fail it; return whether the send goes on."""
        world, value, self.value = self.world, self.value, None
        try:
            failed = isinstance(value, Exception)
            operation = self.generator.throw(value) if failed else self.generator.send(value)
        except StopIteration as stop:
            self.result = stop.value
            self.over = True
            return
        except (NotDone, OutcomeUnknown) as exc:
            self.result = exc
            self.over = True
            return
        match operation:
            case Now():
                self.value = world.now_us + self.skew_us
            case RandomBits(bits):
                self.value = world.random.getrandbits(bits)
            case Pause(seconds):
                self.wakes_us = world.now_us + int(seconds * 1e6)
            case Together(operations):
                self.value = [world.execute(one) for one in operations]
            case _:
                self.value = world.execute(operation)


class World:
    """A store, its clock, and what happened in it."""

    def __init__(self, seed, faults):
        self.random = random.Random(seed)
        self.faults = faults
        self.now_us = NOON_US
        self.store = MemoryStore(lambda: self.now_us)
        self.late = []
        self.wide_rows = set()
        self.handled = set()

    def execute(self, operation):
        if isinstance(operation, InsertMessages):
            self.wide_rows.add(operation.wide_row)
        is_write = isinstance(operation, InsertMessages | WriteReservation | DeleteMessages)
        fate = self.random.random() if is_write and self.faults else 1
        if fate < 0.05:
            return NotDone("refused")
        if fate < 0.10:
            self.late.append(operation)
            return OutcomeUnknown("under way")
        result = self.store.execute(operation)
        return OutcomeUnknown("answered, but lost") if fate < 0.15 else result

    def live(self):
        """The ids of messages that a consumer would be given now."""
        found = []
        for wide_row in self.wide_rows:
            rows = self.store._partition(wide_row).of(0).live.values()
            found += [row.id for row in rows if row.expires is None]
        return found

    def handle(self):
        """A consumer handles what is there."""
        for wide_row in self.wide_rows:
            for row in list(self.store._partition(wide_row).of(0).live.values()):
                self.store.execute(DeleteMessages(wide_row, 0, (row.id,)))
                if row.expires is None:
                    self.handled.add(row.id)

    def run(self, rule, *, handles=False, check=lambda: None):
        """Let senders race to the end; return those that have one."""
        senders = [Sender(self, rule, b"%d" % number) for number in range(SENDERS)]
        running = list(senders)
        while running:
            awake = [one for one in running if one.wakes_us <= self.now_us]
            if awake:
                one = self.random.choice(awake)
                one.step()
                if one.over or (self.faults and self.random.random() < 0.01):  # it has died
                    running.remove(one)
            self.now_us += self.random.choice((1, 1000, 20_000))
            chance = self.random.random()
            if chance < 0.01 and self.faults:
                self.now_us += self.random.randrange(STALL_US)
            elif chance < 0.05 and self.late:
                self.store.execute(self.late.pop(self.random.randrange(len(self.late))))
            elif chance < 0.10 and handles:
                self.handle()
            check()
        self.now_us += STALL_US
        for operation in self.late:
            self.store.execute(operation)
            check()
        return [one for one in senders if one.over]


def acked(senders):
    """The ids of messages whose send was acknowledged."""
    results = [one.result for one in senders if isinstance(one.result, Flush)]
    return [flush.rows[0].id for flush in results if flush.error is None]


def conflicts(senders):
    return [one.result for one in senders if isinstance(one.result, Place)]


@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("while_", ["running", "ever"])
def test_never_two_messages_of_a_key_are_there(while_, faults):
    """At no moment, whichever sender dies, is late or stalled; and none that was acknowledged is lost."""
    sent = 0
    for seed in range(SEEDS):
        world = World(seed, faults)

        def check(world=world, seed=seed):
            assert len(world.live()) <= 1, f"seed {seed}"

        senders = world.run(Rule("k", while_, None, replace=False), check=check)
        assert set(acked(senders)) <= set(world.live()), f"seed {seed}: lost"
        assert len(acked(senders)) <= 1, f"seed {seed}"
        sent += len(acked(senders))
        if not faults:
            assert (len(acked(senders)), len(conflicts(senders))) == (1, SENDERS - 1), f"seed {seed}"
    assert sent > SEEDS / 2, "hardly any send was acknowledged, so nothing was tried"


@pytest.mark.parametrize("while_", ["running", "ever"])
def test_a_sender_whose_clock_lags_is_not_forestalled(while_):
    """By one whose clock is ahead by ε: it waits that much longer, until the first can count no answer."""
    world, rule = World(1, faults=False), Rule("k", while_, None, replace=False)
    first, second = Sender(world, rule, b"1"), Sender(world, rule, b"2")
    first.skew_us, second.skew_us = -SPEC.skew_us // 2, SPEC.skew_us // 2
    while first.value is not True:  # the answer to its reservation
        first.step()
    first.step()
    world.now_us += SPEC.settle_us - 100_000
    while not second.wakes_us:
        second.step()
    while not first.over:
        first.step()
    while not second.over:
        world.now_us = max(world.now_us, second.wakes_us)
        second.step()
    assert acked([first, second]) == world.live()
    assert [place.id for place in conflicts([second])] == world.live()


@pytest.mark.parametrize("faults", [False, True])
def test_a_key_that_is_used_once_for_ever_is_handled_once(faults):
    """Also if the message is handled while its sender is between two writes, or dies there."""
    handled = 0
    for seed in range(SEEDS):
        world = World(seed, faults)
        senders = world.run(Rule("k", "ever", None, replace=False), handles=True)
        came = world.handled | set(world.live())
        assert len(came) <= 1, f"seed {seed}"
        assert set(acked(senders)) <= came, f"seed {seed}: lost"
        handled += len(came)
    assert handled > SEEDS / 2


@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("while_", ["running", "ever"])
def test_a_key_is_free_after_all_have_died(while_, faults):
    """The next sender, whom nothing befalls, sends or meets a message that is there."""
    for seed in range(SEEDS):
        world = World(seed, faults)
        rule = Rule("k", while_, None, replace=False)
        world.run(rule)
        world.faults = False
        last = Sender(world, rule, b"last")
        while not last.over:
            if last.wakes_us <= world.now_us:
                last.step()
            world.now_us += 1000
        assert len(world.live()) == 1, f"seed {seed}"
        (message,) = world.live()
        found = last.result.id if isinstance(last.result, Place) else last.result.rows[0].id
        assert found == message, f"seed {seed}"


@pytest.mark.parametrize("faults", [False, True])
def test_replacing_loses_nothing_that_was_acknowledged_last(faults):
    """One message stays where all is well. Else at least one stays if any was acknowledged."""
    for seed in range(SEEDS):
        world = World(seed, faults)
        senders = world.run(Rule("k", "running", None, replace=True))
        if acked(senders):
            assert world.live(), f"seed {seed}: lost"
        if not faults:
            assert len(world.live()) == 1, f"seed {seed}"
            assert set(world.live()) <= set(acked(senders))
    assert ids.time_us(world.live()[0]) >= NOON_US
