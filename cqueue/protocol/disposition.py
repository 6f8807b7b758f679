"""Where a message goes: to a consumer, alone or with others, to the dead-letter queue, or nowhere."""

from __future__ import annotations

from enum import Enum

from cqueue.protocol.spec import QueueSpec
from cqueue.store.operations import SlotRow, SlotState

BODY_LOST = "its body is lost: no replica has it"


class Disposition(Enum):
    """Where a message goes."""

    DELIVER = "deliver"
    ALONE = "deliver alone"  # a suspect: a process holds one at a time
    BURY = "dead-letter"
    DELETE = "delete"


def disposition(
    spec: QueueSpec,
    *,
    left: SlotRow | None = None,
    expired: bool = False,
    dying: bool = False,
    body_lost: bool = False,
    refused: bool = False,
) -> Disposition:
    """Where a message goes, by the first line of this table that is true of it.

    | the message                               | goes                      | in a dead-letter queue  |
    |-------------------------------------------|---------------------------|-------------------------|
    | has outlived its own time to live         | nowhere: it is deleted    | the same                |
    | has a burial begun, which was cut off     | to the dead-letter queue  | (none begins)           |
    | was refused by its holder, as by `dead`   | to the dead-letter queue  | nowhere: it stays       |
    | has its body on no replica any more       | to the dead-letter queue  | to a consumer, empty    |
    | has no attempt left, and came back alone  | to the dead-letter queue  | (as many as it takes)   |
    | was let expire by its holder              | to a consumer, alone      | the same                |
    | is new, or was given back                 | to a consumer             | the same                |

    "Came back alone": given back, or let expire with no other in its slot. Of those that one holder let
    expire together only one need have killed it, so each gets its last attempt alone.

    left: the slot that lists it, as its last holder left it; None for a new message, or one that is held.
    dying: its slot has its time of death.
    """
    if expired:
        return Disposition.DELETE
    if dying:
        return Disposition.BURY
    if refused or body_lost:
        return Disposition.DELIVER if spec.is_dead_letter else Disposition.BURY
    if left is None:
        return Disposition.DELIVER
    was_let_expire = left.state is SlotState.CLAIMED
    if spec.max_attempts and left.attempt >= spec.max_attempts:
        return Disposition.ALONE if was_let_expire and len(left.ids) > 1 else Disposition.BURY
    return Disposition.ALONE if was_let_expire else Disposition.DELIVER


def of_slot(slot: SlotRow, spec: QueueSpec) -> Disposition:
    """Where the messages of a slot go that is due."""
    return disposition(spec, left=slot, dying=slot.died_at_ms is not None)


def spent(attempts: int) -> str:
    """The reason in the letter of a message that has no attempt left."""
    return f"not acked in {attempts} attempts"
