"""Run a consumer's poll rounds: find wide rows with work, claim from them, and remember them between rounds.

Wide rows that are known to have work wait in a list, in a fair order. A wide row joins its end when it is
found to have work, and again when a claim leaves something in it. One that a hint brings overtakes those that
wait, for one claim, and then the first of them has its turn. So a consumer claims from a wide row after at
most `TURNS` claims for each one before it.

This module knows no threads and no waiting, because the simulator runs the same rounds as an application.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from random import Random
from typing import NamedTuple

from cqueue.errors import NotDone, OutcomeUnknown, TooManyTombstones
from cqueue.protocol import ack, policy
from cqueue.protocol.claim import claim
from cqueue.protocol.claim_draft import Claim
from cqueue.protocol.lease import Lease, SuspectGate
from cqueue.protocol.lock import unlock
from cqueue.protocol.probe import has_suspect, probe
from cqueue.protocol.registry import Registry, refresh
from cqueue.protocol.row_memory import Hint, RowMemory
from cqueue.protocol.spec import Proto, QueueSpec
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

TURNS = 4
"""Claims in a row from the wide row whose lock is held, while others wait.

Each change of the wide row may cost a read of its head; more than four would make the others wait too long.
"""

Share = Callable[[WideRow], bool]
"""Returns whether this consumer is the first to look at a wide row. Only speed depends on it."""


class Reason(Enum):
    """Why a wide row is on the work list."""

    HINT = "hint"  # a sender named it
    FOUND = "found"  # a probe found work
    LEFT = "left"  # this consumer's claim left messages
    SUSPECT = "suspect"  # it holds a suspect, which only some claims may take


class Work(NamedTuple):
    """A wide row to claim from, and why.

    hint: all that is known of it, if hints alone brought it here, so that it may overtake others.
    """

    memory: RowMemory
    reason: Reason
    hint: Hint | None = None


class WorkList:
    """Wide rows to claim from, each at most once. Not thread-safe."""

    def __init__(self) -> None:
        self.held: RowMemory | None = None  # its lock is kept, as it has more messages
        self._turns = 0  # claims in a row from the last one taken out, with the one that overtook it
        self._waiting: dict[WideRow, Work] = {}  # the first one has its turn next
        self._overtakes = False  # the last one taken out came before others because a hint named it
        self._suspects: dict[WideRow, RowMemory] = {}  # a claim ahead left a suspect there

    def __len__(self) -> int:
        """Return how many wide rows wait, `held` not counted."""
        return len(self._waiting)

    def __contains__(self, memory: RowMemory) -> bool:
        """Return whether a wide row is held, or waits."""
        return memory is self.held or memory.wide_row in self._waiting

    @property
    def has_suspects(self) -> bool:
        """Return whether a wide row waits because of a suspect."""
        return bool(self._suspects)

    def add(self, memory: RowMemory, reason: Reason, hint: Hint | None = None) -> None:
        """Put a wide row at the end. One that waits already keeps its place; a hint becomes its reason."""
        if reason is Reason.SUSPECT:
            self._suspects[memory.wide_row] = memory
        elif memory not in self:
            self._waiting[memory.wide_row] = Work(memory, reason, hint)
        elif reason is Reason.HINT and memory is not self.held:
            before = self._waiting[memory.wide_row].hint
            merged = before | hint if before and hint else None
            self._waiting[memory.wide_row] = Work(memory, reason, merged)

    @property
    def is_last_turn(self) -> bool:
        """Whether the claim of the wide row just taken out releases the lock, because others wait."""
        return len(self) > 0 and (self._overtakes or self._turns >= TURNS)

    def next(self, *, suspects: bool) -> Work | None:
        """Take out the next wide row to claim from; None if none is known to have work.

        suspects: whether the claim may take suspects.
        """
        work = self._next()
        if not suspects:
            return work
        if work is None:
            return self.next_suspect()
        self._suspects.pop(work.memory.wide_row, None)
        return work

    def _next(self) -> Work | None:
        if self.held is not None and not (len(self) and self._turns >= TURNS):
            self._turns += 1
            return Work(self.held, Reason.LEFT)
        self._turns = 2 if self._overtakes else 1
        first = next(iter(self._waiting.values()), None)
        told = next((work for work in self._waiting.values() if work.hint is not None), first)
        self._overtakes = told is not first and not self._overtakes
        work = told if self._overtakes else first
        return self._waiting.pop(work.memory.wide_row) if work is not None else None

    def next_suspect(self) -> Work | None:
        """Take out the first wide row that has a suspect."""
        for wide_row, memory in self._suspects.items():
            del self._suspects[wide_row]
            return Work(memory, Reason.SUSPECT)
        return None


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
            memory.note_hint(hint)
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
            told = work.reason is Reason.HINT
            claimed = yield from claim(memory, spec, self.gate, want, stay=stay, hint=work.hint, told=told)
        except TooManyTombstones:  # whatever the size of the messages
            raise
        except (NotDone, OutcomeUnknown):
            memory.reads.sizes.assume_larger(memory.priorities)
            raise
        finally:
            self.left_until_ms = max(self.left_until_ms, memory.left_until_ms)
            list_.held = memory if memory.remembered.locked else None
        if memory.retired or not memory.finished:
            self._unfreed.pop(memory, None)
        elif memory.claims > claims and len(memory.finished) <= MAX_FINISHED:
            self._unfreed[memory] = yield from Now()
        claimed.told = work.reason is Reason.HINT
        if claimed.contended and claimed.told:
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
        self.work.held = None
        if but is not None:
            self.work.add(held, Reason.LEFT)
        yield from unlock(held)

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
