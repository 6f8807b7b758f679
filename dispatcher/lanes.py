"""Which queue is looked at next, and by which of its consumers.

A lane is one consumer of one queue. Feeder threads share all lanes: each takes the one that is longest due
for which there is room. A lane that found nothing waits twice as long each time, so a thousand idle
queues cost a few polls a second; a send in this process makes its queue due at once. Of several lanes of an
idle queue one polls, and the others rest until it has more to do than it can.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from cqueue.consuming import Consuming
from cqueue.protocol.poll import Share
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.queue import Queue
from cqueue.store.operations import WideRow

if TYPE_CHECKING:
    from cqueue.dispatcher.options import Options

FAILED_S: Final = 0.2
"""Pause after a receive that failed; doubled up to 5 s."""
LONGEST_FAILED_S: Final = 5.0
QUIET_S: Final = 0.3
"""Longer than somebody else's lock is kept between two claims: a poll after it has seen everything due."""
HANGS_S: Final = 0.5
"""A poll that takes so long is not counted on to find anything."""
RECHECK_S: Final = 0.1
"""How often room is looked for again while a lane goes without: handlers may have become quicker."""
RESTS_S: Final = 30.0
"""Pause of a lane that rests: should the one that polls for it hang, it looks itself."""
BUSY_S: Final = 0.1
"""A queue that was rung and for so long had no room has handlers that take their time: others are told."""


@runtime_checkable
class Source(Protocol):
    """What consumers come from: a `cqueue.Queue`, or a recorder of one."""

    def consumer(self, *args: Any, **options: Any) -> Consuming:
        """A consumer."""
        ...


def queue_of(source: Source) -> Queue:
    """The queue itself, under a recorder if there is one."""
    queue: Any = source
    own: Queue = getattr(queue, "queue", queue)
    return own


@dataclass(slots=True)
class Turn:
    """When a lane is polled; its roster's. Times are monotonic seconds.

    Attributes:
        due_s: when it is to be polled next.
        began_s: the start of the poll under way; None if none is.
        want: messages that this poll asks for.
        rung: something was sent to the queue since it began.
        pause_s: after the next poll that finds nothing.
        failures: polls that failed since the last one that did not.
        empty_since_s: the start of the first of the polls in vain; None after one that found something.
        empty_until_s: the start of the last of the polls in vain.
        rests: it leaves polling to the first lane of its queue.
    """

    due_s: float = 0.0
    began_s: float | None = None
    want: int = 0
    rung: bool = False
    pause_s: float = 0.0
    failures: int = 0
    empty_since_s: float | None = None
    empty_until_s: float = 0.0
    rests: bool = False

    def is_quiet(self, since_s: float) -> bool:
        """Whether polls since then have found nothing for long enough to say that nothing is due."""
        if self.empty_since_s is None:
            return False
        return self.empty_until_s - max(self.empty_since_s, since_s) >= QUIET_S

    def coming(self, now_s: float) -> int:
        """Messages that the poll under way is likely to find."""
        is_likely = self.began_s is not None and now_s - self.began_s < HANGS_S
        return self.want if is_likely and self.empty_since_s is None and not self.failures else 0


class Lane:
    """One consumer of one queue, polled by one feeder at a time.

    Args:
        number, of: which of the queue's lanes it is. Each looks first at wide rows of its own: a claim beside
            another one's on the same wide row costs both of them. The first one looks for those that rest.
    """

    def __init__(
        self, source: Source, roster: Roster, options: Options, *, number: int = 0, of: int = 1
    ) -> None:
        self.queue = queue_of(source)
        self.name = self.queue.name
        self.consumer: Consuming = source.consumer(
            poll_interval=options.poll_interval,
            max_poll_interval=max(options.poll_interval, timedelta(seconds=1)),
            wake=lambda: roster.ring(self),
        )
        self.sender = self.consumer.settles_with  # acks of one go together
        self.turn = Turn()
        self.kinds: set[bool] = set()  # whether its handlers were coroutine functions
        self.visibility_s = 30.0
        self.max_attempts = 0
        self.number, self.of = number, of
        self._roster = roster
        self.divide(None)

    def divide(self, share: Share | None) -> None:
        """Look first at its part of those wide rows that this process is to look at first."""
        number, of = self.number, self.of

        def part(wide_row: WideRow) -> bool:
            whose = wide_row.shard % of
            is_ours = whose == number or (number == 0 and whose in self._rests())
            return is_ours and (share is None or share(wide_row))

        self.consumer.share = share if of == 1 else part

    def _rests(self) -> set[int]:
        """The lanes of its queue that rest."""
        return {lane.number for lane in self._roster.beside(self) if lane.turn.rests}

    def learn(self) -> None:
        """Take note of the queue's configuration, which may have been altered."""
        config = self.queue.config
        self.visibility_s = config.visibility_ms / 1000
        self.max_attempts = 0 if self.is_dead_letter else config.max_attempts

    @property
    def is_dead_letter(self) -> bool:
        """Whether its messages have died before: they cannot die again."""
        return self.name.endswith(DEAD_SUFFIX)

    def now_ms(self) -> int:
        """The cluster's time."""
        return round(self.queue.now.timestamp() * 1000)


class Roster:
    """All lanes, and whose turn it is to be polled.

    Args:
        room: how many messages a lane may receive now, if so many more are likely to come from others.
        shortest_s, longest_s: pause after the first poll in vain, and the longest one.
    """

    def __init__(
        self,
        room: Callable[[Lane, int], int],
        shortest_s: float,
        longest_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._room = room
        self._shortest_s, self._longest_s = shortest_s, longest_s
        self.clock = clock
        self._changed = threading.Condition()
        self.lanes: tuple[Lane, ...] = ()
        self.busy_s = 0.0  # when there was last something to be done
        self._closed = False

    def enter(self, lane: Lane) -> None:
        """A new lane, due at once."""
        with self._changed:
            lane.turn.due_s = self.clock()
            self.lanes = (*self.lanes, lane)
            self._changed.notify()

    def ring(self, lane: Lane) -> None:
        """Something was sent to its queue: it is due at once, or right after the poll that is under way."""
        turn = lane.turn
        if turn.rung:
            return
        with self._changed:
            turn.rung = True
            is_polled = turn.began_s is not None
            if not is_polled and not turn.failures:
                turn.due_s = min(turn.due_s, self.clock())
                self._changed.notify()
        if is_polled:
            self._rouse(lane)

    def beside(self, lane: Lane) -> list[Lane]:
        """The other lanes of its queue."""
        if lane.of == 1:
            return []
        return [other for other in self.lanes if other.name == lane.name and other is not lane]

    def _rouse(self, lane: Lane) -> None:
        """There is more to do in its queue than it does: lanes that rest poll again."""
        for other in self.beside(lane):
            if other.turn.rests:
                other.turn.rests = False
                with self._changed:
                    other.turn.due_s = self.clock()
                    self._changed.notify()

    def feed(self) -> None:
        """There may be room for lanes that went without."""
        with self._changed:
            self._changed.notify()

    def next(self) -> Lane | None:
        """The next lane to be polled, with how much it wants; waits for it. None: there is none any more."""
        with self._changed:
            while not self._closed:
                if (lane := self._next_due()) is not None:
                    return lane
                self._changed.wait(self._rest_s())
        return None

    def _next_due(self) -> Lane | None:
        """The lane that is longest due, of those for which there is room; its poll begins."""
        now_s = self.clock()
        coming = sum(lane.turn.coming(now_s) for lane in self.lanes)
        due = [lane for lane in self.lanes if lane.turn.began_s is None and lane.turn.due_s <= now_s]
        for lane in sorted(due, key=lambda lane: lane.turn.due_s):
            if want := self._room(lane, coming):
                lane.turn.want, lane.turn.began_s, lane.turn.rung = want, now_s, False
                return lane
            if lane.turn.rung and now_s - lane.turn.due_s >= BUSY_S:
                lane.turn.rung = False
                lane.queue._pass_hints_on()  # noqa: SLF001 - the library's own
        return None

    def _rest_s(self) -> float | None:
        """Until a lane is due, or until room is looked for again for one that is."""
        now_s = self.clock()
        dues_s = [lane.turn.due_s for lane in self.lanes if lane.turn.began_s is None]
        return min((due_s - now_s if due_s > now_s else RECHECK_S for due_s in dues_s), default=None)

    def stalled_s(self) -> float:
        """For how long the slowest poll has been under way."""
        now_s = self.clock()
        begun_s = [began_s for lane in self.lanes if (began_s := lane.turn.began_s) is not None]
        return now_s - min(begun_s, default=now_s)

    def is_quiet(self) -> bool:
        """Whether nothing has been due since it was busy; lanes that can say so are polled at once."""
        loud = [lane for lane in self.lanes if not lane.turn.is_quiet(self.busy_s)]
        if self.clock() - self.busy_s >= QUIET_S:
            for lane in loud:
                self.ring(lane)
        return not loud

    # ── what a poll brought ──

    def found(self, lane: Lane, count: int, *, more: bool = False, told: bool = False) -> None:
        """A poll is over, with so many messages. more: the consumer knows where it will find others.

        told: a hint said where these were; where hints come, polls need not be frequent.
        """
        turn = lane.turn
        found_before = turn.empty_since_s is None
        turn.failures = 0
        if count:
            turn.empty_since_s = None
            turn.pause_s = max(turn.pause_s, self._shortest_s) if told else self._shortest_s
        else:
            turn.empty_until_s = turn.began_s or 0.0
            if turn.empty_since_s is None:
                turn.empty_since_s = turn.empty_until_s
            turn.pause_s = min(max(turn.pause_s * 2, self._shortest_s), self._longest_s)
        turn.rests = bool(lane.number) and not count and turn.pause_s >= self._longest_s
        is_full = 0 < count >= turn.want
        if more and not is_full and not found_before:
            self._back(turn, self._shortest_s)  # what has come after a pause is handled first
        elif more or is_full:
            self._back(turn, 0.0)
            self._rouse(lane)
        else:
            self._back(turn, max(turn.pause_s, RESTS_S) if turn.rests else turn.pause_s)

    def failed(self, lane: Lane) -> None:
        """A poll has failed."""
        lane.turn.failures += 1
        lane.turn.empty_since_s = None
        self._back(lane.turn, min(LONGEST_FAILED_S, FAILED_S * 2 ** min(lane.turn.failures - 1, 10)))

    def _back(self, turn: Turn, pause_s: float) -> None:
        with self._changed:
            turn.began_s = None
            turn.due_s = self.clock() + (0.0 if turn.rung and not turn.failures else pause_s)
            self._changed.notify()

    def close(self) -> None:
        """No lane is due from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
