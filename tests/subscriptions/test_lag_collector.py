"""How far subscriptions are behind, for Prometheus; `cqueue metrics --subscriptions` shows the same."""

from dataclasses import replace
from threading import Event, Thread

import pytest
from prometheus_client import CollectorRegistry

import cqueue
from cqueue.dispatcher.service.exporter import Exporter
from cqueue.errors import Unavailable
from cqueue.log import metrics
from cqueue.log.metrics import REST_S, LagCollector
from cqueue.store.log_operations import CountRecords, ListSubscriptions, ReadSubscription
from tests.subscriptions.subscribing import Member, fill, noted

SHOWN = ("events", "billing")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A scrape waits for as long as a count takes, however busy the machine is."""
    monkeypatch.setattr(metrics, "WAIT_S", 60.0)


def shown(collector):
    """{(log, subscription): (records, seconds)}."""
    registry = CollectorRegistry()
    registry.register(collector)
    records, seconds = [
        {
            (sample.labels["log"], sample.labels["subscription"]): sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name == f"cqueue_subscription_lag_{what}"
        }
        for what in ("records", "seconds")
    ]
    assert records.keys() == seconds.keys()
    return {key: (records[key], seconds[key]) for key in records}


def test_records_and_age_of_all_partitions_are_shown(client, log, store):
    """Of each subscription by itself; what is done counts no more."""
    billing, _audit = Member(client), Member(client, name="audit")
    fill(log, store, 40)
    store.pass_time(seconds=30)
    times = [100.0]
    collector = LagCollector(client, clock=lambda: times[0])
    found = shown(collector)
    assert found.keys() == {("events", "billing"), ("events", "audit")}
    for records, seconds in found.values():
        assert records == 40
        assert 35 < seconds < 36
    billing.live()
    times[0] += REST_S
    found = shown(collector)
    assert found["events", "billing"] == (0, 0)
    assert found["events", "audit"][0] == 40


def test_it_counts_again_after_a_rest_only(client, log, store):
    """However often somebody scrapes: each count reads all that is behind."""
    Member(client)
    fill(log, store, 4)
    counts, times = noted(store, CountRecords), [100.0]
    collector = LagCollector(client, clock=lambda: times[0])
    assert shown(collector)[SHOWN][0] == 4
    before = len(counts)
    fill(log, store, 1)
    times[0] += REST_S - 1
    assert shown(collector)[SHOWN][0] == 4
    assert len(counts) == before
    times[0] += 1
    assert shown(collector)[SHOWN][0] == 5


def test_a_count_that_cannot_begin_is_left_to_a_later_scrape(client, log, store, monkeypatch):
    """Where the process has too many threads for a moment, its other metrics are shown all the same."""
    Member(client)
    fill(log, store, 4)
    collector = LagCollector(client)

    def refuse(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", refuse)
        assert shown(collector) == {}
    assert shown(collector)[SHOWN][0] == 4


def test_a_scrape_does_not_wait_for_a_long_count(client, log, store, monkeypatch):
    """It shows the last one, and a second count does not begin beside the first."""
    Member(client)
    fill(log, store, 4)
    times, going, may_end, begun = [100.0], Event(), Event(), []

    def hold(operation):
        if type(operation) is ListSubscriptions and times[0] > 100:
            begun.append(operation)
            going.set()
            assert may_end.wait(60)

    store.trouble = hold
    collector = LagCollector(client, clock=lambda: times[0])
    assert shown(collector)[SHOWN][0] == 4
    fill(log, store, 1)
    times[0] += REST_S
    monkeypatch.setattr(metrics, "WAIT_S", 0.0)
    assert shown(collector)[SHOWN][0] == 4
    assert going.wait(60)
    times[0] += 10 * REST_S
    assert shown(collector)[SHOWN][0] == 4
    assert len(begun) == 1
    may_end.set()
    monkeypatch.setattr(metrics, "WAIT_S", 60.0)
    assert shown(collector)[SHOWN][0] == 5


def test_what_cannot_be_counted_is_not_shown(client, log, store):
    """One that cannot be read hides no other; while Cassandra is away there is no old figure."""
    Member(client)
    Member(client, name="audit")
    fill(log, store, 4)
    times = [100.0]
    collector = LagCollector(client, clock=lambda: times[0])

    def trouble(operation):
        broken = type(operation) is ReadSubscription and operation.key.name == "audit"
        return Unavailable("away") if broken else None

    store.trouble = trouble
    assert shown(collector).keys() == {SHOWN}
    store.trouble = lambda _: Unavailable("away")
    times[0] += REST_S
    assert shown(collector) == {}
    store.trouble = lambda _: None
    times[0] += REST_S
    assert len(shown(collector)) == 2


@pytest.mark.usefixtures("log")
def test_a_deleted_subscription_goes_and_is_not_made_again(client):
    Member(client)
    times = [100.0]
    collector = LagCollector(client, clock=lambda: times[0])
    assert shown(collector).keys() == {SHOWN}
    client.delete_subscription("events", "billing")
    times[0] += REST_S
    assert shown(collector) == {}
    assert client.subscriptions("events") == []


def test_a_sum_that_lacks_a_partition_is_not_shown(client, log, store):
    """It would look like the lag of all. `cqueue subscription show` shows the partitions that can be read."""
    Member(client)
    Member(client, name="audit")
    fill(log, store, 40)
    lost = {1: 3}

    def damage(operation, do):
        rows = do()
        damaged = type(operation) is ReadSubscription and operation.key.name == "audit"
        return replace(rows, lost=lost) if damaged else rows

    store.around = damage
    times = [100.0]
    collector = LagCollector(client, clock=lambda: times[0])
    assert shown(collector).keys() == {SHOWN}
    lost.clear()
    times[0] += REST_S
    assert shown(collector)["events", "audit"][0] == 40


def test_registering_it_asks_nothing(client, log, store):
    """The default registry wants to know the names; a program that starts waits for no count."""
    Member(client)
    fill(log, store, 4)
    collector, registry = LagCollector(client), CollectorRegistry(auto_describe=True)
    before = store.asked
    registry.register(collector)
    assert store.asked == before
    with pytest.raises(ValueError, match="cqueue_subscription_lag_records"):
        registry.register(LagCollector(client))
    labels = dict(zip(("log", "subscription"), SHOWN, strict=True))
    assert registry.get_sample_value("cqueue_subscription_lag_records", labels) == 4


@pytest.mark.usefixtures("log")
def test_only_the_logs_that_are_asked_for(client):
    client.create_log("other")
    Member(client)
    client.subscribe("other", name="audit", listeners=[print])
    assert cqueue.LagCollector is LagCollector
    assert shown(LagCollector(client, ["other"])).keys() == {("other", "audit")}


def test_the_exporter_shows_them_where_it_is_told_to(client, log, store):
    Member(client)
    fill(log, store, 4)
    text = Exporter(client, subscriptions=True).exposition().decode()
    assert 'cqueue_subscription_lag_records{log="events",subscription="billing"} 4.0' in text
    assert "cqueue_subscription" not in Exporter(client).exposition().decode()
