"""Turn the results of claims into messages to deliver: load large bodies, bury or drop the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol import bodies
from cqueue.protocol.claim_draft import Claim
from cqueue.protocol.disposition import BODY_LOST, Disposition, disposition, spent
from cqueue.protocol.lease import Taken
from cqueue.protocol.spec import QueueSpec
from cqueue.received import ReceivedMessage
from cqueue.receiving.settler import Settler
from cqueue.runtime import logs
from cqueue.runtime.driver import BlockingDriver

LOGGER: Final = "cqueue.consumer"
REPEAT_S: Final = 30.0
"""Seconds after which claims that are still answered too late are logged again."""


class ClaimedMessages:
    """The messages of one consumer's claims, on their way to the consumer."""

    def __init__(self, driver: BlockingDriver, settler: Settler) -> None:
        self._driver = driver
        self._settler = settler
        self._told_s = float("-inf")  # when it was logged that claims are answered too late
        self._untold = 0  # messages of late claims since then

    def accept(self, claimed: Claim, spec: QueueSpec) -> list[ReceivedMessage]:
        """Return the messages to deliver, with their bodies. Delete expired ones, and bury spent ones."""
        settler = self._settler
        settler.hold([*claimed.taken, *claimed.dead, *claimed.expired])
        settler.drop(claimed.expired)
        self._bury_spent(claimed.dead, spec)
        some = self._still_held(claimed.taken)
        if None not in [taken.row.body for taken in some]:
            messages = [ReceivedMessage(settler, taken, taken.row.body or b"") for taken in some]
        else:
            try:
                messages = self._with_bodies(some, spec)
            except (NotDone, OutcomeUnknown):
                settler.release({taken.lease for taken in some})
                raise
        if self._driver.meter is not None:
            self._driver.meter.count("claimed", settler.name, len(messages))
        return messages

    def _still_held(self, taken: Sequence[Taken]) -> Sequence[Taken]:
        """Return the messages without those whose visibility timeout is over already; give these back.

        Cassandra may answer late. Another consumer could claim them while a handler begins with them here.
        """
        now_ms = self._driver.clock.now_us() // 1000
        late = {lease for lease in {one.lease for one in taken} if lease.due_ms <= now_ms}
        if not late:
            return taken
        held = [one for one in taken if one.lease not in late]
        self._tell_late(len(taken) - len(held))
        self._settler.release(late)
        return held

    def _tell_late(self, messages: int) -> None:
        """Log that claims are answered too late: at once, and again after a while.

        Where all claims are, the queue delivers nothing, and no other line says why.
        """
        self._untold += messages
        now_s = time.monotonic()
        if now_s - self._told_s >= REPEAT_S:
            logs.logger(LOGGER).warning("claim_too_late", queue=self._settler.name, messages=self._untold)
            self._told_s, self._untold = now_s, 0

    def _bury_spent(self, dead: Sequence[Taken], spec: QueueSpec) -> None:
        """Bury messages that have no attempt left.

        After one failure, messages of the same kind (small, or with a separate body) are not tried: they
        would fail as well, for lack of a replica say, and the messages claimed beside them would wait each
        time.
        """
        failed: set[bool] = set()
        for taken in dead:
            is_large = taken.row.size is not None
            if is_large in failed:
                continue
            if not self._settler.bury(taken, spec, spent(taken.lease.attempt)):
                failed.add(is_large)

    def _with_bodies(self, taken: Sequence[Taken], spec: QueueSpec) -> list[ReceivedMessage]:
        """Return messages with their bodies, without those that were acked meanwhile."""
        found: dict[int, bytes] = {}
        # All messages of a claim stand in one wide row.
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
        return messages + (self._found(missing, spec) if missing else [])

    def _found(self, missing: Sequence[Taken], spec: QueueSpec) -> list[ReceivedMessage]:
        """Ask all replicas for bodies that a quorum does not have. Bury messages whose body is lost.

        A dead letter cannot be buried again, so it is received without its body. While a replica does not
        answer, the messages are snoozed: no consumer has seen them, so no attempt is used.
        """
        settler = self._settler
        try:
            everywhere = self._driver.run(bodies.look_everywhere(missing))
        except (NotDone, OutcomeUnknown):
            settler.snooze_unread(missing, spec.visibility_ms)
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
