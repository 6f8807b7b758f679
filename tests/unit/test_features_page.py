"""The table of features: each tick of ours is proven on Cassandra, each other cell has a source."""

import re
import subprocess
import sys

import pytest

from tests.unit import markdown_pages as markdown

PAGE = markdown.ROOT / "docs" / "reference" / "features.md"
TICK = re.compile(r'\[✓\]\(\.\./\.\./(tests/[\w/]+\.py) "(test_\w+)"\)')


def rows(text):
    """The table's rows as lists of cells: the heading, then the features."""
    lines = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in (lines[0], *lines[2:])]


def unproven(text, collected):
    """Features whose cell of cqueue is neither "–" nor a link to a test that was collected."""
    missing = []
    for feature, ours, *_ in rows(text)[1:]:
        tick = TICK.fullmatch(ours)
        if ours != "–" and (tick is None or "::".join(tick.groups()) not in collected):
            missing.append(feature)
    return missing


@pytest.fixture(scope="module")
def text():
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def collected(text):
    """The tests in the linked files that run on Cassandra, as file::name."""
    files = sorted({file for file, _ in TICK.findall(text)})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", "cassandra", *files]
    run = subprocess.run(command, cwd=markdown.ROOT, capture_output=True, text=True, check=True)
    return {line.partition("[")[0] for line in run.stdout.splitlines() if "::" in line}


@pytest.mark.slow
def test_each_tick_leads_to_a_test_on_cassandra(text, collected):
    assert unproven(text, collected) == []


@pytest.mark.slow
def test_a_tick_without_such_a_test_is_noticed(text, collected):
    """One without a link, one to a test that does not exist, one whose test runs in memory only."""
    for cell in ("✓", '[✓](../../tests/unit/test_api.py "test_no_such_thing")'):
        assert unproven(f"| feature | cqueue |\n|---|---|\n| x | {cell} |", collected) == ["x"]
    linked = {"::".join(tick) for tick in TICK.findall(text)}
    assert unproven(text, linked - {min(linked)})


def test_every_queue_has_a_cell_in_every_row_and_a_source_with_a_date(text):
    heading, *features = rows(text)
    assert {len(row) for row in features} == {len(heading)}
    for queue in heading[2:]:
        note = re.search(rf"^\[\^{queue.partition('[^')[2].rstrip(']')}\]: (.+)", text, re.MULTILINE)
        assert note, queue
        assert re.search(r"\d{1,2} \w+ 20\d\d", note[1]), queue
