"""Schedules from the command line: many at once on all cores, one replayed, or with a rule taken out.

`--seed 1 --schedules 1000000` runs many, `--seed 17 --trace` shows one, and
`--without cursor-without-skew --schedules 1000` breaks a rule.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.simulation import points
from tests.simulation.oracle import Violation
from tests.simulation.rules import BY_NAME, RULES
from tests.simulation.sim import Simulation, trace_of

CHUNK = 250
PROGRESS_S = 10.0
MOST_FAILURES = 20
"""Number of failures after which a run ends: the next ones would say the same."""


@dataclass(slots=True)
class Totals:
    """What came of some schedules."""

    schedules: int = 0
    events: int = 0
    deliveries: int = 0
    cpu_s: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)  # points of rules that were taken out
    failed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        """Add those of others."""
        self.schedules += other.schedules
        self.events += other.events
        self.deliveries += other.deliveries
        self.cpu_s += other.cpu_s
        self.happened.update(other.happened)
        self.reached.update(other.reached)
        self.failed += other.failed

    def text(self, spent_s: float) -> str:
        """For people."""
        n = max(1, self.schedules)
        happened = "\n".join(f"  {count:12,}  {what}" for what, count in sorted(self.happened.items()))
        return (
            f"{self.schedules:,} schedules, {len(self.failed)} failed; {self.events:,} events "
            f"({self.events / n:.0f} a schedule), {self.deliveries:,} deliveries "
            f"({self.deliveries / n:.1f} a schedule); {spent_s:.0f} s, {n / max(spent_s, 0.001):.0f} "
            f"schedules/s, {n / max(self.cpu_s, 0.001):.0f} per second of CPU\n{happened}\n"
        )


def run_seeds(seeds: Iterable[int]) -> Totals:
    """Run some schedules."""
    totals = Totals()
    began_s = time.process_time()
    points.calls.clear()
    for seed in seeds:
        simulation = Simulation(seed)
        try:
            simulation.run()
        except Violation as exc:
            totals.failed.append((seed, str(exc)))
        totals.schedules += 1
        totals.events += simulation.world.step
        totals.deliveries += simulation.oracle.deliveries
        totals.happened.update(simulation.world.happened)
    totals.cpu_s = time.process_time() - began_s
    totals.reached.update(points.calls)
    return totals


def main() -> int:
    """Run; print what failed, how it went, and how to see it again."""
    options = _options()
    if options.list_rules:
        sys.stdout.writelines(f"{rule.name:28}  {rule.says}\n" for rule in RULES)
        return 0
    with contextlib.ExitStack() as stack:
        for name in options.without:
            stack.enter_context(BY_NAME[name].breakage())
        if options.trace:
            sys.stdout.write(trace_of(options.seed) + "\n")
            points.check_reached()
            return 0
        totals, spent_s = _run_all(options)
        points.check_reached(totals.reached)
        for seed, text in totals.failed[:3]:
            sys.stdout.write(f"\n{trace_of(seed)}\n\nseed {seed}: {text}\n")
    for seed, text in totals.failed:
        sys.stdout.write(f"seed {seed} failed: {text[:160]}\n  replay: {replay(seed, options.without)}\n")
    sys.stdout.write(totals.text(spent_s))
    return 1 if totals.failed else 0


def replay(seed: int, without: Iterable[str] = ()) -> str:
    """The command that runs one schedule again, and shows it if it fails."""
    flags = f' WITHOUT="{" ".join(without)}"' if without else ""
    return f"make simulate SEED={seed} N=1{flags}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.simulation", description="Simulate the wide-row protocol.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--schedules", type=int, default=1, help="how many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; all cores")
    parser.add_argument("--trace", action="store_true", help="print one schedule as it happens")
    parser.add_argument("--list-rules", action="store_true", help="the rules that can be taken out")
    parser.add_argument(
        "--without", action="append", default=[], choices=list(BY_NAME), metavar="RULE", help="break a rule"
    )
    return parser.parse_args()


def _run_all(options: argparse.Namespace) -> tuple[Totals, float]:
    """All chunks; interrupted, what was done so far."""
    totals, began_s = Totals(), time.monotonic()
    told_s = began_s
    seeds = range(options.seed, options.seed + options.schedules)
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with contextlib.suppress(KeyboardInterrupt), _results(chunks, options.jobs) as results:
        for part in results:
            totals.add(part)
            for seed, text in part.failed:
                sys.stderr.write(f"seed {seed} failed: {text[:160]}\n")
            if time.monotonic() - told_s >= PROGRESS_S:
                told_s = time.monotonic()
                rate = totals.schedules / (told_s - began_s)
                sys.stderr.write(f"{totals.schedules:,} of {len(seeds):,}, {rate:.0f}/s\n")
            if len(totals.failed) >= MOST_FAILURES:
                sys.stderr.write("enough failed\n")
                break
    return totals, time.monotonic() - began_s


@contextlib.contextmanager
def _results(chunks: list[range], jobs: int) -> Iterator[Iterable[Totals]]:
    if jobs == 1 or len(chunks) == 1:
        yield map(run_seeds, chunks)
        return
    # Forked, so that a rule that was taken out here is missing there.
    with multiprocessing.get_context("fork").Pool(jobs, _ignore_interrupts) as pool:
        yield pool.imap_unordered(run_seeds, chunks)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
