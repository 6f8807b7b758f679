"""`examples/orders.py`: its own tests pass, in memory and on Cassandra."""

import os
import subprocess
import sys

import pytest

from tests.unit import markdown_pages as markdown

EXAMPLES = markdown.ROOT / "examples"


def run_its_tests(**environ):
    options = ["-q", "-W", "error", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_orders.py"],
        cwd=EXAMPLES,
        env={**os.environ, "PYTHONPATH": str(markdown.ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    return run.returncode, run.stdout + run.stderr


@pytest.mark.slow
def test_in_memory():
    code, output = run_its_tests()
    assert (code, "3 passed" in output) == (0, True), output


@pytest.mark.cassandra
@pytest.mark.feature
def test_on_cassandra(keyspace):
    code, output = run_its_tests(CQUEUE_TEST_KEYSPACE=keyspace.url)
    assert (code, "6 passed" in output) == (0, True), output
