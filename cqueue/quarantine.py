"""Looking for damaged rows and dropping them, for operators: of all tables but `messages`.

Rows are found by reading them again, as everybody else reads them. Which rows of a queue's registry and of a
log are read follows from the queue and the log: Cassandra cannot be asked for all that is damaged.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from cqueue.client import Client
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import BadInput, DamagedRow
from cqueue.log.positions import Point, Start
from cqueue.protocol import survey
from cqueue.protocol.subscribe import definition_of, origin_of
from cqueue.store import decode
from cqueue.store.control import ReadSchedule, ReadWorkers, RemoveSchedule, RemoveWorker
from cqueue.store.log_operations import DropRecord, LogShard, UnregisterLogShard
from cqueue.store.operations import DropShard
from cqueue.store.quarantine import Damage
from cqueue.store.subscriptions import ListSubscriptions, ReadSubscription, RemoveMember, SubscriptionKey

_INSTEAD: Final = {
    "queues": "`cqueue queue delete {0}` deletes the queue with its messages",
    "logs": "`cqueue log delete {0}` deletes the log with its records",
}
_KEYS: Final = {"subscriptions": ("log", "subscription", "kind", "partition", "member")}
TABLES: Final = ("queues", "logs", "schedules", "workers", "subscriptions", "shards", "log", "log_shards")


def look(client: Client) -> list[Damage]:
    """Read all queues, logs, schedules, subscriptions, workers and registries; the rows that are damaged.

    Records of logs are not read; see `look_at_log`.

    Raises:
        NotDone: something could not be read.
    """
    driver = client._driver  # noqa: SLF001 - the library's own
    for entry in client._catalog.all():  # noqa: SLF001 - as above
        driver.run(survey.wide_rows(entry.spec))
        client.queue(entry.row.name).schedules.list()
    client.logs()
    driver.ask(ReadWorkers())
    for key in driver.ask(ListSubscriptions()):
        _look_at_subscription(driver, key)
    return client._quarantine.of(*TABLES)  # noqa: SLF001 - as above


def _look_at_subscription(driver: BlockingDriver, key: SubscriptionKey) -> None:
    now_us = driver.clock.now_us()
    rows = driver.ask(ReadSubscription(key, now_us=now_us))
    with suppress(DamagedRow):
        definition = definition_of(rows)
        if definition is not None:
            origin_of(key, definition, now_us, driver.report)


def look_at_log(
    client: Client, log: str, start: Start = "earliest", end: Point | None = None
) -> list[Damage]:
    """Read a log's records from `start` to `end` (None: now); those that are damaged.

    Raises:
        LogNotFound, DamagedRow: there is no such log, or it cannot be read itself.
        BadInput, PositionExpired: as `Log.scan`.
    """
    with client.log(log).scan(start=start, end=end) as records:
        for _ in records.batches():
            pass
    prefix = f"{log}@"
    found = client._quarantine.of("log", "log_shards")  # noqa: SLF001 - the library's own
    return [each for each in found if each.owner.startswith(prefix)]


def drop(client: Client, damage: Damage) -> None:
    """Delete one damaged row.

    Raises:
        BadInput: it is not for this to delete; the message says what is. Or it is not damaged any more.
        NotDone, OutcomeUnknown: it may be tried again.
    """
    driver, (table, _, key, _) = client._driver, damage  # noqa: SLF001 - the library's own
    match table:
        case "schedules":
            _drop_schedule(driver, *key)
        case "subscriptions":
            _drop_of_subscription(driver, damage)
        case "workers":
            driver.ask(RemoveWorker(key[1]))
        case "shards":
            driver.ask(DropShard(*key))
        case "log":
            driver.ask(DropRecord(LogShard(*key[:3]), key[3]))
        case "log_shards":
            log, time_shard, partition = key
            driver.ask(UnregisterLogShard(LogShard(log, partition, time_shard)))
        case _:
            raise _refusal(damage)


def _refusal(damage: Damage) -> BadInput:
    """What to do instead."""
    known = _INSTEAD.get(damage.table)
    what = known.format(*damage.key) if known is not None else f"delete it with CQL: {_cql(damage)}"
    return BadInput(f"this row of table {damage.table} is not dropped here: {what}")


def _cql(damage: Damage) -> str:
    if damage.table not in _KEYS:
        return f"its key is {', '.join(map(str, damage.key))}"
    parts = zip(_KEYS[damage.table], damage.key, strict=True)
    where = " AND ".join(
        f"{column} = {repr(each) if isinstance(each, str) else each}" for column, each in parts
    )
    return f"DELETE FROM {damage.table} WHERE {where}"  # noqa: S608 - shown, not run


def _drop_schedule(driver: BlockingDriver, queue: str, key: str) -> None:
    row = driver.ask(ReadSchedule(queue, key, as_stored=True))
    if row is not None and not driver.ask(RemoveSchedule(queue, key, row.version)):
        raise BadInput(f"schedule {key!r} has been changed meanwhile; look again")


def _drop_of_subscription(driver: BlockingDriver, damage: Damage) -> None:
    log, name, kind, partition, member = damage.key
    log_name = log.partition("@")[0]
    if kind == decode.MEMBER:
        driver.ask(RemoveMember(SubscriptionKey(log, name), member))
    elif kind == decode.DEFINITION:
        raise BadInput(f"`cqueue subscription delete {log_name} {name}` deletes it with its positions")
    elif kind == decode.POSITION:
        raise BadInput(
            f"`cqueue subscription seek {log_name} {name} POSITION --partition {partition}` sets it anew; "
            "dropped, the partition would be read from where the subscription began"
        )
    else:
        raise _refusal(damage)
