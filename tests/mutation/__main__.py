"""Mutation testing: python -m tests.mutation --mutants 300 --seed 1 --results FILE

Changes one operator, comparison, condition, number or jump at a time in the modules whose decisions must be
right, and runs tests and the simulator on each mutant until something notices it. A mutant that nothing
notices has survived: either a test is missing, or the change changes nothing.

The same seed draws the same mutants as long as the modules are the same. Mutants that were noticed before, of
modules that have not changed since, are not tried again; survivors are. What survives and is listed in
`equivalent.md` changes nothing, and is counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.mutants import ROOT, Mutant, every_mutant
from tests.mutation.trials import Trials

TESTS = (
    "tests/conformance/test_*.py",
    "tests/dispatcher/test_dispatcher.py",
    "tests/dispatcher/test_interrupt.py",
    "tests/dispatcher/test_lease_extender.py",
    "tests/dispatcher/test_settlement_writer.py",
    "tests/simulation/test_rules.py",
    "tests/simulation/test_unique.py",
    "tests/unit/test_api.py",
    "tests/unit/test_by_id.py",
    "tests/unit/test_consumer.py",
    "tests/unit/test_damaged_messages.py",
    "tests/unit/test_dead_letters.py",
    "tests/unit/test_delay_queue.py",
    "tests/unit/test_derived_sends.py",
    "tests/unit/test_disposition.py",
    "tests/unit/test_estimate.py",
    "tests/unit/test_find_and_cancel.py",
    "tests/unit/test_home.py",
    "tests/unit/test_inspection.py",
    "tests/unit/test_keyed_queues.py",
    "tests/unit/test_list.py",
    "tests/unit/test_packs.py",
    "tests/unit/test_prefetch.py",
    "tests/unit/test_promises_neighbours.py",
    "tests/unit/test_protocol_*.py",
    "tests/unit/test_shards.py",
    "tests/unit/test_unique.py",
)
"""Tests that reach the modules, without those of other parts that only pass through them."""
EQUIVALENT = Path(__file__).with_name("equivalent.md")
NUMBER_BYTES = 4

Result = dict[str, Any]


def main() -> int:
    """Try mutants, write each result as it comes, and tell what survived."""
    asked = _asked()
    every = every_mutant()
    chosen = random.Random(asked.seed).sample(every, min(asked.mutants, len(every)))
    report = Report(asked, chosen, len(every))
    files = [str(path) for pattern in TESTS for path in sorted(ROOT.glob(pattern))]
    trials = Trials(
        asked.schedules,
        lambda trials: _try_all(trials, report, asked.workers),
        quick=asked.quick,
        baseline=asked.baseline,
    )
    options = ["-q", "-s", "-p", "no:cacheprovider", "-o", "timeout=60"]
    options += ["-m", "not cassandra and not slow and not acceptance"]
    code = pytest.main([*options, *files], plugins=[trials])
    sys.stdout.write(report.text())
    return int(code)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.mutation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=300, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schedules", type=int, default=2000, help="of the simulator, for each mutant")
    parser.add_argument("--baseline", type=Path, help="keep what is measured without a mutant in this file")
    parser.add_argument("--quick", action="store_true", help="the short tests and a few schedules only")
    parser.add_argument("--workers", type=int, default=1, help="mutants that are tried at the same time")
    parser.add_argument("--results", type=Path, default=Path("mutation.json"), help="read, and written again")
    return parser.parse_args()


class Report:
    """The file of results, and what it comes to."""

    def __init__(self, asked: argparse.Namespace, chosen: Sequence[Mutant], possible: int) -> None:
        self._path: Path = asked.results
        self._head: Result = {
            "commit": _commit(),
            "possible": possible,
            "drawn": len(chosen),
            "seed": asked.seed,
            "schedules": asked.schedules,
        }
        known = json.loads(self._path.read_text(encoding="utf-8"))["mutants"] if self._path.exists() else []
        noticed = {_key(result): result for result in known if result["by"] is not None}
        self._equivalent = equivalents(EQUIVALENT.read_text(encoding="utf-8"))
        self._results: dict[Any, Result | None] = {mutant.key: noticed.get(mutant.key) for mutant in chosen}
        self.left = [mutant for mutant in chosen if self._results[mutant.key] is None]

    def begin(self, trials: Trials) -> None:
        """Note which tests are run."""
        self._head |= {"tests": trials.tests, "tests_left_out": trials.left_out}
        for test in trials.left_out:
            sys.stdout.write(f"left out: {test}\n")

    def add(self, result: Result) -> None:
        """Note one result, and write the file."""
        self._results[_key(result)] = result
        done = [one for one in self._results.values() if one is not None]
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._head | {"mutants": done}, indent=1), encoding="utf-8")
        new.replace(self._path)
        outcome = result["by"] or "SURVIVED"
        sys.stdout.write(
            f"{len(done)}/{len(self._results)} {result['seconds']:6.1f} s  {_place(result)}  {outcome}\n"
        )
        sys.stdout.flush()

    def text(self) -> str:
        """For people: what survived, and the share of what was noticed."""
        done = [one for one in self._results.values() if one is not None]
        counts = Counter(map(self._kind, done))
        survivors = [f"survived: {_place(one)}\n" for one in done if self._kind(one) == "survived"]
        noticed = (counts["test"] + counts["schedule"]) / max(1, len(done))
        return (
            f"{''.join(survivors)}{len(done)} of {self._head['possible']:,} mutants tried, "
            f"{noticed:.1%} noticed; {dict(counts)}\n"
        )

    def _kind(self, result: Result) -> str:
        if result["by"] is not None:
            return "schedule" if result["by"].startswith("schedule") else "test"
        key = result["module"], result["function"], result["what"]
        return "equivalent" if key in self._equivalent else "survived"


def equivalents(table: str) -> list[tuple[str, ...]]:
    """Module, function and change of each row of a Markdown table of mutants that change nothing."""
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \| `(.+?)` \| [^|\s]", table, re.MULTILINE)
    return [tuple(cell.replace(r"\|", "|") for cell in row) for row in rows]


def _key(result: Result) -> tuple[str, str, int, int]:
    return result["module"], result["digest"], result["node"], result["variant"]


def _place(result: Result) -> str:
    return f"{result['module']}:{result['line']} {result['function']}: {result['what']}"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _try_all(trials: Trials, report: Report, workers: int) -> None:
    """Workers, forks of this process, take the next number each; what they find comes by one pipe."""
    report.begin(trials)
    numbers, results = os.pipe(), os.pipe()
    for number in range(len(report.left)):
        os.write(numbers[1], number.to_bytes(NUMBER_BYTES, "big"))
    os.close(numbers[1])
    children = []
    for _ in range(workers):
        if not (child := os.fork()):
            _work(trials, report.left, numbers[0], results[1])
        children.append(child)
    os.close(results[1])
    with os.fdopen(results[0], encoding="utf-8") as lines:
        for line in lines:
            report.add(json.loads(line))
    if any(os.waitpid(child, 0)[1] for child in children):
        raise RuntimeError("a worker came to a bad end")


def _work(trials: Trials, left: Sequence[Mutant], numbers: int, results: int) -> None:
    """In a worker; does not return."""
    code = 1
    try:
        while number := os.read(numbers, NUMBER_BYTES):
            mutant = left[int.from_bytes(number, "big")]
            began_s = time.monotonic()
            noticed = trials.notice(mutant)
            found = {"by": noticed and noticed.by, "why": noticed and noticed.why}
            result = asdict(mutant) | found | {"seconds": round(time.monotonic() - began_s, 1)}
            os.write(results, json.dumps(result).encode() + b"\n")
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must not go on with what its parent does
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
