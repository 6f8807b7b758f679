"""The server's jars: resolved once by Maven, kept in a cache directory of our own.

Maven's own repository is not used as the class path: another tool may clean it, and asking Maven for
the path costs seconds at every start. A directory of jars appears in the cache by one rename, with a
list of names and sizes in it, so an interrupted download can never look complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
import xml.etree.ElementTree as ET  # nosec B405
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from cqueue.dev.paths import cache_root
from cqueue.errors import DevError

Progress = Callable[[str], None]

POM = Path(__file__).with_name("pom.xml")
MANIFEST = "manifest.json"

# In full: an offline Maven then names the file it lacks, instead of not knowing the word "dependency".
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"

# What a killed run left; a live one is quicker.
_STALE_SECONDS = 3600


def silent(_line: str) -> None:
    """A progress callback that drops everything."""


def ensure_jars(progress: Progress = silent) -> list[Path]:
    """The class path of the server; runs Maven only if the cache lacks something.

    Arguments:
        progress: called with a short line whenever there is something new to show.

    Raises:
        DevError: Maven is missing, or could not fetch everything.
    """
    final = jars_directory()
    jars = complete_jars(final)
    if jars is not None:
        return jars
    progress(f"Fetching Apache Cassandra {cassandra_version()} with Maven (once)")
    with _scratch(final.parent) as scratch:
        _run_maven(scratch, progress)
        _write_manifest(scratch)
        _publish(scratch, final)
    jars = complete_jars(final)
    if jars is None:
        raise DevError(f"{final} is damaged again right after the download. Delete it and try again.")
    return jars


def jars_directory() -> Path:
    """Return the directory of the jars of the pinned version."""
    return cache_root() / "jars" / cassandra_version()


def cassandra_version() -> str:
    """The version of Cassandra that `pom.xml` pins."""
    # Our own file, not somebody's input.
    version = ET.parse(POM).findtext(".//{*}cassandra.version")  # nosec B314  # noqa: S314
    if not version:
        raise DevError(f"{POM} names no cassandra.version. Reinstall cqueue.")
    return version


def complete_jars(directory: Path) -> list[Path] | None:
    """The jars in `directory`, if it holds exactly what the present `pom.xml` asks for."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        sizes: dict[str, int] = manifest["sizes"]
        intact = manifest["pom"] == _pom_digest() and all(
            (directory / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, KeyError):
        return None
    return [directory / name for name in sorted(sizes)] if intact and sizes else None


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob("partial-*"):
            with suppress(FileNotFoundError):  # another start has just put it into its place
                if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
        with TemporaryDirectory(prefix="partial-", dir=parent, ignore_cleanup_errors=True) as scratch:
            yield Path(scratch)
    except OSError as exc:
        raise DevError(f"Cannot write to {parent}: {exc}. Set XDG_CACHE_HOME to a writable place.") from exc


def _run_maven(target: Path, progress: Progress) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise DevError("No `mvn` on PATH. Install Maven (Debian, Ubuntu: `apt install maven`) and try again.")
    command = [maven, "--batch-mode", "-f", str(POM), f"-DoutputDirectory={target}"]
    output: list[str] = []
    with subprocess.Popen(
        [*command, _GOAL],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                output.append(line.rstrip())
                if "Downloaded from" in line:
                    count = sum("Downloaded from" in each for each in output)
                    progress(f"Fetching Apache Cassandra {cassandra_version()}: {count} files")
        except BaseException:  # a SIGTERM, say: unlike Ctrl-C, Maven does not hear it
            process.kill()
            process.wait()
            raise
    if process.returncode != 0:
        raise DevError(_maven_error(output))


def _maven_error(output: list[str]) -> str:
    errors = [line for line in output if line.removeprefix("[ERROR]").strip() and "[ERROR]" in line]
    # The rest of Maven's output is advice about Maven.
    shown = next(iter(errors or output), "") or "(no output)"
    return (
        f"Maven could not fetch Apache Cassandra:\n{shown}\n"
        "Check the network (a proxy or a mirror is set in Maven's settings.xml) and try again."
    )


def _write_manifest(directory: Path) -> None:
    sizes = {jar.name: jar.stat().st_size for jar in sorted(directory.glob("*.jar"))}
    text = json.dumps({"pom": _pom_digest(), "sizes": sizes}, indent=1)
    with (directory / MANIFEST).open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _publish(scratch: Path, final: Path) -> None:
    # A rename cannot replace a directory that is not empty. What stands there is incomplete, or it
    # is the work of another process that was quicker, and then as good as ours.
    if final.exists() and complete_jars(final) is None:
        shutil.rmtree(final, ignore_errors=True)
    try:
        scratch.rename(final)
    except OSError as exc:
        if complete_jars(final) is None:
            raise DevError(f"Cannot put the jars into {final}: {exc}. Delete it and try again.") from exc


def _pom_digest() -> str:
    return hashlib.sha256(POM.read_bytes()).hexdigest()
