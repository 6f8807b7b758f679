"""One Spark session for all tests of a run: starting one takes seconds."""

from __future__ import annotations

import os
import secrets
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
QUICK_START = "-XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Options of the session's JVM. One that lives for minutes spends a third of its time on the start, checking
the bytecode of Spark's classes, and its collector has threads of its own."""

# `make test` has no Spark; `make test-spark` runs what is here.
collect_ignore_glob = [] if find_spec("pyspark") else ["test_*.py"]


def pytest_collection_modifyitems(items):
    """All of these tests need Cassandra, or nearly all."""
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.cassandra)


@pytest.fixture(scope="session")
def spark():
    """A local session with two threads; the Python workers are this Python."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Spark looks for `pyspark_cqueue` on the path of its own workers, where an editable install is not seen.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "workers"), str(HERE.parents[1])])
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("cqueue tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def url(new_keyspace):
    """The URL of a keyspace that the test module has to itself, where records can be read a second sooner."""
    return new_keyspace(settle_ms=1500, skew_ms=200).url


@pytest.fixture(scope="module")
def client(url):
    """A client of that keyspace."""
    import cqueue

    with cqueue.connect(url) as opened:
        yield opened


@pytest.fixture
def new_name():
    """A function that gives a name nobody had before."""
    return lambda prefix: f"{prefix}-{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def wait_until_stable():
    """A function that returns once all that was appended to a log can be read, by whatever clock."""
    from cqueue import ids

    def wait(log):
        clock, spec = log._driver.clock, log._catalog.entry(log.name).spec
        appended_us = clock.now_us()
        deadline = time.monotonic() + 30
        # A reader has a clock of its own, which may be ε behind.
        while ids.time_us(spec.horizon(clock.now_us() - spec.skew_us)) <= appended_us:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    return wait
