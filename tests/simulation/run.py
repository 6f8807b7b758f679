"""Run schedules from the command line: `python -m tests.simulation --seed 17 --schedules 1000`."""

import argparse
import sys
import time
from collections import Counter

from tests.simulation.oracle import Violation
from tests.simulation.sim import Simulation, trace_of


def main() -> int:
    """Run; print what failed."""
    parser = argparse.ArgumentParser(description="Simulate the wide-row protocol.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--schedules", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="print the trace of each failure")
    options = parser.parse_args()
    failures: Counter[str] = Counter()
    steps = deliveries = 0
    began_s = time.process_time()
    for seed in range(options.seed, options.seed + options.schedules):
        simulation = Simulation(seed)
        try:
            simulation.run()
        except Violation as exc:
            failures[str(exc).partition("): ")[2][:40]] += 1
            sys.stdout.write(f"seed {seed}: {str(exc)[:600]}\n")
            if options.trace:
                sys.stdout.write(trace_of(seed) + "\n")
        steps += simulation.world.step
        deliveries += simulation.oracle.deliveries
    spent_s = time.process_time() - began_s
    sys.stdout.write(
        f"{options.schedules} schedules, {failures.total()} failed, {steps} events, "
        f"{deliveries} deliveries, {spent_s:.1f} s of CPU\n"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
