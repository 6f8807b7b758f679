"""`examples/orders.py`: its own tests pass, in memory and on Cassandra."""

import os
import subprocess
import sys

import pytest

from tests.unit import markdown_pages as markdown


def run_its_tests(*options, **environ):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_orders.py"],
        cwd=markdown.ROOT / "examples",
        env={**os.environ, "PYTHONPATH": str(markdown.ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (done.returncode, "4 passed" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.slow
def test_in_memory():
    run_its_tests()


@pytest.mark.cassandra
def test_on_cassandra(cassandra_url):
    run_its_tests("--cqueue-cassandra", CQUEUE_TEST_URL=cassandra_url)
