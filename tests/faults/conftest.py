"""Fault tests run only when they are asked for: `make faults`, or CQUEUE_FAULTS=1.

Every test adds its row to a table, which the run prints; with CQUEUE_FAULTS_PAGE it is written there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.faults import table
from tests.faults.clocks import clock_library  # noqa: F401 - a fixture
from tests.faults.load import Run

collect_ignore_glob = [] if os.environ.get("CQUEUE_FAULTS") else ["test_*.py"]

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
    return str(report.longrepr.reprcrash.message).splitlines()[0] if report.failed else ""


def pytest_terminal_summary(terminalreporter):
    if _rows:
        terminalreporter.section("faults")
        for line in table.lines(_rows):
            terminalreporter.write_line(line)
        if page := os.environ.get("CQUEUE_FAULTS_PAGE"):
            table.write(Path(page), _rows)


def pytest_collection_modifyitems(items):
    """Whatever goes wrong on purpose is tried again, and some versions of tenacity warn about its options."""
    for item in items:
        if "tests/faults/" in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning"))
