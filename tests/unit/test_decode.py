"""Rows of all tables but `messages`: whatever stands in them, there is a value or a damage, and no error."""

import json
import struct
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cqueue import ids
from cqueue.errors import DamagedRow, SchemaMismatch
from cqueue.log.config import LogConfig
from cqueue.log.protocol.members import assigned
from cqueue.log.protocol.subscription_definition import Origin
from cqueue.store import cells, codec, decode
from cqueue.store.cassandra_log import _page as _page_of
from cqueue.store.log_operations import ReadSubscription, SubscriptionKey
from cqueue.store.operations import (
    CursorRow,
    Head,
    LockRow,
    LockState,
    ReadShards,
    SlotRow,
    SlotState,
)
from cqueue.store.quarantine import REMEMBERED_S, Damage, Quarantine, parse_address
from cqueue.store.record_page import RecordPage, parse
from cqueue.store.statements import KEY_COLUMNS

BIGINT = st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-2, 5), st.just(1 << 40))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)
UNREADABLE = st.just(cells.Unreadable(b"\xed\xa0\x80"))
TEXT = st.one_of(
    st.none(),
    UNREADABLE,
    st.text(max_size=10),
    st.sampled_from(["active", "paused", "done", "deleting", "", "{", "[]", "{}", "local_serial"]),
    JSON.map(json.dumps),
)
STORED_ID = st.integers(0, (1 << 124) - 1)
ID = st.none() | STORED_ID
KEY = st.text(min_size=1, max_size=5) | UNREADABLE
SHARDS = ReadShards("q@1", 3_600_000, 0, (3_600_000, 3_600_000, 30_000))
READ = ReadSubscription(SubscriptionKey("l@1", "s"), now_us=1_700_000_000_000_000)


def columns(*strategies):
    """Rows with such columns."""
    return st.lists(st.tuples(*strategies), max_size=4)


def judged(rows, found):
    """Each row is a value or a damage, which says what is wrong, and where."""
    assert len(found.values) + len(found.damages) == len(rows)
    for damage in found.damages:
        assert damage.reason
        assert str(decode.error(damage))


@given(columns(KEY, TEXT, BIGINT, TEXT, TEXT, BIGINT, BIGINT, BIGINT))
def test_any_row_of_queues(rows):
    """A value has what the client computes with; the rest is a damage."""
    found = decode.queues(rows)
    judged(rows, found)
    for row in found.values:
        assert row.version + 1 < 1 << 63
        assert isinstance(json.loads(row.config), dict)
        assert row.epoch_ms >= 1000
        assert row.oldest_epoch >= decode.FIRST_MS
        assert row.oldest_open_epoch < 0


def test_json_that_is_nested_too_deep_is_a_damage():
    """As other JSON that cannot be read."""
    row = ("q", "1", 1, "active", '{"a": ' + "[" * 100_000, 3_600_000, decode.FIRST_MS, -1)
    assert [damage.reason for damage in decode.queues([row]).damages] == ["config is no JSON object"]


@given(columns(KEY, TEXT, BIGINT, TEXT, TEXT, BIGINT))
def test_any_row_of_logs(rows):
    """And a configuration that is JSON and no log's is a DamagedRow."""
    found = decode.logs(rows)
    judged(rows, found)
    for row in found.values:
        _parsed(lambda row=row: LogConfig.from_json(row.config))


@given(columns(KEY, KEY, BIGINT, TEXT, BIGINT, TEXT, BIGINT, BIGINT, BIGINT))
def test_any_row_of_schedules(rows):
    """And a definition that is JSON and no schedule's is a DamagedRow."""
    from cqueue.dispatcher.schedules.definition import ScheduleDefinition

    found = decode.schedules(rows)
    judged(rows, found)
    for row in found.values:
        _parsed(lambda row=row: ScheduleDefinition.from_json(row.definition))


@given(columns(KEY, TEXT, BIGINT))
def test_any_row_of_workers(rows):
    """What a worker says of itself may be anything, too."""
    from cqueue.dispatcher.service.membership import parse as worker_of

    found = decode.workers(rows)
    judged(rows, found)
    for row in found.values:
        assert worker_of(row).name == row.worker


@given(
    columns(BIGINT, st.integers(-(1 << 31), (1 << 31) - 1), st.none() | st.frozensets(st.integers(-128, 127)))
)
def test_any_row_of_the_registry(rows):
    """What is left is a wide row of the epoch, with some priority."""
    found = decode.shards(SHARDS, rows)
    judged(rows, found)
    for row in found.values:
        assert 3_600_000 <= row.time_shard < 7_200_000
        assert row.time_shard % 30_000 == 0
        assert 0 <= row.shard < 1000
        assert row.priorities
        assert row.priorities <= frozenset(range(10))
    judged(rows, decode.shards(ReadShards("q@1", 0, 0), rows))


_SUBSCRIPTION_ROW = (
    st.integers(-128, 127) | st.sampled_from([0, 1, 2]), st.integers(-32_768, 32_767), st.text(max_size=3),
    BIGINT, TEXT, TEXT, ID, BIGINT, st.none() | st.text(max_size=3) | UNREADABLE, BIGINT, TEXT, BIGINT,
)  # fmt: skip


@given(columns(*_SUBSCRIPTION_ROW))
def test_any_row_of_subscriptions(rows):
    """Positions and heartbeats lie in the past, fences can grow, and members can be told apart."""
    found, damages = decode.subscription(READ, rows)
    for row in found.positions.values():
        assert ids.time_us(row.position) <= READ.now_us + decode.AHEAD_US
        assert row.fence + 1 < 1 << 63
        assert isinstance(row.owner, str)
    assert all(row.seen <= READ.now_us + decode.AHEAD_US for row in found.members)
    assigned(READ.key, "me", found.members, range(2))
    if found.definition is not None:
        _parsed(lambda: Origin.from_json(found.definition.config))
    assert all(damage.reason for damage in damages)


@pytest.mark.parametrize("key", [(0, 0, "x"), (0, 1, ""), (1, 3, "x"), (2, 1, "m")])
def test_a_row_of_a_subscription_under_a_key_that_no_member_writes_is_ignored(key):
    """No member could change it, as members write definition, positions and heartbeats under other keys."""
    rows = [
        (0, 0, "", 1, "active", "{}", *[None] * 6),
        (1, 3, "", None, None, None, ids.lowest_at(9), 5, "m", 0, None, None),
        (2, 0, "m", *[None] * 7, "{}", 7),
    ]
    stray = (*key, 2, "paused", "{}", ids.lowest_at(8), 6, "x", 0, '{"x": 1}', 8)
    found, damages = decode.subscription(READ, sorted([*rows, stray], key=lambda row: row[:3]))
    assert found == decode.subscription(READ, rows).values
    assert [damage.key[2:] for damage in damages] == [key]


@given(st.lists(st.tuples(BIGINT, st.integers(-32_768, 32_767))))
def test_any_row_of_log_shards(rows):
    """Partitions that no log has are left out."""
    found, damages = decode.log_shards("l@1", rows)
    assert all(0 <= each <= 32_767 for partitions in found.values() for each in partitions)
    assert {damage.key[2] for damage in damages} == {partition for _, partition in rows if partition < 0}


@given(
    st.tuples(BIGINT, TEXT, BIGINT, BIGINT, BIGINT, BIGINT, TEXT, BIGINT, st.none() | st.booleans())
    | st.tuples(*map(st.just, (2, "serial", 1, 1, 1, 1)), TEXT, BIGINT, st.none() | st.booleans())
)
def test_any_deployment_row(row):
    """It is read, or the schema does not fit: never another error. A row without a home may be older."""
    try:
        read = decode.deployment([row])
    except SchemaMismatch:
        return
    assert read[:7] == row[:7]
    assert read.home_dc != ""
    assert (read.centre_epoch, read.retiring) == (row[7] or 0, row[8] in {None, True})


@given(st.lists(st.tuples(STORED_ID, st.none() | st.binary(max_size=3))))
def test_a_null_body_is_missing(rows):
    """As if it had never been stored."""
    assert None not in decode.bodies(rows).values()


def _parsed(parse):
    with suppress(DamagedRow):
        decode.parsed(Damage("t", "o", ("k",), "column"), parse, Quarantine().report)


def test_json_that_is_nested_too_deeply_is_damage():
    """A schedule or a subscription that holds it is one damaged row, and no error of Python's."""
    with pytest.raises(DamagedRow, match="column holds what does not belong there"):
        decode.parsed(Damage("schedules", "q", ("q", "k"), "column"), lambda: json.loads("[" * 10**5), print)


# ── the head of a wide row ──

COLUMNS = "kind priority id cursor boundary state owner until fence ids due attempt rev died_at tally"
AT = {name: at for at, name in enumerate(COLUMNS.split())}
LOCK = (1, 0, ids.START, None, None, 1, b"me", 5000, 70, *[None] * 5, 9)
CURSOR = (0, 0, ids.START, 8 << 64, 9 << 64, *[None] * 9, -4)
SLOT = (2, 0, ids.slot_id(3), None, None, 1, b"me", None, None, (5 << 64,), 6000, 2, 71, 5500, -5)
SOUND = Head(
    LockRow(LockState.LOCKED, b"me", 5000, 70, 9),
    {0: CursorRow(0, 8 << 64, 9 << 64, -4)},
    (SlotRow(0, 3, SlotState.CLAIMED, (5 << 64,), 6000, 2, b"me", 71, 5500, -5),),
)


def head_of(*rows):
    """A head, and the places of its rows that cannot be read."""
    told = []
    return codec.head(rows, lambda place, _: told.append(place)), told


def test_a_sound_head_is_read_whole():
    """Columns that were never written count as nothing; a free slot lists nothing."""
    assert head_of(CURSOR, LOCK, SLOT) == (SOUND, [])
    free = (*SLOT[:5], 0, None, None, None, None, 6000, 0, 71, 0, None)
    found, told = head_of((*LOCK[:6], None, *LOCK[7:14], None), free)
    assert found.lock == LockRow(LockState.LOCKED, b"", 5000, 70)
    assert found.slots == (SlotRow(0, 3, SlotState.FREE, (), 6000, 0, b"", 71),)
    assert told == []


@pytest.mark.parametrize(
    ("column", "value"), [("state", 7), ("state", None), ("until", None), ("fence", None)]
)
def test_a_damaged_lock_is_free_and_one_without_a_fence_is_none(column, value):
    """The fence keeps claims apart: the next one overwrites the row."""
    at = AT[column]
    lock = None if column == "fence" else SOUND.lock._replace(state=LockState.FREE, until_ms=0)
    assert head_of((*LOCK[:at], value, *LOCK[at + 1 :])) == (Head(lock), [LOCK[:3]])


@pytest.mark.parametrize("column", ["cursor", "boundary"])
def test_a_cursor_that_is_not_whole_lies_beyond_all_ids(column):
    """Claims take it for lost, and sweep from the start."""
    at = AT[column]
    lost = CursorRow(0, codec.BEYOND_ALL_IDS, codec.BEYOND_ALL_IDS, -4)
    assert head_of((*CURSOR[:at], None, *CURSOR[at + 1 :])) == (Head(None, {0: lost}), [CURSOR[:3]])


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", ids.slot_id(3) + 1), ("id", ids.slot_id(1 << 20)), ("ids", None), ("due", None), ("rev", None),
        ("state", 7), ("state", None), ("state", -1),
        ("attempt", None), ("attempt", -1), ("attempt", 2**31 - 1),
    ],
)  # fmt: skip
def test_a_damaged_slot_is_set_aside_with_what_it_lists(column, value):
    """Nobody may claim those messages, and no claim takes its number: it may not be one."""
    at = AT[column]
    row = (*SLOT[:at], value, *SLOT[at + 1 :])
    found, told = head_of(row)
    (slot,) = found.slots
    assert (slot.state, slot.ids, slot.tally) == (SlotState.QUARANTINED, row[9] or (), -5)
    assert slot.number == (-1 if column == "id" else 3)
    assert told == [row[:3]]


@pytest.mark.parametrize("due_ms", [-1, 253_402_300_800_000])
def test_a_timeout_that_no_date_can_hold_is_shown_as_never(due_ms):
    """It counts as passed; that of the last moment of the year 9999 is a date."""
    last = 253_402_300_799_999
    for stored, shown in ((due_ms, last), (last, last), (0, 0)):
        assert head_of((*SLOT[:10], stored, *SLOT[11:]))[0].slots[0].due_ms == shown


# ── records, as bytes ──

CELL = st.none() | st.binary(max_size=6)
RECORD = st.tuples(
    st.integers(ids.lowest_at(1), ids.lowest_at(10**15)),
    st.none() | st.text(max_size=5).map(str.encode),
    st.none() | st.binary(max_size=5),
    st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2).map(cells.text_map),
    CELL,
)


@given(st.lists(RECORD, max_size=8))
def test_records_without_topic_or_body_are_cut_out_of_a_page(records):
    """The others stand in it as if they had come alone, in the same order."""
    page = parse(_page(records))
    kept = [each for each in records if each[1] is not None and each[4] is not None]
    assert [each.id for each in page.broken] == [each[0] for each in records if each not in kept]
    alone = parse(_page(kept))
    assert (page.data, page.starts, page.bodies) == (alone.data, alone.starts, alone.bodies)
    found = [(row.id, row.topic.encode(), row.body) for row in page.rows()]
    assert found == [(each[0], each[1], each[4]) for each in kept]


@given(st.lists(RECORD, max_size=8))
def test_rows_that_the_driver_has_decoded_give_the_same_page(records):
    """Where cqueue's own reading of the bytes does not fit the driver, it goes by the driver's rows."""

    def read(decode, data):
        return None if data is None else decode(data)

    found = _page_of(
        [
            (id_, read(bytes.decode, topic), read(cells.shown, key), read(cells.pairs, headers), body)
            for id_, topic, key, headers, body in records
        ]
    )
    page = parse(_page(records))
    assert list(found.rows()) == list(page.rows())
    assert found.broken == page.broken


def _page(records):
    rows = [b"".join(map(cells.of, (ids.to_bytes(id_), *rest))) for id_, *rest in records]
    return struct.pack(">i", len(rows)) + b"".join(rows)


@given(st.binary(max_size=20) | st.just(struct.pack(">3i", 1, -1, 0)))
def test_a_record_whose_headers_are_no_map_is_cut_out_of_a_page(headers):
    """The record beside it is read; headers that are a map are decoded whole."""
    sound = (ids.lowest_at(2), b"t", None, None, b"sound")
    page = parse(_page([(ids.lowest_at(1), b"t", None, headers, b"damaged"), sound]))
    found = list(page.rows())
    assert found[-1].body == b"sound"
    if len(found) == 1:
        assert page.broken == ((ids.lowest_at(1), "headers are no map"),)
    else:
        assert len(headers) >= 4 + 8 * len(found[0].headers)


def test_a_page_without_broken_records_is_as_it_came():
    """No byte of it is moved: reading costs what it did."""
    data = _page([(ids.lowest_at(at), b"t", None, None, b"body") for at in range(1, 100)])
    page = parse(data)
    assert page.data is data
    assert isinstance(page, RecordPage)
    assert page.broken == ()


# ── the register ──


@pytest.mark.parametrize("table", KEY_COLUMNS)
def test_the_address_of_a_row_of_any_table_names_its_key(table):
    """`cqueue quarantine dump` takes the address from the log line of a damaged row."""
    texts = {"queue", "key", "fleet", "worker", "log", "subscription", "member", "message"}
    key = tuple("a/b c" if column in texts else 7 for column in KEY_COLUMNS[table])
    assert parse_address(Damage(table, "q@1", key, "why").address) == (table, key)


def test_a_row_is_counted_and_logged_once(caplog):
    """A client that reads the row a thousand times does not fill its log."""
    quarantine = Quarantine()
    row = ("k", *[None] * 7)
    for _ in range(3):
        with pytest.raises(DamagedRow):
            decode.only_row(decode.queues([row]), quarantine)
    assert quarantine.counts() == {"k": 1}
    assert [each.key for each in quarantine.of("queues")] == [("k",)]
    assert sum("row_quarantined" in record.getMessage() for record in caplog.records) == 1


def test_a_row_that_is_met_no_more_is_forgotten(monkeypatch):
    """It was mended, or dropped by an operator: what counts damaged rows says so without a restart."""
    now_s = 0.0
    monkeypatch.setattr("cqueue.store.quarantine.time", SimpleNamespace(monotonic=lambda: now_s))
    quarantine = Quarantine()
    for number in range(2):
        quarantine.report(Damage("queues", f"q{number}", (f"q{number}",), "why"))
    now_s = REMEMBERED_S
    quarantine.report(Damage("queues", "q1", ("q1",), "why"))
    now_s += 1
    assert quarantine.counts() == {"q1": 1}
    assert quarantine.find("queues", ("q0",)) is None
    assert [each.owner for each in quarantine.of("queues")] == ["q1"]


def test_of_a_table_that_is_damaged_throughout_a_few_rows_are_remembered(caplog, monkeypatch):
    """The others fill neither memory nor log; a caller that has just read one learns that it is damaged."""
    monkeypatch.setattr("cqueue.store.quarantine.REMEMBERED", 2)
    quarantine = Quarantine()
    for number in range(5):
        quarantine.report(Damage("queues", f"q{number}", (f"q{number}",), "why"))
        assert quarantine.find("queues", (f"q{number}",)) is not None
    assert [each.owner for each in quarantine.of("queues")] == ["q3", "q4"]
    assert sum(quarantine.counts().values()) == 2
    assert sum("row_quarantined" in record.getMessage() for record in caplog.records) == 2
