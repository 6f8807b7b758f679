"""The public subscription to a log, and the member that this process runs in it."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

from cqueue import ids
from cqueue.errors import BadInput
from cqueue.log.catalog import LogCatalog
from cqueue.log.listeners import DEAD_SUFFIX, DeadLetters, Listener, ListenerCalls, RetryPolicy
from cqueue.log.log import Log
from cqueue.log.member import Member, Membership, look
from cqueue.log.member_loop import MemberLoop
from cqueue.log.member_options import MemberOptions
from cqueue.log.member_threads import MemberThreads
from cqueue.log.notifier import AppendHints, AppendNotifier
from cqueue.log.owned_partitions import OwnedPartitions
from cqueue.log.positions import EARLIEST, Start, check_on_expired, starts
from cqueue.log.protocol.lag import behind
from cqueue.log.protocol.progress import move
from cqueue.log.protocol.shards import ShardMap
from cqueue.log.protocol.spec import LogSpec
from cqueue.log.protocol.subscription_definition import (
    ACTIVE,
    PAUSED,
    Origin,
    begins_at,
    define,
    defined,
    definition_of,
    origin_of,
    set_state,
)
from cqueue.log.rebalancer import Rebalancer
from cqueue.log.records import LogId, check_partitions, check_topics
from cqueue.message import check_duration, check_queue_name
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.waiting import Event
from cqueue.store.decode import AHEAD_US
from cqueue.store.log_operations import ReadSubscription, SubscriptionKey

LONGEST_STOP: Final = timedelta(days=365)
"""Longest timeout of a stop, 365 days: far beyond use, and well within what the platform's waits accept."""
SPEC_FRESH_S: Final = 15.0
"""Seconds for which a log's configuration will do: a member learns of new partitions within that time, and an
idle subscription costs little."""


OnEvent = Callable[[str, int, LogId], None]
"""Called with "acquired", "checkpoint", "released" or "lost", the partition, and the position."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one partition is behind: the number of records not done yet, and the first one's age."""

    count: int
    seconds: float


def lags(
    driver: BlockingDriver, key: SubscriptionKey, spec: LogSpec, *, lenient: bool = False
) -> dict[int, Lag]:
    """Return how far each partition of a subscription is behind; none if there is no such subscription.

    A partition whose position cannot be read is left out. lenient: whether members do not mind what has
    expired: those begin earlier in partitions that nobody has taken yet.

    Raises:
        DamagedRow: the subscription's definition is damaged.
        NotDone: a read failed.
    """
    now_us = driver.clock.now_us()
    rows = driver.ask(ReadSubscription(key, now_us=now_us))
    known, definition = ShardMap(), definition_of(rows)
    if definition is None:
        return {}
    origin, found = origin_of(key, definition, now_us, driver.report), {}
    for partition in sorted(set(range(spec.partitions)) - rows.lost.keys()):
        position = begins_at(spec, origin, rows, partition, now_us, lenient=lenient)
        count, first_us = driver.run(behind(spec, partition, spec.going_on(position, now_us), known))
        found[partition] = Lag(count, 0.0 if first_us is None else max(0, now_us - first_us) / 1e6)
    return found


class ExistingSubscription:
    """A subscription to look at and to change, without making it or becoming a member. Thread-safe.

    To subscribe instead would bring back one that was deleted a moment before. Where there is none, `paused`
    and changes raise `LogNotFound`, and `positions`, `members`, `owners` and `lag` are empty.
    """

    _lenient = False  # whether its members do not mind what has expired, as far as is known here

    def __init__(self, catalog: LogCatalog, driver: BlockingDriver, log: str, name: str) -> None:
        self.log = log
        self.name = check_queue_name(name, "subscription")
        self._catalog = catalog
        self._driver = driver
        self._key = SubscriptionKey(self._spec().partition, name)

    def __repr__(self) -> str:
        return f"<subscription {self.name} of {self.log}>"

    def _spec(self) -> LogSpec:
        return self._catalog.entry(self.log, fresh_s=SPEC_FRESH_S).spec

    def _look(self) -> Membership:
        return look(self._driver, self._key, self._spec())

    def positions(self) -> dict[int, LogId]:
        """Return, for each partition that was read, the position up to which all records are done.

        The result is a `start` for other readers.
        """
        rows = self._look().rows.positions
        return {each: LogId.of(self._key.log, each, row.position) for each, row in sorted(rows.items())}

    def members(self) -> list[str]:
        """Return the names of the members that are alive, in any process."""
        return sorted(row.member for row in self._look().alive)

    def owners(self) -> dict[int, str]:
        """Return, for each partition that is being read, the member that reads it."""
        rows, alive = self._look()
        names = {row.member for row in alive}
        return {each: row.owner for each, row in sorted(rows.positions.items()) if row.owner in names}

    def lag(self) -> dict[int, Lag]:
        """Return how far each partition is behind. The call counts records, so it may take a while.

        A partition whose position cannot be read is left out.

        Raises:
            DamagedRow: the subscription's definition is damaged.
            NotDone: a read failed.
        """
        return lags(self._driver, self._key, self._spec(), lenient=self._lenient)

    @property
    def paused(self) -> bool:
        """Return whether the subscription is paused."""
        return self._driver.run(defined(self._key)).state == PAUSED

    # ── changes ──

    def pause(self) -> None:
        """Stop listener calls in all members until `resume`; members follow within 2 s. Positions stay."""
        self._driver.run(set_state(self._key, PAUSED))

    def resume(self) -> None:
        """Undo `pause`; members follow within 2 s."""
        self._driver.run(set_state(self._key, ACTIVE))

    def seek(self, start: Start, *, on_expired: str = "error") -> None:
        """Move positions back or forward: all of them, or with a mapping those of its partitions.

        Members finish the records that they are handling, and go on from the new positions within 2 s. A
        damaged position is replaced as well. Where a ttl was shorter for a while, a position before what has
        expired then becomes one behind it, unless the subscription was opened with `on_expired="earliest"`.

        Raises:
            BadInput, PositionExpired: `start` is refused, as by `Log.scan`.
            LogNotFound: the log, or the subscription, has been deleted.
            NotDone, OutcomeUnknown: some positions may be moved and others not; seeking again is safe.
        """
        spec = self._spec()
        partitions = sorted(start) if isinstance(start, Mapping) else list(range(spec.partitions))
        now_us = self._driver.clock.now_us()
        earliest = spec.beginning(now_us, lenient=self._lenient)  # others would refuse what is before it
        targets = starts(spec, start, partitions, now_us, on_expired, earliest=earliest)
        _check_not_ahead(targets.values(), now_us)
        self._driver.run(move(self._key, targets))


class Subscription(ExistingSubscription):
    """A named position in every partition of a log, shared by all members of that name; made by `subscribe`.

    This object is one member, once it is started. Its methods may be called from any thread.
    """

    def __init__(
        self,
        catalog: LogCatalog,
        driver: BlockingDriver,
        log: str,
        name: str,
        *,
        listeners: Sequence[Listener],
        partitions: Iterable[int] | None,
        topics: Iterable[str] | None,
        start: Start,
        on_expired: str,
        policy: RetryPolicy,
        options: MemberOptions,
        on_event: OnEvent | None,
        low_latency: bool,
        notifier: AppendNotifier,
        time_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(catalog, driver, log, name)
        spec, on_expired = self._spec(), check_on_expired(on_expired)
        self._lenient = on_expired == EARLIEST
        self._on_event = on_event
        if on_event is not None and not callable(on_event):
            raise BadInput(f"on_event is {on_event!r}; it takes a function")
        readable, topics = check_partitions(partitions, spec.partitions), check_topics(topics)
        dead = Log(check_queue_name(log + DEAD_SUFFIX), catalog, driver, notifier)
        delivery = ListenerCalls(
            listeners,
            policy,
            DeadLetters(catalog, dead, log, name).bury,
            about={"log": log, "subscription": name},
            driver=driver,
        )
        _origin(spec, start, driver.clock.now_us(), EARLIEST)  # a wrong start is refused in any case
        driver.run(define(self._key, lambda: _origin(spec, start, driver.clock.now_us(), on_expired)))
        me = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._member = Member(driver, self._key, me, self._spec, readable)
        self._owned = OwnedPartitions(self._member, self._tell, beyond_horizon=low_latency)
        wake = Event()
        hints = AppendHints(wake.set)
        self._loop = MemberLoop(
            self._owned,
            Rebalancer(self._member, self._owned, partitions=readable, on_expired=on_expired),
            delivery,
            topics=topics,
            options=options,
            hints=hints,
            time_s=time_s,
        )
        listening = notifier.listening(self._key.log, hints) if low_latency else nullcontext()
        self._threads = MemberThreads(name, self._member, self._loop, wake, listening=listening)

    @property
    def partitions(self) -> list[int]:
        """Return the partitions that this member reads at present."""
        return sorted(self._owned.backlogs.by_partition)

    # ── running ──

    def run(self) -> None:
        """Call listeners on this thread until `stop` is called from another one, or by a listener.

        Raises:
            PositionExpired: a position is forgotten, and `on_expired` is "error".
            LogNotFound: the log, or the subscription, has been deleted.
            Closed: the client has been closed; or the subscription, which runs only once.
        """
        self._threads.run()

    def start(self) -> None:
        """As `run`, on a thread of its own; `stop` raises what `run` would raise."""
        self._threads.start()

    def stop(self, timeout: timedelta | None = None) -> bool:
        """End after the listener call that is under way; return whether the member ended within `timeout`.

        The member writes its positions and releases its partitions, so that other members go on at once.
        A listener may call `stop`, which then does not wait.

        Raises:
            BadInput: `timeout` is not from 0 to 365 days; the member goes on.
            BaseException: what ended the member's own thread before.
        """
        within_s = None if timeout is None else check_duration("timeout", timeout, timedelta(), LONGEST_STOP)
        return self._threads.stop(within_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _tell(self, what: str, partition: int, position: int) -> None:
        if self._on_event is not None:
            self._on_event(what, partition, LogId.of(self._key.log, partition, position))


def _origin(spec: LogSpec, start: Start, now_us: int, on_expired: str) -> Origin:
    """Return where a new subscription begins."""
    partitions = list(start) if isinstance(start, Mapping) else [0]
    earliest = spec.beginning(now_us, lenient=on_expired == EARLIEST)
    found = starts(spec, start, partitions, now_us, on_expired, earliest=earliest)
    _check_not_ahead(found.values(), now_us)
    if isinstance(start, Mapping):
        own = {partition: found[partition] for partition, point in start.items() if point != EARLIEST}
        return Origin(spec.partitions, None, own)
    return Origin(spec.partitions, None if start == EARLIEST else found[0], {})


def _check_not_ahead(positions: Iterable[int], now_us: int) -> None:
    """Refuse positions in the future: all up to a position is done, so they would count as damaged."""
    if any(ids.time_us(position) > now_us + AHEAD_US for position in positions):
        raise BadInput(
            "a subscription's position cannot lie in the future; 'latest' is what comes from now on"
        )
