"""Count what draining costs the cluster: conditional mutations, statements, tombstones that are read.

Each kind of consumer drains a backlog of its own, and only the drains are counted; queues are deleted at the
very end, as that reads as well. Cassandra tells the client of reads that met too many tombstones. Its own
histogram has the most that any read has met; it knows no queues, and forgets what is older than a few
minutes: `before` is what others, or an earlier benchmark, have left in it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

from cqueue.bench import dispatch
from cqueue.bench.counting import CountingStore
from cqueue.bench.options import Options
from cqueue.bench.setup import Bench, Progress, silent
from cqueue.bench.throughput import drain_all, send_all
from cqueue.client import Client
from cqueue.queue import Queue

_TOMBSTONES: Final = (
    "SELECT max FROM system_views.tombstones_per_read WHERE keyspace_name = %s AND table_name = 'messages'"
)

Drain = Callable[[Queue, Options], Any]

WAYS: Final[dict[str, Drain]] = {
    "one_at_a_time": drain_all,
    "ahead": partial(drain_all, pipelined=True),
    "dispatcher": dispatch.drain,
}
"""Consumers: one batch at a time; claiming ahead; a dispatcher whose handler does nothing."""


def cost(bench: Bench, options: Options, progress: Progress = silent) -> dict[str, Any]:
    """Count for each kind of consumer, per 1,000 messages; and the most tombstones that a read has met."""
    counting = CountingStore(bench.store)
    figures: dict[str, dict[str, float]] = {}
    met = [tombstones(bench)]
    with Client(counting, on_close=lambda: None) as client, ExitStack() as queues:
        for name, drain in WAYS.items():
            queue = queues.enter_context(replace(bench, client=client).queue(options))
            send_all(queue, options)
            before = counting.operations, counting.mutations, counting.crossed
            drain(queue, options)
            after = counting.operations, counting.mutations, counting.crossed
            statements, mutations, crossed = (end - start for start, end in zip(before, after, strict=True))
            figures[name] = {
                "conditional_per_1000": round(mutations * 1000 / options.messages, 2),
                "statements_per_1000": round(statements * 1000 / options.messages, 2),
                "reads_over_1000_tombstones": crossed,
            }
            met.append(tombstones(bench))
            progress(len(figures) / len(WAYS))
    seen = {"before": met[0], "max": max(met)}
    return bench.result("cost", options, {**figures, "tombstones_per_read": seen})


def tombstones(bench: Bench) -> int:
    """Return the most tombstones that a read of messages has met, on any node, in the last minutes."""
    session, hosts = bench.connection.session, bench.connection.cluster.metadata.all_hosts()
    found = [session.execute(_TOMBSTONES, (bench.settings.keyspace,), host=host).one() for host in hosts]
    return max((int(row[0]) for row in found if row is not None), default=0)
