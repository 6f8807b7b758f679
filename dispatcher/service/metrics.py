"""Prometheus metrics of a daemon, and how those of several processes are added up.

prometheus_client's own way to combine processes shares files between them, which a killed process leaves
behind. Here children send their samples to the parent, and the counts of a dead child are kept.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from cqueue._version import __version__
from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.execution.context import Context
from cqueue.dispatcher.execution.middleware import Middleware
from cqueue.dispatcher.execution.telemetry import OUTCOMES, Depth, Stats
from cqueue.message import to_datetime
from cqueue.runtime.call_metrics import CallMetrics

if TYPE_CHECKING:
    from cqueue.dispatcher.execution.dispatcher import Dispatcher

FAILURES: Final = {"receive": "receive_failures", "ack": "ack_failures"}
"""Label and counter of calls that failed."""
HELD: Final = (
    ("depth", "ready", "Messages that are due and held by nobody: an estimate."),
    ("oldest_age_seconds", "oldest_age_s", "Seconds since the oldest message that may be claimed was due."),
    ("in_flight", "in_flight", "Messages that consumers hold: an estimate."),
    ("dead", "dead", "Letters in the dead-letter queue: an estimate."),
    ("delayed", "delayed", "Messages that are due later: an estimate."),
    ("waiting", "waiting", "Messages that were nacked or snoozed, and are not due again yet: an estimate."),
)
"""Name, field of `Depth`, and text of the metrics about a queue's content."""
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Upper bounds in seconds: from a handler that does nothing to one that takes minutes."""
LARGEST: Final = frozenset({
    "cqueue_lag_seconds", "cqueue_build_info", "cqueue_quarantined_rows", "process_start_time_seconds",
    "cqueue_queue_depth", "cqueue_queue_oldest_age_seconds", "cqueue_queue_in_flight", "cqueue_queue_dead",
    "cqueue_queue_delayed", "cqueue_queue_waiting", "cqueue_up",
    "cqueue_spool_oldest_age_seconds", "cqueue_spool_full",
})  # fmt: skip
"""Metrics that several processes report of the same thing: the largest counts. All others are added up."""

LAG_S: Final = 60.0
"""Seconds without a start, while nothing runs or waits here, after which the lag is 0: longer than scrapes
are apart, so that none misses the last start.
"""

Values = Mapping[Any, float]
"""Values by a tuple of label values."""
Families = list[Any]
"""Samples for JSON: [name, text, type, [[sample, labels, value], …]] for each family."""


class Metrics(Middleware):
    """The instruments of one process; as middleware they time every run of a handler.

    Args:
        app: `module:name` of the application, for the build info.
        clock: monotonic seconds.
    """

    def __init__(self, app: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_idle: Callable[[], bool] = lambda: True
        self._started_s: float | None = None  # when a handler was last started; None: since it was last idle
        self._began: dict[int, float] = {}  # when each run began, by the id of its context
        self.calls = CallMetrics()
        self.registry = CollectorRegistry()
        self.handling = self._histogram("handler_seconds", "How long handlers ran.", "queue", "task")
        self.starting = self._histogram("start_seconds", "From due to the handler's start.", "queue")
        self.lag = self._gauge("lag_seconds", "How late the last message was started; 0 when idle.")
        build = self._gauge("build_info", "Versions.", "version", "python", "app")
        build.labels(__version__, platform.python_version(), app).set(1)
        ProcessCollector(registry=self.registry)
        self.registry.register(self.calls)

    def watch(self, dispatcher: Dispatcher) -> None:
        """Show a dispatcher's counters as well, as they are at each scrape."""
        engine, threads = dispatcher.engine, dispatcher.options.threads
        self._is_idle = lambda: _is_idle(dispatcher.stats())
        self.registry.register(_From(lambda: _counted(dispatcher.stats(), engine.quarantined(), threads)))
        self.registry.register(_From(lambda: held(engine.depths.latest)))
        self.registry.register(_From(_spooled))

    def families(self) -> Families:
        """Return all samples as they are now."""
        if self._started_s is not None and self._clock() - self._started_s >= LAG_S and self._is_idle():
            self._started_s = None
            self.lag.set(0)
        return packed(self.registry.collect())

    def started_late(self, queue: str, late_s: float) -> None:
        """Note how late a handler is started, in seconds."""
        self.starting.labels(queue).observe(late_s)
        self.lag.set(late_s)
        self._started_s = self._clock()

    def before_run(self, message: ReceivedMessage, context: Context) -> None:
        """Note how late the run starts. What a snooze or a retry has put off is due when that is over."""
        again_ms = message.lease.due_again_ms
        due = message.due if again_ms is None else to_datetime(again_ms)
        self.started_late(context.queue, max(0.0, (context.now - due).total_seconds()))
        self._began[id(context)] = self._clock()

    def after_run(
        self, message: ReceivedMessage, context: Context, answer: Any, error: BaseException | None
    ) -> None:
        """Note how long the run took."""
        began = self._began.pop(id(context), None)
        if began is not None:
            self.handling.labels(context.queue, context.task).observe(self._clock() - began)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"cqueue_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"cqueue_{name}", text, labels, registry=self.registry, buckets=BUCKETS)


class _From(Collector):
    """A collector that calls a function at each scrape."""

    def __init__(self, say: Callable[[], Iterable[Metric]]) -> None:
        self._say = say

    def collect(self) -> Iterable[Metric]:
        return self._say()


def _is_idle(stats: Stats) -> bool:
    return not stats.running and not stats.unstarted


def _counted(stats: Stats, quarantined: Mapping[str, int], threads: int) -> Iterator[Metric]:
    """Yield the dispatcher's own counters as metrics."""
    queues = stats.queues.items()
    received = {(queue,): counts.received for queue, counts in queues}
    hinted = {(queue,): counts.found_by_hint for queue, counts in queues}
    outcomes = {(queue, name): getattr(counts, name) for queue, counts in queues for name in OUTCOMES}
    failures = {
        (queue, call): getattr(counts, name) for queue, counts in queues for call, name in FAILURES.items()
    }
    damaged = {(queue,): rows for queue, rows in quarantined.items()}
    hints = {(event,): count for event, count in asdict(stats.hints).items()}
    yield _counter("received", "Messages taken from queues.", received, "queue")
    yield _counter("found_by_hint", "Of those, what a hint has led to, and no poll.", hinted, "queue")
    yield _counter("messages", "Messages by what became of them.", outcomes, "queue", "outcome")
    yield _counter("failures", "Calls to Cassandra that are repeated.", failures, "queue", "call")
    yield _counter("hints", "Datagrams by which processes tell each other of messages.", hints, "event")
    yield _gauge("quarantined_rows", "Stored rows that this process could not read lately.", damaged, "queue")
    yield _gauge("running", "Handlers that run now.", {(): stats.running})
    yield _gauge("threads", "Threads that run handlers.", {(): threads})
    yield _gauge("unstarted", "Messages held here and not yet started.", {(): stats.unstarted})
    yield _gauge("unsettled", "Decided, and not yet stored.", {(): stats.unsettled})


def held(depths: Mapping[str, Depth]) -> Iterator[Metric]:
    """Yield the depths of queues as metrics."""
    for name, field, text in HELD:
        values = {(queue,): getattr(depth, field) for queue, depth in depths.items()}
        known = {queue: value for queue, value in values.items() if value is not None}
        yield _gauge(f"queue_{name}", text, known, "queue")


def _spooled() -> Iterable[Metric]:
    """What all spools hold that the application has opened in this process, if there are any; nothing while a
    disk of theirs fails, which their appends say.
    """
    module = sys.modules.get("cqueue.spool")
    try:
        return [*module.SpoolCollector().collect()] if module else ()
    except OSError:
        return ()


def _counter(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(f"cqueue_{name}", text, labels=labels), values)


def _gauge(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(f"cqueue_{name}", text, labels=labels), values)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> Metric:
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


# ── Several processes ──


class ChildMetrics:
    """The samples of all children, including those that have ended."""

    def __init__(self) -> None:
        self._living: dict[int, Families] = {}
        self._gone: Families = []

    def put(self, child: int, families: Families) -> None:
        """Take a child's samples, in place of its earlier ones."""
        self._living[child] = families

    def gone(self, child: int) -> None:
        """Note that a child has ended: its counts are kept, its gauges dropped."""
        last = [family for family in self._living.pop(child, []) if family[2] in {"counter", "histogram"}]
        self._gone = added([self._gone, last])

    def families(self) -> Families:
        """Return the sums over all children."""
        return added([self._gone, *self._living.values()])


def added(parts: Iterable[Families]) -> Families:
    """Add up samples of the same name and labels."""
    found: dict[str, tuple[Any, dict[tuple[Any, ...], list[Any]]]] = {}
    for name, text, kind, samples in (family for part in parts for family in part):
        _, values = found.setdefault(name, ((name, text, kind), {}))
        for sample, labels, value in samples:
            key = (sample, *sorted(labels.items()))
            kept = values.setdefault(key, [sample, labels, 0.0])
            kept[2] = max(kept[2], value) if name in LARGEST else kept[2] + value
    return [[*head, list(values.values())] for head, values in found.values()]


def exposition(families: Families) -> bytes:
    """Return the text that Prometheus reads."""
    return generate_latest(_From(lambda: _unpacked(families)))


def _unpacked(families: Families) -> Iterator[Metric]:
    """Yield the metrics that another process has collected."""
    for name, text, kind, samples in families:
        metric = Metric(name, text, kind)
        for sample, labels, value in samples:
            metric.add_sample(sample, labels, value)
        yield metric


def packed(metrics: Iterable[Metric]) -> Families:
    """Return metrics as values for JSON, without when each was created, which nobody asks for."""
    return [
        [
            metric.name,
            metric.documentation,
            metric.type,
            [
                [sample.name, dict(sample.labels), sample.value]
                for sample in metric.samples
                if not sample.name.endswith("_created")
            ],
        ]
        for metric in metrics
    ]
