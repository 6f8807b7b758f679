"""What a history and results cost: a dispatcher drains queues with and without them, round by round in turn.

    python -m benchmarks.history_cost cassandra://127.0.0.1:9042/bench?local_dc=datacenter1

The handler does nothing, so that the ratio is the worst that an application can see.
"""

from __future__ import annotations

import statistics
import sys
import time
from datetime import timedelta

import cqueue

MESSAGES, ROUNDS = 10_000, 5
KINDS = ("plain", "history", "results")
HOUR = timedelta(hours=1)


def drained_s(client: cqueue.Client, kind: str, number: int) -> float:
    """Return the seconds in which a dispatcher drains a new queue of this kind."""
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
        began_s = time.perf_counter()
        while dispatcher.stats().total.acked < MESSAGES:
            time.sleep(0.005)
        took_s = time.perf_counter() - began_s
    if kind == "history":
        time.sleep(4)
        told = len(queue.history(limit=10_000))
        if told != MESSAGES:
            raise SystemExit(f"{told:,} of {MESSAGES:,} were told")
    client.delete_queue(name)
    return took_s


def main(url: str) -> None:
    """Print messages a second of each kind, the median of all rounds, and the ratio to a plain queue."""
    with cqueue.connect(url) as client:
        for kind in KINDS:
            drained_s(client, kind, -1)  # warms up
        took: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for number in range(ROUNDS):
            for kind in KINDS if number % 2 else KINDS[::-1]:
                took[kind].append(drained_s(client, kind, number))
    for kind, seconds in took.items():
        ratio = statistics.median(plain / own for plain, own in zip(took["plain"], seconds, strict=True))
        print(
            f"{kind:8} {MESSAGES / statistics.median(seconds):8,.0f} messages a second, {ratio:.2f} of plain"
        )


if __name__ == "__main__":
    main(sys.argv[1])
