"""Writes cqueue/cli/demo.txt: 10,000 lines of an access log of a shop that does not exist.

The same text every time. Addresses come from the ranges that are reserved for documentation.

    python benchmarks/make_demo_text.py > cqueue/cli/demo.txt
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

LINES = 10_000
SEED = 20_250_312
NETWORKS = ("192.0.2", "198.51.100", "203.0.113")
SECTIONS = ("books", "garden", "kitchen", "lamps", "paint", "tea", "tools", "toys")


def access_log(lines: int = LINES) -> Iterator[str]:
    """Yield the lines, without their ends."""
    # Only random(), whose sequence Python promises to keep.
    draw = random.Random(SEED).random
    moment = datetime(2025, 3, 12, 6, 0, tzinfo=UTC)
    for _ in range(lines):
        moment += timedelta(seconds=draw() * 8)
        address = f"{NETWORKS[int(draw() * 3)]}.{1 + int(draw() * 254)}"
        request, status, size = _request(draw(), draw(), draw())
        yield f'{address} {moment:%d/%b/%Y:%H:%M:%S} "{request}" {status} {size}'


def _request(kind: float, which: float, luck: float) -> tuple[str, int, int]:
    """Make a request and its answer: mostly pages and pictures, now and then an order."""
    section = SECTIONS[int(which * len(SECTIONS))]
    item = 1000 + int(which * 9000)
    if kind < 0.05:
        return "POST /orders", 201 if luck < 0.9 else 409, 150 + item // 50
    if kind < 0.12:
        return f"POST /basket/{item}", 200 if luck < 0.97 else 422, 90 + item // 100
    if kind < 0.20:
        return f"GET /search?q={section}", 200, 2000 + item
    if kind < 0.45:
        return f"GET /pictures/{section}/{item}.webp", 304 if luck < 0.4 else 200, item * 5
    return f"GET /{section}/{item}", 404 if luck < 0.03 else 200, 4000 + item // 2


if __name__ == "__main__":
    for line in access_log():
        sys.stdout.write(line + "\n")
