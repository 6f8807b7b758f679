"""Show the demo while it runs, and the table at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cqueue.demo.accounting import Report, Snapshot

LINE_EVERY_S = 1.0
BAR_WIDTH = 40


@contextmanager
def live(console: Console, *, silent: bool = False) -> Iterator[Callable[[Snapshot], None]]:
    """Show snapshots: bars on a terminal, a line a second elsewhere. Call the function that this yields."""
    if silent:
        yield lambda _: None
        return
    if not console.is_terminal:
        yield _lines(console)
        return
    with Live(console=console, transient=True, auto_refresh=False) as shown:
        yield lambda snapshot: shown.update(bars(snapshot), refresh=True)


def bars(snapshot: Snapshot) -> Group:
    """One snapshot: what is sent and done as bars, the rest as numbers."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    for name, count in (("sent", snapshot.sent), ("done", snapshot.done)):
        bar = ProgressBar(total=snapshot.total, completed=count, width=BAR_WIDTH)
        grid.add_row(name, bar, f"{count:,} of {snapshot.total:,}")
    numbers = Table.grid(padding=(0, 2))
    numbers.add_row(*(Text.assemble((f"{name} ", "bold"), value) for name, value in _numbers(snapshot)))
    return Group(grid, numbers)


def _numbers(snapshot: Snapshot) -> list[tuple[str, str]]:
    return [
        ("depth", f"{snapshot.depth:,}"),
        ("per second", f"{snapshot.per_second:,.0f}"),
        ("latency p50", show_ms(snapshot.p50_ms)),
        ("p99", show_ms(snapshot.p99_ms)),
        ("again", f"{snapshot.redelivered:,}"),
        ("time", f"{snapshot.seconds:.0f} s"),
    ]


def _lines(console: Console) -> Callable[[Snapshot], None]:
    next_s = time.monotonic()

    def show(snapshot: Snapshot) -> None:
        nonlocal next_s
        if time.monotonic() < next_s:
            return
        next_s = time.monotonic() + LINE_EVERY_S
        parts = [f"sent {snapshot.sent:,}", f"done {snapshot.done:,}"]
        parts += [f"{name} {value}" for name, value in _numbers(snapshot)]
        console.print("  ".join(parts), highlight=False, soft_wrap=True)

    return show


def summary(report: Report) -> Group:
    """The account as a table, and a line that says whether it balances."""
    return Group("", _table(report), "", _verdict(report))


def _table(report: Report) -> Table:
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(justify="right", no_wrap=True)
    shown.add_column(style="dim")
    for name, value, remark, always in _rows(report):
        if always or value != "0":
            shown.add_row(name, value, remark)
    return shown


def _rows(report: Report) -> Iterator[tuple[str, str, str, bool]]:
    """Name, value, remark, and whether it is shown even when it is 0."""
    # Short enough for a terminal of 80 columns.
    yield "sent", f"{report.sent:,}", "acknowledged by Cassandra", True
    yield "not sent", f"{report.unsent:,}", "not reached, or not stored", False
    yield "acked", f"{report.acked:,}", "handled, then deleted from the queue", True
    yield "ack unknown", f"{report.ack_unknown:,}", "handled; whether the ack arrived is not known", False
    yield "dead", f"{report.dead:,}", "failed at every attempt; were dead letters", True
    yield "left", _count(report.left), "counted in the queue and its dead letters", True
    yield "lost", _count(report.lost), "sent, and neither acked, dead, nor left", True
    yield "duplicates", f"{report.duplicates:,}", "delivered after they had been handled", True
    yield "redelivered", f"{report.redelivered:,}", "delivered again because handling failed", True
    yield "altered", f"{report.altered:,}", "bodies that nobody sent", False
    yield "ticks", f"{report.ticks:,}", "seconds that a cron has fired", True
    yield "ticks missed", f"{report.ticks_missed:,}", "seconds that it should have fired", False
    yield "ticks twice", f"{report.ticks_repeated:,}", "fired again after a failure", False
    yield "errors", f"{report.errors:,}", "calls that failed and were repeated", False
    yield "throughput", f"{report.per_second:,.0f}/s", "acked, at the pace of the producers", True
    yield "latency p50", show_ms(report.p50_ms), "from send to first delivery", True
    yield "latency p99", show_ms(report.p99_ms), "", True


def _count(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _verdict(report: Report) -> Text:
    if report.balanced:
        acked = report.acked + report.ack_unknown
        account = f" {report.sent:,} sent = {acked:,} acked + {report.dead:,} dead. Nothing is lost."
        return Text.assemble(("Balanced:", "bold green"), account)
    if report.interrupted:
        return Text.assemble(("Interrupted:", "bold yellow"), " this is how far it came.")
    if report.left is None:
        return Text.assemble(("Not known:", "bold red"), " Cassandra did not say what is left.")
    return Text.assemble(("It does not balance.", "bold red"), " Something is missing, or too much.")


def show_ms(value: float | None) -> str:
    """Show a time in milliseconds, or in seconds where it is long."""
    if value is None:
        return "–"
    return f"{value / 1000:.1f} s" if value >= 10_000 else f"{value:,.0f} ms"
