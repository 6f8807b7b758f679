"""What was claimed while it was being written: it is delivered once it is known to be stored."""

from __future__ import annotations

from contextlib import suppress

from cqueue.errors import LeaseLost, NotDone, OutcomeUnknown
from cqueue.protocol import ack
from cqueue.protocol.draft import Claim
from cqueue.protocol.news import Heard, Underway
from cqueue.protocol.spec import Lease, Proto, QueueSpec, Taken
from cqueue.store.operations import Now, Pause

PATIENCE_US = 5_000
"""An answer mostly comes before that of the claim, or a moment later."""
STEP_S = 0.0005
HELD_EARLY = 4
"""What is not stored after one part in so many of its visibility timeout is given back."""


class Early:
    """Messages that a consumer holds, and cannot deliver yet. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Taken, Underway]] = []

    @property
    def leases(self) -> set[Lease]:
        """What they are held by."""
        return {taken.lease for taken, _ in self._waiting}

    def put_by(self, claimed: Claim, heard: Heard) -> Proto[None]:
        """Put by, of a claim, what is not known to be stored; if that is all of it, wait for a moment.

        A claim that has given nothing is followed by a search, and mostly the answer is about to come.
        """
        unsure = [(one, heard.sending[one.row.id]) for one in claimed.taken if one.row.id in heard.sending]
        if len(unsure) == len(claimed.taken) and any(send.stored is None for _, send in unsure):
            until_us = (yield from Now()) + PATIENCE_US
            while all(send.stored is None for _, send in unsure) and (yield from Now()) < until_us:
                yield from Pause(STEP_S)
        put_by = [(one, send) for one, send in unsure if not send.has_stored(one.row.id)]
        if put_by:
            self._waiting += put_by
            rest = {one.row.id for one, _ in put_by}
            claimed.taken = [one for one in claimed.taken if one.row.id not in rest]

    def stored(self, spec: QueueSpec) -> Proto[Claim | None]:
        """What is known to be stored by now; what failed or takes too long is given back.

        It stays listed, and whoever takes it over looks whether it is there: it may be by then.
        """
        if not self._waiting:
            return None
        late_ms = (yield from Now()) // 1000 + spec.visibility_ms - spec.visibility_ms // HELD_EARLY
        waiting, self._waiting = self._waiting, []
        claim = Claim()
        over: list[Taken] = []
        for taken, send in waiting:
            lease = taken.lease
            if taken.row.id not in lease.outstanding:
                continue  # given back with the rest of its lease
            tried = list(lease.tried.values())  # its owner may be trying on another thread
            perhaps_given = any(taken.row.id in one.moving for one in tried)
            if perhaps_given or lease.due_ms < late_ms or send.failed(taken.row.id):
                over.append(taken)
            elif send.stored is None:
                self._waiting.append((taken, send))
            else:
                claim.taken.append(taken)
        yield from _give_back(over)
        return claim if claim.taken else None

    def give_back(self) -> Proto[None]:
        """Give all of them back."""
        waiting, self._waiting = self._waiting, []
        yield from _give_back([taken for taken, _ in waiting])


def _give_back(messages: list[Taken]) -> Proto[None]:
    by_lease: dict[Lease, list[int]] = {}
    for taken in messages:
        by_lease.setdefault(taken.lease, []).append(taken.row.id)
    for lease, ids_ in by_lease.items():
        with suppress(NotDone, OutcomeUnknown, LeaseLost):  # else its timeout gives it back
            yield from ack.nack(lease, ids_, 0, ack.Shared(), count=False)
