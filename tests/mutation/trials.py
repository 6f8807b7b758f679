"""What is run on a mutant: tests that reach the changed line, likely killers first, and schedules.

Everything is imported and collected once; each trial is a fork. A test that fails counts if it fails again
alone, and passes without the mutant: a busy machine makes tests fail as well. Schedules are deterministic.
"""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutation.forks import Say, Told, forked, limit_cpu
from tests.mutation.mutants import ROOT, Functions, Mutant, digest_of, module_paths

QUICK_S = 0.2
"""Tests that take longer come after the first schedules."""
LONGEST_S = 5.0
"""Tests that take longer are left out: the few mutants that only they notice count as survivors."""
TEST_CPU_S = 20.0
"""Seconds of the processor after which a test does not end."""
FIRST_SCHEDULES = 60
"""Schedules that come before the longer tests; with them a mutant that breaks everything is found at once."""
CHUNK = 50
CHUNK_CPU_S = 60.0
"""Seconds of the processor for a chunk of schedules, which takes one second."""


Measured = list[Any]
"""Of a test: the state it was measured in, seconds, the words of its failure, lines it reaches by module."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """What noticed a mutant: a test by its name, or a schedule by its seed, and in which words."""

    by: str
    why: str


class Trials:
    """A pytest plugin: once the tests are collected, `work` is called in place of their run.

    Args:
        schedules: how many, with seeds from 1 on.
        quick: leave out the longer tests, and all schedules but the first.
        baseline: file of what was measured without a mutant, read and written again; None: measure all.
        work: called with this object when the tests have been measured.
    """

    def __init__(
        self,
        schedules: int,
        work: Callable[[Trials], None],
        *,
        quick: bool = False,
        baseline: Path | None = None,
    ) -> None:
        self._schedules = FIRST_SCHEDULES if quick else schedules
        self._quick = quick
        self._baseline = baseline
        self._work = work
        self._failure: str | None = None
        self._items: Sequence[pytest.Item] = ()
        self._seconds: dict[int, float] = {}  # of tests that pass without a mutant, by number
        self._reached: dict[str, dict[int, list[int]]] = {}  # by module and line: numbers of tests
        self._killers: Counter[tuple[str, int]] = Counter()  # by function and test
        self.left_out: list[str] = []

    # ── hooks of pytest ──

    def pytest_configure(self) -> None:
        """Examples of Hypothesis are the same in each fork; pytest must be the first to import it."""
        from hypothesis import settings

        settings.register_profile("mutation", derandomize=True, database=None, deadline=None)
        settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Nothing is run here but on forks."""
        self._items = session.items
        self._functions = Functions()
        gc.freeze()  # forks share these pages as long as nobody counts references in them
        self._measure()
        self._work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._failure = str(crash.message if crash else report.longrepr)[:300]

    # ── without a mutant ──

    @property
    def tests(self) -> int:
        """How many tests may notice a mutant."""
        return len(self._seconds)

    def _measure(self) -> None:
        """Which tests pass, how long they take, and which lines they reach.

        Raises:
            RuntimeError: tests do not come to their end, or schedules fail as they are.
        """
        known = self._known()
        new = [at for at, item in enumerate(self._items) if item.nodeid not in known]
        told = forked(partial(self._measured, new))
        if not told.is_well:
            raise RuntimeError(f"the tests do not come to their end: {told.last}")
        known |= {self._items[at].nodeid: measured for at, measured in zip(new, told.said, strict=True)}
        if self._baseline is not None:
            self._baseline.write_text(json.dumps(known), encoding="utf-8")
        for at, item in enumerate(self._items):
            _, seconds, why, reached = known[item.nodeid]
            if why is not None or seconds > LONGEST_S:
                self.left_out.append(f"{item.nodeid}: {why or 'too long'}")
                continue
            self._seconds[at] = seconds
            for module, lines in reached.items():
                for line in lines:
                    self._reached.setdefault(module, {}).setdefault(line, []).append(at)
        told = forked(partial(self._run_schedules, None, 1, self._schedules))
        if not told.is_well or told.last[1]:
            raise RuntimeError(f"schedules fail as they are: {told.last}")

    def _known(self) -> dict[str, Measured]:
        """Tests that were measured before, in files that have not changed since."""
        if self._baseline is None or not self._baseline.exists():
            return {}
        before = json.loads(self._baseline.read_text(encoding="utf-8"))
        state = {item.nodeid: _state(item) for item in self._items}
        return {name: measured for name, measured in before.items() if state.get(name) == measured[0]}

    def _measured(self, numbers: Sequence[int], say: Say) -> None:
        paths = [str(path) for path in module_paths()]
        for at in numbers:
            measured = coverage.Coverage(data_file=None, config_file=False, include=paths)
            measured.set_option(
                "run:disable_warnings", ["no-data-collected"]
            )  # most tests have other subjects
            began_s = time.perf_counter()
            measured.start()
            why = self._fails(self._items[at])
            measured.stop()
            spent_s, data = time.perf_counter() - began_s, measured.get_data()
            reached = {path[len(str(ROOT)) + 1 :]: data.lines(path) for path in data.measured_files()}
            say([_state(self._items[at]), spent_s, why, reached])

    def _fails(self, item: pytest.Item) -> str | None:
        """Run a test; the words of its failure, or None."""
        self._failure = None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return self._failure

    # ── with one ──

    def notice(self, mutant: Mutant) -> Noticed | None:
        """Run on a mutant what could notice it, until something does."""
        tests = self._order(mutant)
        short = [at for at in tests if self._seconds[at] <= QUICK_S]
        noticed = self._by_tests(mutant, short) or self._by_schedules(mutant, 1, FIRST_SCHEDULES)
        if noticed or self._quick:
            return noticed
        longer = [at for at in tests if self._seconds[at] > QUICK_S]
        return self._by_tests(mutant, longer) or self._by_schedules(
            mutant, 1 + FIRST_SCHEDULES, self._schedules
        )

    def _order(self, mutant: Mutant) -> list[int]:
        """Tests that reach the mutant: those that noticed others of its function, then by their time."""
        lines = self._reached.get(mutant.module, {})
        for first, last in ((mutant.line, mutant.last_line), mutant.body):
            found = {at for line in range(first, last + 1) for at in lines.get(line, ())}
            if found:
                break
        killers = self._killers
        known = [at for at in found if at in self._seconds]
        return sorted(known, key=lambda at: (-killers[mutant.function, at], self._seconds[at]))

    def _by_tests(self, mutant: Mutant, tests: Sequence[int]) -> Noticed | None:
        left = list(tests)
        while left:
            told = forked(partial(self._run_tests, mutant, left))
            at, why = _last(told, mutant)
            if told.is_well and why is None:
                return None
            again = forked(partial(self._run_tests, mutant, [at])) if told.is_well else told
            as_is = forked(partial(self._run_tests, None, [at]))
            if (not again.is_well or again.last[1]) and as_is.is_well and not as_is.last[1]:
                self._killers[mutant.function, at] += 1
                return Noticed(self._items[at].nodeid, why or "does not end, or ends its process")
            left = left[left.index(at) + 1 :]
        return None

    def _run_tests(self, mutant: Mutant | None, tests: Sequence[int], say: Say) -> None:
        if mutant is not None:
            self._functions.take_in(mutant)
        for at in tests:
            say([at, None])
            limit_cpu(TEST_CPU_S)
            if why := self._fails(self._items[at]):
                say([at, why])
                return

    def _by_schedules(self, mutant: Mutant, first: int, last: int) -> Noticed | None:
        told = forked(partial(self._run_schedules, mutant, first, last))
        seed, why = _last(told, mutant)
        if told.is_well and why is None:
            return None
        return Noticed(f"schedule {seed}", why or "does not end, or ends its process")

    def _run_schedules(self, mutant: Mutant | None, first: int, last: int, say: Say) -> None:
        from tests.simulation.run import run_seeds  # after pytest, which rewrites what it imports

        if mutant is not None:
            self._functions.take_in(mutant)
        for seed in range(first, last + 1):
            say([seed, None])
            if (seed - first) % CHUNK == 0:
                limit_cpu(CHUNK_CPU_S)
            try:
                failed = run_seeds([seed]).failed
            except Exception as exc:  # noqa: BLE001 - the protocol's own code raised it
                failed = [(seed, repr(exc))]
            if failed:
                say([seed, failed[0][1][:300]])
                return


def _last(told: Told, mutant: Mutant) -> tuple[int, str | None]:
    """Where a fork was in the end, and which words it had for it."""
    at: tuple[int, str | None] | None = None
    for number, why in told.said:
        if number is not None:
            at = number, why
        elif at is not None:  # it ended by an exception that no test is to let through
            at = at[0], why[-300:]
        else:
            raise RuntimeError(f"{mutant} cannot be tried: {why}")
    if at is None:
        raise RuntimeError(f"{mutant} cannot be tried")
    return at


def _state(item: pytest.Item) -> str:
    """What a test's measurement depends on: its file, and the modules that are changed."""
    return f"{digest_of(item.path)} {digest_of(*module_paths())}"
