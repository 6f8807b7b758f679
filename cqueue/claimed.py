"""What one claim gave: messages to deliver, with their bodies, and what is not to be delivered."""

from __future__ import annotations

from collections.abc import Sequence

from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol import bodies
from cqueue.protocol.disposition import BODY_LOST, Disposition, disposition, spent
from cqueue.protocol.draft import Claim
from cqueue.protocol.lease import Taken
from cqueue.protocol.spec import QueueSpec
from cqueue.received import ReceivedMessage
from cqueue.settler import Settler


class ClaimedBatch:
    """The messages of one claim on their way to who receives them."""

    def __init__(self, claimed: Claim, spec: QueueSpec, driver: BlockingDriver, settler: Settler) -> None:
        self._claimed = claimed
        self._spec = spec
        self._driver = driver
        self._settler = settler

    def accept(self) -> list[ReceivedMessage]:
        """Load large bodies; settle what is not to be delivered."""
        claimed, settler = self._claimed, self._settler
        settler.hold([*claimed.taken, *claimed.dead, *claimed.expired])
        settler.drop(claimed.expired)
        self._bury_spent(claimed.dead)
        if None not in [taken.row.body for taken in claimed.taken]:
            return [ReceivedMessage(settler, taken, taken.row.body or b"") for taken in claimed.taken]
        try:
            return self._with_bodies(claimed.taken)
        except (NotDone, OutcomeUnknown):
            settler.release({taken.lease for taken in claimed.taken})
            raise

    def _bury_spent(self, dead: Sequence[Taken]) -> None:
        """Dead-letter what has no attempt left.

        Where that fails for a large message, for want of a replica say, it would for the next one, and what
        was claimed beside them would wait for each.
        """
        failed: set[bool] = set()
        for taken in dead:
            is_large = taken.row.size is not None
            if is_large in failed:
                continue
            if not self._settler.bury(taken, self._spec, spent(taken.lease.attempt)):
                failed.add(is_large)

    def _with_bodies(self, taken: Sequence[Taken]) -> list[ReceivedMessage]:
        """Messages with their bodies; one that somebody has acked meanwhile is left out."""
        found: dict[int, bytes] = {}
        # All of a claim are of one wide row.
        for read in bodies.reads((one.lease.wide_row, one.row) for one in taken):
            found = self._driver.ask(read)
        messages: list[ReceivedMessage] = []
        missing: list[Taken] = []
        for one in taken:
            body = found.get(one.row.id) if one.row.body is None else one.row.body
            if body is None:
                missing.append(one)
            else:
                messages.append(ReceivedMessage(self._settler, one, body))
        return messages + (self._found(missing) if missing else [])

    def _found(self, missing: Sequence[Taken]) -> list[ReceivedMessage]:
        """Messages whose bodies a quorum does not have, with those of other replicas; if none has them, dead.

        A dead letter cannot die; it is received without its body. What cannot be looked for now is put off,
        and uses no attempt: nobody has seen it.
        """
        spec, settler = self._spec, self._settler
        try:
            everywhere = self._driver.run(bodies.look_everywhere(missing))
        except (NotDone, OutcomeUnknown):
            settler.put_off(missing, spec.visibility_ms)
            return []
        found: list[ReceivedMessage] = []
        for one in missing:
            if one.row.id not in everywhere:
                continue  # acked meanwhile
            body = everywhere[one.row.id]
            bare = Taken(bodies.without_body(one.row), one.lease)
            if body is not None:
                found.append(ReceivedMessage(settler, one, body))
            elif disposition(spec, body_lost=True) is Disposition.BURY:
                settler.bury(bare, spec, BODY_LOST)
            else:
                found.append(ReceivedMessage(settler, bare, b""))
        return found
