"""Executors in processes of their own, and what is found there without being sent there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest

import cqueue

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_a_cluster_reads_and_writes(url, client):
    """local-cluster[2,1,1024]: row counts are those of the queue and of the log."""
    queue, log, rows = client.create_queue("cluster"), client.create_log("cluster"), 2000
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
    command = [sys.executable, "-m", "tests.spark.cluster_child", url, str(rows)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().rpartition("\n")[2])
    assert found == {"queue": [rows, rows], "log": [rows, rows], "executors": 2}
    assert queue.stats(exact=True).live == rows
    assert sum(1 for _ in log.scan()) == rows


def test_the_format_is_found_without_a_call(tmp_path):
    """The installed distribution has the module that Spark looks for, at its top."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(ROOT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = ZipFile(wheel).namelist()
    assert "pyspark_cqueue.py" in names
    assert "cqueue/spark/source.py" in names


def test_importing_the_package_imports_no_spark():
    """The command line, and a program without Spark, can do without."""
    code = "import sys, cqueue, cqueue.spark; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
    assert cqueue.__all__
