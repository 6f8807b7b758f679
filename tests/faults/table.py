"""The table of faults: printed after a run, and written to a page."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import NamedTuple

HEAD = """# Faults, and what came of them

Written by `make faults`; what is done, and what must hold, stands in the tests below `tests/faults/`.
Every row demands lost = 0, unexpected = 0, resurrected = 0, and never two holders of one message.
The [history checker](history.md) is the judge.
Rows 9, 18 and 19 run the worker that `tests/faults/worker.py` names.
Messages are sent a hundred at a time, so that they share rows, and consumers ack a part of them at a time.
`make test-all` runs rows 1 to 4, 7 (one node), 12, 13, 23 and 24 as well, in short.

"""


class Row(NamedTuple):
    number: int
    fault: str
    outcome: str
    figures: dict
    reason: str


def cells(row):
    """Number, fault, outcome, figures."""
    figures = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.figures.items())
    outcome = {"passed": "held", "failed": "BROKEN"}.get(row.outcome, row.outcome)
    return str(row.number), row.fault, outcome, "; ".join(part for part in (row.reason, figures) if part)


def lines(rows):
    """For a terminal."""
    for row in sorted(rows, key=lambda row: row.number):
        number, fault, outcome, figures = cells(row)
        yield f"{number:>2}  {outcome:<7} {fault}: {figures}"


def write(path, rows):
    """As Markdown, with date, versions and class of the machine."""
    text = HEAD + f"{_circumstances()}\n\n| # | fault | result | figures |\n|---|---|---|---|\n"
    for row in sorted(rows, key=lambda row: row.number):
        text += "| " + " | ".join(cell.replace("|", "/") for cell in cells(row)) + " |\n"
    path.write_text(text, encoding="utf-8")


def _circumstances():
    import cassandra

    from cqueue import __version__
    from cqueue.dev.jars import cassandra_version

    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, cqueue {__version__}, Cassandra {cassandra_version()}, "
        f"Python {platform.python_version()}, driver {cassandra.__version__}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores, {gigabytes:.0f} GB."
    )
