"""The table of results, and the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from benchmarks.peers.workload import Row, Workload


def build(rows: Sequence[Row], workload: Workload) -> Table:
    """Make the table: a line for each row; a row without figures says why."""
    title = (
        f"{workload.messages:,} messages of {workload.size} B ({workload.few:,} where it says so), "
        f"medians of {workload.rounds} rounds in turn; "
        f"latency from send to handler at {workload.rate}/s"
    )
    table = Table(title=title, show_lines=True)
    table.add_column("queue")
    table.add_column("durability")
    table.add_column("how it is driven")
    for name in ("enqueued/s", "drained/s", "p50 ms", "p99 ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row, workload))
    return table


def cells(row: Row, workload: Workload) -> tuple[str, ...]:
    """Return the texts of one line."""
    figures = row.figures
    if figures is None:
        state = "failed" if row.failed else "skipped; to measure it"
        return (_queue(row), "", f"[red]{state}[/red]: {escape(row.reason)}", "–", "–", "–", "–")
    fewer = "" if figures.messages == workload.messages else f"; {figures.messages:,} messages"
    return (
        _queue(row),
        escape(row.durability),
        escape(row.client + fewer),
        f"{figures.enqueue_per_s:,.0f}",
        f"{figures.drain_per_s:,.0f}",
        f"{figures.p50_ms:.2f}",
        f"{figures.p99_ms:.2f}",
    )


def _queue(row: Row) -> str:
    versions = ", ".join(row.versions.values())
    return escape(f"{row.title}\n{versions}" if versions else f"{row.title} ({row.key})")


def as_json(rows: Sequence[Row], workload: Workload, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything, for programs."""
    return {
        "bench": "peers",
        "workload": asdict(workload),
        "machine": dict(machine),
        "rows": [asdict(row) for row in rows],
    }
