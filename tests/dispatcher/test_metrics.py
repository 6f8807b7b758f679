"""Metrics of a daemon, and how those of several processes are added up."""

import errno
import threading
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

import cqueue
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.dispatcher.execution.telemetry import Depth, Depths, QueueCounts, Stats, Telemetry
from cqueue.dispatcher.service.metrics import LAG_S, ChildMetrics, Metrics, added, exposition
from cqueue.spool import Spool
from tests.fix_dispatcher import SOON_S, until, watched


def stats(**counts):
    queue = QueueCounts(**counts)
    return Stats(queue, {"mail": queue}, running=2, unstarted=3, unsettled=1, state="running")


def samples(families):
    """Return what Prometheus reads: values by name and labels."""
    text = exposition(families).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def metrics_of(**counts):
    metrics = Metrics("shop:app")
    metrics.watch(watched(lambda: stats(**counts), quarantined={"mail": 3, "": 1}))
    return metrics


def test_threads_that_come_and_go_leave_nothing_but_their_counts():
    """Acks are counted on a thread that ends after 0.1 s without work: ten a second, for months."""
    telemetry, sizes = Telemetry(), set()
    for _ in range(20):
        thread = threading.Thread(target=telemetry.count, args=("mail", "acked"))
        thread.start()
        thread.join()
        sizes.add(values_in(vars(telemetry)))
    assert len(sizes) == 2, "the first one, and all others"
    assert telemetry.by_queue(["mail", "idle"]) == {"mail": QueueCounts(acked=20), "idle": QueueCounts()}


def values_in(value):
    """How many values a container has, at any depth."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values_in, inside))


def test_counters_and_gauges_of_the_dispatcher_are_shown():
    found = samples(metrics_of(received=9, succeeded=5, retried=1, dead=1, lost=1).families())
    assert found["cqueue_received_total", ("queue", "mail")] == 9
    assert found["cqueue_messages_total", ("outcome", "succeeded"), ("queue", "mail")] == 5
    assert found["cqueue_messages_total", ("outcome", "lost"), ("queue", "mail")] == 1
    assert (found["cqueue_running",], found["cqueue_unstarted",], found["cqueue_unsettled",]) == (2, 3, 1)


def test_what_was_found_by_hints_and_how_many_came_is_shown():
    """Also where none came: a rate over a counter that appears with its first event misses that event."""
    found = samples(metrics_of(received=9, found_by_hint=7).families())
    assert found["cqueue_found_by_hint_total", ("queue", "mail")] == 7
    assert found["cqueue_hints_total", ("event", "forged")] == 0


def test_damaged_rows_are_shown_by_queue_and_not_added_up_over_processes():
    """Each process meets the same rows: the one that met most knows best how many there are."""
    one, other = metrics_of().families(), metrics_of().families()
    for found in (samples(one), samples(added([one, other]))):
        assert found["cqueue_quarantined_rows", ("queue", "mail")] == 3
        assert found["cqueue_quarantined_rows", ("queue", "")] == 1


@pytest.mark.parametrize(
    "outcome", ["succeeded", "retried", "snoozed", "cancelled", "dead", "lost", "left", "released"]
)
def test_every_outcome_is_there_from_the_beginning(outcome):
    """A rate over a counter that appears with its first event misses that event."""
    found = samples(metrics_of().families())
    assert found["cqueue_messages_total", ("outcome", outcome), ("queue", "mail")] == 0


def test_spools_that_the_application_has_open_are_shown_together(tmp_path):
    """One topic of two spools: what waits, was forwarded or failed is added up; the largest age counts."""
    place = (("queue_id", "0"), ("topic", "queue.mail"))
    with Spool(tmp_path / "one", disk_reserve=0) as one, Spool(tmp_path / "two", disk_reserve=0) as two:
        for spool in (one, two):
            spool.append_many("queue.mail", [b"x"] * 3).result(10)
            spool.commit("queue.mail", 1)
            spool.forwarding["queue.mail"].forwarded += 1
            spool.forwarding["queue.mail"].failures += 2
        found = samples(metrics_of().families())
        assert found["cqueue_spool_waiting", *place] == 4
        assert found["cqueue_spool_forwarded_total", *place] == 2
        assert found["cqueue_spool_failures_total", *place] == 4
        assert found["cqueue_spool_oldest_age_seconds", *place] < 60
        assert found["cqueue_spool_full",] == 0
    assert ("cqueue_spool_waiting", *place) not in samples(metrics_of().families())


def test_a_spool_whose_disk_fails_hides_no_other_metric(tmp_path, monkeypatch):
    """A child tells them its parent: the error ended it, with all its handlers."""

    def fail(_spool):
        raise OSError(errno.EIO, "Input/output error")

    with Spool(tmp_path, disk_reserve=0), monkeypatch.context() as patch:
        patch.setattr(Spool, "status", fail)
        found = samples(metrics_of(received=9).families())
    assert found["cqueue_received_total", ("queue", "mail")] == 9


def test_there_is_a_build_info():
    names = {key[0]: dict(key[1:]) for key in samples(metrics_of().families())}
    assert names["cqueue_build_info"]["app"] == "shop:app"
    assert names["process_resident_memory_bytes"] == {}


def message(due_s, again_s=None):
    again_ms = again_s and round(again_s * 1000)
    return SimpleNamespace(
        due=datetime.fromtimestamp(due_s, UTC), lease=SimpleNamespace(due_again_ms=again_ms)
    )


def test_handlers_are_timed_and_the_way_from_due_to_start():
    now = [10.0]
    metrics = Metrics("shop:app", lambda: now[0])
    context = SimpleNamespace(queue="mail", task="send", now=datetime.fromtimestamp(1000.25, UTC))
    metrics.before_run(message(1000.0), context)
    now[0] += 0.5
    metrics.after_run(message(1000.0), context, None, None)
    found = samples(metrics.families())
    assert found["cqueue_handler_seconds_sum", ("queue", "mail"), ("task", "send")] == 0.5
    assert found["cqueue_start_seconds_sum", ("queue", "mail")] == pytest.approx(0.25)
    assert found["cqueue_lag_seconds",] == pytest.approx(0.25)


def test_the_lag_goes_back_to_zero_where_nothing_is_left_to_do():
    """An alert on it ends: the last message of a burst must not look late for ever."""
    now, load = [100.0], {"running": 0, "unstarted": 1}
    metrics = Metrics("shop:app", lambda: now[0])
    metrics.watch(watched(lambda: Stats(QueueCounts(), {}, load["running"], load["unstarted"], 0, "running")))
    metrics.started_late("mail", 7.0)
    now[0] += LAG_S
    assert samples(metrics.families())["cqueue_lag_seconds",] == 7  # messages wait here still
    load["unstarted"] = 0
    assert samples(metrics.families())["cqueue_lag_seconds",] == 0
    metrics.started_late("mail", 3.0)
    now[0] += LAG_S - 1
    found = samples(metrics.families())
    assert found["cqueue_lag_seconds",] == 3  # a scrape sees the last start
    assert found["cqueue_threads",] == 8


def test_what_was_put_off_is_late_from_when_it_is_due_again():
    """A handler's own delay, of a snooze or a retry, is no lateness."""
    metrics = metrics_of()
    metrics.before_run(
        message(1000.0, again_s=4998.5),
        SimpleNamespace(queue="mail", task="send", now=datetime.fromtimestamp(5000.0, UTC)),
    )
    found = samples(metrics.families())
    assert found["cqueue_start_seconds_sum", ("queue", "mail")] == pytest.approx(1.5)


def test_a_run_that_was_never_begun_is_not_timed():
    """Another middleware stopped it before."""
    metrics = metrics_of()
    metrics.after_run(message(0.0), SimpleNamespace(), None, ValueError())
    assert not any(key[0].startswith("cqueue_handler") for key in samples(metrics.families()))


# ── Several processes ──


def test_samples_of_processes_are_added_up_but_ages_and_versions_are_not():
    one, two = metrics_of(received=1), metrics_of(received=2)
    one.lag.set(3)
    two.lag.set(7)
    found = samples(added([one.families(), two.families()]))
    assert found["cqueue_received_total", ("queue", "mail")] == 3
    assert found["cqueue_running",] == 4
    assert found["cqueue_lag_seconds",] == 7
    assert [value for key, value in found.items() if key[0] == "cqueue_build_info"] == [1]


def test_what_a_dead_child_had_counted_stays_counted_and_its_gauges_go():
    total = ChildMetrics()
    total.put(0, metrics_of(received=5).families())
    total.gone(0)
    total.put(0, metrics_of(received=1).families())
    total.gone(0)
    found = samples(total.families())
    assert found["cqueue_received_total", ("queue", "mail")] == 6
    assert ("cqueue_running",) not in found


def test_a_later_report_replaces_an_earlier_one():
    total = ChildMetrics()
    total.put(0, metrics_of(received=5).families())
    total.put(0, metrics_of(received=6).families())
    assert samples(total.families())["cqueue_received_total", ("queue", "mail")] == 6


def test_no_samples_are_an_empty_page():
    assert exposition([]) == b""


# ── What queues hold ──

GAUGES = ("depth", "oldest_age_seconds", "in_flight", "dead")


def held(found, queue="mail"):
    return [found.get((f"cqueue_queue_{name}", ("queue", queue))) for name in GAUGES]


def test_what_queues_hold_is_shown_and_of_several_processes_taken_once():
    """Each process sees the whole queue: a sum would show twice as many messages as there are."""
    processes = []
    for depth in (Depth(10, 3, 2, 60.0), Depth(12, 3, 2, 61.5)):
        metrics = Metrics("shop:app")
        metrics.watch(watched(stats, SimpleNamespace(latest={"mail": depth})))
        processes.append(metrics.families())
    assert held(samples(processes[0])) == [10, 60.0, 3, 2]
    assert held(samples(added(processes))) == [12, 61.5, 3, 2]


@pytest.fixture
def mail():
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("mail")
        queue.send_many([cqueue.Message(b"x") for _ in range(5)])
        yield queue


def test_depths_are_those_of_the_queue(mail):
    with mail.consumer() as consumer:
        one, *_ = consumer.receive(2)
        one.dead("no")
        depths = Depths([mail])
        depths.wanted = True
        depths.refresh()
    found = depths.latest["mail"]
    assert (found.ready, found.dead) == (3, 1)
    assert 1 <= found.in_flight <= 2  # the one that died may be counted for a moment
    assert 0 <= found.oldest_age_s < 60


def test_nothing_is_read_where_nobody_wants_to_know(mail, monkeypatch):
    """A dispatcher without metrics asks Cassandra for nothing that it does not use."""
    monkeypatch.setattr(type(mail), "stats", lambda _self: pytest.fail("was read"))
    depths = Depths([mail])
    depths.start()
    assert not depths.thread.is_alive()
    assert depths.latest == {}


def test_a_close_ends_the_look_at_thousands_of_queues():
    """After the queue that is being read."""
    read = []

    def stats(name):
        read.append(name)
        depths.close()
        raise cqueue.NotDone("no node answers")

    depths = Depths([SimpleNamespace(name=name, stats=partial(stats, name)) for name in "abc"])
    depths.wanted = True
    depths.start()
    depths.thread.join(SOON_S)
    assert not depths.thread.is_alive()
    assert read == ["a"]


def test_a_queue_that_cannot_be_read_has_no_figures_and_costs_the_others_nothing(mail, monkeypatch):
    """Old figures would look like news."""
    depths = Depths([mail, SimpleNamespace(name="gone")])
    depths.wanted = True
    depths.refresh()
    assert set(depths.latest) == {"mail"}

    def down(_self):
        raise cqueue.NotDone("no node answers")

    monkeypatch.setattr(type(mail), "stats", down)
    depths.refresh()
    assert depths.latest == {}


def test_a_scrape_reads_nothing(mail, monkeypatch):
    """However often somebody scrapes, and whatever Cassandra does."""
    depths = Depths([mail])
    depths.wanted = True
    depths.refresh()
    metrics = Metrics("shop:app")
    metrics.watch(watched(stats, depths))
    monkeypatch.setattr(type(mail), "stats", lambda _self: pytest.fail("was read"))
    assert held(samples(metrics.families()))[0] == 5


def test_a_dispatcher_looks_when_it_starts(mail):
    """The first scrape after a deployment has figures; it does not wait for half a minute."""
    mail.pause()
    dispatcher = Dispatcher(mail, lambda _message, _context: None)
    dispatcher.engine.depths.wanted = True
    with dispatcher:
        until(lambda: dispatcher.engine.depths.latest)
        assert dispatcher.engine.depths.latest["mail"].ready == 5
