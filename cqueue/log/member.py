"""One member of a subscription: it says that it lives, and sees who else does.

Heartbeats go on while a listener works, so this runs on a thread of its own; it changes no position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import NamedTuple

from cqueue.drive.blocking import BlockingDriver
from cqueue.log.protocol.members import (
    BEAT_US,
    EXPIRY_US,
    MEMBER_TTL_S,
    is_alive,
    is_sure,
    member_info,
)
from cqueue.log.protocol.spec import LogSpec
from cqueue.store.subscriptions import (
    BeatMember,
    MemberRow,
    ReadSubscription,
    RemoveMember,
    SubscriptionKey,
    SubscriptionRows,
)


class View(NamedTuple):
    """What a look showed. number: which look it was; alive: the members that count."""

    number: int
    rows: SubscriptionRows
    alive: tuple[MemberRow, ...]
    next_us: int  # when somebody may be dead, at the latest when it is time to look again


class Member:
    """Heartbeats and looks of one member. Thread-safe.

    spells: how many times it could not be sure that others take it for alive, and then was again: what it
    held before such a moment it may have lost.
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
        self.view: View | None = None
        self.driver = driver
        self.key = key
        self.spec = spec
        self._info = member_info(partitions)
        self._mutex = Lock()
        self._beat_us = 0
        self._spells = 0
        self._number = 0

    def beat(self) -> None:
        """Say that it lives.

        Raises:
            NotDone, OutcomeUnknown: perhaps nobody knows.
        """
        now_us = self.driver.clock.now_us(checked=True)
        self.driver.ask(BeatMember(self.key, MemberRow(self.name, self._info, now_us), MEMBER_TTL_S))
        done_us = self.driver.clock.now_us()
        with self._mutex:
            # Others saw nothing new until now: whether there was a gap is measured to this moment.
            if not is_sure(self.spec(), self._beat_us, done_us):
                self._spells += 1
            self._beat_us = max(self._beat_us, now_us)

    @property
    def next_beat_us(self) -> int:
        """When it is time to say so again."""
        return self._beat_us + BEAT_US

    def spell(self) -> int | None:
        """The spell that lasts, or None if it cannot be sure at present."""
        now_us = self.driver.clock.now_us()
        with self._mutex:
            return self._spells if is_sure(self.spec(), self._beat_us, now_us) else None

    def look(self) -> View:
        """Read the subscription; also kept as `view`.

        Raises:
            NotDone: it cannot be read.
        """
        began_us, spec = self.driver.clock.now_us(), self.spec()
        rows: SubscriptionRows = self.driver.ask(ReadSubscription(self.key, now_us=began_us))
        alive = tuple(row for row in rows.members if is_alive(spec, row, began_us))
        over_us = [row.seen + EXPIRY_US + spec.skew_us + 1 for row in alive if row.member != self.name]
        self._number += 1
        self.view = View(self._number, rows, alive, min([began_us + BEAT_US, *over_us]))
        return self.view

    def pulse(self) -> float:
        """One heartbeat if it is time for it, and one look; seconds until the next.

        Raises:
            NotDone, OutcomeUnknown: to be tried again soon.
        """
        if self.driver.clock.now_us() >= self.next_beat_us:
            self.beat()
        view = self.look()
        return (min(self.next_beat_us, view.next_us) - self.driver.clock.now_us()) / 1e6

    def leave(self) -> None:
        """Say good-bye.

        Raises:
            NotDone, OutcomeUnknown: the row goes by itself, and nobody counts it after 3.5 s.
        """
        self.driver.ask(RemoveMember(self.key, self.name))
