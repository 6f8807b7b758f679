"""Sending through a spool: what is spooled arrives once, in order, whatever ends or fails in between."""

import errno
import itertools
import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event
from types import SimpleNamespace
from unittest import mock

import pytest
from structlog.testing import capture_logs

import cqueue
from cqueue.client import Client
from cqueue.errors import (
    BadInput,
    Closed,
    HeadersTooLarge,
    PartitionOutOfRange,
    Refused,
    SpoolFailed,
    SpoolFull,
    SpoolLocked,
    SpoolTooOld,
    Unavailable,
)
from cqueue.log import LogConfig
from cqueue.protocol.writing import PART_BYTES, PART_ROWS
from cqueue.runtime.clock import ClusterClock
from cqueue.runtime.driver import BlockingDriver
from cqueue.spool import Spool, forward_known, writer
from cqueue.spool.disk import Disk
from cqueue.spool.forward_frame import Frame
from cqueue.spool.forward_log import _in_turn
from cqueue.spool.forward_message import _recalled, topic_of
from cqueue.spool.forwarder import Forwarded, Forwarder, Stored
from cqueue.spool.queue_writer import QueueWriter
from cqueue.store.control import ReadWorkers
from cqueue.store.late import LateStore
from cqueue.store.log_operations import AppendRecords
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import InsertMessages
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import until
from tests.fix_store import brief_store
from tests.spool.faulty import FullDisk
from tests.unit.ctrl_c import at_each_moment

pytestmark = pytest.mark.usefixtures("brisk_forwarding")

SOON = timedelta(seconds=60)
NOT_YET = timedelta(milliseconds=50)
MAIL = topic_of("mail")
FRAMED = Frame(0, 0, 0, b"source", {}, b"").pack()


class Away(FaultyStore):
    """A store that is away whenever a test says so, or does what `fate` does with an operation."""

    def __init__(self, store, cluster):
        super().__init__(store)
        self.cluster = cluster
        self.away = False
        self.fate = lambda _: None

    def together(self, operations):
        if self.away:
            return [Unavailable("away")] * len(operations)
        return [self.fate(each) or self.store.together((each,))[0] for each in operations]

    def sample_time_us(self):
        if self.away:
            raise Unavailable("away")
        ahead_us = int(self.cluster.ahead_s * 1e6)
        return [(time_us + ahead_us, trip_us) for time_us, trip_us in self.store.sample_time_us()]


class Cluster:
    """A store in memory, and clients of it that may find it away; a clock that a test moves."""

    def __init__(self):
        self.memory = brief_store()
        self.ahead_s = 0.0
        self.clients = []

    def connect(self, *, away=False):
        store = Away(self.memory, self)
        store.away = away
        clock = ClusterClock(
            store.sample_time_us,
            local_us=lambda: time.monotonic_ns() // 1000 + int(self.ahead_s * 1e6),
            wall_us=lambda: time.time_ns() // 1000 + int(self.ahead_s * 1e6),
        )
        driver = BlockingDriver(store, clock, pause=lambda s: time.sleep(s / 20))
        client = Client(store, on_close=lambda: None, driver=driver)
        client.store = store
        self.clients.append(client)
        return client


@pytest.fixture
def cluster(monkeypatch):
    made = Cluster()
    monkeypatch.setattr("cqueue.spool.forward_client.CLOSE_S", 0.2)
    yield made
    for client in made.clients:
        client.close()


@pytest.fixture
def spool(tmp_path):
    with Spool(tmp_path / "spool", segment_bytes=1 << 22) as spool:
        yield spool


@pytest.fixture
def client(cluster):
    client = cluster.connect()
    client.create_queue("mail")
    return client


def drain(queue):
    """All that is in the queue, received and acked."""
    found = []
    with queue.consumer() as consumer:
        while queue.stats(exact=True).live:
            messages = consumer.receive(100, wait=SOON)
            assert messages
            found += messages
            consumer.ack(messages)
    return found


def leave(client, spool, body):
    """Spool a message for the queue, by a producer that ends before it forwards anything."""
    with mock.patch.object(Forwarder, "start"):
        client.queue("mail", spool=spool).send(body)
        client.close()


def again(cluster, spool, name="mail"):
    """Forward the whole spool once more, with another client, as if nothing had been committed."""
    target = cluster.connect()._spools._queue_target(spool, name)
    return target.store(list(spool.records(topic_of(name), offset=0)))


# ── what is sent ──


def test_what_is_spooled_arrives_whole(client, spool):
    """Each part of a message, under the id that `send` gave."""
    queue = client.queue("mail", spool=spool)
    first = queue.send(b"plain")
    full = cqueue.Message(
        b"full", priority=3, headers={"a": "ä"}, ttl=SOON, task="t", key="k", codec="json", trigger="x"
    )
    result = queue.send_many([full])
    assert result.failed == []
    assert queue.flush(SOON)
    plain, other = drain(queue)
    assert (plain.id, plain.body) == (first, b"plain")
    assert [other.id] == result.ids
    assert (other.body, other.priority, other.headers) == (b"full", 3, {"a": "ä"})
    assert (other.task, other.key, other.codec) == ("t", "k", "json")
    assert queue.waiting == 0


def test_messages_come_in_the_order_of_their_sends(client, spool):
    """One by one and in batches, over several batches of the forwarder."""
    queue = client.queue("mail", spool=spool)
    for start in range(0, 2000, 100):
        queue.send(b"%d" % start)
        queue.send_many([cqueue.Message(b"%d" % place) for place in range(start + 1, start + 100)])
    assert queue.flush(SOON)
    assert [message.body for message in drain(queue)] == [b"%d" % place for place in range(2000)]


def test_a_delay_runs_from_the_send(client, cluster, spool):
    """However long the message waits in the spool."""
    queue = client.queue("mail", spool=spool)
    client.store.away = True
    queue.send(b"later", delay=timedelta(seconds=30))
    cluster.ahead_s += 40
    client.store.away = False
    assert queue.flush(SOON)
    assert [message.body for message in drain(queue)] == [b"later"]


def test_a_clock_that_was_ahead_delays_only_what_was_sent_by_it(client, cluster, spool):
    """A producer starts by its machine's own clock, an hour ahead; later sends go by the cluster's."""
    client.queue("mail", spool=spool)
    client.close()
    second = cluster.connect(away=True)
    second._driver.clock._wall_us = lambda: time.time_ns() // 1000 + 3_600_000_000
    queue = second.queue("mail", spool=spool)
    queue.send(b"by the wrong clock")
    second.store.away = False
    assert queue.flush(SOON)
    queue.send_many([cqueue.Message(b"now"), cqueue.Message(b"next")])
    assert queue.flush(SOON)
    with queue.consumer() as consumer:
        received = consumer.receive(3, wait=timedelta(seconds=10))
    assert [message.body for message in received] == [b"now", b"next"]


def test_a_message_whose_time_to_live_is_over_is_not_forwarded(client, cluster, spool):
    """It is left out, and what stands behind it goes on."""
    queue = client.queue("mail", spool=spool)
    client.store.away = True
    queue.send(b"short", ttl=timedelta(seconds=1))
    queue.send(b"long", ttl=timedelta(hours=1))
    cluster.ahead_s += 5
    client.store.away = False
    assert queue.flush(SOON)
    assert [message.body for message in drain(queue)] == [b"long"]


def test_an_application_s_own_source_stays(client, spool):
    """The same source and due time are one message, through the spool or not."""
    queue = client.queue("mail", spool=spool)
    for source in ("text", b"bytes"):
        message = cqueue.Message(b"x", source=source, due=queue.now)
        (spooled,) = queue.send_many([message, message]).ids[:1]
        assert client.queue("mail").send_many([message]).ids == [spooled]
    assert queue.flush(SOON)
    assert len(drain(queue)) == 2


def test_send_async_tells_when_the_message_is_durable(client, spool):
    """The future gives the id; with several under way each gets its own."""
    queue = client.queue("mail", spool=spool)
    ids = [future.result(60) for future in [queue.send_async(b"%d" % place) for place in range(50)]]
    assert queue.send_many_async([cqueue.Message(b"50")]).result(60).failed == []
    with mock.patch.object(spool, "append", return_value=Future()):
        assert not queue.send_async(b"it is the spool's by now").cancel()
    assert queue.flush(SOON)
    found = drain(queue)
    assert [message.id for message in found][:50] == ids
    assert len(found) == 51


# ── what is refused ──


def failing(error):
    future = Future()
    future.set_exception(error)
    return future


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"side_effect": SpoolFull("full")}, SpoolFull),
        ({"return_value": failing(SpoolFull("full"))}, SpoolFull),
        ({"return_value": failing(SpoolFailed("no", range(1)))}, cqueue.SendUnknown),
    ],
)
def test_what_the_spool_does_not_take_fails_one_by_one(client, spool, monkeypatch, how, told):
    """Whether the spool says so at once or later; bad input among it stays bad input."""
    client.create_log("events")
    queue, log = client.queue("mail", spool=spool), client.log("events", spool=spool)
    for name in ("append", "append_many"):
        monkeypatch.setattr(spool, name, mock.Mock(**how))
    result = queue.send_many([cqueue.Message(b"1"), cqueue.Message(b"2", priority=10), cqueue.Message(b"3")])
    assert {place: type(one) for place, one in result.failed} == {
        0: told,
        1: cqueue.PriorityOutOfRange,
        2: told,
    }
    assert result.ids == [None] * 3
    with pytest.raises(told):
        queue.send(b"x")
    with pytest.raises(cqueue.AppendUnknown if told is not SpoolFull else SpoolFull):
        log.append("t", b"x")


def test_bad_input_is_refused_before_it_is_spooled(client, spool):
    """Alone it raises; among others it fails alone. Nothing of it reaches the disk."""
    queue = client.queue("mail", spool=spool)
    with pytest.raises(cqueue.BodyTooLarge):
        queue.send(bytes((1 << 20) + 1))
    with pytest.raises(BadInput):
        queue.send("text")
    with pytest.raises(cqueue.BatchTooLarge):
        queue.send_many([cqueue.Message(b"")] * 10_001)
    old = datetime.now(UTC) - timedelta(days=2)
    bad = [cqueue.Message(b"", priority=10), cqueue.Message(b"", source="s", due=old), "no message"]
    bad += [cqueue.Message(b"", key="caf\udce9")]
    result = queue.send_many([bad[0], cqueue.Message(b"good"), *bad[1:]])
    assert [place for place, _ in result.failed] == [0, 2, 3, 4]
    assert [one.end for one in spool.status()] == [1]


def test_a_unique_message_is_refused(client, spool):
    """Whether another one is in the way shows only in Cassandra, which may be away."""
    queue = client.queue("mail", spool=spool)
    ((_, error),) = queue.send_many([cqueue.Message(b"x", unique=cqueue.Unique(key="k"))]).failed
    assert isinstance(error, BadInput)


def test_a_message_that_is_still_in_the_spool_is_not_told_as_gone(client, spool, monkeypatch):
    """It would be believed, and the message delivered later. After a flush it can be cancelled."""
    monkeypatch.setattr("cqueue.spool.forward_queue.FORWARDED_S", 0.01)
    client.queue("mail").alter(keyed=True)
    client.store.fate = lambda each: Unavailable("away") if isinstance(each, InsertMessages) else None
    queue = client.queue("mail", spool=spool)
    waits = queue.send(b"waits", key="k")
    for change in (
        lambda: queue.delete_by_key("k"),
        lambda: queue.reschedule_by_key("k", SOON),
        lambda: queue.cancel(waits),
        lambda: queue.reschedule(waits, SOON),
        lambda: queue.set_priority(waits, 3),
    ):
        with pytest.raises(cqueue.NotDone, match="spool"):
            change()
    client.store.fate = lambda _: None
    assert queue.flush(SOON)
    assert queue.cancel(waits)
    assert not queue.cancel(waits)


def test_what_is_gone_is_told_as_gone_however_much_is_sent_meanwhile(client, spool, monkeypatch):
    """Later messages are none that the caller can mean: the spool of a busy sender is hardly ever empty."""
    queue = client.queue("mail", spool=spool)
    gone = queue.send(b"gone")
    assert queue.flush(SOON)
    assert queue.cancel(gone)
    drain = queue._forwarder.drain

    def busy(limit_s):
        drained = drain(limit_s)
        queue.send(b"one more")
        return drained

    queue.send(b"one more")
    with monkeypatch.context() as patched:
        patched.setattr(queue._forwarder, "drain", busy)
        assert not queue.cancel(gone)


def test_what_was_forwarded_is_changed_by_its_key(client, spool):
    client.queue("mail").alter(keyed=True)
    queue = client.queue("mail", spool=spool)
    for body in (b"1", b"2"):
        queue.send(body, key="k", delay=timedelta(hours=1))
    assert len(queue.reschedule_by_key("k", timedelta()).done) == 2
    assert len(queue.delete_by_key("k").done) == 2
    assert queue.list_by_key("k") == []


def test_a_queue_that_does_not_exist_is_refused_at_once(client, spool):
    """Before anything is spooled for it."""
    with pytest.raises(cqueue.QueueNotFound):
        client.queue("male", spool=spool)
    assert spool.queues() == []


def test_after_the_queue_is_gone_sends_are_refused(client, spool):
    """The forwarder finds out; what waits stays in the spool, and arrives if the queue is made again."""
    queue = client.queue("mail", spool=spool)
    client.delete_queue("mail")
    queue.send(b"waits")
    until(lambda: queue.trouble is not None)
    with pytest.raises(cqueue.QueueNotFound):
        queue.send(b"refused")
    client.create_queue("mail")
    assert queue.flush(SOON)
    assert [message.body for message in drain(queue)] == [b"waits"]


def test_a_refusal_that_ends_meanwhile_is_told_as_it_was(client, spool):
    """A forwarder may go on between two looks at its error: a send raises the error all the same."""
    client.create_log("events")
    gone = cqueue.QueueNotFound("gone")
    for send in (
        client.queue("mail", spool=spool).send,
        partial(client.log("events", spool=spool).append, "t"),
    ):
        with (
            mock.patch.object(Forwarder, "refusal", mock.PropertyMock(side_effect=[gone, None])),
            pytest.raises(cqueue.QueueNotFound),
        ):
            send(b"refused")


def test_linger_and_a_spool_exclude_each_other(client, spool):
    with pytest.raises(BadInput):
        client.queue("mail", spool=spool, linger=timedelta())


# ── once, although forwarded twice ──


@pytest.mark.parametrize("settled", ["acked", "held", "waiting", "none"])
def test_a_spool_that_is_forwarded_twice_delivers_once(client, cluster, spool, settled):
    """Whatever has become of the messages in between: a second try revives and repeats none."""
    queue = client.queue("mail", spool=spool)
    ids = {queue.send(b"%d" % place) for place in range(10)}
    assert queue.flush(SOON)
    with queue.consumer() as consumer:
        held = consumer.receive(10, wait=SOON) if settled != "none" else []
        if settled == "acked":
            consumer.ack(held)
        if settled == "waiting":
            for message in held:
                message.nack(timedelta(milliseconds=300))
        assert again(cluster, spool) == Stored(10)
        assert queue.stats(exact=True).live == (0 if settled == "acked" else 10)
        more = consumer.receive(100, wait=SOON if settled == "none" else timedelta())
        if settled in {"acked", "held"}:
            assert more == []
        if settled == "none":
            assert {message.id for message in more} == ids
        consumer.ack(held if settled == "held" else more)
    rest = drain(queue) if settled == "waiting" else []
    if settled == "waiting":
        assert {message.id for message in [*more, *rest]} == ids
        assert len(more) + len(rest) == 10
    assert client.queue("mail").stats(exact=True).live == 0


def test_a_batch_that_is_cut_in_the_middle_is_sent_again(client, spool):
    """Some rows are stored and others not; what failed is tried again, and nothing comes twice."""
    queue = client.queue("mail", spool=spool)
    failed = []

    def fate(operation):
        if isinstance(operation, InsertMessages) and len(failed) < 3:
            failed.append(operation)
            client.store.store.together((operation,))  # stored, but nobody is told
            return cqueue.OutcomeUnknown("no answer")
        return None

    client.store.fate = fate
    ids = [queue.send(b"%d" % place) for place in range(20)]
    assert queue.flush(SOON)
    assert len(failed) == 3
    assert [message.id for message in drain(queue)] == ids


# ── Cassandra is away ──


def test_sends_go_on_while_cassandra_is_away(client, spool):
    """They are durable at once, and arrive when it is back, in order."""
    queue = client.queue("mail", spool=spool)
    client.store.away = True
    bodies = [b"%d" % place for place in range(100)]
    for body in bodies:
        queue.send(body)
    assert not queue.flush(NOT_YET)
    until(lambda: isinstance(queue.trouble, cqueue.NotDone))
    assert queue.waiting == 100
    client.store.away = False
    assert queue.flush(SOON)
    assert queue.trouble is None
    counts = spool.forwarding[MAIL]
    assert counts.forwarded == 100
    assert counts.failures >= 1
    assert [message.body for message in drain(queue)] == bodies


def test_a_producer_starts_while_cassandra_is_away(client, cluster, tmp_path):
    """If its queue was opened with the spool before: ids are the same as if Cassandra had answered."""
    with Spool(tmp_path / "spool") as spool:
        client.queue("mail", spool=spool)
        client.close()
    late = cluster.connect(away=True)
    with Spool(tmp_path / "spool") as spool:
        queue = late.queue("mail", spool=spool)
        id_ = queue.send(b"early")
        late.store.away = False
        assert queue.flush(SOON)
        assert [message.id for message in drain(queue)] == [id_]


def test_a_spool_that_knows_nothing_yet_needs_cassandra_once(cluster, spool):
    """What queue that is, and whether it exists, nobody could tell; nothing is spooled."""
    with pytest.raises(Unavailable, match="never opened with this spool"):
        cluster.connect(away=True).queue("mail", spool=spool)


def test_what_a_dead_producer_left_is_forwarded_by_the_next(client, cluster, tmp_path):
    """What was durable when it ended; a close while Cassandra is away does not wait for it."""
    client.store.away = True
    with Spool(tmp_path / "spool") as spool:
        client.store.away = False
        queue = client.queue("mail", spool=spool)
        client.store.away = True
        queue.send(b"left")
        client.close()
    with Spool(tmp_path / "spool") as spool:
        queue = cluster.connect().queue("mail", spool=spool)
        assert queue.flush(SOON)
        assert [message.body for message in drain(queue)] == [b"left"]


@pytest.mark.parametrize("next_process", [False, True], ids=["same-process", "next-process"])
def test_a_spool_on_a_full_disk_drains_by_itself(client, cluster, tmp_path, monkeypatch, next_process):
    """Appends are refused and nothing makes room; what waits arrives once, and its segments are deleted."""
    expired, expire = Event(), QueueWriter.expire

    def expires(self, now_ms):
        expire(self, now_ms)
        if self.queue.end and not self.queue.segments:
            expired.set()

    monkeypatch.setattr(writer, "EXPIRY_S", 0.01)
    monkeypatch.setattr(QueueWriter, "expire", expires)
    disk = FullDisk()
    options = {"disk": disk, "disk_reserve": 0, "segment_bytes": 1 << 14}
    spool = Spool(tmp_path / "spool", **options)
    queue = client.queue("mail", spool=spool)
    client.store.away = True
    sent = [queue.send(b"%0100d" % place) for place in range(500)]
    disk.is_full = True
    with pytest.raises(cqueue.SpoolFull):
        sent.extend(queue.send(b"x" * 100) for _ in itertools.count())
    if next_process:
        client.close()
        spool.close()
        spool, client = Spool(tmp_path / "spool", **options), cluster.connect()
        queue = client.queue("mail", spool=spool)
    client.store.away = False
    assert queue.flush(SOON)
    assert expired.wait(60)
    assert [message.id for message in drain(queue)] == sent
    with pytest.raises(cqueue.SpoolFull):
        queue.send(b"the disk is still full")
    disk.is_full = False
    queue.send(b"room again")
    assert queue.flush(SOON)
    assert [message.body for message in drain(queue)] == [b"room again"]
    client.close()
    spool.close()


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_a_definition_that_the_disk_does_not_take_stops_nothing(client, spool, monkeypatch, kind):
    """The file is for starts while Cassandra is away; what is spooled is forwarded without it."""
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "no space"))
    client.create_log("mail")
    monkeypatch.setattr(Disk, "create", full)
    with mock.patch.object(forward_known, "_log") as log:
        target = getattr(client, kind)("mail", spool=spool)
    assert log.warning.call_args.args == ("spool_definition_not_kept",)
    monkeypatch.undo()
    target.send(b"x") if kind == "queue" else target.append("t", b"x")
    assert target.flush(SOON)


@pytest.mark.parametrize(
    "text", [b"{}", b"[1]", b"7", b'{"partitions":"x"}', b'{"partitions":null}', b"\xff", b"{"]
)
@pytest.mark.parametrize("kind", ["queue", "log"])
def test_a_damaged_definition_is_asked_for_again(client, cluster, spool, kind, text):
    """It is as if the spool knew nothing yet: Cassandra says it, and is needed for that."""
    client.create_log("mail")
    path = spool.path / f"{kind}.mail.json"
    path.write_bytes(text)
    with pytest.raises(Unavailable, match="was never opened with this spool"):
        getattr(cluster.connect(away=True), kind)("mail", spool=spool)
    target = getattr(client, kind)("mail", spool=spool)
    target.send(b"x") if kind == "queue" else target.append("t", b"x")
    assert target.flush(SOON)
    assert path.read_bytes() != text


def test_a_definition_that_a_newer_version_has_written_is_understood(client, spool):
    known = client.queue("mail", spool=spool)._target.spec
    path = spool.path / f"{MAIL}{forward_known.SUFFIX}"
    path.write_text(json.dumps({**json.loads(path.read_text()), "newer": 1}))
    assert _recalled(spool.path, "mail") == known


def test_how_long_a_definition_is_asked_for_and_when_it_is_written(tmp_path):
    """3 s where one is known; and once, as each batch looks it up."""
    limits = []
    driver = SimpleNamespace(deadline_s=10.0, limited=lambda limit_s: limits.append(limit_s) or nullcontext())
    away, refused = mock.Mock(side_effect=Unavailable("away")), mock.Mock(side_effect=cqueue.Refused("no"))
    with pytest.raises(Unavailable, match="never opened"):
        forward_known.look_up("x", None, away, driver)
    assert forward_known.look_up("x", 5, away, driver) == 5
    with pytest.raises(cqueue.Refused):
        forward_known.look_up("x", 5, refused, driver)
    assert limits == [10.0, forward_known.OPEN_S, forward_known.OPEN_S]
    path, files = tmp_path / f"x{forward_known.SUFFIX}", []
    for partitions in (1, 1, 2):
        forward_known.remember(tmp_path, "x", {"partitions": partitions})
        files.append((path.stat().st_ino, path.read_text()))
        path.with_name(f"{len(files)}").hardlink_to(path)  # so that no number of a file is used again
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_a_closed_client_spools_nothing(client, spool, kind):
    """Nobody would forward it before the next start."""
    client.create_log("mail")
    target = getattr(client, kind)("mail", spool=spool)
    client.close()
    with pytest.raises(Closed, match="closed"):
        target.send(b"x") if kind == "queue" else target.append("t", b"x")
    assert target.waiting == 0


def test_a_close_drains_the_spool(client, cluster, spool, monkeypatch):
    """What is spooled when the client is closed is in Cassandra afterwards."""
    monkeypatch.setattr("cqueue.spool.forward_client.CLOSE_S", 60.0)
    queue = client.queue("mail", spool=spool)
    queue.send_many([cqueue.Message(b"%d" % place) for place in range(3000)])
    client.close()
    assert cluster.connect().queue("mail").stats(exact=True).live == 3000


def test_a_close_has_one_time_for_all_topics(client, spool, monkeypatch):
    """A deployment waits for it: while Cassandra is away, no queue behind the first has a time of its own."""
    now_s, limits, close = [0.0], [], Forwarded.close

    def take_all(forwarded, limit_s):
        limits.append(limit_s)
        now_s[0] += limit_s
        close(forwarded, 0.0)

    for name in ("a", "b", "c"):
        client.create_queue(name)
        client.queue(name, spool=spool)
    monkeypatch.setattr(Forwarded, "close", take_all)
    monkeypatch.setattr("cqueue.spool.forward_client.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    client.close()
    assert limits == [0.2, 0.0, 0.0]


# ── too old ──


def test_what_is_older_than_gc_grace_is_refused(client, cluster, spool):
    """Sent twice it might come twice. It stays, and sends say so; an operator may send it nevertheless."""
    leave(client, spool, b"old")
    cluster.ahead_s += 86_400
    late = cluster.connect()
    queue = late.queue("mail", spool=spool)
    until(lambda: queue.trouble is not None)
    with pytest.raises(SpoolTooOld, match="message 0 of queue 'mail'"):
        queue.send(b"behind it")
    with pytest.raises(SpoolTooOld):
        queue.send_many([cqueue.Message(b"behind it")])
    late.close()
    assert spool.progress(MAIL) == 0

    other = cluster.connect()
    forwarder = other._spools.forwarder(spool, MAIL, again=True)
    forwarder.start()
    assert forwarder.drain(60)
    assert [message.body for message in drain(other.queue("mail"))] == [b"old"]


def test_what_is_sent_nevertheless_is_one_message_within_half_of_gc_grace(client, cluster, spool):
    """An operator's run that broke off is repeated without copies."""
    leave(client, spool, b"old")
    cluster.ahead_s += 2 * 86_400
    assert isinstance(again(cluster, spool).error, SpoolTooOld)
    for _ in range(2):
        target = cluster.connect()._spools._queue_target(spool, "mail", again=True)
        assert target.store(list(spool.records(MAIL, offset=0))) == Stored(1)
        cluster.ahead_s += 60
    assert len(drain(cluster.connect().queue("mail"))) == 1


# ── applications ──


def test_an_application_enqueues_through_a_spool(client, spool):
    """Tasks, and whatever else it sends; its hooks see the ids."""
    seen = []

    class Hook(cqueue.Middleware):
        def after_send(self, queue, message, message_id):
            seen.append(message_id)

    app = cqueue.App(client, spool=spool, middleware=[Hook()])

    @app.task(queue="mail", name="hello")
    def hello(name):
        return name

    client.store.away = False
    client.queue("mail", spool=spool)
    client.store.away = True
    id_ = hello.enqueue("you")
    assert seen == [id_]
    client.store.away = False
    assert client.queue("mail", spool=spool).flush(SOON)
    (message,) = drain(client.queue("mail"))
    assert (message.id, message.task) == (id_, "hello")


def test_a_spool_that_a_function_opens_is_the_applications(client, tmp_path):
    """Opened at the first enqueue, closed with the application; and never where dispatchers run."""
    opened = []

    def spool():
        opened.append(Spool(tmp_path / "lazy", disk_reserve=0))
        return opened[-1]

    client.store.away = False
    app, other = cqueue.App(client, spool=spool), cqueue.App(client, spool=spool)
    hello = app.task(queue="mail", name="hello")(print)
    assert not opened
    hello.enqueue("you")
    hello.enqueue("me")
    assert [each.is_open for each in opened] == [True]
    client.queue("mail", spool=opened[0]).flush(SOON)
    app.close()
    assert not opened[0].is_open
    other.send_directly()
    other.task(queue="mail", name="hello")(print).enqueue("them")
    assert len(opened) == 1
    assert len(drain(client.queue("mail"))) == 3


def test_a_testing_block_uses_no_spool(client, spool):
    """What a test enqueues stays in its block, and does not reach the spool of the application."""
    app = cqueue.App(client, spool=spool)

    @app.task(queue="mail", name="hello")
    def hello(name):
        return name

    with app.testing() as sandbox:
        hello.enqueue("you")
        assert sandbox.enqueued(hello)
    assert spool.queues() == []


# ── logs ──


def test_no_records_are_nothing_to_append(client, spool):
    client.create_log("events")
    client.log("events", spool=spool).append_many([])
    assert spool.end("log.events") == 0


def test_records_reach_a_log(client, spool):
    """With topic, key and headers; a header names the append."""
    client.create_log("events")
    log = client.log("events", spool=spool)
    log.append("t", b"first", key="k", headers={"a": "b"})
    log.append_many([cqueue.Record("t", b"%d" % place) for place in range(10)])
    assert log.flush(SOON)
    records = read(client, 11)
    (first,) = [record for record in records if record.body == b"first"]
    assert (first.topic, first.key, first.headers["a"]) == ("t", "k", "b")
    assert len({record.headers["cqueue-spool"] for record in records}) == 11


def test_a_topic_without_a_producer_is_forwarded_if_it_is_that_of_a_queue_or_a_log(client, spool):
    client.create_log("events")
    payload = client._spools._log_target(spool, "events").spooled(cqueue.Record("t", b"x"))
    spool.append("log.events", payload).result()
    forwarder = client._spools.forwarder(spool, "log.events")
    forwarder.start()
    assert forwarder.drain(60)
    forwarder.close()
    assert [record.body for record in read(client, 1)] == [b"x"]
    with pytest.raises(cqueue.BadInput, match="topic 'mail'"):
        client._spools.forwarder(spool, "mail")


def test_a_record_for_a_partition_that_is_gone_waits_until_there_is_one(client, spool):
    """The log was made again with fewer; a queue of the same spool does not wait for it."""
    client.create_log("events", LogConfig(partitions=8))
    with mock.patch.object(Forwarder, "start"):
        log = client.log("events", spool=spool)
        log.append_many([cqueue.Record("t", b"%d" % place, partition=place) for place in range(8)])
    client.delete_log("events")
    client.create_log("events", LogConfig(partitions=4))
    log._forwarder.start()
    until(lambda: log.trouble is not None)
    with pytest.raises(PartitionOutOfRange):
        log.append("t", b"8", key="k")
    queue = client.queue("mail", spool=spool)
    queue.send(b"x")
    assert queue.flush(SOON)
    client.log("events").alter(partitions=8)
    assert log.flush(SOON)
    assert {record.body for record in read(client, 8)} == {b"%d" % place for place in range(8)}
    client.log("events").alter(partitions=16)
    log.append("t", b"8")
    assert log.flush(SOON)
    log.append("t", b"9", partition=15)
    assert log.flush(SOON)


def test_records_are_split_where_one_write_to_a_partition_or_all_writes_are_full():
    """So that those of a key are appended in order, whatever fails."""

    def sizes(body, count, **options):
        record = cqueue.Record("t", body, **options)
        return [len(some) for some in _in_turn([(0, record)] * count, 4)]

    assert sizes(bytes(PART_BYTES // 2), 3, key="k") == [1, 1, 1]
    assert sizes(bytes(PART_BYTES // 3), 5, partition=1) == [2, 2, 1]
    assert sizes(bytes(PART_BYTES), 5) == [4, 1]
    assert sizes(b"", 2000) == [2000]
    assert sum(sizes(b"", 2000, partition=1)) == 2000
    assert max(sizes(b"", 2000, partition=1)) <= PART_ROWS


def test_a_record_that_failed_alone_is_appended_alone(client, spool):
    """Those behind it that are in the log already are not appended again."""
    client.create_log("events")
    log = client.log("events", spool=spool)
    failed = []

    def fate(operation):
        if isinstance(operation, AppendRecords) and not failed:
            failed.append(operation)
            return cqueue.Refused("not this one")
        return None

    client.store.away = True
    log.append_many([cqueue.Record("t", b"%d" % place, partition=place % 4) for place in range(8)])
    client.store.fate = fate
    client.store.away = False
    assert log.flush(SOON)
    assert failed
    assert sorted(record.body for record in read(client, 8)) == [b"%d" % place for place in range(8)]


@pytest.mark.parametrize(("count", "size"), [(1000, 10), (20, 300_000)])
def test_records_of_a_key_stay_in_order_though_a_part_of_them_fails(client, spool, count, size):
    """A batch of many rows, or of many bytes, is written in parts."""
    client.create_log("events")
    failed, wanted = [], [b"%0*d" % (size, place) for place in range(count)]

    def fate(operation):
        if isinstance(operation, AppendRecords) and not failed:
            failed.append(operation)
            return cqueue.Refused("not this one")
        return None

    with mock.patch.object(Forwarder, "start"):
        log = client.log("events", spool=spool)
        for at in range(0, count, 10):
            log.append_many([cqueue.Record("t", body, key="k") for body in wanted[at : at + 10]])
    client.store.fate = fate
    records = list(spool.records("log.events"))
    first = log._target.store(records)
    assert (first.done, type(first.error)) == (0, cqueue.Refused)
    assert log._target.store(records) == Stored(count)
    assert [record.body for record in read(client, count)] == wanted


def test_a_progress_that_cannot_be_written_appends_nothing_again(client, spool, monkeypatch):
    """The disk may be full for hours; the forwarder tries again all the while."""
    client.create_log("events")
    log = client.log("events", spool=spool)
    commit, refused = spool.commit, []

    def full(topic, offset):
        if len(refused) < 5:
            refused.append(offset)
            raise OSError(errno.ENOSPC, "no space")
        commit(topic, offset)

    monkeypatch.setattr(spool, "commit", full)
    log.append_many([cqueue.Record("t", b"%d" % place) for place in range(8)])
    assert log.flush(SOON)
    assert len(refused) == 5
    assert sorted(record.body for record in read(client, 8)) == [b"%d" % place for place in range(8)]


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_a_path_is_not_a_spool(client, kind):
    client.create_log("events")
    with pytest.raises(BadInput, match="it takes a Spool"):
        getattr(client, kind)("events" if kind == "log" else "mail", spool="mail-spool")


def test_records_are_checked_before_they_are_spooled(client, spool):
    """Also that their headers have room for the one that is added."""
    client.create_log("events")
    log = client.log("events", spool=spool)
    with pytest.raises(BadInput):
        log.append_many([cqueue.Record("t", b""), cqueue.Record("", b"")])
    for topic, key in (("\ud800", None), ("t", "\ud800")):
        with pytest.raises(BadInput):
            log.append(topic, b"", key=key)
    with pytest.raises(HeadersTooLarge):
        log.append("t", b"", headers={str(place): "" for place in range(64)})
    assert spool.queues() == [] or spool.status()[0].end == 0


def test_what_a_closed_spool_still_holds_waits(client, spool):
    """Nothing forwards it, so that a flush gives False at once."""
    queue = client.queue("mail", spool=spool)
    client.store.away = True
    queue.send(b"x")
    spool.close()
    began = time.monotonic()
    assert queue.flush(SOON) is False
    assert queue.waiting == 1
    client.close()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("what", ["spool", "client"])
def test_a_flush_ends_when_nothing_is_forwarded_any_more(client, spool, what):
    """Also one that waits already while another thread closes the spool or the client."""
    queue = client.queue("mail", spool=spool)
    client.store.away = True
    queue.send(b"x")
    with ThreadPoolExecutor(1) as threads:
        flushed = threads.submit(queue.flush, timedelta(hours=1))
        until(lambda: queue._forwarder._moved._waiters)
        (spool if what == "spool" else client).close()
        assert flushed.result(60) is False


def test_what_a_closed_spool_holds_is_left_to_the_next_process(client, tmp_path):
    """The client of before does not append it as well, once Cassandra answers."""
    client.create_log("events")
    with Spool(tmp_path / "spool", disk_reserve=0) as spool:
        log = client.log("events", spool=spool)
        client.store.away = True
        log.append("t", b"x", key="k")
        until(lambda: log.trouble is not None)
    until(lambda: not log._forwarder._thread.is_alive())
    client.store.away = False
    assert list(client.log("events").scan()) == []


def test_a_second_client_does_not_forward_what_another_one_forwards(client, cluster, spool):
    """Two would deliver records twice, out of order; the second may begin once the first is closed."""
    client.create_log("events")
    client.log("events", spool=spool).append("t", b"1", key="k")
    client.queue("mail", spool=spool).send(b"1")
    second = cluster.connect()
    for open_ in (second.log, second.queue):
        for _ in range(2):
            with pytest.raises(SpoolLocked, match="another client"):
                open_("events" if open_ == second.log else "mail", spool=spool)
    assert client.queue("mail", spool=spool).flush(SOON)
    assert client.log("events", spool=spool).flush(SOON)
    client.close()
    log = second.log("events", spool=spool)
    log.append("t", b"2", key="k")
    assert log.flush(SOON)
    assert [record.body for record in read(second, 2)] == [b"1", b"2"]


def test_a_log_that_a_ctrl_c_kept_from_being_opened_can_be_opened_again(client, spool, monkeypatch):
    """At any moment: no forwarder is left that nobody can close."""
    client.create_log("events")
    spools = client._spools
    target = spools._log_target(spool, "events")
    monkeypatch.setattr(spools, "_log_target", lambda *_: target)

    def check():
        log = client.log("events", spool=spool)
        log.append("t", b"x")
        assert log.flush(SOON)
        spools.close()
        assert not spool.forwarders
        spools._open_logs.clear()

    assert at_each_moment(lambda: client.log("events", spool=spool), check) > 10


# ── parts ──


def test_a_forwarder_passes_what_is_lost(spool):
    """A record that the spool lost is passed over; the forwarder does not wait for it for ever."""
    for place in range(3):
        spool.append("queue.x", b"%d" % place).result()
    pull, lost, seen = spool.pull, {2}, []
    spool.pull = lambda *asked: [record for record in pull(*asked) if record.offset not in lost]

    def store(records):
        seen.extend(records)
        return Stored(len(records))

    forwarder = Forwarder(spool, "queue.x", store)
    forwarder.start()
    assert forwarder.drain(60)
    forwarder.close()
    assert [record.offset for record in seen] == [0, 1]
    assert spool.progress("queue.x") == 3


def test_a_forwarder_begins_where_the_one_before_it_has_ended(spool):
    seen = []

    def store(records):
        seen.extend(records)
        return Stored(len(records))

    forwarders = [Forwarder(spool, "queue.x", store) for _ in range(2)]
    spool.append("queue.x", b"x").result()
    for forwarder in forwarders:
        forwarder.start()
        assert forwarder.drain(60)
        forwarder.close()
    assert len(seen) == 1


def test_trouble_is_logged_as_it_begins_and_as_it_ends(spool):
    forwarder = Forwarder(spool, "queue.x", None)
    with capture_logs() as said:
        for error in (None, Unavailable("away"), Unavailable("still"), None, None):
            forwarder._note(error)
            assert forwarder.error is error
    assert [line["event"] for line in said] == ["spool_waits", "spool_goes_on"]
    assert spool.forwarding["queue.x"].failures == 2


def test_a_forwarder_looks_at_no_queue_but_its_own(spool):
    """The status of a spool reads the files of all; a batch must cost no more the more there is in them."""
    spool.append("queue.x", b"x").result()
    asked, status = [], spool.status
    spool.status = lambda: asked.append(1) or status()
    forwarder = Forwarder(spool, "queue.x", lambda records: Stored(len(records)))
    assert forwarder.waiting == 1
    forwarder.start()
    assert forwarder.drain(60)
    forwarder.close()
    assert (asked, forwarder.waiting, spool.progress("queue.x")) == ([], 0, 1)


def test_a_record_of_a_newer_version_stops_the_forwarder(client, spool):
    """It is not dropped and not guessed at: an older version waits until somebody upgrades it."""
    queue = client.queue("mail", spool=spool)
    spool.append(MAIL, b"\x02" + Frame(0, 0, 0, b"s", {}, b"").pack()[1:]).result()
    until(lambda: queue.trouble is not None)
    assert "upgrade cqueue" in str(queue.trouble)
    assert spool.progress(MAIL) == 0


@pytest.mark.parametrize("kind", ["queue", "log"])
@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"a text of another program, longer than a head", b"\0" + FRAMED[1:], FRAMED[:-1]]
)
def test_a_payload_of_another_program_holds_up_nothing(client, spool, kind, payload):
    """It is kept as damage is, and what stands before and behind it is forwarded."""
    client.create_log("mail")
    target, topic = getattr(client, kind)("mail", spool=spool), f"{kind}.mail"
    put = target.send if kind == "queue" else partial(target.append, "t")
    put(b"before")
    spool.append(topic, payload).result()
    put(b"behind")
    assert target.flush(SOON)
    (status,) = spool.status()
    assert (status.lost, status.progress) == ([range(1, 2)], 3)
    assert [path.read_bytes() for path in spool.path.glob(f"{topic}/*/lost/*")] == [payload]
    if kind == "queue":
        assert [message.body for message in drain(target)] == [b"before", b"behind"]


def test_a_payload_of_another_program_is_not_passed_over_before_it_is_kept(client, spool, monkeypatch):
    queue = client.queue("mail", spool=spool)
    queue.send(b"x")
    assert queue.flush(SOON)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "make_directory", mock.Mock(side_effect=OSError(errno.ENOSPC, "no space")))
        spool.append(MAIL, b"{}").result()
        until(lambda: queue.trouble is not None)
        assert spool.progress(MAIL) == 1
    assert queue.flush(SOON)
    assert spool.status()[0].lost == [range(1, 2)]


def test_a_late_store_connects_when_it_can():
    """The first call connects; while that fails nobody tries again for a second; a close ends it."""
    now, tries, memory = [0.0], [], MemoryStore()
    closed = Event()

    def connect():
        tries.append(now[0])
        if len(tries) < 2:
            raise Unavailable("no node answers")
        return memory, closed.set

    store = LateStore(connect, 1.0, clock=lambda: now[0])
    for _ in range(3):
        with pytest.raises(Unavailable):
            store.sample_time_us()
    assert store.together((1, 2))[1].args == ("no node answers",)
    now[0] = 1.5
    assert store.sample_time_us()
    assert tries == [0.0, 1.5]
    assert store.quarantine is memory.quarantine
    store.close()
    assert closed.is_set()


def test_a_late_store_that_is_refused_is_told_so_each_time():
    """An operator has to act; "unavailable" would hide it."""
    tries = []

    def connect():
        tries.append(1)
        raise Refused("no grant")

    store = LateStore(connect, 1.0, clock=lambda: 0.0)
    assert store.quarantine.counts() == {}
    for _ in range(2):
        with pytest.raises(Refused):
            store.sample_time_us()
    assert len(tries) == 2


def test_a_late_store_that_was_closed_does_not_connect():
    """A call that comes then would leave a connection behind that nobody closes."""
    store = LateStore(lambda: pytest.fail("connected"), 1.0)
    store.close()
    for call in (store.sample_time_us, lambda: store.execute(ReadWorkers())):
        with pytest.raises(Closed):
            call()


def read(client, count):
    found = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        with client.log("events").scan() as scanner:
            found = list(scanner)
    return found
