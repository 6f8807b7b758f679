"""Coverage-guided fuzzing: the properties of `tests/unit/test_fuzz_*.py`, with inputs that atheris chooses.

Hypothesis draws inputs at random. Atheris keeps those that reach new lines, and changes them further, so it
finds what a chain of checks hides. Each property runs in a process of its own, because a crash ends one.

    make fuzz SECONDS=60 ONLY=any_url
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

MODULES: Final = ("tests.unit.test_fuzz_bytes", "tests.unit.test_fuzz_texts")
"""Without those of HTTP, which need pytest's fixtures."""
LONGEST: Final = 4096
"""Bytes of an input: a Hypothesis strategy reads its choices from them."""
KEPT: Final = Path(".hypothesis")
"""Where inputs are kept that failed. Hypothesis keeps them as well, so that pytest begins with them."""


def targets() -> Iterator[tuple[str, Callable[[bytes], Any]]]:
    """Yield name and entry of each property that needs no fixture."""
    for module in map(importlib.import_module, MODULES):
        for name, test in vars(module).items():
            handle = getattr(test, "hypothesis", None)
            # What is left of a property's arguments would be fixtures.
            if name.startswith("test_") and handle and not inspect.signature(test).parameters:
                yield name, handle.fuzz_one_input


def main() -> int:
    """Fuzz each property for some seconds. Return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="for each property")
    parser.add_argument("--only", default="", help="part of the names of those to run")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        fuzz(args.one, args.seconds)
    names = [name for name, _ in targets() if args.only in name]
    failed = []
    for name in names:
        print(f"== {name}", flush=True)  # noqa: T201 - a command
        command = [sys.executable, "-m", "tests.fuzz", "--one", name, "--seconds", str(args.seconds)]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"{len(names)} properties fuzzed; failed: {', '.join(failed) or 'none'}")  # noqa: T201
    return bool(failed) or not names


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one property; ends the process."""
    import atheris  # only the environment of `make fuzz` has it

    with atheris.instrument_imports(include=["cqueue"]):
        run = dict(targets())[name]
    KEPT.mkdir(exist_ok=True)
    # All lengths from the beginning, since a strategy needs some bytes before it makes anything at all.
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-len_control=0"]
    shown = [f"-artifact_prefix={KEPT}/", "-verbosity=0", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *limits, *shown], run)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
