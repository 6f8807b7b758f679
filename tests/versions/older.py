"""The code of an older commit, unpacked from the history, and clients that run it.

A client is a process that obeys calls, one JSON value a line. It uses the public API alone, so that the same
text runs with the old code and with the new one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

OLDER = "a8ca0b403b3c1531881070d1057aaf97cd0d8033"
"""N-1: the newest commit whose clients may still run beside this one. Raised with each release."""

ROOT = Path(__file__).parents[2]
CLIENT = Path(__file__).with_name("client.py")


def unpack(directory):
    """The older code below a directory; False if this tree has no history, or not enough of it."""
    tree = subprocess.run(["git", "-C", ROOT, "archive", OLDER], capture_output=True, check=False)
    if tree.returncode:
        return False
    with tarfile.open(fileobj=BytesIO(tree.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return True


class Client:
    """A process with the code of one tree."""

    def __init__(self, tree, url):
        self.process = subprocess.Popen(
            [sys.executable, CLIENT, url],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **call):
        """Call something there; what it gives. Several clients may be asked before one is heard."""
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()
        return self

    def answer(self):
        """The answer to the earliest call that has had none."""
        line = self.process.stdout.readline()
        assert line, f"the client ended with {self.process.wait()}"
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.stdout.close()
