"""Find Java 17, the one version that both Cassandra 5.0 and our list of its options support."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cqueue.errors import DevError

REQUIRED_MAJOR = 17

_REMEDY = (
    "Install Java 17 (Debian, Ubuntu: `apt install openjdk-17-jre-headless`) and put its `java` on PATH "
    "or its directory into JAVA_HOME."
)


def find_java(environ: Mapping[str, str] | None = None) -> Path:
    """The `java` to run: that of JAVA_HOME if set, else the first on PATH.

    Raises:
        DevError: there is none, or it is not Java 17.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME", "")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH"))
    if found is None or not os.access(found, os.X_OK):
        place = f"JAVA_HOME ({home})" if home else "PATH"
        raise DevError(f"No `java` in {place}. {_REMEDY}")
    major = java_major(_version_text(found))
    if major != REQUIRED_MAJOR:
        raise DevError(f"{found} is Java {major or 'of an unknown version'}; Cassandra needs 17. {_REMEDY}")
    return Path(found)


def java_major(version_text: str) -> int | None:
    """The major version in the output of `java -version`, e.g. 17; None if it shows none."""
    match = re.search(r'version "(?:1\.)?(\d+)', version_text)
    return int(match.group(1)) if match else None


def _version_text(java: str) -> str:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise DevError(f"`{java} -version` failed: {exc}. {_REMEDY}") from exc
    return done.stderr + done.stdout
