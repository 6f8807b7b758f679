"""Clocks of the nodes and of this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from typing import TYPE_CHECKING, Final, NamedTuple

from cqueue.doctor.finding import Finding, Severity, Subject, not_checked
from cqueue.doctor.site import unanswered
from cqueue.errors import CqueueError
from cqueue.schema.options import DEFAULT_SKEW_MS
from cqueue.schema.statements import SELECT_TIME_MS

if TYPE_CHECKING:
    from cqueue.doctor.site import Answer, Site

SUBJECT: Final = Subject("clocks")
ROUNDS: Final = 3
"""Questions to each node. The quickest answer counts, because its error is the smallest."""
CLIENT_US: Final = 1_000_000
"""µs by which this machine's clock may differ: programs compute due times from it, to the second at best."""
_HALF_MS_US: Final = 500  # a node tells its time rounded down to whole ms


class Clock(NamedTuple):
    """A node's clock against this machine's. Both values are µs; the true offset is within `error_us`."""

    node: str
    offset_us: int
    error_us: int


def check(site: Site) -> Iterator[Finding]:
    """Ask every node for its time."""
    epsilon_ms = DEFAULT_SKEW_MS
    with suppress(CqueueError):
        deployment = site.deployment()
        epsilon_ms = deployment.skew_ms if deployment is not None else epsilon_ms
    rounds = [site.ask_each(SELECT_TIME_MS) for _ in range(ROUNDS)]
    wall_gap_us = site.wall_us() - time.monotonic_ns() // 1000
    clocks = measured(rounds, wall_gap_us)
    told = {clock.node for clock in clocks}
    yield from unanswered(SUBJECT, (answer for answer in rounds[-1] if answer.node not in told))
    if clocks:
        yield from judged(clocks, epsilon_ms * 1000)


def measured(rounds: Iterable[Iterable[Answer]], wall_gap_us: int) -> list[Clock]:
    """Return the clock of each node that answered. wall_gap_us: the wall clock minus the monotonic clock."""
    best: dict[str, Clock] = {}
    for answer in (answer for answers in rounds for answer in answers if answer.error is None):
        middle_us = (answer.sent_ns + answer.received_ns) // 2000 + wall_gap_us
        told_us = int(answer.rows[0].ms) * 1000 + _HALF_MS_US
        error_us = (answer.received_ns - answer.sent_ns) // 2000 + _HALF_MS_US
        if answer.node not in best or error_us < best[answer.node].error_us:
            best[answer.node] = Clock(answer.node, told_us - middle_us, error_us)
    return list(best.values())


def judged(clocks: Sequence[Clock], epsilon_us: int) -> Iterator[Finding]:
    """Judge the clocks against each other, and this machine's against their median.

    Two clocks differ for certain by what is left of their difference without the errors of these two: a
    third node that answers slowly changes nothing of that.
    """
    blurred = [clock for clock in clocks if clock.error_us > epsilon_us // 2]
    for clock in blurred:
        error = _ms(clock.error_us)
        yield not_checked(
            SUBJECT, f"{clock.node}: it answered so slowly that its clock is known to ± {error}"
        )
    known = [clock for clock in clocks if clock not in blurred] or clocks
    median_us = round(statistics.median(clock.offset_us for clock in known))
    error_us = max(clock.error_us for clock in known)
    certain_us, apart_us = max(map(_difference, combinations(clocks, 2)), default=(0, 0))
    far = certain_us > epsilon_us // 2
    offsets_us = [clock.offset_us for clock in known]
    spread_us = apart_us if far else max(offsets_us) - min(offsets_us)
    figures = {
        "nodes": len(clocks),
        "spread_ms": round(spread_us / 1000, 1),
        "client_off_ms": round(-median_us / 1000, 1),
        "error_ms": round(error_us / 1000, 1),
        "epsilon_ms": epsilon_us // 1000,
    }
    if far:
        yield SUBJECT.found(
            Severity.ERROR if certain_us > epsilon_us else Severity.WARNING,
            f"nodes differ by {_ms(spread_us)}; ε is {_ms(epsilon_us)}: {_apart(clocks, median_us)}",
            reason="Due times, leases and write times come from the nodes' clocks. Beyond ε a message may be "
            "delivered early, or by two consumers at once.",
            remedy="On the node that is off: chronyc tracking; chronyc makestep",
            figures=figures,
        )
    client_off = abs(median_us) - error_us > CLIENT_US
    if client_off:
        side = "behind" if median_us > 0 else "ahead of"
        yield SUBJECT.warning(
            f"this machine is {_ms(abs(median_us))} {side} the nodes",
            reason="Due times that programs compute from its clock are off by as much. cqueue itself goes by "
            "the nodes' clocks.",
            remedy="On this machine: chronyc tracking; chronyc makestep",
            figures=figures,
        )
    if not far and not client_off and len(blurred) < len(clocks):
        nodes = "1 node" if len(known) == 1 else f"{len(known)} nodes within {_ms(spread_us)} of each other"
        yield SUBJECT.ok(
            f"{nodes}; this machine is {_ms(abs(median_us))} off, ± {_ms(error_us)}",
            figures=figures,
        )


def _difference(pair: tuple[Clock, Clock]) -> tuple[int, int]:
    """Return by how much two clocks differ at least, and by how much as measured, both in µs."""
    one, other = pair
    apart_us = abs(one.offset_us - other.offset_us)
    return apart_us - one.error_us - other.error_us, apart_us


def _apart(clocks: Sequence[Clock], median_us: int) -> str:
    """Return how far the nodes that are off are from the median, the farthest first; three at most."""
    off = {clock.node: clock.offset_us - median_us for clock in clocks}
    farthest_us = max(map(abs, off.values()))
    named = [node for node in off if 2 * abs(off[node]) >= farthest_us]
    named.sort(key=lambda node: -abs(off[node]))
    return ", ".join(f"{node} {off[node] / 1000:+,.0f} ms" for node in named[:3])


def _ms(us: float) -> str:
    return f"{us / 1000:,.0f} ms" if abs(us) >= 10_000 else f"{us / 1000:.1f} ms"
