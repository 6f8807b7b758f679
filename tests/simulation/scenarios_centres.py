"""Scenarios of two data centres: what the old home acknowledged and had not copied comes back by repair.

Each has a store of its own. The new home works with what it has; then the plain writes of the old one arrive
there, under their own timestamps, as a repair brings them. (Lock, cursors and slots that come back are not
modelled: of each row the later one stands, which is the new home's wherever that has written it.)
"""

from __future__ import annotations

from dataclasses import replace

from cqueue.protocol import ack, registry
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.poll import Poll
from cqueue.store.operations import InsertMessages, ReadQueue, RegisterShard, UnregisterShard, WideRow
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, SKEW_US, Table, ids_of, message

LONG_US = 3 * 3600 * SECOND_US


class TwoCentres:
    """The old home, which is gone with what it has, and the new one after a switch."""

    def __init__(self) -> None:
        self.old, self.new = Table(), Table(retiring=False)

    def send_to_old(self, at_us: int) -> tuple[WideRow, int]:
        """A send that only the old home has acknowledged and has: its wide row, and its id."""
        old = self.old
        row, id_ = registry.normal_row(old.spec, at_us, 0), old.id_at(at_us)
        for registration in registry.registration(old.spec, row, 0):
            old.run(iter(registration))
        old.run(iter(InsertMessages(row, (message(id_),))))
        return row, id_

    def pass_time(self, us: int) -> None:
        """Let time go by, for both."""
        self.old.pass_time(us)
        self.new.pass_time(us)

    def repair(self) -> None:
        """The new home gets what the old one has."""
        for operation in self.old.log:
            if type(operation) in {InsertMessages, RegisterShard}:
                self.new.store.execute(operation)

    def resume(self) -> None:
        """The operator says that it was repaired, and all clients know."""
        self.new.spec = replace(self.new.spec, retiring=True)


def nothing_is_retired_after_a_switch() -> None:
    """A message of the old home is delivered, though its wide row was over and empty in the new one.

    It stands below the cursor there, so that the pass before retirement is what finds it.
    """
    two = TwoCentres()
    new = two.new
    row, sent = two.send_to_old(NOON_US + SECOND_US)
    new.put(NOON_US + 2 * SECOND_US, row=row)
    two.pass_time(3 * SECOND_US)
    view = new.view(row)
    view.finished = new.run(ack.ack(new.poll(view).taken))
    two.pass_time(new.end_us - NOON_US + SETTLE_US + SKEW_US)
    for _ in range(3):
        new.poll(view)
    assert new.cursor().cursor > sent
    two.repair()
    assert ids_of(new.poll(view)) == []
    two.resume()
    assert ids_of(new.poll(new.view(row))) == [sent]


def no_epoch_is_given_up_after_a_switch() -> None:
    """A message is found whose epoch was closed and empty in the new home, by who connects later."""
    two = TwoCentres()
    new = two.new
    poll = new.rounds()
    epoch = registry.epoch_of(new.spec, new.row)
    new.store.execute(UnregisterShard(new.spec.partition, epoch, new.row.time_shard, 0))  # nothing is there
    _, sent = two.send_to_old(NOON_US + 60 * SECOND_US)
    two.pass_time(LONG_US)
    assert new.receive(poll) == []
    two.repair()
    two.resume()
    stored = new.store.execute(ReadQueue(new.spec.name))
    assert new.receive(Poll(stored, new.spec, SuspectGate())) == [sent]


def epochs_are_read_again_when_retiring_resumes() -> None:
    """A message is found whose epoch a consumer had read, for good, before its registration came back."""
    two = TwoCentres()
    new = two.new
    poll = new.rounds()
    _, sent = two.send_to_old(NOON_US + 60 * SECOND_US)
    two.pass_time(LONG_US)
    assert new.receive(poll) == []
    two.repair()
    two.resume()
    stored = new.store.execute(ReadQueue(new.spec.name))
    if not poll.is_of(stored, new.spec):
        poll = Poll(stored, new.spec, SuspectGate())
    two.pass_time(SECOND_US)
    assert new.receive(poll) == [sent]
