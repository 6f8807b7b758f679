"""A consumer's rounds: where it looks for work, and what it keeps between two of them.

It knows nothing of threads and of waiting: the consumer of an application and that of the simulator
both run these rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from random import Random

from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol import ack, policy
from cqueue.protocol.claim import claim
from cqueue.protocol.draft import Claim
from cqueue.protocol.hint import Hint
from cqueue.protocol.lease import Lease, SuspectGate
from cqueue.protocol.lock import unlock
from cqueue.protocol.probe import has_suspect, probe
from cqueue.protocol.registry import Registry, refresh
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.view import RowView
from cqueue.protocol.work import Reason, Work, WorkList
from cqueue.store.operations import Now, Pause, QueueRow, RandomBits, WideRow

PROBED_AT_ONCE = 16
ENOUGH_FOUND = 8
SEARCH_EVERY_US = 500_000
"""How often a consumer that has work all the time looks for more of it."""
PUT_OFF_US = 2_000_000
"""How long hints may put off a search: what a sender tells of does not wait for one."""
FREE_AFTER_US = 200_000
"""How long a slot whose messages are all acked waits for the next claim to free it on the way."""

CONTENDED_S = (0.01, 0.02, 0.04)
"""Pauses before a consumer looks again where a hint sent it, while somebody else has the wide row."""

OTHERS_EVERY_US = 2_000_000
"""How often a consumer looks at wide rows that are another worker's to look at first."""

Share = Callable[[WideRow], bool]
"""Whether a wide row is this consumer's to look at first. Only speed hangs on it."""


class Poll:
    """One consumer's search for messages of one incarnation of a queue.

    One thread runs its rounds; `finished` may be appended to by any.
    """

    def __init__(self, row: QueueRow, spec: QueueSpec, gate: SuspectGate) -> None:
        self._of = (row.incarnation, spec.has_open_rows, spec.retiring)
        self.registry = Registry(row.oldest_epoch, row.oldest_open_epoch, read_open=spec.has_open_rows)
        self.work = WorkList()
        self.finished: deque[Lease] = deque()  # all acked: slots to be freed
        self.gate = self._own_gate = gate  # the first one for the rounds to come
        self._share: Share | None = None
        self._contended: list[RowView] = []  # a hint sent us there, and somebody else had them
        self._searched = False  # in this round, or not to be
        self._searched_us = 0  # when the last search began
        self._put_off = False  # this round made none, as there were hints
        self._others_us = 0  # when others' wide rows were looked at as well
        self._unfreed_us: int | None = None  # since when slots wait to be freed

    def is_of(self, row: QueueRow, spec: QueueSpec) -> bool:
        """Whether it looks everywhere where messages of the queue as it is now may stand.

        When wide rows may be retired again, what came back meanwhile is to be found first: all epochs are
        read again, and passes begin anew.
        """
        incarnation, has_open, was_retiring = self._of
        same = (incarnation, has_open) == (row.incarnation, spec.has_open_rows)
        return same and policy.epochs_stay_known(spec, was_retiring=was_retiring)

    def distrust(self) -> None:
        """What was read until now may be deleted again: nothing that was read ahead is claimed."""
        for view in self.registry.views.values():
            view.known.ahead = None

    # ── a round ──

    def begin(self, spec: QueueSpec, hints: Iterable[Hint] = (), share: Share | None = None) -> Proto[None]:
        """Begin a round: take note of hints, and search if there is work but the last search is a while ago.

        A search comes round twice a second, so no lock can keep messages of others waiting for long. A round
        that was begun because of hints makes none, and leaves it to the next one, for two seconds at most.

        share: which wide rows to look at each time; the others are looked at every two seconds.
        """
        now_us = yield from Now()
        self._sort_finished(now_us)
        self._contended.clear()
        self._share = share
        ago_us = now_us - self._searched_us
        is_told = yield from self._hear(spec, hints, now_us)
        is_due = ago_us >= (PUT_OFF_US if is_told else SEARCH_EVERY_US)
        self._searched = is_told and not is_due
        self._put_off = False
        if is_due and self.has_work:
            yield from self._search(spec, busy=True)
        self._put_off = self._searched and ago_us >= SEARCH_EVERY_US

    def _hear(self, spec: QueueSpec, hints: Iterable[Hint], now_us: int) -> Proto[bool]:
        """Take note of hints; whether there is one of a wide row of the present.

        A hint tells no more than where to look. Where the wide row is not known the registry is read: who has
        sent there has registered it before, and what is not registered is nothing but a mistake.
        """
        here = [hint for hint in hints if hint.wide_row.queue == spec.partition]
        here = [hint for hint in here if hint.wide_row.time_shard * 1000 <= now_us]
        if not all(self.registry.knows(hint.wide_row, hint.priorities) for hint in here):
            yield from refresh(self.registry, spec)
        views = [view for hint in here if (view := self.registry.views.get(hint.wide_row)) is not None]
        for view in views:
            self.work.add(view, Reason.HINT)
        return bool(views)

    @property
    def has_work(self) -> bool:
        """Whether a wide row is known that may have messages, or a search is due that was put off."""
        return bool(self.work) or self.work.held is not None or self._put_off

    def next_claim(self, spec: QueueSpec, want: int, *, stay: bool = True) -> Proto[Claim | None]:
        """A claim that gave something (be it only messages to bury); None once there is no more work.

        Raises:
            NotDone, OutcomeUnknown: of the first wide row that failed, if no other gave anything.
        """
        failure: NotDone | OutcomeUnknown | None = None
        pauses = iter(CONTENDED_S)
        while True:
            work = self.work.next(suspects=not self._claims_ahead)
            if work is None:
                if not (yield from self._look_on(spec, pauses)):
                    break
                continue
            try:
                claimed = yield from self._claim(work, spec, want, stay=stay)
            except (NotDone, OutcomeUnknown) as exc:
                yield from self.let_go()
                failure = failure or exc
            else:
                if claimed.taken or claimed.dead or claimed.expired:
                    return claimed
        if failure is not None:
            raise failure
        return None

    def _look_on(self, spec: QueueSpec, pauses: Iterator[float]) -> Proto[bool]:
        """Nothing is left to claim from: look again where somebody else was, or search; False: no more."""
        if self._contended and (pause_s := next(pauses, None)) is not None:
            yield Pause(pause_s)
            while self._contended:
                self.work.add(self._contended.pop(), Reason.HINT)
            return True
        if self._searched:
            return False
        yield from self._search(spec)
        return True

    def _claim(self, work: Work, spec: QueueSpec, want: int, *, stay: bool) -> Proto[Claim]:
        view, list_ = work.view, self.work
        yield from self.let_go(but=view)
        view.foreign = self._share is not None and not self._share(view.wide_row)
        try:
            stay = stay and not list_.is_last_turn(view)
            claimed = yield from claim(view, spec, self.gate, want, stay=stay)
        except (NotDone, OutcomeUnknown):
            view.reading.sizes.doubt(view.priorities)
            raise
        finally:
            list_.hold(view if view.known.locked else None)
        claimed.reason = work.reason
        if claimed.contended and work.reason is Reason.HINT:
            self._contended.append(view)
        if claimed.more:
            list_.add(view, Reason.LEFT)
        if self._claims_ahead and has_suspect(view, spec, (yield from Now())):
            list_.add(view, Reason.SUSPECT)
        return claimed

    def let_go(self, but: RowView | None = None) -> Proto[None]:
        """Unlock the wide row that is held, if it is another one."""
        held = self.work.held
        if held is None or held is but:
            return
        self.work.hold(None)
        if but is not None:
            self.work.add(held, Reason.LEFT)
        try:
            yield from unlock(held)
        except (NotDone, OutcomeUnknown):
            return  # its lease ends by itself

    # ── suspects ──

    @property
    def _claims_ahead(self) -> bool:
        """Whether this round is for what is handled later: it takes no suspects."""
        return self.gate is not self._own_gate

    @property
    def knows_suspects(self) -> bool:
        """Whether rounds that claim ahead have left a suspect somewhere."""
        return self.work.has_suspects

    def claim_suspect(self, spec: QueueSpec, want: int) -> Proto[Claim]:
        """Between two rounds: a claim where those that claim ahead have left a suspect.

        It comes alone. Where somebody else has taken it, up to `want` others.
        """
        work = self.work.next_suspect()
        if work is None:
            return Claim()
        self.gate = self._own_gate
        work.view.known.ahead = None  # the next round tells whether that was deleted again
        try:
            return (yield from self._claim(work, spec, want, stay=False))
        except (NotDone, OutcomeUnknown):
            yield from self.let_go()  # the next round may be a while away
            raise

    # ── where to look ──

    def _search(self, spec: QueueSpec, *, busy: bool = False) -> Proto[None]:
        """Bring the registry up to date, and probe wide rows: those first that were not for longest.

        busy: there is other work. Then those are left out that claims of ours have seen since the last
            search, and left nothing in: where messages come all the time that is all they would find.
        """
        now_us = yield from Now()
        last_us, self._searched_us, self._searched = self._searched_us, now_us, True
        yield from refresh(self.registry, spec)
        share = None if now_us - self._others_us >= OTHERS_EVERY_US else self._share
        due = [
            view
            for view in (yield from self._due())
            if view not in self.work
            if share is None or share(view.wide_row)
            if not busy or view.seen_us <= last_us
        ]
        for start in range(0, len(due), PROBED_AT_ONCE):
            if not policy.probes_on(start, found_enough=len(self.work) >= ENOUGH_FOUND):
                return
            yield from self._probe(spec, due[start : start + PROBED_AT_ONCE], now_us)
        if share is None:
            self._others_us = now_us

    def _due(self) -> Proto[list[RowView]]:
        """The wide rows that may have work: the one first that was not looked at for longest.

        Among equals the oldest first, and equals of one time in any order: consumers are not all to try
        the same one.
        """
        due = self.registry.due((yield from Now()))
        if len(due) > 1:
            bits = yield from RandomBits(64)
            Random(bits).shuffle(due)
            due.sort(key=lambda view: (view.probed_us, view.wide_row.time_shard))
        return due

    def _probe(self, spec: QueueSpec, views: list[RowView], now_us: int) -> Proto[None]:
        found = yield from probe(views, spec, self.gate)
        for view in sorted(views, key=lambda view: view.wide_row.time_shard):
            view.probed_us = now_us
            if view in found:
                self.work.add(view, Reason.FOUND)
            elif self._claims_ahead and has_suspect(view, spec, now_us):
                self.work.add(view, Reason.SUSPECT)

    # ── finished leases ──

    def _sort_finished(self, now_us: int) -> None:
        """Hand finished leases to their wide rows, whose next claim frees their slots on the way."""
        while self.finished:
            lease = self.finished.popleft()
            view = self.registry.views.get(lease.wide_row)
            if view is not None:
                view.finished.append(lease)
                if self._unfreed_us is None:
                    self._unfreed_us = now_us

    def tidy(self, *, at_once: bool = False) -> Proto[None]:
        """Free slots that no claim has freed for a while, in mutations of their own."""
        now_us = yield from Now()
        self._sort_finished(now_us)
        if self._unfreed_us is None or (not at_once and now_us - self._unfreed_us < FREE_AFTER_US):
            return
        self._unfreed_us = None
        for view in list(self.registry.views.values()):
            if view.finished and not view.retired:
                yield from self._free(view, now_us)

    def _free(self, view: RowView, now_us: int) -> Proto[None]:
        """Free slots; those that somebody else has changed are not ours to free any more."""
        finished, view.finished = view.finished, []
        try:
            yield from ack.free(finished)
        except (NotDone, OutcomeUnknown):
            view.finished = finished  # the next head read tells which are still ours
            self._unfreed_us = now_us
