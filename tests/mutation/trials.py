"""What is run on a mutant: tests that reach the changed line, likely killers first, and schedules.

Everything is imported and collected once; each trial is a fork. A test that fails is run again alone before
it counts, because a busy machine makes tests fail as well. Schedules are deterministic: one run is enough.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import coverage
import pytest

from tests.mutation.forks import Say, Told, forked, limit_cpu
from tests.mutation.mutants import MODULES, ROOT, Functions, Mutant

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
"""The same for so many schedules, which take one second."""


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
        work: called with this object when the tests have been measured.
    """

    def __init__(self, schedules: int, work: Callable[[Trials], None], *, quick: bool = False) -> None:
        self._schedules = FIRST_SCHEDULES if quick else schedules
        self._quick = quick
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
            RuntimeError: schedules or most tests fail as they are.
        """
        told = forked(self._measured)
        if not told.is_well:
            raise RuntimeError(f"the tests do not come to their end: {told.last}")
        *results, reached = told.said
        self._reached = {
            module: {int(line): numbers for line, numbers in lines.items()}
            for module, lines in reached.items()
        }
        self._seconds = {at: seconds for at, seconds, why in results if why is None and seconds <= LONGEST_S}
        self.left_out = [
            f"{self._items[at].nodeid}: {why or 'too long'}"
            for at, _, why in results
            if at not in self._seconds
        ]
        told = forked(partial(self._run_schedules, None, 1, self._schedules))
        if not told.is_well or told.last[1]:
            raise RuntimeError(f"schedules fail as they are: {told.last}")

    def _measured(self, say: Say) -> None:
        paths = [str(path) for pattern in MODULES for path in ROOT.glob(pattern)]
        measured = coverage.Coverage(data_file=None, config_file=False, include=paths)
        measured.start()
        for at, item in enumerate(self._items):
            measured.switch_context(str(at))
            began_s = time.perf_counter()
            why = self._fails(item)
            say([at, time.perf_counter() - began_s, why])
        measured.stop()
        data = measured.get_data()
        say({path[len(str(ROOT)) + 1 :]: _tests_by_line(data, path) for path in data.measured_files()})

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
            if not again.is_well or again.last[1]:
                self._killers[mutant.function, at] += 1
                return Noticed(self._items[at].nodeid, why or "does not end, or ends its process")
            left = left[left.index(at) + 1 :]
        return None

    def _run_tests(self, mutant: Mutant, tests: Sequence[int], say: Say) -> None:
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


def _tests_by_line(data: coverage.CoverageData, path: str) -> dict[int, list[int]]:
    return {
        line: [int(context) for context in contexts if context]
        for line, contexts in data.contexts_by_lineno(path).items()
    }
