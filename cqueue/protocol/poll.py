"""Run a consumer's poll rounds: find wide rows with work, claim from them, and remember them between rounds.

This module knows no threads and no waiting, because the simulator runs the same rounds as an application.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from random import Random

from cqueue.errors import NotDone, OutcomeUnknown, TooManyTombstones
from cqueue.protocol import ack, policy
from cqueue.protocol.claim import claim
from cqueue.protocol.claim_draft import Claim
from cqueue.protocol.hint import Hint
from cqueue.protocol.lease import Lease, SuspectGate
from cqueue.protocol.lock import unlock
from cqueue.protocol.probe import has_suspect, probe
from cqueue.protocol.registry import Registry, refresh
from cqueue.protocol.row_memory import RowMemory
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.work import Reason, Work, WorkList
from cqueue.store.operations import Now, Pause, QueueRow, RandomBits, WideRow

PROBED_AT_ONCE = 16
"""Wide rows that a search probes side by side: all shards of four time shards, at the default of 4 shards."""
ENOUGH_FOUND = 8
"""Wide rows with work after which a search ends: enough to claim from until the next search."""
SEARCH_EVERY_US = 500_000
"""µs between searches while a consumer has work: no lock or busy wide row hides others for longer."""
MAX_SEARCH_DELAY_US = 2_000_000
"""µs for which hints may delay a search: hinted messages come first, but unhinted ones must not starve."""
FREE_AFTER_US = 200_000
"""µs without a claim after which the finished slots of a wide row, with only acked messages, get their own
mutation."""
MAX_FINISHED = 16
"""Finished slots of a wide row that are left to later claims: each frees four, and may leave more."""

CONTENDED_PAUSES_S = (0.01, 0.02, 0.04)
"""Seconds to wait before each retry of a hinted wide row that another consumer is claiming from."""

OTHERS_EVERY_US = 2_000_000
"""µs between probes of wide rows that another worker is assigned to: the longest wait if that worker dies."""

Share = Callable[[WideRow], bool]
"""Returns whether this consumer is the first to look at a wide row. Only speed depends on it."""


class Poll:
    """The polling of one consumer for one incarnation of a queue.

    One thread runs the rounds; any thread may append to `finished`.
    """

    def __init__(self, row: QueueRow, spec: QueueSpec, gate: SuspectGate) -> None:
        self._of = (row.incarnation, spec.has_open_rows, spec.retiring)
        self.registry = Registry(row.oldest_epoch, row.oldest_open_epoch, read_open=spec.has_open_rows)
        self.work = WorkList()
        self.finished: deque[Lease] = deque()  # leases with all messages acked, whose slots are to be freed
        self.left_until_ms = 0  # until then claims of unknown outcome may hold messages
        self.gate = self._own_gate = gate  # `gate` holds for the next rounds
        self._share: Share | None = None
        self._contended: list[RowMemory] = []  # hinted, but locked or claimed from by another consumer
        self._searched = False  # this round has searched, or leaves it to the next one
        self._searched_us = 0  # when the last search began
        self._put_off = False  # the next round searches: hints delayed or cut down this round's search
        self._others_us = 0  # when a search last included other workers' wide rows
        self._unfreed: dict[RowMemory, int] = {}  # µs since 1970: last claim, or when a slot was noticed

    def is_of(self, row: QueueRow, spec: QueueSpec) -> bool:
        """Return whether this poll finds all messages of the queue as it is stored now.

        Once wide rows may be retired again, a new poll reads all epochs again and begins passes anew, to find
        what another data centre has brought back.
        """
        incarnation, has_open, was_retiring = self._of
        same = (incarnation, has_open) == (row.incarnation, spec.has_open_rows)
        return same and policy.epochs_stay_known(spec, was_retiring=was_retiring)

    def forget_read_ahead(self) -> None:
        """Forget messages that were read ahead, as they may have been deleted since."""
        for memory in self.registry.rows.values():
            memory.remembered.read_ahead = None

    # ── a round ──

    def begin(self, spec: QueueSpec, hints: Iterable[Hint] = (), share: Share | None = None) -> Proto[None]:
        """Begin a round: note hints, and search if there is work and the last search is 0.5 s old.

        A search comes twice a second, so no busy wide row makes the others wait for long. A round with hints
        leaves the search to the next round, for two seconds at most.

        share: which wide rows each search probes; the others are probed every two seconds.
        """
        now_us = yield from Now()
        self._sort_finished(now_us)
        self._contended.clear()
        self._share = share
        ago_us = now_us - self._searched_us
        is_told = yield from self._hear(spec, hints, now_us)
        is_due = ago_us >= (MAX_SEARCH_DELAY_US if is_told else SEARCH_EVERY_US)
        self._searched = is_told and not is_due
        self._put_off = is_told and ago_us >= SEARCH_EVERY_US  # a busy search leaves some wide rows out
        if is_due and self.has_work:
            yield from self._search(spec, busy=True)

    def _hear(self, spec: QueueSpec, hints: Iterable[Hint], now_us: int) -> Proto[bool]:
        """Put hinted wide rows on the work list; return whether there was one whose time shard has begun.

        A hint only says where to look. If its wide row is unknown, the registry is read: the sender has
        registered the wide row before the hint, so a hint of an unregistered one is wrong.
        """
        here = [hint for hint in hints if hint.wide_row.queue == spec.partition]
        here = [hint for hint in here if hint.wide_row.time_shard * 1000 <= now_us]
        if not all(self.registry.knows(hint.wide_row, hint.priorities) for hint in here):
            yield from refresh(self.registry, spec)
        known = [(memory, hint) for hint in here if (memory := self.registry.rows.get(hint.wide_row))]
        for memory, hint in known:
            self.work.add(memory, Reason.HINT, hint)
        return bool(known)

    @property
    def has_work(self) -> bool:
        """Return whether a wide row may have messages, or a delayed search is due."""
        return bool(self.work) or self.work.held is not None or self._put_off

    def next_claim(
        self, spec: QueueSpec, want: int, *, stay: bool = True, hints: Callable[[], Iterable[Hint]] = tuple
    ) -> Proto[Claim | None]:
        """Return the next claim that took messages, if only to bury them; None once no work is left.

        hints: returns the hints since the last call. It is called after each claim that took nothing, as most
            sweeps do: the messages that come meanwhile need not wait for all sweeps.

        Raises:
            NotDone, OutcomeUnknown: the error of the first wide row that failed, if no other had messages.
        """
        failure: NotDone | OutcomeUnknown | None = None
        pauses = iter(CONTENDED_PAUSES_S)
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
                if work.reason is not Reason.HINT:  # those are limited in number, so the round ends
                    yield from self._hear(spec, hints(), (yield from Now()))
        if failure is not None:
            raise failure
        return None

    def _look_on(self, spec: QueueSpec, pauses: Iterator[float]) -> Proto[bool]:
        """Refill the empty work list: retry contended wide rows, or search; return False to end the round."""
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
        memory, list_, claims = work.memory, self.work, work.memory.claims
        yield from self.let_go(but=memory)
        memory.assigned_elsewhere = self._share is not None and not self._share(memory.wide_row)
        memory.rest_until_us = 0  # what the claim changes, or was told of, is looked at again
        try:
            stay = stay and not list_.is_last_turn
            claimed = yield from claim(memory, spec, self.gate, want, stay=stay, hint=work.hint)
        except TooManyTombstones:  # whatever the size of the messages
            raise
        except (NotDone, OutcomeUnknown):
            memory.reads.sizes.assume_larger(memory.priorities)
            raise
        finally:
            self.left_until_ms = max(self.left_until_ms, memory.left_until_ms)
            list_.hold(memory if memory.remembered.locked else None)
        if memory.retired or not memory.finished:
            self._unfreed.pop(memory, None)
        elif memory.claims > claims and len(memory.finished) <= MAX_FINISHED:
            self._unfreed[memory] = yield from Now()
        claimed.reason = work.reason
        if claimed.contended and work.reason is Reason.HINT:
            self._contended.append(memory)
        if claimed.more:
            list_.add(memory, Reason.LEFT)
        if self._claims_ahead and has_suspect(memory, spec, (yield from Now())):
            list_.add(memory, Reason.SUSPECT)
        return claimed

    def let_go(self, but: RowMemory | None = None) -> Proto[None]:
        """Unlock the wide row whose lock is held, unless it is `but`."""
        held = self.work.held
        if held is None or held is but:
            return
        self.work.hold(None)
        if but is not None:
            self.work.add(held, Reason.LEFT)
        try:
            yield from unlock(held)
        except (NotDone, OutcomeUnknown):
            return  # the lock's lease ends by itself

    # ── suspects ──

    @property
    def _claims_ahead(self) -> bool:
        """Return whether this round claims messages that are handled later; it takes no suspects."""
        return self.gate is not self._own_gate

    @property
    def has_left_suspects(self) -> bool:
        """Return whether rounds that claim ahead have left a suspect in a wide row."""
        return self.work.has_suspects

    def claim_suspect(self, spec: QueueSpec, want: int) -> Proto[Claim]:
        """Claim, between two rounds, where rounds that claim ahead have left a suspect.

        The suspect comes alone. If another consumer has taken it, the claim takes up to `want` messages.
        """
        work = self.work.next_suspect()
        if work is None:
            return Claim()
        self.gate = self._own_gate
        work.memory.remembered.read_ahead = None  # the messages may have been deleted since the last round
        try:
            return (yield from self._claim(work, spec, want, stay=False))
        except (NotDone, OutcomeUnknown):
            yield from self.let_go()  # the next round may come much later
            raise

    # ── searching ──

    def _search(self, spec: QueueSpec, *, busy: bool = False) -> Proto[None]:
        """Refresh the registry and probe wide rows, beginning with the one probed longest ago.

        busy: there is other work. Then the search leaves out wide rows that this consumer's claims have
            emptied since the last search: it looks for others that have waited longer.
        """
        now_us = yield from Now()
        last_us, self._searched_us, self._searched = self._searched_us, now_us, True
        yield from refresh(self.registry, spec)
        self._unfreed = {memory: at for memory, at in self._unfreed.items() if not memory.retired}
        share = None if now_us - self._others_us >= OTHERS_EVERY_US else self._share
        due = [
            memory
            for memory in (yield from self._due())
            if memory not in self.work
            if share is None or share(memory.wide_row)
            if not busy or memory.emptied_us <= last_us
        ]
        for start in range(0, len(due), PROBED_AT_ONCE):
            if not policy.probes_on(start, found_enough=len(self.work) >= ENOUGH_FOUND):
                return
            try:
                yield from self._probe(spec, due[start : start + PROBED_AT_ONCE], now_us)
            except NotDone:
                if not self.work:
                    raise
                return  # what was found comes first, and the next search begins with the others
        if share is None:
            self._others_us = now_us

    def _due(self) -> Proto[list[RowMemory]]:
        """Return the wide rows that may have work, the one probed longest ago first, then the oldest.

        Equal ones come in random order, so that consumers do not all try the same one.
        """
        due = self.registry.due((yield from Now()))
        if len(due) > 1:
            bits = yield from RandomBits(64)
            Random(bits).shuffle(due)
            due.sort(key=lambda memory: (memory.probed_us, memory.wide_row.time_shard))
        return due

    def _probe(self, spec: QueueSpec, memories: list[RowMemory], now_us: int) -> Proto[None]:
        for memory in memories:
            memory.probed_us = now_us  # also if the probe fails
        found = yield from probe(memories, spec, self.gate)
        for memory in sorted(memories, key=lambda memory: memory.wide_row.time_shard):
            if memory in found:
                self.work.add(memory, Reason.FOUND)
            elif self._claims_ahead and has_suspect(memory, spec, now_us):
                self.work.add(memory, Reason.SUSPECT)

    # ── finished leases ──

    def _sort_finished(self, now_us: int) -> None:
        """Hand finished leases to their wide rows; the next claim there frees their slots."""
        while self.finished:
            lease = self.finished.popleft()
            memory = self.registry.rows.get(lease.wide_row)
            if memory is not None:
                memory.finished.append(lease)
                self._unfreed.setdefault(memory, now_us)

    def tidy(self, *, at_once: bool = False) -> Proto[None]:
        """Free finished slots by own mutations: where no claim came for 0.2 s, or all `at_once`."""
        now_us = yield from Now()
        self._sort_finished(now_us)
        for memory, since_us in list(self._unfreed.items()):
            if at_once or now_us - since_us >= FREE_AFTER_US:
                del self._unfreed[memory]
                if memory.finished and not memory.retired:
                    yield from self._free(memory, now_us)

    def _free(self, memory: RowMemory, now_us: int) -> Proto[None]:
        """Free the finished slots of a wide row, except slots that another client has changed."""
        try:
            freed = yield from ack.free(memory.finished)
        except (NotDone, OutcomeUnknown):  # the next read of the head shows which slots are still to be freed
            self._unfreed[memory] = now_us
        else:
            memory.finished = []
            memory.remembered.note_freed(freed)
