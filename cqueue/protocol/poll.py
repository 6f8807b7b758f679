"""A consumer's rounds: where it looks for work, in which order, and what it keeps between two of them.

It knows nothing of threads and of waiting: the consumer of an application and that of the simulator
both run these rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from cqueue.errors import CqueueError, NotDone, OutcomeUnknown
from cqueue.protocol import ack, policy
from cqueue.protocol.claim import claim
from cqueue.protocol.draft import Claim
from cqueue.protocol.early import Early
from cqueue.protocol.lock import unlock
from cqueue.protocol.news import News
from cqueue.protocol.probe import has_suspect, probe
from cqueue.protocol.registry import Registry, refresh
from cqueue.protocol.spec import Lease, Proto, QueueSpec, SuspectGate
from cqueue.protocol.view import RowView
from cqueue.store.operations import Now, Operation, QueueRow, RandomBits, WideRow

PROBED_AT_ONCE = 16
ENOUGH_FOUND = 8
SEARCH_EVERY_US = 500_000
EARLY_US = 100_000
"""Between two rounds a search begins so long before it is due."""
FREE_AFTER_US = 200_000
"""How long a slot whose messages are all acked waits for the next claim to free it on the way."""

OTHERS_EVERY_US = 2_000_000
"""How often a consumer looks at wide rows that are another worker's to look at first."""

Tell = Callable[[], Iterable[News]]
"""What this process has sent since it was last asked."""

Share = Callable[[WideRow], bool]
"""Whether a wide row is this consumer's to look at first. Only speed hangs on it."""


class _Steps(NamedTuple):
    """A search under way, and its next read. busy: see `Poll._search`."""

    script: Proto[None]
    read: Operation[Any]
    busy: bool


class Poll:
    """One consumer's search for messages of one incarnation of a queue.

    One thread runs its rounds; `finished` may be appended to by any.
    """

    def __init__(self, row: QueueRow, spec: QueueSpec, gate: SuspectGate) -> None:
        self._incarnation = row.incarnation
        self._open = spec.has_open_rows
        self._retiring = spec.retiring
        self.registry = Registry(row.oldest_epoch, row.oldest_open_epoch, read_open=self._open)
        self.held: RowView | None = None
        self.finished: deque[Lease] = deque()  # all acked: slots to be freed
        self.gate = self._own_gate = gate  # the first one for the rounds to come
        self.early = Early()
        self._promising: dict[WideRow, RowView] = {}  # we were told of, or have left something in
        self._told: dict[WideRow, RowView] = {}  # we were told of since their last claim
        self._found: deque[RowView] = deque()  # by the last search, not claimed from yet
        self._told_next = False  # it is their turn
        self._passed_over: dict[WideRow, RowView] = {}  # claims ahead have left a suspect there
        self._tell: Tell = tuple
        self._searched_us = 0  # when the last search began
        self._whole_us = 0  # when the last one began that came to its end, or has to be waited for
        self._searched = False  # in this round
        self._steps: _Steps | None = None
        self._stepped = False  # the last search ended between two rounds
        self._share: Share | None = None
        self._others_us = 0  # when others' wide rows were looked at as well
        self._unfreed_us: int | None = None  # since when slots wait to be freed

    def is_of(self, row: QueueRow, spec: QueueSpec) -> bool:
        """Whether it looks everywhere where messages of the queue as it is now may stand.

        When wide rows may be retired again, what came back meanwhile is to be found first: all epochs are
        read again, and passes begin anew.
        """
        same = (self._incarnation, self._open) == (row.incarnation, spec.has_open_rows)
        return same and policy.epochs_stay_known(spec, was_retiring=self._retiring)

    @property
    def has_finished(self) -> bool:
        """Whether slots wait to be freed."""
        return bool(self.finished) or self._unfreed_us is not None

    def distrust(self) -> None:
        """What this process has sent until now may be deleted again: none of it is claimed unread.

        Nor is what was read ahead.
        """
        for view in self.registry.views.values():
            view.heard.distrust()
            view.ahead = None

    # ── a round ──

    def begin(self, spec: QueueSpec, tell: Tell, share: Share | None = None) -> Proto[None]:
        """Begin a round: take note of what is known, and search if the last search is a while ago.

        tell: gives what this process has sent: its wide rows need no probe. Asked again during the round.
        share: which wide rows to look at each time; the others are looked at every two seconds.

        A search comes round twice a second, so neither a lock nor what this process sends itself can
        keep messages of others waiting for long.
        """
        now_us = yield from Now()
        self._sort_finished(now_us)
        self._tell = tell
        self._hear(spec, now_us)
        self._searched = self._stepped and bool(self._found)
        self._share = share
        if now_us - self._whole_us >= SEARCH_EVERY_US:
            yield from self._search_whole(spec, now_us, busy=bool(self._promising or self.held))

    @property
    def has_found(self) -> bool:
        """Whether a search has found what no round has been to yet."""
        return bool(self._found)

    @property
    def knows_more(self) -> bool:
        """Whether there may be messages in wide rows that it knows of, besides the one it holds."""
        return bool(self._found or self._promising)

    def search_on(self, spec: QueueSpec) -> Proto[None]:
        """Between two rounds: one read of a search, if it is due soon. If that fails a round meets it too.

        A whole search takes as long as several claims, and messages that come meanwhile wait for it. So
        where rounds follow each other it goes on between them, a read at a time.
        """
        now_us = yield from Now()
        if self._steps is None and now_us - self._searched_us < SEARCH_EVERY_US - EARLY_US:
            return
        with suppress(NotDone, OutcomeUnknown):
            self._stepped = yield from self._step(spec, busy=True)

    def _step(self, spec: QueueSpec, *, busy: bool) -> Proto[bool]:
        """One read of the search under way, or of a new one; whether it has come to its end."""
        steps, self._steps = self._steps, None
        read: Operation[Any] | None
        if steps is not None:
            script, read, busy = steps
        else:
            script = self._search(spec, (yield from Now()), busy=busy)
            read = yield from _upto_read(script, None)
        if read is not None:
            following = yield from _upto_read(script, (yield read))
            if following is not None:
                self._steps = _Steps(script, following, busy)
                return False
        self._whole_us = self._searched_us
        return True

    def next_claim(self, spec: QueueSpec, want: int, *, stay: bool = True) -> Proto[Claim | None]:
        """A claim that gave something (be it only messages to bury); None once there is no more work.

        Raises:
            NotDone, OutcomeUnknown: of the first wide row that failed, if no other gave anything.
        """
        failure: CqueueError | None = None
        claimed = yield from self.early.stored(spec)
        if claimed is None:
            claimed = yield from self._claim_first(spec, want, stay=stay)
        resumed = self._steps is not None  # a search that says nothing of what came after its reads
        while claimed is None and not self._searched:
            if self._steps is not None and self._steps.busy:
                self._steps, resumed = None, False  # it leaves some out
            if (yield from self._step(spec, busy=False)):
                self._searched, resumed = not resumed, False
            if not self._searched:
                self._hear(spec, (yield from Now()))  # what is sent meanwhile need not wait for the search
            try:
                claimed = yield from self._claim_first(spec, want, stay=stay)
            except (NotDone, OutcomeUnknown) as exc:
                failure = failure or exc
        if claimed is None and failure is not None:
            raise failure
        return claimed

    def _claim_first(self, spec: QueueSpec, want: int, *, stay: bool) -> Proto[Claim | None]:
        """Claim from one wide row after the other. No lock is kept where the next claim is of another one."""
        failure: CqueueError | None = None
        while (view := self._next_promising()) is not None:
            try:
                claimed = yield from self._claim(view, spec, want, stay=stay and not self._found)
            except (NotDone, OutcomeUnknown) as exc:
                yield from self.let_go()
                failure = failure or exc
            else:
                if claimed.taken or claimed.dead or claimed.expired:
                    return claimed
            if self._found:
                self._hear(spec, (yield from Now()))
        if failure is not None:
            raise failure
        return None

    def _claim(self, view: RowView, spec: QueueSpec, want: int, *, stay: bool) -> Proto[Claim]:
        yield from self.let_go(but=view)
        view.foreign = self._share is not None and not self._share(view.wide_row)
        try:
            claimed = yield from claim(view, spec, self.gate, want, stay=stay)
        except (NotDone, OutcomeUnknown):
            view.sizes.doubt(view.priorities)
            raise
        finally:
            self.held = view if view.locked else None
        if claimed.passed_over and self._claims_ahead:
            self._passed_over[view.wide_row] = view
        if claimed.taken and view.heard.sending:
            yield from self.early.put_by(claimed, view.heard)
        if claimed.more and not view.locked:
            self._promising[view.wide_row] = view
        return claimed

    # ── suspects ──

    @property
    def _claims_ahead(self) -> bool:
        """Whether this round is for what is handled later: it takes no suspects."""
        return self.gate is not self._own_gate

    @property
    def knows_suspects(self) -> bool:
        """Whether rounds that claim ahead have left a suspect somewhere."""
        return bool(self._passed_over)

    def claim_suspect(self, spec: QueueSpec, want: int) -> Proto[Claim]:
        """Between two rounds: a claim where those that claim ahead have left a suspect.

        It comes alone. Where somebody else has taken it, up to `want` others.
        """
        if not self._passed_over:
            return Claim()
        self.gate = self._own_gate
        view = self._known(next(iter(self._passed_over.values())))
        return (yield from self._claim(view, spec, want, stay=False))

    def let_go(self, but: RowView | None = None) -> Proto[None]:
        """Unlock the wide row that is held, if it is another one."""
        held, self.held = self.held, None
        if held is not None and held is not but:
            if but is not None:
                self._promising[held.wide_row] = held
            try:
                yield from unlock(held)
            except (NotDone, OutcomeUnknown):
                return  # its lease ends by itself

    # ── where to look ──

    def claims_unread(self, news: News, now_us: int) -> bool:
        """Whether it is of use to hear of these messages while they are being written.

        Where they would have to be read, they might not be there yet.
        """
        view = self.registry.views.get(news.wide_row)
        return (
            view is not None
            and bool(news.rows)
            and news.priorities == {min(view.priorities)}
            and news.began > view.heard.since
            and view.claims_unread(now_us)
        )

    def _hear(self, spec: QueueSpec, now_us: int) -> None:
        for news in self._tell():
            if news.sending is not None and not self.claims_unread(news, now_us):
                continue  # we are told again
            if news.wide_row.queue == spec.partition:
                view = self.registry.add(spec, news.wide_row, news.priorities)
                if news.wide_row.time_shard * 1000 <= now_us:
                    view.heard.hear(news)
                    if not news.received:
                        self._promising[news.wide_row] = self._told[news.wide_row] = view

    def _next_promising(self) -> RowView | None:
        """What a search found, oldest first; the wide row whose lock we hold; where else something is.

        What we were told of takes turns with what a search found: that may be much work, and give nothing.
        """
        if self._found and not (self._told_next and self._told):
            self._told_next = True
            return self._known(self._found.popleft())
        self._told_next = False
        if self.held is not None:
            return self._known(self.held)
        known = self._told if self._found else self._promising
        return self._known(next(iter(known.values()))) if known else None

    def _known(self, view: RowView) -> RowView:
        """The wide row, about to be claimed from: what is known of it by then is news no more."""
        self._promising.pop(view.wide_row, None)
        self._told.pop(view.wide_row, None)
        self._passed_over.pop(view.wide_row, None)
        if view in self._found:
            self._found.remove(view)
        return view

    def _search_whole(self, spec: QueueSpec, now_us: int, *, busy: bool = False) -> Proto[None]:
        """A search that is waited for."""
        self._whole_us, self._searched = now_us, True
        yield from self._search(spec, now_us, busy=busy)

    def _search(self, spec: QueueSpec, now_us: int, *, busy: bool = False) -> Proto[None]:
        """Bring the registry up to date and probe all wide rows: the oldest first, equals in any order.

        busy: there is other work. Then those are left out that claims of ours have seen since the last
            search, and left nothing in: where messages come all the time that is all they would find.

        Where something is known to be, it takes its turn without a probe.
        """
        last_us, self._searched_us = self._searched_us, now_us
        self._steps, self._stepped = None, False  # this one instead
        yield from refresh(self.registry, spec)
        due = yield from self._due()
        share = None if now_us - self._others_us >= OTHERS_EVERY_US else self._share
        if share is not None:
            due = [view for view in due if share(view.wide_row)]
        if busy:
            due = [view for view in due if view.seen_us <= last_us or view.wide_row in self._promising]
        if not due:
            self._found.clear()
        for start in range(0, len(due), PROBED_AT_ONCE):
            part = [view for view in due[start : start + PROBED_AT_ONCE] if view is not self.held]
            unknown = [view for view in part if view.wide_row not in self._promising]
            found = yield from probe(unknown, spec, self.gate)
            if self._claims_ahead:
                suspected = [view for view in unknown if has_suspect(view, spec, now_us)]
                self._passed_over |= {view.wide_row: view for view in suspected}
            if not start:
                self._found.clear()  # only now: rounds between the steps of a search go on with it
            self._found += [
                view
                for view in part
                if not view.retired and (view.wide_row in self._promising or view in found)
            ]
            if len(self._found) >= ENOUGH_FOUND:
                break
        if share is None:
            self._others_us = now_us

    def _due(self) -> Proto[list[RowView]]:
        due = self.registry.due((yield from Now()))
        if len(due) > 1:
            bits = yield from RandomBits(64)
            Random(bits).shuffle(due)  # so that consumers do not all try the same one
            due.sort(key=lambda view: view.wide_row.time_shard)
        return due

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
            if not (yield from ack.free(finished)) and len(finished) > 1:
                for lease in finished:
                    yield from ack.free([lease])
        except (NotDone, OutcomeUnknown):
            view.finished = finished  # the next head read tells which are still ours
            self._unfreed_us = now_us


def _upto_read(script: Proto[None], answer: Any) -> Proto[Operation[Any] | None]:
    """Let a search take an answer and go on to its next read; None: it has come to its end."""
    try:
        operation = script.send(answer)
        while isinstance(operation, Now | RandomBits):
            operation = script.send((yield operation))
    except StopIteration:
        return None
    return operation
