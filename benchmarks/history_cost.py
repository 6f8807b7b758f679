"""What a history and results cost: a dispatcher drains queues with and without them, round by round in turn.

    python -m benchmarks.history_cost cassandra://127.0.0.1:9042/bench?local_dc=datacenter1 [KIND...]

The handler does nothing, so that the ratio is the worst that an application can see.
"""

from __future__ import annotations

import statistics
import sys
import time
from datetime import timedelta

import cqueue

MESSAGES, ROUNDS = 10_000, 5
KINDS = tuple(sys.argv[2:]) or ("plain", "history", "results")
HOUR = timedelta(hours=1)


def drained_s(client: cqueue.Client, kind: str, number: int) -> tuple[float, float]:
    """Return the seconds in which a dispatcher drains a new queue of this kind, and its CPU seconds."""
    name = f"cost-{kind}-{number}-{time.time_ns()}"
    history = HOUR if kind == "history" else None
    queue = client.create_queue(name, cqueue.QueueConfig(visibility=timedelta(minutes=1), history=history))
    app = cqueue.App(client, queue=name)

    @app.task(name=name, result_ttl=HOUR if kind == "results" else None)
    def double(value: int) -> int:
        return 2 * value

    for start in range(0, MESSAGES, 2000):
        double.enqueue_many(double.message(start + value) for value in range(2000))
    time.sleep(3)  # what was sent is settled
    with app.dispatcher() as dispatcher:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        while dispatcher.stats().total.acked < MESSAGES:
            time.sleep(0.05)
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    if kind == "history":
        time.sleep(4)
        told = len(queue.history(limit=10_000))
        if told != MESSAGES:
            raise SystemExit(f"{told:,} of {MESSAGES:,} were told")
    client.delete_queue(name)
    return took_s, cpu_s


def main(url: str) -> None:
    """Print messages a second of each kind, and the medians of the ratios of a plain queue to it."""
    took: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with cqueue.connect(url) as client:
        for kind in KINDS:
            drained_s(client, kind, -1)  # warms up
        for number in range(ROUNDS):
            for kind in KINDS if number % 2 else KINDS[::-1]:
                took[kind].append(drained_s(client, kind, number))
    for kind, rounds in took.items():
        rate = MESSAGES / statistics.median(seconds for seconds, _ in rounds)
        pairs = list(zip(took["plain"], rounds, strict=True))
        of_time, of_cpu = (
            statistics.median(plain[which] / own[which] for plain, own in pairs) for which in (0, 1)
        )
        print(f"{kind:8} {rate:8,.0f} messages a second, {of_time:.2f} of plain; by CPU time {of_cpu:.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
