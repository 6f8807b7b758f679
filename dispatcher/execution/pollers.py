"""Which queue is polled next, and by which of its consumers.

A poller is one consumer of one queue. The fetcher threads share all pollers: each thread takes the poller
that is longest due and has room. The pause after an empty poll doubles each time, so a thousand idle queues
cost a few polls a second; a send in this process makes its queue due at once. If an idle queue has several
pollers, one polls, and the others rest until the queue has more work than one can fetch.

To choose, a thread looks at the pollers that are due or polled, and at no others: there may be 20,000. While
handlers are busy, all of them may be due and have no room; each is asked once, until something has changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from cqueue.protocol.poll import OTHERS_EVERY_US, Share
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.queue import Queue
from cqueue.receiving.interface import Consuming, Found
from cqueue.runtime.waiting import Condition
from cqueue.store.operations import WideRow

if TYPE_CHECKING:
    from cqueue.dispatcher.execution.options import Options

FAILED_S: Final = 0.2
"""Seconds before the poll after a failed one; doubled with each further failure up to LONGEST_FAILED_S."""
LONGEST_FAILED_S: Final = 5.0
"""Longest pause after failed polls, in seconds: the queue recovers soon after Cassandra does."""
QUIET_S: Final = 0.3
"""Seconds of empty polls after which nothing is due: longer than any lock is kept between two claims."""
HANGS_S: Final = 0.5
"""Seconds after which a poll under way is no longer counted on to bring messages."""
RECHECK_S: Final = 0.1
"""Seconds between two checks for room while pollers have none: handlers may have become quicker."""
RECHECK_EACH_S: Final = 50e-6
"""Seconds between two checks for each poller that is asked, some 20 times what that takes."""
LONGEST_RECHECK_S: Final = 1.0
"""Seconds between two checks, at most."""
RESTS_S: Final = 30.0
"""Seconds after which a resting poller polls anyway, in case the one that polls for it hangs."""
BUSY_S: Final = 0.1
"""Seconds without room after which a queue with new messages passes its hints on to other processes."""
NOTHING: Final = Found()
"""How a poll ended that found no messages."""


@runtime_checkable
class Source(Protocol):
    """Makes consumers of a queue: a `cqueue.Queue`, or a recorder of one."""

    def consumer(self, *args: Any, **options: Any) -> Consuming:
        """Return a new consumer."""
        ...


def queue_of(source: Source) -> Queue:
    """Return the queue itself, without the recorder around it."""
    queue: Any = source
    own: Queue = getattr(queue, "queue", queue)
    return own


@dataclass(slots=True)
class PollState:
    """When a poller is polled; written by its poll schedule. Times are monotonic seconds.

    Attributes:
        due_s: when the next poll is due; infinite while a poll is under way.
        turn: the number of the schedule's entry for that; older entries of the poller do not count.
        began_s: start of the poll under way; None if there is none.
        want: messages that the poll asks for.
        woken: a message was sent to the queue since the poll began.
        is_helped: the poll hangs, and resting pollers were woken for it.
        pause_s: pause before the next poll, while polls find nothing.
        failures: failed polls since the last success.
        empty_since_s: start of the first empty poll in a row; None after a poll that found something.
        empty_until_s: start of the last empty poll.
        rests: the poller leaves polling to the first poller of its queue.
    """

    due_s: float = math.inf
    turn: int = 0
    began_s: float | None = None
    want: int = 0
    woken: bool = False
    is_helped: bool = False
    pause_s: float = 0.0
    failures: int = 0
    empty_since_s: float | None = None
    empty_until_s: float = 0.0
    rests: bool = False

    @property
    def empty_for_s(self) -> float:
        """Seconds for which polls have found nothing; 0 after one that found something, or one alone."""
        return 0.0 if self.empty_since_s is None else self.empty_until_s - self.empty_since_s

    def is_quiet(self, since_s: float, quiet_s: float) -> bool:
        """Return whether polls since `since_s` have found nothing for `quiet_s`."""
        if self.empty_since_s is None:
            return False
        return self.empty_until_s - max(self.empty_since_s, since_s) >= quiet_s

    def hangs(self, now_s: float) -> bool:
        """Return whether a poll is under way that takes much longer than polls do."""
        return self.began_s is not None and now_s - self.began_s >= HANGS_S

    def coming(self, now_s: float) -> int:
        """Return how many messages the poll under way is likely to find."""
        is_likely = self.began_s is not None and not self.hangs(now_s)
        return self.want if is_likely and self.empty_since_s is None and not self.failures else 0


class Poller:
    """One consumer of one queue, polled by one thread at a time.

    Args:
        source: the queue.
        poll_schedule: told when a message is sent to the queue.
        options: of the dispatcher.
        number, of: which of the queue's pollers this is, and how many there are. Each polls wide rows of its
            own first, because two claims on one wide row at the same time cost both. Number 0 polls for those
            that rest.
    """

    def __init__(
        self, source: Source, poll_schedule: PollSchedule, options: Options, *, number: int = 0, of: int = 1
    ) -> None:
        self.queue = queue_of(source)
        self.name = self.queue.name
        self._poll_schedule = poll_schedule
        self.consumer: Consuming = source.consumer(
            poll_interval=options.poll_interval,
            max_poll_interval=max(options.poll_interval, timedelta(seconds=1)),
            wake=self.wake,
        )
        self.driver = self.consumer.driver
        self.sender = self.consumer.settles_with  # acks with the same sender go together
        self.state = PollState()
        self.kinds: set[bool] = set()  # kinds of its handlers: whether they are coroutine functions
        self.visibility_s = 30.0
        self.max_attempts = 0
        self.keeps_history = False
        self.left_until_ms = 0  # cluster time until which the consumer may hold what it could not deliver
        self.number, self.of = number, of
        self.divide(None)

    def wake(self) -> None:
        """Have the queue polled soon, because a message was sent to it or may be claimed now."""
        self._poll_schedule.wake(self)

    def divide(self, share: Share | None) -> None:
        """Poll first this poller's part of the wide rows in the process's share; None: of all wide rows."""
        number, of = self.number, self.of

        def part(wide_row: WideRow) -> bool:
            whose = wide_row.shard % of
            is_ours = whose == number or (number == 0 and whose in self._resting())
            return is_ours and (share is None or share(wide_row))

        self.share = share if of == 1 else part
        # By then, empty polls have looked at all wide rows.
        self.quiet_s = QUIET_S if share is None else QUIET_S + OTHERS_EVERY_US / 1e6
        self._poll_schedule.busy_s = self._poll_schedule.clock()  # polls of another share prove nothing

    def _resting(self) -> set[int]:
        """Return the numbers of the queue's pollers that rest."""
        return {poller.number for poller in self._poll_schedule.siblings(self) if poller.state.rests}

    def learn(self) -> None:
        """Read the queue's configuration, which may have been altered."""
        config = self.queue.config
        self.visibility_s = config.visibility_ms / 1000
        self.max_attempts = 0 if self.is_dead_letter else config.max_attempts
        self.keeps_history = config.history is not None

    @property
    def is_dead_letter(self) -> bool:
        """Whether the queue holds dead letters, which cannot die again."""
        return self.name.endswith(DEAD_SUFFIX)

    @property
    def holds_undelivered(self) -> bool:
        """Whether a claim may hold messages until its timeout, as Cassandra has not said that it worked."""
        return self.left_until_ms > 0 and self.now_ms() <= self.left_until_ms

    def now_ms(self) -> int:
        """Return the cluster's time, in ms since 1970."""
        return round(self.queue.now.timestamp() * 1000)


class PollSchedule:
    """All pollers, and which of them polls next. Thread-safe.

    Args:
        room: return how many messages a poller may receive, given how many other polls are likely to bring.
        shortest_s, longest_s: pause after the first empty poll, and the longest pause.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        room: Callable[[Poller, int], int],
        shortest_s: float,
        longest_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._room = room
        self._shortest_s, self._longest_s = shortest_s, longest_s
        self.clock = clock
        self._changed = Condition()
        self.pollers: list[Poller] = []
        self._later: list[tuple[float, int, Poller]] = []  # a heap of (due_s, turn, poller)
        self._turns = count(1)
        self._due: list[Poller] = []  # the pollers that are due, the longest due first
        self._asked = 0  # those before this index have no room
        self._recheck_s = 0.0  # when they are asked again, if nothing else has them asked before
        self._polled: set[Poller] = set()  # whose poll is under way
        self.busy_s = 0.0  # when the dispatcher last had work
        self._closed = False

    def add(self, poller: Poller) -> None:
        """Add a poller, due at once."""
        with self._changed:
            self.pollers.append(poller)
            self._poll_by(poller, self.clock())

    def wake(self, poller: Poller) -> None:
        """Note a send to the poller's queue: a poll is due at once, or right after the one under way.

        A poll under way takes milliseconds, and the next one finds the message by its hint. A resting poller
        has no hint and would search the whole queue beside it, so it is woken only once the poll hangs.
        """
        state = poller.state
        if state.woken:
            return
        with self._changed:
            state.woken = True
            if state.began_s is not None:
                self._changed.notify()  # a fetcher that waits has to look after a poll that hangs
            elif not state.failures:
                self._poll_by(poller, self.clock())

    def siblings(self, poller: Poller) -> list[Poller]:
        """Return the other pollers of the same queue."""
        if poller.of == 1:
            return []
        return [other for other in self.pollers if other.name == poller.name and other is not poller]

    def _wake_resting(self, poller: Poller) -> None:
        """Wake the resting pollers of a queue that has more work than this poller can fetch. The mutex is
        held.
        """
        for other in self.siblings(poller):
            if other.state.rests:
                other.state.rests = False
                if other.state.began_s is None:
                    self._poll_by(other, self.clock())

    def room_freed(self) -> None:
        """Look again for pollers that found no room."""
        with self._changed:
            self._asked = 0
            self._changed.notify()

    def next(self) -> Poller | None:
        """Wait for the next due poller, and return it with the size of its poll; None once closed."""
        with self._changed:
            while not self._closed:
                if (poller := self._next_due()) is not None:
                    return poller
                self._changed.wait(self._wait_s())
        return None

    def _next_due(self) -> Poller | None:
        """Return the poller that is longest due, of those with room, and mark its poll as begun."""
        now_s = self.clock()
        for poller in self._polled:
            state = poller.state
            if state.woken and not state.is_helped and state.hangs(now_s):
                state.is_helped = True
                self._wake_resting(poller)
        coming = sum(poller.state.coming(now_s) for poller in self._polled)
        while self._later and self._later[0][0] <= now_s:
            _, turn, poller = heappop(self._later)
            if turn == poller.state.turn:
                self._due.append(poller)
        if now_s >= self._recheck_s:
            self._asked = 0
        for index in range(self._asked, len(self._due)):
            poller = self._due[index]
            state = poller.state
            if want := self._room(poller, coming):
                state.want, state.began_s, state.due_s = want, now_s, math.inf
                state.woken = state.is_helped = False
                self._polled.add(poller)
                del self._due[index]
                self._asked = index
                return poller
            if state.woken and now_s - state.due_s >= BUSY_S:
                state.woken = False
                poller.queue._pass_hints_on()  # noqa: SLF001 - the library's own
        if not self._asked:
            pause_s = max(RECHECK_S, RECHECK_EACH_S * len(self._due))
            self._recheck_s = now_s + min(pause_s, LONGEST_RECHECK_S)
        self._asked = len(self._due)
        return None

    def _poll_by(self, poller: Poller, due_s: float) -> None:
        """Have the poller polled at `due_s`, unless it is due earlier. The mutex is held."""
        if due_s < poller.state.due_s:
            poller.state.due_s, poller.state.turn = due_s, next(self._turns)
            heappush(self._later, (due_s, poller.state.turn, poller))
            self._changed.notify()

    def _wait_s(self) -> float | None:
        """Return the seconds until a poller is due, or a poll hangs, or until the next check for room."""
        now_s = self.clock()
        dues_s = [self._recheck_s] * bool(self._due) + [due_s for due_s, _, _ in self._later[:1]]
        dues_s += [began_s + HANGS_S for began_s in self._begun_s()]
        return min((due_s - now_s if due_s > now_s else RECHECK_S for due_s in dues_s), default=None)

    def stalled_s(self) -> float:
        """Return for how many seconds the slowest poll has been under way."""
        with self._changed:
            now_s = self.clock()
            return now_s - min(self._begun_s(), default=now_s)

    def _begun_s(self) -> list[float]:
        """Return when the polls under way began. The mutex is held."""
        return [began_s for poller in self._polled if (began_s := poller.state.began_s) is not None]

    def is_quiet(self) -> bool:
        """Return whether nothing has been due since the dispatcher was busy; wakes pollers that can tell."""
        loud = [one for one in self.pollers if not one.state.is_quiet(self.busy_s, one.quiet_s)]
        quiet_s = self.clock() - self.busy_s
        for poller in loud:
            if quiet_s >= poller.quiet_s:
                self.wake(poller)
        return bool(self.pollers) and not loud  # without pollers nobody has looked

    # ── results of polls ──

    def found(self, poller: Poller, count: int, how: Found = NOTHING) -> None:
        """Note the end of a poll that found `count` messages, and schedule the next.

        Where hints say where messages are, polls need not be frequent. Other pollers of the queue help only
        with messages that are known: a search that is due would be made by each of them.
        """
        state = poller.state
        with self._changed:
            found_before = state.empty_since_s is None
            state.failures = 0
            if count:
                state.empty_since_s = None
                # A hint on its way tells of what a search has just found.
                is_told = how.told or state.woken
                state.pause_s = max(state.pause_s, self._shortest_s) if is_told else self._shortest_s
            else:
                state.empty_until_s = state.began_s or 0.0
                if state.empty_since_s is None:
                    state.empty_since_s = state.empty_until_s
                state.pause_s = min(max(state.pause_s * 2, self._shortest_s), self._longest_s)
            is_idle = not state.woken and state.empty_for_s >= self._longest_s
            state.rests = bool(poller.number) and is_idle
            is_full = 0 < count >= state.want
            if how.more and not is_full and not found_before:
                # Messages that came after a pause are handled first.
                self._poll_after(poller, self._shortest_s)
            elif how.more or is_full:
                self._poll_after(poller, 0.0)
                if how.left or is_full:
                    self._wake_resting(poller)
            else:
                self._poll_after(poller, max(state.pause_s, RESTS_S) if state.rests else state.pause_s)

    def failed(self, poller: Poller) -> None:
        """Note a failed poll, and schedule the next."""
        state = poller.state
        state.failures += 1
        state.empty_since_s = None
        self._poll_after(poller, min(LONGEST_FAILED_S, FAILED_S * 2 ** min(state.failures - 1, 10)))

    def _poll_after(self, poller: Poller, pause_s: float) -> None:
        """Note that the poller's poll has ended, and have the next one made after the pause."""
        state = poller.state
        with self._changed:
            state.began_s = None
            self._polled.discard(poller)
            self._asked = 0  # what it was expected to bring is known
            self._poll_by(poller, self.clock() + (0.0 if state.woken and not state.failures else pause_s))

    def close(self) -> None:
        """End the schedule: `next` returns None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
