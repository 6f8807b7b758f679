"""Clusters of a test's own, to be killed and stopped; and figures about sends around a fault."""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import pairwise

from cqueue.dev import DevCluster, own_network
from cqueue.schema import Options, apply
from cqueue.settings import load
from cqueue.store.connection import open_session
from cqueue.testing.events import OK, calls, read

S = 1_000_000_000


@contextmanager
def running_cluster(directory, nodes=1, **options):
    """A cluster that is wiped at the end, in whatever state it is then."""
    cluster = DevCluster(directory, nodes=nodes, first_address=own_network(directory), **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.wipe()


def url_of(cluster, keyspace="faults", **settings):
    """The cluster's URL with a keyspace and settings in it; the schema is there."""
    base, _, query = cluster.status().url.partition("?")
    pairs = "".join(f"&{name}={value}" for name, value in settings.items())
    url = f"{base.rpartition('/')[0]}/{keyspace}?{query}{pairs}"
    loaded = load(url)
    with open_session(loaded, use_keyspace=False) as connection:
        apply(connection, loaded, Options())
    return url


def sends_of(histories):
    """(began, took, ok) of each send call, in seconds of the monotonic clock."""
    found = [
        (
            call.began_ns / S,
            (call.ended_ns - call.began_ns) / S,
            call.outcome == OK and not any("outcome" in one for one in call.answered),
        )
        for call in calls(read(histories))
        if call.operation == "send"
    ]
    return sorted(found)


def await_sends(producers, since, count=1):
    """Wait until that many sends of these children have succeeded that began later."""
    deadline, histories = time.monotonic() + 60, [producer.history for producer in producers]
    while sum(ok and began > since for began, _, ok in sends_of(histories)) < count:
        assert time.monotonic() < deadline, "too few sends succeeded afterwards"
        time.sleep(0.5)


def p99(values):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def recovery_s(sends, fault_at, baseline_s, window_s=2.0):
    """Seconds from the fault until the p99 of all later windows is at most twice the baseline."""
    last_bad = fault_at
    end = sends[-1][0]
    start = fault_at
    while start + window_s <= end:
        window = [took for began, took, ok in sends if start <= began < start + window_s and ok]
        if not window or p99(window) > 2 * baseline_s:
            last_bad = start + window_s
        start += window_s
    return last_bad - fault_at


def longest_silence_s(sends, since):
    """The longest stretch without a send that succeeded."""
    ends = [since, *sorted(began + took for began, took, ok in sends if ok and began + took >= since)]
    return max((later - earlier for earlier, later in pairwise(ends)), default=0.0)
