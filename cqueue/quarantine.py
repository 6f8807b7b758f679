"""Find damaged rows, and drop them, for operators (`cqueue quarantine`).

Damaged rows are found by reading rows again, in the same way as clients do, because Cassandra cannot be asked
for all damaged rows. The registry of a queue, and the records of a log, are read as far as the queue or log
reaches.

To drop a message's row deletes the message. To drop a timeout slot gives back the messages that it lists:
nobody could claim them while the slot was in quarantine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from cqueue import ids
from cqueue.client import Client, inside
from cqueue.errors import BadInput, DamagedRow
from cqueue.log.protocol.subscription_definition import definition_of, origin_of
from cqueue.protocol import inspection, policy
from cqueue.protocol.lock import mutate_once
from cqueue.protocol.spec import Proto
from cqueue.runtime.driver import BlockingDriver
from cqueue.store import decode
from cqueue.store.control import ReadResult, ReadSchedule, ReadWorkers, RemoveSchedule, RemoveWorker
from cqueue.store.keys import (
    DeleteKeys,
    KeyPlace,
    KeyRow,
    KeyWrite,
    ReadKey,
    ReadReservation,
    RemoveReservation,
)
from cqueue.store.log_operations import (
    DeleteRecords,
    ListSubscriptions,
    LogShard,
    ReadLogShards,
    ReadSubscription,
    RemoveMember,
    SubscriptionKey,
    UnregisterLogShard,
)
from cqueue.store.operations import (
    DeleteBodies,
    DeleteMessages,
    DropSlot,
    DumpRow,
    Mutate,
    Now,
    Operation,
    RandomBits,
    ReadHead,
    ReadIds,
    ReadSlice,
    SlotChange,
    SlotRow,
    SlotState,
    UnregisterShard,
    WideRow,
)
from cqueue.store.quarantine import MESSAGE_KIND, MESSAGES, SLOT_KIND, Damage, parse_address
from cqueue.store.record_page import ReadRecordPage
from cqueue.store.statements import KEY_COLUMNS

_INSTEAD: Final = {
    "queues": "`cqueue queue delete {0}` deletes the queue with its messages",
    "logs": "`cqueue log delete {0}` deletes the log with its records",
}
_ALONE: Final[Mapping[str, Callable[..., Operation[Any]]]] = {
    "reservations": ReadReservation,
    "results": ReadResult,
    "message_keys": lambda queue, key, id_, priority: ReadKey(KeyPlace(queue, key), (id_, priority - 1), 1),
    "log": lambda log, partition, time_shard, id_: ReadRecordPage(
        LogShard(log, partition, time_shard), id_ - 1, id_, 1
    ),
    "log_shards": lambda log, time_shard, _partition: ReadLogShards(log, (time_shard,)),
}
"""By table, the read of one row, or of a few. `look` does not read these tables, as they may be large."""
TABLES: Final = ("queues", "logs", "schedules", "workers", "subscriptions", "shards", "log", "log_shards")


def look(client: Client) -> list[Damage]:
    """Read all queues, logs, schedules, subscriptions, workers and registries. Return the damaged rows.

    Records of logs are not read; see `look_at_log`. Nor are keys, reservations and results: the call that
    meets a damaged row of these names it.

    Raises:
        NotDone: something could not be read.
    """
    own = inside(client)
    for entry in own.catalog.all():
        own.driver.run(inspection.wide_rows(entry.spec))
        client.queue(entry.row.name).schedules.list()
    client.logs()
    own.driver.ask(ReadWorkers())
    for key in own.driver.ask(ListSubscriptions()):
        _look_at_subscription(own.driver, key)
    return own.quarantine.of(*TABLES)


def _look_at_subscription(driver: BlockingDriver, key: SubscriptionKey) -> None:
    now_us = driver.clock.now_us()
    rows = driver.ask(ReadSubscription(key, now_us=now_us))
    with suppress(DamagedRow):
        definition = definition_of(rows)
        if definition is not None:
            origin_of(key, definition, now_us, driver.report)


def look_at_queue(client: Client, name: str) -> list[Damage]:
    """Read a whole queue, including bodies. Return the damaged rows of its registry, messages and slots.

    Raises:
        QueueNotFound: there is no such queue.
        DamagedRow: the queue's own row is damaged.
        NotDone: something could not be read.
    """
    own = inside(client)
    spec = own.catalog.entry(name).spec
    own.driver.run(inspection.examine(spec))
    return [each for each in own.quarantine.of(MESSAGES, "shards") if each.owner == spec.partition]


def look_at_log(client: Client, log: str) -> list[Damage]:
    """Read a log's records. Return the damaged ones.

    Raises:
        LogNotFound: there is no such log.
        DamagedRow: the log's own row is damaged.
    """
    with client.log(log).scan() as records:
        for _ in records.batches():
            pass
    found = inside(client).quarantine.of("log", "log_shards")
    return [each for each in found if each.owner.startswith(f"{log}@")]


def find(client: Client, address: str) -> Damage:
    """Return the damaged row at this address. The row is read again, to see that it is damaged still.

    Raises:
        BadInput: the text is no address, there is no such row, or the row is not damaged.
    """
    table, key = parse_address(address)
    if dump(client, address) is None:
        raise BadInput(f"there is no row at {address}")
    if table == MESSAGES:
        _read_again(inside(client).driver, key)
    elif table in _ALONE:
        with suppress(DamagedRow):
            inside(client).driver.ask(_ALONE[table](*key))
    else:
        look(client)
    damage = inside(client).quarantine.find(table, key)
    if damage is None:
        raise BadInput(f"the row at {address} is not damaged, so it stays")
    return damage


def _read_again(driver: BlockingDriver, key: Sequence[Any]) -> None:
    queue, time_shard, shard, kind, priority, id_ = key
    wide_row = WideRow(queue, time_shard, shard)
    if kind == MESSAGE_KIND:
        driver.ask(ReadIds(wide_row, priority, id_ - 1, id_, 1))
        driver.ask(ReadSlice(wide_row, priority, id_ - 1, id_, 1))
    else:
        driver.ask(ReadHead(wide_row))


def dump(client: Client, address: str) -> dict[str, Any] | None:
    """Return all columns of a row by name, blobs in hexadecimal; None if there is no such row.

    Raises:
        BadInput: the text is no address.
    """
    found = inside(client).driver.ask(DumpRow(*parse_address(address)))
    return None if found is None else dict(json.loads(found))


def drop(client: Client, damage: Damage) -> None:
    """Delete one damaged row.

    Raises:
        BadInput: the row has to be deleted in another way, which the message names; or it was changed
        meanwhile. NotDone, OutcomeUnknown: the deletion failed or may have failed; it can be repeated.
    """
    driver, (table, _, key, _) = inside(client).driver, damage
    match table:
        case "messages":
            _drop_of_wide_row(client, damage)
        case "schedules":
            _drop_schedule(driver, *key)
        case "subscriptions":
            _drop_of_subscription(driver, damage)
        case "workers":
            driver.ask(RemoveWorker(key[1]))
        case "reservations":
            driver.ask(RemoveReservation(*key))
        case "message_keys":
            queue, of, id_, priority = key
            row = KeyRow(id_, priority, 0, 0, driver.clock.now_us())
            driver.ask(DeleteKeys((KeyWrite(KeyPlace(queue, of), row),)))
        case "shards":
            queue, epoch, time_shard, shard = key
            driver.ask(UnregisterShard(queue, epoch, time_shard, shard, driver.clock.now_us()))
        case "log":
            driver.ask(DeleteRecords(LogShard(*key[:3]), (key[3],), driver.clock.now_us()))
        case "log_shards":
            log, time_shard, partition = key
            driver.ask(UnregisterLogShard(LogShard(log, partition, time_shard)))
        case _:
            raise _refusal(damage)
    inside(client).quarantine.forget(damage)


def _drop_of_wide_row(client: Client, damage: Damage) -> None:
    driver, (queue, time_shard, shard, kind, priority, id_) = inside(client).driver, damage.key
    wide_row = WideRow(queue, time_shard, shard)
    if kind == MESSAGE_KIND:
        driver.run(_drop_message(wide_row, priority, id_))
    elif kind != SLOT_KIND:
        raise BadInput("claims write this row anew or ignore it; there is nothing to drop")
    elif not driver.run(_give_back(wide_row, priority, id_, dump(client, damage.address) or {})):
        raise BadInput("the slot has been changed meanwhile; look again")


def _drop_message(wide_row: WideRow, priority: int, id_: int) -> Proto[None]:
    now_us = yield from Now()
    yield from DeleteMessages(wide_row, priority, (id_,), now_us)
    yield from DeleteBodies(wide_row, (id_,))


def _give_back(wide_row: WideRow, priority: int, id_: int, stored: dict[str, Any]) -> Proto[bool]:
    """Make the messages of a damaged slot available at once. Return False if the slot was changed
    meanwhile.
    """
    number = ids.slot_number(id_)
    if id_ != ids.slot_id(number):
        return (yield from DropSlot(wide_row, priority, id_))
    now_us = yield from Now()
    owner = yield from RandomBits(128)
    head = yield from ReadHead(wide_row)
    aside = head.by_place().get((priority, number))
    if aside is None:  # its number is beyond all used numbers
        return (yield from DropSlot(wide_row, priority, id_))
    row = SlotRow(
        priority=priority,
        number=number,
        state=SlotState.WAITING if aside.ids else SlotState.FREE,
        ids=aside.ids,
        due_ms=now_us // 1000,
        attempt=max(0, aside.attempt - 1),
        owner=owner.to_bytes(16, "big"),
        rev=policy.next_fence(stored.get("rev"), now_us),
        tally=aside.tally,
    )
    return (yield from mutate_once(Mutate(wide_row, slots=(SlotChange(stored.get("rev"), row),))))


def _refusal(damage: Damage) -> BadInput:
    """Return the error that says how to delete the row instead."""
    known = _INSTEAD.get(damage.table)
    what = known.format(*damage.key) if known is not None else f"delete it with CQL: {_cql(damage)}"
    return BadInput(f"this row of table {damage.table} is not dropped here: {what}")


def _cql(damage: Damage) -> str:
    where = " AND ".join(
        f"{column} = {repr(value) if isinstance(value, str) else value}"
        for column, value in zip(KEY_COLUMNS[damage.table], damage.key, strict=True)
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
