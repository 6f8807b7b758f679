"""Decide where a message goes: to a consumer, alone or with others, to the dead-letter queue, or nowhere."""

from __future__ import annotations

from enum import Enum

from cqueue.protocol.spec import QueueSpec
from cqueue.store.operations import SlotRow, SlotState

BODY_LOST = "its body is lost: no replica has it"
"""The reason in the dead letter of a message whose body is lost."""


class Disposition(Enum):
    """The four places that a message can go to."""

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
    """Return where a message goes, by the first line of this table that is true of it.

    | the message                               | goes                      | in a dead-letter queue  |
    |-------------------------------------------|---------------------------|-------------------------|
    | has outlived its own time to live         | nowhere: it is deleted    | the same                |
    | has a burial begun, which was cut off     | to the dead-letter queue  | (none begins)           |
    | was refused by its holder, as by `dead`   | to the dead-letter queue  | nowhere: it stays       |
    | has its body on no replica any more       | to the dead-letter queue  | to a consumer, empty    |
    | has no attempt left, and came back alone  | to the dead-letter queue  | (as many as it takes)   |
    | was let expire by its holder              | to a consumer, alone      | the same                |
    | is new, or was given back                 | to a consumer             | the same                |

    "Came back alone" means given back, or let expire with no other message in its slot. When a holder let
    several messages expire together, only one of them need have killed it, so each gets its last attempt
    alone.

    left: the slot that lists the message, as its last holder left it; None for a new or a held message.
    dying: the message's slot has a time of death.
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
    """Return where the messages of a due slot go."""
    return disposition(spec, left=slot, dying=slot.died_at_ms is not None)


def spent(attempts: int) -> str:
    """Return the reason in the dead letter of a message without an attempt left."""
    return f"not acked in {attempts} attempts"
