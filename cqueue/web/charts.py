"""Charts as paths of an SVG, made here, so that no page needs a script for them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cqueue.web.history import Point

WIDTH: Final = 600
HEIGHT: Final = 100
"""Units of the SVG, which a page stretches to its own size."""
GAP: Final = 2.5
"""Points that are further apart than this many usual steps are not joined: nothing was counted between."""


@dataclass(frozen=True, slots=True)
class Line:
    """One figure over time. now: its value at the end, None if not known; path, area: of an SVG."""

    label: str
    now: float | None
    path: str
    area: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One or two figures on a common scale. top: the value at the upper edge; rows: the values as a table."""

    title: str
    lines: Sequence[Line]
    top: float
    rows: Sequence[tuple[datetime, Sequence[float | None]]]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known at any time."""
        return not any(line.path for line in self.lines)


def of_queue(points: Sequence[Point], *, hours: int, step_s: int) -> list[Chart]:
    """Return the charts of a queue's page, until now; none without points. step_s: between two points."""
    if not points:
        return []
    end_s = max(time.time(), points[-1].at_s)
    times_s = [point.at_s for point in points]

    def draw(title: str, *figures: tuple[str, str]) -> Chart:
        lines = [(label, [getattr(point, field) for point in points]) for label, field in figures]
        return chart(title, times_s, lines, step_s=step_s, begin_s=end_s - hours * 3600, end_s=end_s)

    return [
        draw("Depth", ("", "depth")),
        draw("Oldest", ("", "oldest_s")),
        draw("Messages a minute", ("arriving", "arrived"), ("finished", "handled")),
        draw("In flight", ("", "in_flight")),
    ]


def chart(
    title: str,
    times_s: Sequence[int],
    figures: Sequence[tuple[str, Sequence[float | None]]],
    *,
    step_s: int,
    begin_s: float,
    end_s: float,
) -> Chart:
    """Draw figures of one time or more, from `begin_s` to `end_s`, in seconds since 1970.

    figures: (label, a value for each time). step_s: usual seconds between two times.
    """
    top = _round_up(max((value for _, values in figures for value in values if value is not None), default=0))

    def place(at_s: float, value: float) -> tuple[float, float]:
        x = (at_s - begin_s) / (end_s - begin_s) * WIDTH
        return min(max(x, 0.0), WIDTH), HEIGHT - value / top * HEIGHT

    is_current = end_s - times_s[-1] <= GAP * step_s
    lines = [
        Line(label, values[-1] if is_current else None, *_drawn(times_s, values, place, step_s))
        for label, values in figures
    ]
    moments = [datetime.fromtimestamp(at_s, UTC) for at_s in times_s]
    values_then = zip(*(values for _, values in figures), strict=True)
    return Chart(title, lines, top, list(zip(moments, values_then, strict=True)))


def _drawn(
    times_s: Sequence[int],
    values: Sequence[float | None],
    place: Callable[[float, float], tuple[float, float]],
    step_s: int,
) -> tuple[str, str]:
    """Return the path of a figure, and that of the area below it."""
    runs: list[list[tuple[float, float]]] = []
    before_s: float | None = None
    for at_s, value in zip(times_s, values, strict=True):
        if value is None:
            before_s = None
            continue
        if before_s is None or at_s - before_s > GAP * step_s:
            runs.append([])
        runs[-1].append(place(at_s, value))
        before_s = at_s
    path = " ".join(_path(run) for run in runs)
    area = " ".join(f"{_path(run)} L{run[-1][0]:.1f} {HEIGHT} L{run[0][0]:.1f} {HEIGHT} Z" for run in runs)
    return path, area


def _path(run: Sequence[tuple[float, float]]) -> str:
    """Join the points; a point that stands alone is drawn as a short line."""
    points = run if len(run) > 1 else [(run[0][0] - 1, run[0][1]), (run[0][0] + 1, run[0][1])]
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, … that is not below the value."""
    if value <= 1:
        return 1
    size: float = 10 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 2, 5, 10) if step * size >= value)
