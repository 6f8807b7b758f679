"""One bootstrap at a time: a row of `schema_lock`, held under a lease that expires with its holder.

The row has a TTL, so the cluster's clock ends a crashed holder's lease, and no client's clock matters.
Statements that change a schema cannot depend on the lock: a holder that is stopped for longer than its lease,
and goes on later, works beside its successor. So the holder checks its lease before each statement, and every
statement is harmless when repeated.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from cassandra import ConsistencyLevel
from cassandra.cluster import Session

from cqueue.errors import CqueueError, OutcomeUnknown, OwnershipLost, Unavailable
from cqueue.schema.execute import run
from cqueue.schema.statements import ACQUIRE_LOCK, READ_LOCK, RELEASE_LOCK, RENEW_LOCK

LEASE_S: Final = 30
"""Seconds after which a holder that does not renew has lost the lock. Renewals come three times a lease."""
WAIT_S: Final = 300.0
"""Seconds to wait for another holder: ten leases."""
_POLL_S: Final = 1.0
"""Seconds between two attempts to take the lock."""

Report = Callable[[str], None]


@dataclass(slots=True)
class SchemaLock:
    """The lock of one keyspace, for one process; used through `held`.

    Attributes:
        session: from `open_session`.
        keyspace: keyspace with the table `schema_lock`.
        lease_s: seconds after which the cluster forgets a holder that does not renew.
        wait_s: seconds to wait for another holder.
    """

    session: Session
    keyspace: str
    lease_s: int = LEASE_S
    wait_s: float = WAIT_S
    _owner: str = field(default_factory=lambda: secrets.token_hex(16))
    _since: datetime = field(default_factory=lambda: datetime.now(UTC))
    _renewed: float = 0.0  # when the last successful renewal was *sent*, monotonic
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def held(self, report: Report) -> Iterator[SchemaLock]:
        """Wait for the lock, keep it renewed during the block, and release it.

        Raises:
            Unavailable: another process held the lock for all of `wait_s`.
        """
        self._acquire(report)
        thread = threading.Thread(target=self._renew_until_stopped, name="cqueue-schema-lock", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()
            self._release()

    def check(self) -> None:
        """Check that the lease has not run out.

        Raises:
            OwnershipLost: the lease may have run out.
        """
        if time.monotonic() - self._renewed >= self.lease_s:
            raise OwnershipLost(
                "The lock of the schema was lost: this process could not renew it in time. What was applied "
                "is recorded; repeat the command to do the rest."
            )

    def _acquire(self, report: Report) -> None:
        deadline = time.monotonic() + self.wait_s
        told = ""
        while not self._try_acquire():
            text = f"Another `cqueue schema apply` is at work ({self._holder()}); waiting for it."
            if text != told:
                report(told := text)
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"{text} Gave up after {self.wait_s:.0f} s; a lease lasts {self.lease_s} s."
                )
            time.sleep(_POLL_S)

    def _try_acquire(self) -> bool:
        sent = time.monotonic()
        cql = ACQUIRE_LOCK.format(keyspace=self.keyspace, lease_s=self.lease_s)
        try:
            applied = _applied(run(self.session, cql, (self._owner, _me())))
        except OutcomeUnknown:
            applied = False
        # A mutation whose answer was lost may have been applied; a read of the owner tells.
        if not applied and not self._owns():
            return False
        self._renewed = sent
        return True

    def _owns(self) -> bool:
        row = self._row()
        return row is not None and row.owner == self._owner

    def _row(self) -> Any:
        rows = run(self.session, READ_LOCK.format(keyspace=self.keyspace), read_at=ConsistencyLevel.SERIAL)
        return rows[0] if rows else None

    def _holder(self) -> str:
        row = self._row()
        if row is None or row.holder is None:
            return "just finished"
        return f"{row.holder}, since {row.since:%H:%M:%S} UTC"

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(self.lease_s / 3):
            sent = time.monotonic()
            cql = RENEW_LOCK.format(keyspace=self.keyspace, lease_s=self.lease_s)
            try:
                if not _applied(run(self.session, cql, (self._owner, _me(), self._since, self._owner))):
                    self._renewed = float("-inf")
                    return
            except CqueueError:
                continue  # the next attempt is in time, or `check` notices
            self._renewed = sent

    def _release(self) -> None:
        try:
            run(self.session, RELEASE_LOCK.format(keyspace=self.keyspace), (self._owner,))
        except CqueueError:
            return  # its TTL releases it


def _applied(rows: list[Any]) -> bool:
    return bool(rows[0][0])


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
