"""Where a message goes: each line of the table in `disposition`."""

import pytest

from cqueue.protocol.policy import Disposition, disposition, disposition_of
from cqueue.store.operations import SlotRow, SlotState
from tests.simulation.hand import Table

QUEUE = Table(max_attempts=3).spec
FOR_EVER = Table(max_attempts=0).spec
LETTERS = Table(name="q.dead", max_attempts=0).spec


def left(state: SlotState, attempt: int, *, messages: int = 1, died_at_ms: int | None = None) -> SlotRow:
    """A slot as its last holder left it."""
    return SlotRow(0, 0, state, tuple(range(messages)), 1000, attempt, b"them", 1, died_at_ms)


@pytest.mark.parametrize(
    ("fact", "goes", "goes_as_letter"),
    [
        ("expired", Disposition.DELETE, Disposition.DELETE),
        ("dying", Disposition.BURY, Disposition.BURY),
        ("refused", Disposition.BURY, Disposition.DELIVER),
        ("body_lost", Disposition.BURY, Disposition.DELIVER),
    ],
)
def test_what_is_known_of_a_message_decides(fact, goes, goes_as_letter):
    """A dead letter cannot die again; whatever else is true of it, what has expired is deleted."""
    assert disposition(QUEUE, **{fact: True}) is goes
    assert disposition(LETTERS, **{fact: True}) is goes_as_letter
    assert disposition(QUEUE, left=left(SlotState.WAITING, 1), **{fact: True}) is goes
    assert disposition(QUEUE, **{fact: True, "expired": True}) is Disposition.DELETE


@pytest.mark.parametrize(
    ("slot", "goes"),
    [
        (left(SlotState.WAITING, 2), Disposition.DELIVER),
        (left(SlotState.WAITING, 3), Disposition.BURY),
        (left(SlotState.WAITING, 3, messages=2), Disposition.BURY),  # nacked: their holder lives
        (left(SlotState.CLAIMED, 2), Disposition.ALONE),
        (left(SlotState.CLAIMED, 2, messages=2), Disposition.ALONE),
        (left(SlotState.CLAIMED, 3), Disposition.BURY),
        (left(SlotState.CLAIMED, 3, messages=2), Disposition.ALONE),  # one of them need have killed it
        (left(SlotState.CLAIMED, 1, messages=2, died_at_ms=900), Disposition.BURY),
    ],
)
def test_attempts_and_how_they_ended_decide_what_is_taken_over(slot, goes):
    """What expired together gets its last attempt one by one; what was given back is taken as it was."""
    assert disposition_of(slot, QUEUE) is goes


@pytest.mark.parametrize("spec", [FOR_EVER, LETTERS])
def test_without_a_limit_attempts_never_end(spec):
    """Neither in a queue without one, nor in a dead-letter queue."""
    assert disposition_of(left(SlotState.WAITING, 1_000_000), spec) is Disposition.DELIVER
    assert disposition_of(left(SlotState.CLAIMED, 1_000_000), spec) is Disposition.ALONE


def test_a_new_message_is_delivered():
    """Nothing is known of it."""
    assert disposition(QUEUE) is disposition(LETTERS) is Disposition.DELIVER
