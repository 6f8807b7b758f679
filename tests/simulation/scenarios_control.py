"""Scenarios of changes by id. See `scenarios`."""

from __future__ import annotations

from cqueue.errors import MessageHeld
from cqueue.protocol import by_id
from cqueue.store.operations import Mutate, SlotState
from tests.simulation.hand import NOON_US, SECOND_US, SKEW_US, Hook, Table, ids_of


def _when_claimed(table: Table, script: object) -> Hook:
    """Run a change between the reads of a claim and its mutation."""
    scripts = [script]

    def hook(operation: object) -> None:
        if type(operation) is Mutate and operation.slots and scripts:
            table.run(scripts.pop())

    return hook


def _claimed_before(table: Table) -> None:
    """A wide row in which somebody has claimed, so that it has a fence."""
    table.put(NOON_US)
    table.pass_time(1000)
    table.claim()


def cancel_outruns_a_claim() -> None:
    """A claim that has read a message gives nothing once a cancel was answered."""
    table = Table()
    _claimed_before(table)
    (id_,) = table.put(table.time_us)
    table.pass_time(1000)
    cancel = by_id.cancel(table.spec, table.row, 0, [id_])
    assert ids_of(table.claim(hook=_when_claimed(table, cancel))) == []


def reschedule_outruns_a_claim() -> None:
    """A claim that has read a message gives nothing once a reschedule was answered; its time comes later."""
    table = Table()
    _claimed_before(table)
    (id_,) = table.put(table.time_us)
    table.pass_time(1000)
    due_ms = (table.time_us + 20 * SECOND_US) // 1000
    reschedule = by_id.reschedule(table.spec, table.row, 0, [id_], due_ms)
    assert ids_of(table.claim(hook=_when_claimed(table, reschedule))) == []
    table.pass_time(21 * SECOND_US)  # its time is rounded up
    assert ids_of(table.claim()) == [id_]


def what_is_held_is_not_moved() -> None:
    """A holder keeps its message, and nobody else gets it, though it was rescheduled."""
    table = Table()
    (id_,) = table.put(NOON_US)
    table.pass_time(1000)
    table.claim()
    now_ms = table.time_us // 1000
    changed = table.run(by_id.reschedule(table.spec, table.row, 0, [id_], now_ms))
    table.pass_time(1000)
    assert ids_of(table.claim()) == []
    assert type(changed.failed[id_]) is MessageHeld


def extension_minds_the_revision() -> None:
    """An extension that comes after a takeover extends the new holder, and does not undo the takeover."""
    table = Table()
    (id_,) = table.put(NOON_US)
    table.pass_time(1000)
    table.claim()
    takeovers = []

    def take_over(operation: object) -> None:
        if type(operation) is Mutate and not takeovers:
            table.pass_time(30 * SECOND_US + SKEW_US)
            takeovers.append(table.claim())

    table.run(by_id.extend(table.spec, table.row, 0, [id_], 60_000), take_over)
    assert ids_of(takeovers[0]) == [id_]
    (slot,) = (slot for slot in table.head().slots if slot.state is SlotState.CLAIMED)
    assert slot.owner == takeovers[0].taken[0].lease.slot.owner
