"""What `client.metrics` counts, and that nobody pays for it who does not ask; the page of all metrics."""

import re
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import cqueue
from cqueue.client import Client
from cqueue.dispatcher.execution.telemetry import Depth, QueueCounts, Stats
from cqueue.dispatcher.service import exporter as exporting
from cqueue.dispatcher.service import health
from cqueue.dispatcher.service.exporter import Exporter
from cqueue.dispatcher.service.metrics import Metrics
from cqueue.errors import OutcomeUnknown, Refused, Unavailable
from cqueue.runtime import call_metrics
from cqueue.runtime.call_metrics import CallMetrics, mutation_kind
from cqueue.spool import SpoolCollector
from cqueue.store.operations import (
    CursorRow,
    DeleteMessages,
    InsertMessages,
    ListQueues,
    LockRow,
    LockState,
    Mutate,
    ReadSlice,
    Slice,
    SlotChange,
    SlotRow,
    SlotState,
    Together,
    WideRow,
)
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import until, watched
from tests.fix_store import brief_store

pytestmark = pytest.mark.usefixtures("brief_pauses")
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
ROW = WideRow("mail@1", 0, 0)
LOCK = LockRow(LockState.FREE, b"", 0, 1)
SLOT = SlotChange(None, SlotRow(0, 0, SlotState.FREE, (), 0, 0, b"", 1))


@pytest.fixture
def store():
    return FaultyStore(brief_store())


@pytest.fixture
def client(store):
    with Client(store) as client:
        client.create_queue("mail")
        yield client


def samples(collector):
    registry = CollectorRegistry()
    registry.register(collector)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_sent_claimed_settled_and_how_long_that_took(client):
    metrics, queue = client.metrics, client.queue("mail")
    queue.send_many([cqueue.Message(b"x") for _ in range(6)])
    queue.send(b"x", ttl=timedelta(milliseconds=1))
    time.sleep(0.01)  # longer than the ttl
    with queue.consumer() as consumer:
        found = consumer.receive(10, wait=timedelta(seconds=5))
        consumer.ack(found[:3])
        found[3].nack()
        found[4].snooze(timedelta(hours=1))
        found[5].dead("no")
        shown = samples(metrics)
    assert shown["cqueue_sent_total", "mail"] == 7
    assert shown["cqueue_claimed_total", "mail"] == 6
    assert shown["cqueue_acked_total", "mail"] == 3
    assert shown["cqueue_returned_total", "mail"] == 2
    assert shown["cqueue_buried_total", "mail"] == 1
    assert shown["cqueue_expired_total", "mail"] == 1
    assert shown["cqueue_send_seconds_count", "mail"] == 2
    assert shown["cqueue_claim_seconds_count", "mail"] == 1
    assert shown["cqueue_ack_seconds_count", "mail"] == 1
    assert shown["cqueue_hints_total", "sent"] == 0


@pytest.mark.parametrize(("error", "name"), [(Unavailable, "not_done"), (OutcomeUnknown, "unknown_outcomes")])
def test_failures_by_what_is_known(client, store, error, name):
    metrics, queue = client.metrics, client.queue("mail")
    with pytest.raises(cqueue.BadInput):
        queue.send("no bytes")
    store.trouble = lambda op: error("away") if isinstance(op, InsertMessages) else None
    with pytest.raises(cqueue.CqueueError):
        queue.send(b"x")
    store.trouble = lambda _: None
    queue.send(b"x")
    with queue.consumer() as consumer:
        (one,) = consumer.receive(1, wait=timedelta(seconds=5))
        store.trouble = lambda op: error("away") if isinstance(op, DeleteMessages) else None
        with pytest.raises(cqueue.CqueueError):
            consumer.ack(one)
        store.trouble = lambda _: None
    shown = samples(metrics)
    labels = {key[1:] for key in shown if key[0] == f"cqueue_{name}_total"}
    assert labels == {("send", "mail"), ("ack", "mail")}
    assert ("cqueue_acked_total", "mail") not in shown


def test_mutations_that_lost_are_counted_by_what_they_were_for(client, store):
    """Another consumer claims just before this one locks the wide row; a nack comes after a cancel."""
    metrics, queue = client.metrics, client.queue("mail")
    id_ = queue.send(b"x")
    store.trouble = claimed_by_others = Claiming(store.store)
    with queue.consumer() as consumer:
        assert consumer.receive(1) == []
        shown = samples(metrics)
        assert shown["cqueue_mutations_total", "lock", "not_applied", "mail"] == 1
        assert ("cqueue_mutations_total", "settle", "not_applied", "mail") not in shown
        claimed_by_others.give_back()
        (held,) = consumer.receive(1, wait=timedelta(seconds=10))
        assert samples(metrics)["cqueue_mutations_total", "claim", "applied", "mail"] >= 1
        claimed_by_others.cancel(id_)
        with pytest.raises(cqueue.LeaseLost):
            held.nack()
    assert samples(metrics)["cqueue_mutations_total", "settle", "not_applied", "mail"] >= 1


class Claiming:
    """A hook of `FaultyStore`: before the first mutation arrives, another client claims."""

    def __init__(self, store):
        self._client = Client(store)
        self._held = None

    def __call__(self, operation):
        if self._held is None and isinstance(operation, Mutate):
            self._consumer = self._client.queue("mail").consumer()
            self._held = []
            (self._held,) = self._consumer.receive(1)

    def give_back(self):
        self._held.nack()
        self._consumer.close()

    def cancel(self, id_):
        assert self._client.queue("mail").cancel(id_)
        self._client.close()


@pytest.mark.parametrize(
    ("mutation", "kind"),
    [
        (Mutate(ROW, lock=LOCK, slots=(SLOT,)), "claim"),
        (Mutate(ROW, lock=LOCK, cursors=(CursorRow(0, 1, 1),)), "claim"),
        (Mutate(ROW, lock=LOCK), "lock"),
        (Mutate(ROW, lock=LOCK, retire=True), "retire"),
        (Mutate(ROW, slots=(SLOT,)), "settle"),
    ],
)
def test_a_mutation_is_named_by_what_it_writes(mutation, kind):
    assert mutation_kind(mutation) == kind


def test_tombstones_are_shown_of_reads_that_crossed_many(client):
    """The store tells of none below 1,000, as Cassandra does; such a read counts as 0."""
    metrics, queue = client.metrics, client.create_queue("deleted", cqueue.QueueConfig(shards=1))
    due = queue.now + timedelta(hours=1)  # of one moment, so that all stand in one wide row
    ids = queue.send_many(  # unlike, so that each has a row of its own
        [cqueue.Message(b"x", due=due, headers={"n": str(at)}) for at in range(1100)]
    ).ids
    assert queue.stats(exact=True).live == 1100
    before = samples(metrics)
    assert before["cqueue_read_tombstones_sum", "deleted"] == 0
    assert before["cqueue_read_tombstones_bucket", "1000.0", "deleted"] > 0
    assert all(queue.cancel(id_) for id_ in ids)
    assert queue.stats(exact=True).live == 0
    shown = samples(metrics)
    assert shown["cqueue_read_tombstones_sum", "deleted"] >= 1100
    assert (
        shown["cqueue_read_tombstones_bucket", "1000.0", "deleted"]
        < shown["cqueue_read_tombstones_count", "deleted"]
    )


def test_a_read_that_failed_beside_others_has_no_tombstones_to_tell():
    metrics = CallMetrics()
    read = ReadSlice(ROW, 0, 0, 9, 10)
    metrics.answered(Together((read, read)), [Slice([], 2000), Unavailable("away")])
    shown = samples(metrics)
    assert shown["cqueue_read_tombstones_count", "mail"] == 1
    assert shown["cqueue_read_tombstones_bucket", "2500.0", "mail"] == 1


def test_queues_beyond_the_first_ten_thousand_are_counted_together(monkeypatch):
    """A process that meets a million queues keeps the figures of some thousands, and no sum goes wrong."""
    monkeypatch.setattr(call_metrics, "QUEUES", 2)
    metrics = CallMetrics()
    for queue in ("a", "b", "c", "a", "d"):
        metrics.count("sent", queue)
        metrics.took("send", queue, 0.0)
        metrics.failed("ack", queue, [Unavailable("away")])
    shown = samples(metrics)
    assert {labels[-1] for labels in shown} == {"a", "b", "(others)"}
    assert [shown["cqueue_sent_total", queue] for queue in ("a", "b", "(others)")] == [2, 1, 2]
    assert shown["cqueue_send_seconds_count", "(others)"] == 2


def test_nothing_is_counted_before_somebody_asks(client):
    client.queue("mail").send(b"x")
    assert client._driver.meter is None
    assert ("cqueue_sent_total", "mail") not in samples(client.metrics)
    assert client.metrics is client.metrics


@pytest.mark.parametrize(
    ("name", "kind"),
    [("metrics", "runtime.call_metrics.CallMetrics"), ("_spools", "spool.forward_client.Spools")],
)
def test_two_threads_that_ask_first_get_one_object(client, monkeypatch, name, kind):
    """The counts would go to one, and the other be shown; a spool would have two forwarders."""
    both = threading.Barrier(2, timeout=60)

    def made(*_):
        both.wait()
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(f"cqueue.{kind}", made)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: getattr(client, name), range(2))
    meter, client._driver.meter = client._driver.meter, None
    assert one is other is getattr(client, name)
    assert client._driver.meter is None, "a daemon may have set its own meanwhile"
    assert meter is (one if name == "metrics" else None)


# ── The exporter ──


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Scrapes wait until all is read, however busy the machine."""
    monkeypatch.setattr(exporting, "WAIT_S", 60.0)


def test_all_queues_are_shown_from_a_cache_of_a_few_seconds(client, store):
    times, asked = [100.0], []

    def watch(operation):
        asked.append(operation) if isinstance(operation, ListQueues) else None

    exporter = Exporter(client, clock=lambda: times[0])
    client.queue("mail").send_many([cqueue.Message(b"x"), cqueue.Message(b"x", delay=timedelta(hours=1))])
    store.trouble = watch
    shown = samples(exporter)
    assert shown["cqueue_up",] == 1
    assert shown["cqueue_queue_depth", "mail"] == 1
    assert shown["cqueue_queue_delayed", "mail"] == 1
    assert shown["cqueue_queue_dead", "mail"] == 0
    assert ("cqueue_queue_depth", "mail.dead") not in shown
    client.queue("mail").send(b"x")
    before = len(asked)
    assert samples(exporter)["cqueue_queue_depth", "mail"] == 1
    assert len(asked) == before
    times[0] += 5
    assert samples(exporter)["cqueue_queue_depth", "mail"] == 2


def test_a_scrape_waits_for_no_read_that_takes_long(client, store, monkeypatch):
    """With 20,000 queues it took minutes: Prometheus gave up each time, and nobody was seen to export."""
    times, open_ = [100.0], threading.Event()
    exporter = Exporter(client, clock=lambda: times[0])
    assert samples(exporter)["cqueue_queue_depth", "mail"] == 0
    monkeypatch.setattr(exporting, "WAIT_S", 0.01)
    client.queue("mail").send(b"x")
    times[0] += 5
    store.trouble = lambda _: None if open_.wait(60) else Unavailable("nobody opened")
    try:
        assert samples(exporter)["cqueue_queue_depth", "mail"] == 0
    finally:
        open_.set()
    until(lambda: samples(exporter)["cqueue_queue_depth", "mail"] == 1)


def test_while_cassandra_is_away_there_is_no_stale_depth(client, store, caplog):
    times = [100.0]
    caplog.set_level("INFO", "cqueue")
    exporter = Exporter(client, clock=lambda: times[0])
    assert exporter.health().ready
    for _ in range(2):
        store.trouble = lambda _: Unavailable("away")
        times[0] += 5
        assert samples(exporter) == {("cqueue_up",): 0}
        assert not exporter.health().ready
    store.trouble = lambda _: None
    times[0] += 5
    assert samples(exporter)["cqueue_up",] == 1
    told = [line for line in caplog.messages if "metrics_" in line]
    assert ["metrics_unread" in line for line in told] == [True, False]


@pytest.mark.parametrize("names", [(), ("mail",)])
def test_a_wrong_password_is_told(store, names):
    """The client of `cqueue metrics` connects at the first scrape, so nothing has refused it before."""
    store.trouble = lambda _: cqueue.ConfigError("the user name or the password is wrong")
    exporter = Exporter(Client(store), names)
    assert samples(exporter) == {("cqueue_up",): 0}
    assert "password" in exporter.health().reason


def test_a_queue_that_cannot_be_read_is_left_out_alone(client, store, caplog):
    """Only if none can be read is Cassandra away."""
    caplog.set_level("INFO", "cqueue")
    client.create_queue("other")
    exporter = Exporter(client)
    store.trouble = lambda operation: Refused("tombstones") if "mail@" in repr(operation) else None
    shown = samples(exporter)
    assert shown["cqueue_up",] == 1
    assert {key[1:] for key in shown if key[0] == "cqueue_queue_depth"} == {("other",)}
    assert exporter.health().ready
    (told,) = [line for line in caplog.messages if "depth_unknown" in line]
    assert "mail" in told
    only = Exporter(client, ["mail"])
    assert samples(only) == {("cqueue_up",): 0}
    assert "tombstones" in only.health().reason


def test_a_probe_of_the_process_alone_reads_nothing(client, store):
    exporter, asked = Exporter(client), []
    store.trouble = asked.append
    with health.serving(
        ("127.0.0.1", 0), exporter.health, exporter.exposition, life=exporter.known_health
    ) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=60) as answer:
            assert answer.status == 200
        assert not asked
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
            assert answer.status == 200
        assert asked


def test_only_the_queues_that_are_asked_for_and_a_gone_one_is_left_out(client):
    client.create_queue("other")
    shown = samples(Exporter(client, ["mail", "gone"]))
    assert {key[1:] for key in shown if key[0] == "cqueue_queue_depth"} == {("mail",)}


# ── The page, and what is made from its names ──


def all_metrics(client):
    """Every family of every collector, as name and type."""
    daemon = Metrics("shop:app")
    counts = QueueCounts()
    held = SimpleNamespace(latest={"mail": Depth(0, 0, 0, 0.0)})
    daemon.watch(watched(lambda: Stats(counts, {"mail": counts}, 0, 0, 0, "running"), held))
    exporter = Exporter(client, subscriptions=True)
    collectors = (daemon.registry, client.metrics, exporter, SpoolCollector())
    found = {family.name: family.type for one in collectors for family in one.collect()}
    parent = {"cqueue_restarts": "counter", "cqueue_processes": "gauge"}
    return {name: kind for name, kind in (found | parent).items() if name.startswith("cqueue_")}


def names(found):
    return {name + "_total" if kind == "counter" else name for name, kind in found.items()}


def documented():
    return dict(re.findall(r"^\| `(cqueue_\w+)` \| (\w+) \|", PAGE.read_text("utf-8"), re.MULTILINE))


def test_every_metric_stands_in_the_page_and_no_other(client):
    found = all_metrics(client)
    page = documented()
    assert page.keys() == names(found)
    for name, kind in found.items():
        assert page[name + "_total" if kind == "counter" else name] == kind


def test_alert_rules_ask_for_metrics_that_exist():
    """A rule over a name that does not exist never fires, and nobody is told."""
    series = {
        name + suffix
        for name, kind in documented().items()
        for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
    }
    text = (ROOT / "ops" / "alerts.yml").read_text("utf-8")
    asked = {name for rule in re.findall(r"expr: (.*)", text) for name in re.findall(r"\bcqueue_\w+", rule)}
    assert len(asked) > 8
    assert asked <= series
