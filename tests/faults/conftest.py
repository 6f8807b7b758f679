"""`make test-all` runs the fault tests marked as quick, in short; `make faults` (CQUEUE_FAULTS=1) runs all.

Every test adds its row to a table, which `make faults` prints; with CQUEUE_FAULTS_PAGE it is written there.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults import table
from tests.faults.clocks import clock_library  # noqa: F401 - a fixture
from tests.faults.lengths import FULL, STORAGE
from tests.faults.load import Run
from tests.faults.networks import network  # noqa: F401 - a fixture

HERE = "tests/faults/"
LONGEST_REASON = 160
MADE_AT = pytest.StashKey()
"""What the table says of the tested code."""

_rows = []


@pytest.fixture
def row(request):
    """The row of the table that the test stands for: `row(figure=value, …)` adds figures to it."""
    marker = request.node.get_closest_marker("row")
    figures = {}
    began = time.monotonic()
    request.node.user_properties.append(("row", (marker.args, figures)))
    yield lambda **more: figures.update(more)
    figures["took"] = f"{time.monotonic() - began:.0f} s"


@pytest.fixture
def start_run(tmp_path, request):
    """Make a run on the shared node; whatever it started is gone after the test."""
    runs = []

    def start(url=None, **config):
        name = f"q{abs(hash(request.node.nodeid)) % 10**8}-{len(runs)}"
        runs.append(Run(url or request.getfixturevalue("keyspace").url, tmp_path, name, **config))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def pytest_configure(config):
    config.addinivalue_line("markers", "row(number, fault): the row of the table of faults")
    config.addinivalue_line("markers", "quick: in short it belongs to `make test-all`")
    config.addinivalue_line("markers", "storage: in short it belongs to `make faults-quick`")
    if FULL:
        config.stash[MADE_AT] = table.made_at()  # now, as somebody may commit meanwhile
    if FULL or STORAGE:
        # As Ctrl-C: whatever nodes, namespaces and mounts there are, are removed.
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave the long ones to `make faults`, or take only those of the storage."""
    for item in items:
        if HERE in item.nodeid:
            item.add_marker(pytest.mark.acceptance)
    if FULL:
        return
    wanted = "storage" if STORAGE else "quick"
    long = [item for item in items if HERE in item.nodeid and item.get_closest_marker(wanted) is None]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    marker = item.get_closest_marker("row")
    if marker is not None and (report.when == "call" or report.skipped or report.failed):
        figures = next((value[1] for name, value in item.user_properties if name == "row"), {})
        _rows.append(table.Row(*marker.args, report.outcome, figures, _reason(report)))
    return report


def _reason(report):
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    if not report.failed:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).splitlines()[0][:LONGEST_REASON]


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    if not (_rows and FULL):
        return
    terminalreporter.section("faults")
    for line in table.lines(_rows):
        terminalreporter.write_line(line)
    page = os.environ.get("CQUEUE_FAULTS_PAGE")
    if page and exitstatus != pytest.ExitCode.INTERRUPTED:
        table.write(Path(page), _rows, config.stash[MADE_AT])
