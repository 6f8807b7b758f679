"""Send a subscription member's heartbeats, and read which other members are alive.

Heartbeats must go on while a listener works, so they run on a thread of their own. This module changes no
position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import NamedTuple

from cqueue.log.protocol.members import (
    EXPIRY_US,
    HEARTBEAT_US,
    MEMBER_TTL_S,
    is_alive,
    is_surely_alive,
    member_info,
)
from cqueue.log.protocol.spec import LogSpec
from cqueue.runtime.driver import BlockingDriver
from cqueue.store.log_operations import (
    BeatMember,
    MemberRow,
    ReadSubscription,
    RemoveMember,
    SubscriptionKey,
    SubscriptionRows,
)


class Membership(NamedTuple):
    """A subscription as one read showed it. alive: the members alive then."""

    rows: SubscriptionRows
    alive: tuple[MemberRow, ...]


def look(driver: BlockingDriver, key: SubscriptionKey, spec: LogSpec) -> Membership:
    """Read a subscription.

    Raises:
        NotDone: the read failed.
    """
    now_us = driver.clock.now_us()
    rows: SubscriptionRows = driver.ask(ReadSubscription(key, now_us=now_us))
    return Membership(rows, tuple(row for row in rows.members if is_alive(spec, row, now_us)))


class Member:
    """The heartbeats of one member, and its reads of the subscription. Thread-safe.

    A *trust period* is a time in which all others certainly take this member for alive. Between two, another
    member may have taken over its partitions.
    """

    def __init__(
        self,
        driver: BlockingDriver,
        key: SubscriptionKey,
        name: str,
        spec: Callable[[], LogSpec],
        partitions: Iterable[int] | None,
    ) -> None:
        self.name = name
        self.membership: Membership | None = None
        self.driver = driver
        self.key = key
        self.spec = spec
        self._info = member_info(partitions)
        self._mutex = Lock()
        self._heartbeat_us = 0
        self._trust_periods = 0

    def heartbeat(self) -> None:
        """Write one heartbeat.

        Raises:
            NotDone, OutcomeUnknown: the heartbeat may be missing.
        """
        spec, now_us = self.spec(), self.driver.clock.now_us(checked=True)
        self.driver.ask(BeatMember(self.key, MemberRow(self.name, self._info, now_us), MEMBER_TTL_S))
        done_us = self.driver.clock.now_us()
        with self._mutex:
            # Others saw the last heartbeat until now, so a gap ends at this moment.
            if not is_surely_alive(spec, self._heartbeat_us, done_us):
                self._trust_periods += 1
            self._heartbeat_us = max(self._heartbeat_us, now_us)

    def trust_period(self) -> int | None:
        """Return the number of the current trust period; None if others may take this member for dead."""
        spec = self.spec()  # before the time: it may be read, which takes a while
        now_us = self.driver.clock.now_us()
        with self._mutex:
            return self._trust_periods if is_surely_alive(spec, self._heartbeat_us, now_us) else None

    def beat_and_read(self) -> float:
        """Write a heartbeat if one is due, and read the subscription; return seconds until the next call.

        What was read is kept as `membership`.

        Raises:
            NotDone, OutcomeUnknown: one of the two failed; try again soon.
        """
        if self.driver.clock.now_us() >= self._heartbeat_us + HEARTBEAT_US:
            self.heartbeat()
        began_us = self.driver.clock.now_us()
        self.membership = look(self.driver, self.key, self.spec())
        # A heartbeat interval after the last one or after the read, or when another member may have died.
        others = [row for row in self.membership.alive if row.member != self.name]
        over_us = [row.seen + EXPIRY_US + self.spec().skew_us + 1 for row in others]
        next_us = min([self._heartbeat_us + HEARTBEAT_US, began_us + HEARTBEAT_US, *over_us])
        return (next_us - self.driver.clock.now_us()) / 1e6

    def leave(self) -> None:
        """Remove this member's row, so that others take over its partitions at once.

        Raises:
            NotDone, OutcomeUnknown: the row may stay. It expires by itself, and nobody counts it after 3.5 s.
        """
        self.driver.ask(RemoveMember(self.key, self.name))
