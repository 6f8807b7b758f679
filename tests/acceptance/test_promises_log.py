"""What a log promises about time to live, scans and pushes, on a real Cassandra.

`docs/reference/proof.md` names these tests beside the promises.
"""

# ruff: noqa: S608 - the CQL is put together from names of this module

import random
from datetime import UTC, datetime, timedelta
from itertools import product
from urllib.parse import unquote

import pytest
from tenacity import wait_fixed

import cqueue
from cqueue.log import LogConfig, Record
from cqueue.testing.clock import ManualClock
from tests.fix_dispatcher import until
from tests.subscriptions.test_log_http_push import Receiver

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(120)]

MINUTE = timedelta(minutes=1)
PARTITIONS, TOPICS = 3, ("a", "b")


@pytest.fixture(scope="module")
def keyspace(new_keyspace):
    """A keyspace in which what was appended is stable soon."""
    return new_keyspace(settle_ms=200, skew_ms=200)


def bodies(log, **bounds):
    with log.scan(**bounds) as records:
        return [record.body for record in records]


# ── Time to live ──


def test_a_record_is_gone_when_its_time_to_live_is_over(keyspace, client, connection, monkeypatch):
    """Cassandra itself forgets it. What was appended under a longer one stays, beside it."""
    log = client.create_log("short", LogConfig(partitions=1, ttl=MINUTE))
    with monkeypatch.context() as patch:
        # Nobody may choose less than a minute, and no test waits for one.
        patch.setattr(LogConfig, "ttl_s", property(lambda _: 1))
        with cqueue.connect(keyspace.url) as other:
            other.log("short").append("t", b"forgotten")
    log.append("t", b"kept")
    cql = f"SELECT body, ttl(body) AS left FROM {keyspace.name}.log"
    found = {row.body: row.left for row in connection.session.execute(cql)}
    assert 1 < found[b"kept"] <= 60
    until(lambda: [row.body for row in connection.session.execute(cql)] == [b"kept"])
    until(lambda: bodies(log) == [b"kept"])


# ── Scans ──


@pytest.fixture(scope="module")
def appended(keyspace):
    """A log's records, in order: appended over five of its time shards, an hour ago."""
    with cqueue.connect(keyspace.url) as earlier:
        earlier._driver.clock = clock = ManualClock(datetime.now(UTC) - timedelta(hours=1))
        log = earlier.create_log("scanned", LogConfig(partitions=PARTITIONS, time_shard=MINUTE))
        drawn, records = random.Random(3), []
        for at in range(30):
            clock.move_to(clock.now_us() + 10_000_000)
            record = Record(drawn.choice(TOPICS), b"%d" % at, partition=drawn.randrange(PARTITIONS))
            records.append((clock.now_us(), record, log.append_many([record]).ids[0]))
    return records


PLACES = (None, [1], [0, 2])
TOPIC_SETS = (None, ["a"], ["b", "c"])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [None, 4])
def test_bounds_of_a_scan_hold_together(client, appended, reverse, limit):
    """Partitions, topics, start and end (times and records), limit and direction, in all combinations."""
    log = client.log("scanned")
    starts = (None, 4, 17)
    ends = (None, 12, 25)
    for partitions, topics, start, end, by_id in product(PLACES, TOPIC_SETS, starts, ends, (False, True)):
        bounds = {"partitions": partitions, "topics": topics, "limit": limit, "reverse": reverse}
        if start is not None:
            bounds["start"] = appended[start][2] if by_id else moment(appended[start][0])
        if end is not None:
            bounds["end"] = appended[end][2] if by_id else moment(appended[end][0])
        assert bodies(log, **bounds) == expected(appended, bounds, start, end, by_id=by_id), bounds


def expected(appended, bounds, start, end, *, by_id):
    """A start is behind the record that it names, an end includes it; a time as an end is not included."""
    low = 0 if start is None else start + by_id
    high = len(appended) if end is None else end + by_id
    found = [
        record.body
        for _, record, _ in appended[low:high]
        if record.partition in (bounds["partitions"] or range(PARTITIONS))
        and record.topic in (bounds["topics"] or TOPICS)
    ]
    return (found[::-1] if bounds["reverse"] else found)[: bounds["limit"]]


def moment(us):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def test_a_scan_starts_in_each_partition_where_it_is_told(client, appended):
    """After a record in one, at a time in another; at the earliest where nothing is said."""
    log = client.log("scanned")
    named = next(id_ for _, record, id_ in appended[10:] if record.partition == 1)
    start = {1: named, 2: moment(appended[20][0])}
    after = {0: -1, 1: [id_ for _, _, id_ in appended].index(named), 2: 19}
    wanted = [record.body for at, (_, record, _) in enumerate(appended) if at > after[record.partition]]
    assert bodies(log, start=start) == wanted
    assert bodies(log, start=start, partitions=[1, 2], topics=["a"]) == [
        record.body
        for at, (_, record, _) in enumerate(appended)
        if record.partition and at > after[record.partition] and record.topic == "a"
    ]


# ── Push ──


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_a_subscription_pushes_each_record_until_it_is_taken(client, receiver):
    """A 2xx ends it, a 500 is tried again, a 404 makes a dead record; the next member goes on from there."""
    log = client.create_log("pushed", LogConfig(partitions=1))
    push = cqueue.HttpPush(receiver.url, headers={"Authorization": "Bearer x"})
    options = {"name": "web", "listeners": [push], "wait": wait_fixed(0.01)}
    receiver.answers = [204, 500, 503, 200, 404]
    ids = [log.append("größe", b"%d" % at, key="k", headers={"h": "é"}) for at in range(4)]
    with client.subscribe("pushed", **options):
        until(lambda: len(receiver.got) == 6)
    assert [body for _, body in receiver.got] == [b"0", b"1", b"1", b"1", b"2", b"3"]
    assert all(headers["Cqueue-Id"] == ids[int(body)] for headers, body in receiver.got)
    headers = receiver.got[0][0]
    assert (unquote(headers["Cqueue-Topic"]), headers["Cqueue-Key"]) == ("größe", "k")
    assert (unquote(headers["Cqueue-Header-H"]), headers["Authorization"]) == ("é", "Bearer x")
    dead = client.log("pushed.dead")
    until(lambda: bodies(dead) == [b"2"])
    log.append("t", b"4")
    with client.subscribe("pushed", **options):
        until(lambda: len(receiver.got) == 7)
    assert receiver.got[-1][1] == b"4"
