"""Wall clocks of processes that can be set wrong, and set again while they run.

By a library of our own, `clock.c`, for clients and nodes alike. libfaketime does the same and more, and a
JVM under it takes two minutes to start: it takes a lock around every wait with a deadline.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("clock.c")


class WallClock:
    """The offset of the wall clock of all processes that are started with `environ`."""

    def __init__(self, library, path):
        self._path = path
        self.environ = {"LD_PRELOAD": str(library), "FAULTS_CLOCK": str(path)}
        self.set(0)

    def set(self, offset_s):
        """Step the clock to a number of seconds beside the true time."""
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(struct.pack("=q", int(offset_s * 1e9)))


@pytest.fixture(scope="session")
def clock_library(tmp_path_factory):
    """The library that shifts wall clocks; tests that need it are skipped where it cannot be built."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: wall clocks cannot be shifted here")
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    done = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"wall clocks cannot be shifted here: {done.stderr.splitlines()[0]}")
    clock = WallClock(library, library.with_name("clock"))
    clock.set(1000)
    environ = {**os.environ, **clock.environ}
    told = subprocess.check_output([sys.executable, "-c", "import time; print(time.time())"], env=environ)
    assert 999 < float(told) - time.time() < 1001, "the library does not shift wall clocks"
    return library
