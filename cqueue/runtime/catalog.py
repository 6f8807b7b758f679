"""Cache which queues exist and how they are configured, with one small read a second.

Every change of a configuration raises the deployment's change counter. While the counter stands still, no
configuration is read again. A call starts the read of the counter and does not wait for it, so an idle client
costs nothing. A client that has been idle reads the counter first. Changes are conditional mutations: of two
that collide, one fails and is made again on top of the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from threading import Lock, get_ident
from typing import Any, NamedTuple

from cqueue.config import EXISTS, QueueConfig, named_settings, with_other_settings
from cqueue.errors import (
    BadInput,
    ConfigError,
    DamagedRow,
    NotDone,
    OutcomeUnknown,
    QueueExists,
    QueueNotFound,
    SchemaMismatch,
    TooManyTombstones,
    WrongDataCentre,
    looking_again,
    unknown_if_not_done,
)
from cqueue.message import check_queue_name, is_queue_name
from cqueue.protocol import inspection, registry
from cqueue.protocol.spec import DEAD_SUFFIX, Proto, QueueSpec, spec_of
from cqueue.runtime import waiting
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.home import check_same_home
from cqueue.runtime.sequences import parts
from cqueue.runtime.waiting import Thread
from cqueue.store import decode
from cqueue.store.control import ListSchedules, RemoveSchedule
from cqueue.store.keys import ALL_TOKENS, ListReservations, RemoveReservation
from cqueue.store.operations import (
    FORMAT,
    BumpDeployment,
    ChangeQueue,
    CreateQueue,
    DeploymentRow,
    ListQueues,
    Now,
    Operation,
    QueueRow,
    RandomBits,
    ReadDeployment,
    ReadQueue,
    RemoveQueue,
    together,
)
from cqueue.store.quarantine import Damage

ACTIVE, PAUSED, DELETING = "active", "paused", "deleting"
REFRESH_AFTER_S = 0.9
"""Seconds after which a call starts another read of the deployment row in the background. A bit less than
1 s, so that a client that makes one call a second refreshes at each of them."""
REFRESH_DELAY_S = 0.1
"""Seconds that a background read waits first, so that it does not slow down the call that started it."""
MAX_AGE_S = 2.0
"""Seconds after which a call reads the deployment row before anything else. The promised bound: all clients
follow a change of a queue, and a move of the home, within this time."""
FAILURE_PAUSE_S = 2.0
"""Seconds for which no call waits for a read again after one that failed, if the row was too old by then.
Reads in the background go on, so that a row that can be read again is known soon."""
POLL_LIMIT_S = 1.0
"""Seconds that a read of the deployment row may take; a call that knows a configuration then goes on with
it."""
TRIES = 20
"""How often a conditional change is made anew after it collided with another one, before `NotDone`."""
REMEMBERED = 100_000
"""Queues that are remembered, 1 KB each; one that is read alone beyond that has all others forgotten."""
FREED_AT_ONCE = 32
"""Unique keys of a deleted queue that are freed side by side, each by a conditional mutation of its own."""
CONFIGURATIONS = 1000
"""Configurations that are remembered by their text: a hundred thousand queues mostly have the same few."""

DEAD_CONFIG = QueueConfig(shards=1, time_shard=QueueConfig().time_shard * 120, max_attempts=0, max_shards=16)
"""Configuration of dead-letter queues. Their time shards are 120 times as wide as usual (an hour), because
few messages come; `max_attempts=0`, because a dead letter must not be buried again."""


class QueueEntry(NamedTuple):
    """A queue's row, its parsed configuration, and its spec for the protocol."""

    row: QueueRow
    config: QueueConfig
    spec: QueueSpec


class Catalog:
    """All queues of a keyspace. Thread-safe.

    local_dc: the data centre that the client works in. If the keyspace's home is another one, or was moved
        since the catalog was made, the driver refuses every operation.
    """

    def __init__(self, driver: BlockingDriver, local_dc: str | None = None) -> None:
        self._driver = driver
        self._local_dc = local_dc
        self._first: DeploymentRow | None = None  # the deployment row as first read: shows a moved home
        self._refusal: str | None = None
        self._mutex = Lock()
        self._entries: dict[str, QueueEntry] = {}
        self._dead: dict[str, QueueSpec] = {}  # dead-letter queues, by the partition name of their queue
        self._deployment: DeploymentRow | None = None
        self._polled_s = float("-inf")  # when the last successful poll began
        self._failed_s = float("-inf")  # when the last poll failed
        self._polling = waiting.rlock()  # held by who polls; others wait for it, and hold no thread of a loop
        self._poller: int | None = None  # the thread that polls, whose own runs need no other poll
        self._background = Lock()  # held while a background thread polls
        self._generation = 0  # counts changes: a read that began before a change must not enter `_entries`
        driver.watch(self._watch)

    def entry(self, name: str) -> QueueEntry:
        """Return the queue's configuration, at most two seconds old.

        Raises:
            QueueNotFound: there is none of that name.
            InvalidQueueName: no queue can have that name.
            DamagedRow: its row cannot be read.
            NotDone: it is not known yet, and cannot be read.
            WrongDataCentre: the home was moved.
        """
        self.refresh()
        entry = self._entries.get(name) if isinstance(name, str) else None
        return entry or self._read(name)

    def dead_of(self, queue: QueueSpec) -> QueueSpec | None:
        """Return the dead-letter queue of a queue; None if that was deleted, though one of its name is there.

        The entry of that name will not do: it may be newer than what is known of the queue.

        Raises:
            QueueNotFound: there is no such dead-letter queue.
            DamagedRow, NotDone: as `entry`.
        """
        self.refresh()
        dead, generation = self._dead.get(queue.partition), self._generation
        if dead is not None:
            return dead
        dead = self._read(queue.name + DEAD_SUFFIX).spec
        stored = self._driver.ask(ReadQueue(queue.name, as_stored=True))  # after it
        with self._mutex:
            if stored is None or stored.incarnation != queue.incarnation:
                self._forget()
                return None
            if generation == self._generation:
                self._dead[queue.partition] = dead
        return dead

    def deployment(self) -> DeploymentRow:
        """Return the deployment row: what all clients of the keyspace agree on.

        Raises:
            SchemaMismatch: the schema has not been applied.
        """
        if self._deployment is None:
            self._deployment = self._driver.ask(ReadDeployment())
            self._first = self._first or self._deployment  # what is remembered from now on is of this home
        if self._deployment is None:
            raise SchemaMismatch("the deployment row is missing; run `cqueue schema apply`")
        if self._deployment.format > FORMAT:
            raise SchemaMismatch(
                f"the deployment has format {self._deployment.format}, this code knows {FORMAT}: "
                "upgrade cqueue"
            )
        return self._deployment

    def refresh(self) -> None:
        """Refresh the deployment row if that is due. The driver calls this before each run.

        Raises:
            WrongDataCentre: the home was moved.
            Closed: this process is a fork.
        """
        if self._driver.is_forked:
            self._driver.check_open()  # a thread of the parent may poll for good
        if self._refusal is None and self._poller != get_ident():
            if self._is_too_old():
                self._poll_if(self._is_too_old)
            elif self._is_aging() and not self._background.locked():
                with suppress(RuntimeError):  # too many threads, or Python exits: a later call polls
                    Thread(target=self._poll_in_background, name="cqueue-catalog", daemon=True).start()
        if self._refusal is not None:
            raise WrongDataCentre(self._refusal)

    def _is_too_old(self) -> bool:
        """Return whether a call has to poll first. One that failed while the row was young excuses none."""
        now_s, old_s = time.monotonic(), self._polled_s + MAX_AGE_S
        is_excused = self._failed_s >= old_s and now_s < self._failed_s + FAILURE_PAUSE_S
        return now_s >= old_s and not is_excused

    def _is_aging(self) -> bool:
        """Return whether a poll in the background is due."""
        return time.monotonic() - max(self._polled_s, self._failed_s) >= REFRESH_AFTER_S

    def _poll_in_background(self) -> None:
        """Poll in the background. Errors are dropped: a call that has to poll itself meets them again.

        The lock is taken here, where no Ctrl-C comes: one between taking it and the start would keep it.
        """
        if not self._background.acquire(blocking=False):
            return
        try:
            with suppress(Exception):
                time.sleep(REFRESH_DELAY_S)
                self._poll_if(self._is_aging)
        finally:
            self._background.release()

    def _poll_if(self, is_due: Callable[[], bool]) -> None:
        """Poll, unless another caller just has."""
        with self._polling:
            if is_due():
                waiting.in_thread(self._poll)

    def _watch(self) -> None:
        """Before a run. A deployment row that is damaged keeps nobody from acking."""
        with suppress(SchemaMismatch):
            self.refresh()

    def _poll(self) -> None:
        """Forget all configurations if any was changed; keep them while Cassandra does not answer."""
        began_s = time.monotonic()
        try:
            self._poller = get_ident()
            with self._driver.limited(POLL_LIMIT_S):
                stored = self._driver.ask(ReadDeployment())
        except SchemaMismatch:
            self._polled_s = self._failed_s = float("-inf")  # the next caller reads it again, for this error
            raise
        except NotDone:
            self._failed_s = time.monotonic()
            return
        finally:
            self._poller = None
        with self._mutex:
            if stored is not None:
                self._check_home(stored)
            if stored != self._deployment:
                self._deployment = stored
                self._forget()
        self._polled_s = began_s

    def _check_home(self, stored: DeploymentRow) -> None:
        self._first = self._first or stored
        try:
            check_same_home(self._first, stored, self._local_dc)
        except WrongDataCentre as exc:
            self._refusal = str(exc)

    def _forget(self) -> None:
        self._entries.clear()
        self._dead.clear()
        self._generation += 1

    def _read(self, name: str) -> QueueEntry:
        check_queue_name(name.removesuffix(DEAD_SUFFIX) if isinstance(name, str) else name)
        generation = self._generation
        row = self._driver.ask(ReadQueue(name))
        if row is None or row.state == DELETING:
            raise QueueNotFound(
                f"there is no queue {name!r}; create it with create_queue or `cqueue queue create`"
            )
        entry = self._entry_of(row)
        with self._mutex:
            if generation == self._generation:
                if len(self._entries) >= REMEMBERED:
                    self._entries.clear()
                self._entries[name] = entry
        return entry

    def _entry_of(self, row: QueueRow) -> QueueEntry:
        config = self._config_of(row)
        spec = spec_of(row, config, self.deployment())
        for name in ("oldest_epoch", "oldest_open_epoch"):
            at_us = registry.epoch_start_ms(getattr(row, name)) * 1000
            decode.not_ahead(_place(row, name), at_us, self._driver.clock.now_us(), self._driver.report)
        if reason := _fault(row, spec):
            damage = _place(row, reason)
            self._driver.report(damage)
            raise decode.error(damage)
        return QueueEntry(row, config, spec)

    def _config_of(self, row: QueueRow) -> QueueConfig:
        report = self._driver.report
        return decode.parsed(_place(row, "config"), lambda: _parsed(row.config), report)

    def all(self) -> list[QueueEntry]:
        """Return all queues in order of name, without those that are being deleted or cannot be read.

        A program that lists queues opens them next, so each is remembered as if it had been read alone, up to
        half of REMEMBERED: others are read beside them.
        """
        self.refresh()
        entries, generation = [], self._generation
        rows = self._driver.ask(ListQueues())
        for row in sorted(rows):
            if row.state != DELETING:
                with suppress(DamagedRow):
                    entries.append(self._entry_of(row))
        with self._mutex:
            if generation == self._generation:
                self._entries = {entry.row.name: entry for entry in islice(entries, REMEMBERED // 2)}
        return entries

    # ── changes ──

    def create(self, name: str, config: QueueConfig | None, *, exist_ok: bool) -> QueueEntry:
        """Create a queue, and its dead-letter queue first. config: None takes the defaults, or what is there.

        Raises:
            QueueExists: the queue exists; with `exist_ok`, only if it has other `named_settings`.
            NotDone: another client has deleted it meanwhile; its dead-letter queue may be left.
            OutcomeUnknown: it may exist now.
        """
        wanted = QueueConfig() if config is None else config
        if check_queue_name(name).endswith(DEAD_SUFFIX):
            raise QueueExists(f"{name!r}: names ending in {DEAD_SUFFIX} belong to dead-letter queues")
        self._check_fit(wanted)
        if not self._insert(name + DEAD_SUFFIX, replace(DEAD_CONFIG, keyed=wanted.keyed)):
            dead = self._check_not_deleting(name + DEAD_SUFFIX)
            if wanted.keyed and not self._config_of(dead).keyed:  # left by a creation that broke off
                with suppress(QueueNotFound):  # a deletion has just taken it
                    self.alter(name + DEAD_SUFFIX, {"keyed": True})
        row = self._insert(name, wanted)
        if row is not None:
            with unknown_if_not_done(f"queue {name!r} is there, but its dead-letter queue may not be"):
                # A deletion of the queue of that name before this one may have taken the one found above.
                self._insert(name + DEAD_SUFFIX, replace(DEAD_CONFIG, keyed=wanted.keyed))
        else:
            row = self._check_not_deleting(name)
            if not exist_ok:
                raise QueueExists(f"queue {name!r} {EXISTS}")
            if differ := with_other_settings(self._config_of(row), named_settings(wanted)):
                raise QueueExists(f"queue {name!r} exists {differ}")
        with self._mutex:  # what is known may be the queue of that name before this one
            self._generation += 1
            self._dead.clear()
            for each in (name, name + DEAD_SUFFIX):
                self._entries.pop(each, None)
        return self._entry_of(row)

    def _check_not_deleting(self, name: str) -> QueueRow:
        row: QueueRow | None = self._driver.ask(ReadQueue(name))
        queue = name.removesuffix(DEAD_SUFFIX)
        if row is None:
            raise NotDone(f"queue {queue!r} has been deleted meanwhile; create it again")
        if row.state == DELETING:
            raise QueueExists(f"queue {queue!r} is being deleted; delete it again to finish that")
        return row

    def _check_fit(self, config: QueueConfig) -> None:
        """Refuse a visibility below 4 ε: two clocks may disagree by ε (skew) while a lease runs."""
        if not isinstance(config, QueueConfig):
            raise ConfigError(f"config is {config!r}; it takes a QueueConfig")
        least_ms = 4 * self.deployment().skew_ms
        if config.visibility_ms < least_ms:
            raise ConfigError(
                f"visibility is {config.visibility}; this deployment's clocks may disagree by "
                f"{least_ms // 4} ms, so it takes {least_ms} ms or more"
            )

    def _insert(self, name: str, config: QueueConfig) -> QueueRow | None:
        """Create a queue's row, and return it; None if there is one already."""
        row: QueueRow = self._driver.run(_new_row(name, config, self.deployment()))
        return row if is_created(self._driver, CreateQueue(row), ReadQueue(name), row.incarnation) else None

    def alter(self, name: str, changes: Mapping[str, Any]) -> QueueEntry:
        """Change settings, on top of concurrent changes by others.

        Raises:
            ConfigError: a value is out of range, or fixed.
            QueueNotFound: there is no such queue.
            NotDone: nothing is changed; `Refused`, if this role may not tell all clients of a change.
            OutcomeUnknown: it may be changed, or is and other clients have not been told.
        """

        def altered(row: QueueRow) -> QueueRow:
            config = self._config_of(row).altered(changes)
            self._check_fit(config)
            if name.endswith(DEAD_SUFFIX) and config.max_attempts:
                raise ConfigError(
                    "max_attempts of a dead-letter queue is 0: a dead letter does not die again"
                )
            return row._replace(config=config.to_json(row.config))

        if changes.get("keyed") and not name.endswith(DEAD_SUFFIX):
            self._check_fit(self.entry(name).config.altered(changes))
            self.alter(name + DEAD_SUFFIX, {"keyed": True})  # first: no keyed message dies without its key
        row = self._change(name, altered)
        with unknown_if_not_done(f"queue {name!r} is changed"):
            return self._entry_of(row)

    def set_state(self, name: str, state: str) -> None:
        """Pause or resume a queue; all consumers obey within two seconds."""
        self._change(name, lambda row: row._replace(state=state))

    def _change(
        self, name: str, change: Callable[[QueueRow], QueueRow], *, only: QueueRow | None = None
    ) -> QueueRow:
        """Change a queue's row. only: the queue as it was found, whose row may be damaged; no later one."""
        unknown: OutcomeUnknown | None = None
        for attempt in range(TRIES):
            with looking_again(unknown):
                row = self._driver.ask(ReadQueue(name, as_stored=only is not None))
                if row is None or row.state == DELETING or (only and row.incarnation != only.incarnation):
                    raise QueueNotFound(f"there is no queue {name!r}")
                wanted = change(row)
                if not attempt:
                    self._bump()  # who may not do that is refused before anything is written
                stands = unknown is not None and wanted == row  # else written: another may be late
                try:
                    stands = stands or self._driver.ask(ChangeQueue(wanted, row.version))
                except OutcomeUnknown as exc:
                    unknown = exc
                    continue
            if stands:
                with unknown_if_not_done(
                    f"queue {name!r} is changed, but other clients may not learn of it until the next change"
                ):
                    self._bump()
                return wanted
        raise unknown or NotDone(f"queue {name!r} is being changed by too many at once; try again")

    def delete(self, name: str, find_more: Callable[[], Callable[[], None]]) -> int:
        """Delete a queue, its dead-letter queue, and all their messages. Return the number of messages.

        find_more: finds what else belongs to the queue. What it returns deletes that, before the queue's row
            goes: from then on a new queue of that name may be made, with such things of its own.

        The queue cannot be opened any more as soon as the deletion has begun. It then waits until no other
        process sends to the queue. A deletion that broke off goes on when it is called again. A queue whose
        row is damaged is deleted as well.

        Raises:
            QueueNotFound: there is no such queue, or it was deleted while this call began.
            InvalidQueueName: no queue can have that name.
            NotDone: nothing is deleted.
            OutcomeUnknown: it is, or may be, deleted in part; call again.
        """
        if check_queue_name(name).endswith(DEAD_SUFFIX):
            raise BadInput(f"dead-letter queue {name!r} goes with its queue; to empty it, purge it")
        found, dead = self.find(name), self.find(name + DEAD_SUFFIX)
        delete_more = find_more()
        again = self.find(name)
        if found is None or again is None or again.incarnation != found.incarnation:
            raise QueueNotFound(f"there is no queue {name!r}")
        # Only those found: another process may delete the queue as well, and make a new one.
        if found.state != DELETING:
            self._mark_deleted(found)
        with unknown_if_not_done(f"queue {name!r} is deleted in part"):
            if found.state == DELETING:
                self._bump()  # the call that marked it may have broken off before
            if dead is not None:  # before anything is deleted: a queue must not do without it
                self._mark_deleted(dead)
            self._wait_for_others()
            specs = [self._spec_as_stored(row) for row in (dead, found) if row is not None]
            total = sum(self._empty(spec) for spec in specs)
            # After the messages: who does not know of the deletion yet may reserve a key until then.
            for some in parts(self._reserved(frozenset(spec.partition for spec in specs)), FREED_AT_ONCE):
                self._driver.run(together(*(RemoveReservation(partition, key) for partition, key in some)))
            if dead is not None:
                self._driver.ask(RemoveQueue(dead.name, dead.incarnation))
            delete_more()
            self._driver.ask(RemoveQueue(name, found.incarnation))
            return total

    def find(self, name: str) -> QueueRow | None:
        """Return a queue's row, perhaps damaged or being deleted; None if there is none.

        Raises:
            InvalidQueueName: no queue can have that name.
        """
        check_queue_name(name.removesuffix(DEAD_SUFFIX))
        row: QueueRow | None = self._driver.ask(ReadQueue(name, as_stored=True))
        return row

    def _mark_deleted(self, row: QueueRow) -> None:
        try:
            self._change(row.name, lambda row: row._replace(state=DELETING), only=row)
        except QueueNotFound:  # it was marked, by a call that may have broken off then, or deleted
            self._bump()

    def _wait_for_others(self) -> None:
        """Wait until other processes know that a queue is being deleted, and what they sent is stored.

        A send goes by a configuration of up to `MAX_AGE_S`, and counts within W. What came later would stay
        for good: the deletes in the registry hide its wide row, and then the queue's row is gone. So stays
        the end of a `send_many` that takes longer.
        """
        if self._driver.is_shared:
            waiting.sleep(MAX_AGE_S + self.deployment().settle_ms / 1000)

    def _reserved(self, queues: frozenset[str]) -> list[tuple[str, str]]:
        """Return the keys that are reserved in these queues, as (queue, key)."""
        found: list[tuple[str, str]] = []
        left = [ALL_TOKENS]
        while left:
            first, last = tokens = left.pop()
            try:
                listed: list[tuple[str, str]] = self._driver.ask(ListReservations(queues, tokens))
                found += listed
            except TooManyTombstones:  # keys of all queues that have expired or were deleted lately
                middle = (first + last) // 2
                if middle == first:
                    raise
                left += [(first, middle), (middle, last)]
        return found

    def _empty(self, spec: QueueSpec) -> int:
        """Delete a queue's messages and schedules. Return the number of messages."""
        total: int = self._driver.run(inspection.purge(spec))
        self._driver.run(inspection.forget(spec))
        for schedule in self._driver.ask(ListSchedules(spec.partition, as_stored=True)):
            self._driver.ask(RemoveSchedule(spec.partition, schedule.key, schedule.version))
        return total

    def _spec_as_stored(self, row: QueueRow) -> QueueSpec:
        """Return the spec that finds a queue's messages, with defaults where its row is damaged."""
        try:
            config = self._config_of(row)
        except DamagedRow:
            config = QueueConfig()
        return spec_of(row, config, self.deployment())

    def _bump(self) -> None:
        """Raise the deployment's change counter, so that all clients read configurations again."""
        before: int | None = None
        for _ in range(TRIES):
            stored = self._driver.ask(ReadDeployment())
            if stored is None:
                raise SchemaMismatch("the deployment row is missing; run `cqueue schema apply`")
            with self._mutex:
                self._forget()
            if before not in {None, stored.changes}:
                return
            before = stored.changes
            with suppress(OutcomeUnknown):
                self._driver.ask(BumpDeployment(before))
                return  # if another client was quicker, its bump does as well
        raise NotDone("the change counter of the keyspace could not be raised; try again")


def is_created(
    driver: BlockingDriver, create: Operation[bool], read: Operation[Any], incarnation: str
) -> bool:
    """Create the row of a queue or log; return False if there is another one of that name.

    Raises:
        OutcomeUnknown: there was no answer, and no row is found: the row may still appear.
    """
    try:
        return driver.ask(create)
    except OutcomeUnknown as exc:
        with looking_again(exc):
            stored = driver.ask(read)
        if stored is None:
            raise
        return bool(stored.incarnation == incarnation)


@lru_cache(CONFIGURATIONS)
def _parsed(text: str) -> QueueConfig:
    return QueueConfig.from_json(text)


def _place(row: QueueRow, column: str) -> Damage:
    return Damage("queues", row.name, (row.name,), column)


def _fault(row: QueueRow, spec: QueueSpec) -> str:
    """Return what is wrong with the name or the epochs of a queue, or ""."""
    if not is_queue_name(row.name.removesuffix(DEAD_SUFFIX)):
        return decode.NO_NAME
    if row.epoch_ms % spec.width_ms:
        return f"epoch_ms is {row.epoch_ms}, which is no multiple of the time shard's {spec.width_ms}"
    for epoch, open_ in ((row.oldest_epoch, False), (row.oldest_open_epoch, True)):
        if epoch != registry.epoch_at(spec, registry.epoch_start_ms(epoch), open_=open_):
            return f"oldest{'_open' if open_ else ''}_epoch is {epoch}, where no epoch begins"
    return ""


def _new_row(name: str, config: QueueConfig, deployment: DeploymentRow) -> Proto[QueueRow]:
    now_us = yield from Now()
    random_bits = yield from RandomBits(32)
    row = QueueRow(
        name=name,
        incarnation=f"{now_us // 1000:x}{random_bits:08x}",
        version=1,
        state=ACTIVE,
        config=config.to_json(),
        epoch_ms=config.epoch_ms(),
        oldest_epoch=0,
        oldest_open_epoch=0,
    )
    spec = spec_of(row, config, deployment)
    slack_ms = (spec.settle_us + spec.skew_us) // 1000
    grace_ms = spec.gc_grace_us // 1000
    return row._replace(
        oldest_epoch=registry.epoch_at(spec, now_us // 1000 - slack_ms),
        oldest_open_epoch=registry.epoch_at(
            spec, now_us // 1000 - slack_ms - grace_ms - registry.DAY_MS, open_=True
        ),
    )
