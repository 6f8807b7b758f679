"""Convert the starts that callers give, such as times and record ids, to positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from cqueue import ids
from cqueue.errors import BadInput, InvalidLogId, PositionExpired
from cqueue.log.protocol.spec import LogSpec
from cqueue.log.records import LogId, check_partition
from cqueue.message import datetime_us, to_datetime

Point = str | datetime
"""A record's id, "earliest", "latest", or an aware datetime."""
Start = Point | Mapping[int, Point]

EARLIEST, LATEST = "earliest", "latest"
ON_EXPIRED = ("error", EARLIEST)


def starts(
    spec: LogSpec, start: Start, partitions: Sequence[int], now_us: int, on_expired: str, *, earliest: int
) -> dict[int, int]:
    """Return for each partition the id behind which to read. earliest: that of the start "earliest".

    Raises:
        BadInput, InvalidLogId: `start` is no position of this log.
        PositionExpired: records behind the start may be forgotten already.
    """
    check_on_expired(on_expired)
    if isinstance(start, Mapping):
        for partition in start:
            check_partition(partition, spec.partitions)
        points = {partition: start[partition] for partition in partitions if partition in start}
    else:
        points = dict.fromkeys(partitions, start)
    found: dict[int, int] = {}
    for partition, point in points.items():
        position = earliest if point == EARLIEST else _after(spec, point, now_us)
        if point != EARLIEST and spec.has_forgotten(position, now_us):
            if on_expired != EARLIEST:
                forgotten = to_datetime(spec.forgotten_us(now_us) // 1000)
                raise PositionExpired(
                    f"partition {partition}: what stands behind {point!r} may be forgotten, like others "
                    f"before {forgotten}; start at 'earliest', or give on_expired='earliest'"
                )
            position = max(position, earliest)  # never back: some may be left from before
        found[partition] = spec.going_on(position, now_us)
    # Where another reader was, the log may have gained partitions since.
    known = [*found.values()]
    for partition in partitions:
        if partition not in found:
            beginning = min(earliest, spec.beginning_beside(partition, known, now_us))
            found[partition] = spec.going_on(beginning, now_us)
    return found


def check_on_expired(on_expired: str) -> str:
    """Return what to do about a forgotten start or position.

    Raises:
        BadInput: it is neither "error" nor "earliest".
    """
    if on_expired not in ON_EXPIRED:
        raise BadInput(f"on_expired is {on_expired!r}; it takes 'error' or 'earliest'")
    return on_expired


def _after(spec: LogSpec, point: Point, now_us: int) -> int:
    if point == LATEST:
        return spec.horizon(now_us)
    try:
        return id_at(spec, point)
    except InvalidLogId as exc:
        raise InvalidLogId(f"{exc}; a start may also be a datetime, 'earliest' or 'latest'") from exc


def id_at(spec: LogSpec, point: Point) -> int:
    """Return the last id before a datetime, or the id of a record.

    Raises:
        BadInput, InvalidLogId: `point` is neither, or of another log.
    """
    if isinstance(point, datetime):
        if point.tzinfo is None:
            raise BadInput(f"{point} has no time zone; give an aware datetime")
        return ids.lowest_at(datetime_us(point)) - 1
    if not isinstance(point, str):
        raise BadInput(f"{point!r} is not a position: give a datetime, a record's id, 'earliest' or 'latest'")
    log, _, id_ = LogId(point).locate()
    if log != spec.partition:
        raise BadInput(f"the record is not one of log {spec.name!r}")
    return id_
