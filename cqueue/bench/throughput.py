"""Throughput: what the bare driver can do, what the queue does, and the ratio of the two.

*floor* does the row work of a queue without a queue: the same rows into the same table in batches, one
partition at a time, read in slices, deleted with IN. *burndown* sends and drains the same messages
through the public API, until every ack is stored. The two run in one process, in turn.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from cassandra import DriverException
from cassandra.cluster import NoHostAvailable
from cassandra.query import BatchStatement, BatchType
from cassandra.util import uuid_from_time

from cqueue.bench.options import Options, Rows
from cqueue.bench.setup import Bench, Progress, in_turn, medians_of, rates, ratios_of, silent
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.message import Message
from cqueue.producer import SendResult
from cqueue.queue import Queue
from cqueue.store.connection import open_session
from cqueue.testing import Recorder, check, recording

PARTITIONS = 4
AHEAD = 2
"""Batches that are under way while the next one is made."""
CLAIMED_AHEAD = 4
"""Receives that a pipelined burndown claims at once, and ahead."""
INSERT = (
    "INSERT INTO messages (queue, time_shard, shard, kind, priority, id, body, sent_at, format) "
    "VALUES (?, ?, ?, 3, 0, ?, ?, ?, 0) USING TIMESTAMP ?"
)
_SLICE = (
    "SELECT priority, id, body, size, headers, codec, task, key, trigger, sent_at, expires, format "
    "FROM messages WHERE queue = ? AND time_shard = ? AND shard = ? AND kind = 3 AND priority = 0 "
    "AND id > ? LIMIT ?"
)
_DELETE = (
    "DELETE FROM messages WHERE queue = ? AND time_shard = ? AND shard = ? AND kind = 3 "
    "AND priority = 0 AND id IN ?"
)
_DELETE_ALL = "DELETE FROM messages WHERE queue = %s AND time_shard = 0 AND shard = %s"
_LOWEST = uuid_from_time(0, 0, 0)


@contextmanager
def bare_rows(session: Any) -> Iterator[str]:
    """A name for rows of no queue, which nobody else would ever delete; they are deleted at the end.

    Raises:
        OutcomeUnknown: they may not be, as Cassandra does not answer.
    """
    name = f"bench-floor@{time.time_ns():x}"
    try:
        yield name
    finally:
        try:
            for shard in range(PARTITIONS):
                session.execute(_DELETE_ALL, (name, shard))
        except (DriverException, NoHostAvailable) as exc:
            raise OutcomeUnknown(f"rows of {name!r} may be left in the table messages: {exc}") from exc


def floor(bench: Bench, options: Rows, progress: Progress = silent) -> dict[str, Any]:
    """The bare driver on the same rows: a session of its own, bound statements, no protocol."""
    with open_session(bench.settings) as connection, bare_rows(connection.session) as name:
        bare = Bare(connection.session, options, name)
        sends_s, drains_s = bare.insert_all(progress), bare.drain_all(progress)
    return bench.result("floor", options, rates(options.messages, sends_s, drains_s))


class Bare:
    """Inserts, slice reads and deletes with nothing around them. name: of `bare_rows`."""

    def __init__(self, session: Any, options: Rows, name: str) -> None:
        self.session = session
        self.options = options
        self.name = name
        self.insert, self.slice, self.delete = (session.prepare(text) for text in (INSERT, _SLICE, _DELETE))

    def insert_all(self, progress: Progress) -> list[float]:
        """The seconds that each batch took."""
        took_s: list[float] = []
        for turn, batch in enumerate(bodies(self.options)):
            start = time.perf_counter()
            statement = BatchStatement(BatchType.UNLOGGED)
            for body in batch:
                now_us = time.time_ns() // 1000
                id_ = uuid_from_time(now_us / 1e6)
                key = (self.name, 0, turn % PARTITIONS)
                statement.add(self.insert, (*key, id_, body, now_us // 1000, now_us))
            self.session.execute(statement)
            took_s.append(time.perf_counter() - start)
            progress(0.5 * (turn + 1) * self.options.batch / self.options.messages)
        return took_s

    def drain_all(self, progress: Progress) -> list[float]:
        """The seconds that each slice took, with its delete."""
        took_s: list[float] = []
        drained = 0
        for shard in range(PARTITIONS):
            after = _LOWEST
            while True:
                start = time.perf_counter()
                key = (self.name, 0, shard)
                rows = list(self.session.execute(self.slice, (*key, after, self.options.receive)))
                if not rows:
                    break
                after = rows[-1].id
                self.session.execute(self.delete, (*key, [row.id for row in rows]))
                took_s.append(time.perf_counter() - start)
                drained += len(rows)
                progress(0.5 + 0.5 * drained / self.options.messages)
        _check(drained, self.options)
        return took_s


def burndown(
    bench: Bench,
    options: Options,
    progress: Progress = silent,
    *,
    history: Path | None = None,
    pipelined: bool = False,
    ahead: bool = False,
    calm: bool = False,
) -> dict[str, Any]:
    """Send all, then drain all, through the public API.

    history: where to record every call, to be judged at the end; recording costs time of its own.
    pipelined: the next batches are claimed while the acks of the last are stored; not with a history.
    ahead: two batches are sent at a time; neither with a history.
    calm: it stands alone: begins when the server compacts nothing, and leaves it so.
    """
    if calm:
        bench.calm()
    with bench.queue(options) as queue:
        if history is None:
            sends_s = (_send_ahead if ahead else send_all)(queue, options, progress)
            drains_s = drain_all(queue, options, progress, pipelined=pipelined)
            verdict = {}
        else:
            with recording(queue, history) as recorded:
                sends_s = send_all(recorded, options, progress)
                drains_s = drain_all(recorded, options, progress)
                recorded.left(bench.client.queue(queue.dead_letter_name))
            report = check(history)
            verdict = {"verified": report.clean, "verdict": report.figures()}
    result = bench.result("burndown", options, {**rates(options.messages, sends_s, drains_s), **verdict})
    if calm:
        bench.calm()
    return result


def _send_ahead(queue: Queue, options: Options, progress: Progress) -> list[float]:
    """Send like `send_all` with two batches under way; the time to make the bodies counts as well."""
    sends_s: list[float] = []
    under_way = deque[Future[SendResult]]()
    start = time.perf_counter()
    for batch in [*bodies(options), []]:
        if batch:
            under_way.append(queue.send_many_async([Message(body) for body in batch]))
        while len(under_way) > (AHEAD if batch else 0):
            for _, error in under_way.popleft().result().failed:
                raise error
        now = time.perf_counter()
        sends_s.append(now - start)
        start = now
        progress(0.5 * min(1.0, len(sends_s) * options.batch / options.messages))
    return sends_s


def send_all(queue: Queue | Recorder, options: Options, progress: Progress = silent) -> list[float]:
    """The seconds of each send."""
    sends_s: list[float] = []
    for batch in bodies(options):
        start = time.perf_counter()
        result = queue.send_many([Message(body) for body in batch])
        sends_s.append(time.perf_counter() - start)
        for _, error in result.failed:
            raise error
        progress(0.5 * len(sends_s) * options.batch / options.messages)
    return sends_s


def drain_all(
    queue: Queue | Recorder, options: Options, progress: Progress = silent, *, pipelined: bool = False
) -> list[float]:
    """The seconds of each receive with its ack.

    pipelined: four batches are claimed at once, and ahead; the acks of one are stored meanwhile, and awaited
        after the next receive.
    """
    drains_s: list[float] = []
    drained = 0
    stored: Future[None] | None = None
    ahead = CLAIMED_AHEAD * options.receive if pipelined else 0
    with queue.consumer(prefetch=ahead) as consumer:
        while drained < options.messages:
            start = time.perf_counter()
            messages = consumer.receive(options.receive, wait=timedelta(seconds=10))
            if not messages:
                raise NotDone(f"only {drained:,} of {options.messages:,} messages came back")
            drained += len(messages)
            if pipelined:
                before, stored = stored, consumer.ack_async(messages)
                if before is not None:
                    before.result()
                if drained == options.messages:
                    stored.result()
            else:
                consumer.ack(messages)
            drains_s.append(time.perf_counter() - start)
            progress(0.5 + 0.5 * drained / options.messages)
        _check(drained + len(consumer.receive(10)), options)
    return drains_s


def ratio(bench: Bench, options: Options, rounds: int = 3, progress: Progress = silent) -> dict[str, Any]:
    """Floor and pipelined burndown in turn after one round to warm up: medians, and the median of ratios."""
    ways = {
        "floor": partial(floor, bench, options),
        "burndown": partial(burndown, bench, options, pipelined=True),
    }
    found = in_turn(ways, rounds, progress, before=bench.calm)
    shown = ("sent_per_s", "drained_per_s", "total_per_s")
    figures = {
        **ratios_of(found["burndown"], found["floor"], "total_per_s"),
        **{name: medians_of(results, shown) for name, results in found.items()},
        "acks": "pipelined",
        "prefetch": CLAIMED_AHEAD * options.receive,
    }
    return bench.result("ratio", options, figures, rounds=rounds)


def bodies(options: Rows) -> Iterator[list[bytes]]:
    """Batches of random bodies."""
    left = options.messages
    while left:
        count = min(left, options.batch)
        data = secrets.token_bytes(count * options.size)
        yield [data[at * options.size : (at + 1) * options.size] for at in range(count)]
        left -= count


def _check(drained: int, options: Rows) -> None:
    if drained != options.messages:
        raise NotDone(f"{drained:,} messages came back, {options.messages:,} were sent")
