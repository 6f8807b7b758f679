"""Create, find, alter and delete logs. A log in use is read again every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from cqueue.config import EXISTS, named_settings, with_other_settings
from cqueue.errors import (
    ConfigError,
    DamagedRow,
    LogExists,
    LogNotFound,
    NotDone,
    OutcomeUnknown,
    looking_again,
    unknown_if_not_done,
)
from cqueue.log.config import LogConfig, earlier_ttls, growths, with_earlier_ttl, with_growth
from cqueue.log.protocol.shards import existing
from cqueue.log.protocol.spec import EarlierTtl, Growth, LogSpec
from cqueue.log.protocol.subscription_definition import remove
from cqueue.message import check_queue_name, is_queue_name
from cqueue.protocol.spec import Proto
from cqueue.runtime import waiting
from cqueue.runtime.catalog import ACTIVE, DELETING, is_created
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.sequences import parts
from cqueue.store import decode
from cqueue.store.log_operations import (
    ChangeLog,
    CreateLog,
    DropRecords,
    ListLogs,
    ListLogShards,
    ListSubscriptions,
    LogRow,
    LogShard,
    ReadLog,
    RemoveLog,
    UnregisterLogShard,
)
from cqueue.store.operations import DeploymentRow, Now, RandomBits, together
from cqueue.store.quarantine import Damage

FRESH_S = 5.0
"""Seconds for which a configuration is kept: all clients know of new partitions within that time."""
REMEMBERED = 10_000
"""Logs that are remembered, 2 KB each; one more has all others forgotten, until they are used again."""
TRIES = 20
"""Tries of a change that others outrun; each failed try needs another client's change in that moment."""
MOST_COMPUTED = 10_000
"""Time shards since a log was created above which they are listed, which reads the registry of all logs."""
LISTED_AT_ONCE = 1024
"""Time shards of a deleted log whose partitions are held in memory at a time; 1,024 × 16 take 4 MB."""
DROPPED_AT_ONCE = 32
"""Cassandra partitions of a deleted log that are dropped side by side."""


class LogEntry(NamedTuple):
    """A log: its stored row, its configuration, and its spec for the protocol."""

    row: LogRow
    config: LogConfig
    spec: LogSpec


class LogCatalog:
    """All logs of a keyspace. Thread-safe. deployment: returns the deployment's row."""

    def __init__(self, driver: BlockingDriver, deployment: Callable[[], DeploymentRow]) -> None:
        self._driver = driver
        self._deployment = deployment
        self._entries: dict[str, tuple[LogEntry, float]] = {}

    def entry(self, name: str, *, fresh_s: float = FRESH_S) -> LogEntry:
        """Return a log, at most `fresh_s` old, or older while Cassandra does not answer.

        Raises:
            LogNotFound: there is no log of that name.
            InvalidQueueName: no log can have that name.
            DamagedRow: the log's row is damaged.
            NotDone: the log is not known yet, and the read failed.
        """
        known = self._entries.get(name) if isinstance(name, str) else None
        if known is not None and time.monotonic() - known[1] < fresh_s:
            return known[0]
        left_s, began_s = waiting.left_s(self._driver.deadline_s), time.monotonic()
        try:
            # What needs a log that is known has half of its time left if this read takes long.
            with self._driver.limited(left_s if known is None else left_s / 2):
                row: LogRow | None = self._driver.ask(ReadLog(check_queue_name(name, "log")))
        except NotDone:
            if known is None:
                raise
            return known[0]
        if row is None or row.state == DELETING:
            self._entries.pop(name, None)
            raise LogNotFound(f"there is no log {name!r}; create it with create_log or `cqueue log create`")
        return self._remember(row, began_s)

    def _remember(self, row: LogRow, read_s: float) -> LogEntry:
        """read_s: when its read began; a later deletion is not in it."""
        entry = self._entry_of(row)
        if len(self._entries) >= REMEMBERED and row.name not in self._entries:
            self._entries.clear()
        self._entries[row.name] = (entry, read_s)
        return entry

    def _entry_of(self, row: LogRow) -> LogEntry:
        now_us, report = self._driver.clock.now_us(), self._driver.report
        if not is_queue_name(row.name):
            report(_place(row, decode.NO_NAME))
            raise decode.error(_place(row, decode.NO_NAME))
        decode.not_ahead(_place(row, "created"), row.created * 1000, now_us, report)
        earlier, grown = decode.parsed(
            _place(row, "config"), lambda: (earlier_ttls(row.config), growths(row.config)), report
        )
        return self._entry_as(row, self._config_of(row), earlier, grown)

    def _config_of(self, row: LogRow) -> LogConfig:
        report = self._driver.report
        return decode.parsed(_place(row, "config"), lambda: LogConfig.from_json(row.config), report)

    def _entry_as(
        self,
        row: LogRow,
        config: LogConfig,
        earlier: tuple[EarlierTtl, ...] = (),
        grown: tuple[Growth, ...] = (),
    ) -> LogEntry:
        deployment = self._deployment()
        spec = LogSpec(
            name=row.name,
            incarnation=row.incarnation,
            partitions=config.partitions,
            width_ms=config.time_shard_ms,
            ttl_s=config.ttl_s,
            created_ms=row.created,
            settle_us=deployment.settle_ms * 1000,
            skew_us=deployment.skew_ms * 1000,
            earlier=earlier,
            growths=grown,
        )
        return LogEntry(row, config, spec)

    def all(self) -> list[LogEntry]:
        """Return all logs in the order of names, without those being deleted or damaged."""
        rows, found = self._driver.ask(ListLogs()), []
        for row in sorted(rows):
            if row.state != DELETING:
                with suppress(DamagedRow):
                    found.append(self._entry_of(row))
        return found

    def create(self, name: str, config: LogConfig | None, *, exist_ok: bool) -> LogEntry:
        """Create a log. config: None takes the defaults, or what is there.

        Raises:
            InvalidQueueName: the name breaks the rules, which are those of queues.
            LogExists: the log exists; with `exist_ok`, only if it has other `named_settings`.
            NotDone: another client has deleted it meanwhile.
            OutcomeUnknown: the log may exist now.
        """
        check_queue_name(name, "log")
        wanted = LogConfig() if config is None else config
        if not isinstance(wanted, LogConfig):
            raise ConfigError(f"config is {config!r}; it takes a LogConfig")
        began_s = time.monotonic()
        row = self._insert(name, wanted)
        if row is None:
            row = self._driver.ask(ReadLog(name))
            if row is None:
                raise NotDone(f"log {name!r} has been deleted meanwhile; create it again")
            if row.state == DELETING:
                raise LogExists(f"log {name!r} exists no more, but is being deleted")
            if not exist_ok:
                raise LogExists(f"log {name!r} {EXISTS}")
            if differ := with_other_settings(self._config_of(row), named_settings(wanted)):
                raise LogExists(f"log {name!r} exists {differ}")
        return self._remember(row, began_s)

    def _insert(self, name: str, config: LogConfig) -> LogRow | None:
        """Create a log's row, and return it; None if there is one already."""
        row: LogRow = self._driver.run(_new_row(name, config))
        return row if is_created(self._driver, CreateLog(row), ReadLog(name), row.incarnation) else None

    def alter(self, name: str, changes: Mapping[str, Any]) -> LogEntry:
        """Change settings, keeping what other clients change meanwhile.

        Raises:
            ConfigError: a value is out of range, or fixed.
            LogNotFound: there is no such log.
        """
        now_ms, began_s = self._driver.clock.now_us() // 1000, time.monotonic()

        def altered(row: LogRow) -> LogRow:
            before = self._config_of(row)
            config = before.altered(changes)
            stored = config.to_json(row.config)
            if config.ttl_s != before.ttl_s:
                stored = with_earlier_ttl(stored, row.created, now_ms, before.ttl_s)
            if config.partitions != before.partitions:
                stored = with_growth(stored, now_ms, before.partitions)
            return row._replace(config=stored)

        return self._remember(self._change(name, altered), began_s)

    def _change(self, name: str, change: Callable[[LogRow], LogRow], *, only: LogRow | None = None) -> LogRow:
        """Change a log's row. only: the log as it was found, whose row may be damaged; no later one."""
        unknown: OutcomeUnknown | None = None
        for _ in range(TRIES):
            with looking_again(unknown):
                row: LogRow | None = self._driver.ask(ReadLog(name, as_stored=only is not None))
                is_another = row and only and row.incarnation != only.incarnation
                if row is None or row.state == DELETING or is_another:
                    raise LogNotFound(f"there is no log {name!r}")
                wanted = change(row)
                if wanted == row:
                    return row
                try:
                    if self._driver.ask(ChangeLog(wanted, row.version)):
                        return wanted._replace(version=decode.next_version(row.version))
                except OutcomeUnknown as exc:
                    unknown = exc
        raise unknown or NotDone(f"log {name!r} is being changed by too many at once; try again")

    def delete(self, name: str) -> None:
        """Delete a log with its records and subscriptions; a repeat after a failure goes on with it.

        A log whose row is damaged is deleted as well.

        Raises:
            LogNotFound: there is no log of that name.
            NotDone: nothing is deleted.
            OutcomeUnknown: it is, or may be, deleted in part; call again.
        """
        row = self.find(name)
        if row is None:
            raise LogNotFound(f"there is no log {name!r}")
        self.delete_only(row)

    def find(self, name: str) -> LogRow | None:
        """Return a log's row, perhaps damaged or being deleted; None if there is none.

        Raises:
            InvalidQueueName: no log can have that name.
        """
        row: LogRow | None = self._driver.ask(ReadLog(check_queue_name(name, "log"), as_stored=True))
        return row

    def delete_only(self, row: LogRow) -> None:
        """Delete a log as it was found, and no later one of its name.

        Raises:
            NotDone, OutcomeUnknown: as `delete`.
        """
        if row.state != DELETING:
            with suppress(LogNotFound):  # somebody else has marked it, or deleted it
                self._change(row.name, lambda row: row._replace(state=DELETING), only=row)
        self._entries.pop(row.name, None)
        with unknown_if_not_done(f"log {row.name!r} is deleted in part"):
            try:
                decode.check(decode.logs([row]))
                spec, listed = self._entry_of(row).spec, False
            except DamagedRow:
                spec, listed = self._entry_as(row, LogConfig()).spec, True
            if (listed or not spec.ttl_s) and self._driver.is_shared:  # what comes later would stay for good
                waiting.sleep(FRESH_S + spec.settle_us / 1e6)
            self._driver.run(_drop_all(spec, listed=listed))
            self._drop_subscriptions(spec)
            self._driver.ask(RemoveLog(row.name, row.incarnation))

    def _drop_subscriptions(self, spec: LogSpec) -> None:
        for key in self._driver.ask(ListSubscriptions()):
            if key.log == spec.partition:
                with suppress(LogNotFound):  # a member of a deleted subscription may leave a row for a while
                    self._driver.run(remove(key))


def _place(row: LogRow, column: str) -> Damage:
    return Damage("logs", row.name, (row.name,), column)


def _new_row(name: str, config: LogConfig) -> Proto[LogRow]:
    now_us = yield from Now()
    random_bits = yield from RandomBits(32)
    incarnation = f"{now_us // 1000:x}{random_bits:08x}"
    return LogRow(name, incarnation, 1, ACTIVE, config.to_json(), now_us // 1000)


def _drop_all(spec: LogSpec, *, listed: bool) -> Proto[None]:
    """Drop every Cassandra partition that the registry lists, the oldest first.

    Records from before the ttl was made shorter may live longer than it, so it begins where the log began.
    listed: list the time shards, because without a configuration they cannot be computed.
    """
    now_us = yield from Now()
    time_shards: Sequence[int] = ()
    if not listed:
        time_shards = spec.time_shards((spec.created_ms - spec.width_ms) * 1000, now_us)
    if listed or len(time_shards) > MOST_COMPUTED:
        time_shards = yield from ListLogShards(spec.partition)
    for listed_shards in parts(time_shards, LISTED_AT_ONCE):
        found = yield from existing(spec, listed_shards)
        shards = [LogShard(spec.partition, each, ms) for ms, all_ in found.items() for each in sorted(all_)]
        for some in parts(shards, DROPPED_AT_ONCE):
            yield from together(*(DropRecords(each, now_us) for each in some))
            yield from together(*(UnregisterLogShard(each) for each in some))
