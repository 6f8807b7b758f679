"""What was claimed while it was being written: it is delivered once it is known to be stored."""

from __future__ import annotations

from contextlib import suppress

from cqueue.errors import LeaseLost, NotDone, OutcomeUnknown
from cqueue.protocol import ack
from cqueue.protocol.draft import Claim
from cqueue.protocol.news import Heard
from cqueue.protocol.spec import Lease, Proto, QueueSpec
from cqueue.store.operations import Now, Pause

PATIENCE_US = 2_000_000
STEP_S = 0.001


def only_stored(claimed: Claim, heard: Heard, spec: QueueSpec) -> Proto[None]:
    """Keep of a claim what is known to be stored, once that is known, and give back the rest.

    What is not acknowledged within W never is. Whoever takes over what was given back looks what is there;
    what lands later than that is found as any late message is.
    """
    unsure = heard.unsure(taken.row.id for taken in claimed.taken)
    until_us = (yield from Now()) + min(spec.settle_us, PATIENCE_US)
    while any(sending.stored is None for sending in unsure.values()) and (yield from Now()) < until_us:
        yield from Pause(STEP_S)
    given_back: dict[Lease, list[int]] = {}
    for taken in claimed.taken:
        sending = unsure.get(taken.row.id)
        if sending is not None and (sending.stored is None or sending.failed(taken.row.id)):
            given_back.setdefault(taken.lease, []).append(taken.row.id)
    if not given_back:
        return
    claimed.taken = [one for one in claimed.taken if one.row.id not in given_back.get(one.lease, ())]
    for lease, ids_ in given_back.items():
        with suppress(NotDone, OutcomeUnknown, LeaseLost):  # else its timeout gives it back
            yield from ack.nack(lease, ids_, 0, ack.Shared(), count=False)
