"""`cqueue log tail` and `cqueue log scan`: print records as they come, or those that a log has."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue import ids
from cqueue.cli.context import CliContext
from cqueue.cli.interrupts import accounted, held_back
from cqueue.cli.opening import open_log
from cqueue.cli.options import LogName, new_file, number
from cqueue.cli.outage import Outage
from cqueue.cli.render import BodyPrinter
from cqueue.cli.values import body_text, counted, parse_since, show_moment
from cqueue.errors import BadInput, InvalidLogId
from cqueue.log.positions import EARLIEST, LATEST, Point
from cqueue.log.records import LogId
from cqueue.message import datetime_us
from cqueue.runtime.atomic_file import atomic_file

if TYPE_CHECKING:
    from cqueue.log.records import LogRecord
    from cqueue.log.scanner import Scanner

_TIME_OR_AGO = re.compile(r"[0-9]{4}-|[0-9][0-9.]*[a-z]", re.IGNORECASE)
POLL_WAIT = timedelta(seconds=1)


def parse_position(text: str) -> str | datetime:
    """Parse a position: `earliest`, `latest`, a time, a duration before now (`10m`), or a record's id.

    Raises:
        BadParameter: none of these.
    """
    stripped = text.strip()
    return stripped if stripped in {EARLIEST, LATEST} else _parse(stripped, "earliest, latest, ")


def parse_end(text: str) -> str | datetime:
    """Parse a position at which a scan may end: one that is neither `earliest` nor `latest`.

    Raises:
        BadParameter: it is none.
    """
    return _parse(text.strip())


def _parse(text: str, more: str = "") -> str | datetime:
    if _TIME_OR_AGO.match(text):
        return parse_since(text)
    try:
        LogId(text).locate()
    except InvalidLogId as exc:
        raise typer.BadParameter(
            f"{text!r} is not a position. Write {more}a time such as 2030-01-31T08:00Z, "
            "a duration before now such as 10m, or a record's id."
        ) from exc
    return text


def check_window(start: Point | None, end: Point | None) -> None:
    """Refuse a start that comes after the end: nothing can stand between them.

    From a record to the same one is no mistake: so goes on who has read all.

    Raises:
        BadInput: it does.
    """
    if start is not None and start != EARLIEST and end is not None and _id_at(start) > _id_at(end):
        raise BadInput("--from comes after --to; change one of them. --reverse begins at --to.")


def _id_at(point: Point) -> int:
    if isinstance(point, datetime):
        return ids.lowest_at(datetime_us(point)) - 1
    if point == LATEST:  # a start
        return _id_at(datetime.now(UTC))
    return LogId(point).locate()[2]


Topics = Annotated[list[str] | None, "--topic TOPIC", "Of this topic only; may be repeated."]
Partitions = Annotated[list[int] | None, "--partition N", "Of this partition; may be repeated."]


def tail(
    cli: CliContext,
    name: LogName,
    *,
    start: Annotated[
        str | None,
        parse_position,
        "--from POSITION",
        "Begin at earliest, latest (the default), a time, a duration before now, or a record's id.",
    ] = None,
    topic: Topics = None,
    partition: Partitions = None,
    low_latency: Annotated[bool, "Print records at once, even if earlier ones may still come."] = False,
) -> None:
    """Print records as they are appended, until Ctrl-C: a body a line, or with --json an object a line.

    They come in order and some 2.5 seconds after they were appended, so that none is passed that was on
    its way; with --low-latency they come at once, and in order only as far as they were written in order.
    """
    printer, outage = BodyPrinter(cli, record_fields, _about), Outage(cli)
    with (
        open_log(cli, name) as log,
        accounted(cli, partial(_account, printer)) as interrupts,
        log.follow(
            start or LATEST, partitions=partition or None, topics=topic or None, low_latency=low_latency
        ) as follower,
    ):
        while True:
            found = outage.outlive(follower.poll, POLL_WAIT)
            with interrupts.step():
                printer.print_all(found)


def scan(
    cli: CliContext,
    name: LogName,
    *,
    start: Annotated[
        str | None,
        parse_position,
        "--from POSITION",
        "Begin at earliest (the default), a time, a duration before now, or a record's id.",
    ] = None,
    end: Annotated[
        str | None,
        parse_end,
        "--to POSITION",
        "End before a time, or with a record's id; by default with what is stable.",
    ] = None,
    topic: Topics = None,
    partition: Partitions = None,
    limit: Annotated[int | None, number("At most this many.", 1)] = None,
    reverse: Annotated[bool, "From the end back to the start."] = False,
    or_earliest: Annotated[bool, "Begin at earliest if the log no longer has --from."] = False,
    arrow: Annotated[Path | None, new_file("Write an Arrow file instead (IPC; extra `arrow`).")] = None,
    parquet: Annotated[Path | None, new_file("Write a Parquet file instead (extra `arrow`).")] = None,
) -> None:
    """Print the records that are there, in order: a body a line, or with --json an object a line.

    It ends at what is stable: what was appended in the last 2.5 seconds or so may be missing. A topic of
    which there is no record gives nothing.
    """
    if arrow is not None and parquet is not None:
        raise BadInput("Give --arrow or --parquet, not both.")
    check_window(start, end)
    with (
        open_log(cli, name) as log,
        log.scan(
            start or EARLIEST,
            end,
            partitions=partition or None,
            topics=topic or None,
            limit=limit,
            reverse=reverse,
            on_expired="earliest" if or_earliest else "error",
        ) as scanner,
    ):
        if (file := arrow or parquet) is not None:
            with held_back():
                _export(cli, scanner, file, as_parquet=parquet is not None)
        else:
            _print(cli, name, scanner, reverse=reverse)


def _account(printer: BodyPrinter[LogRecord], *, reverse: bool = False) -> str:
    """Say how many records were printed and, as --from goes forward only, how to go on in that case."""
    said = f"{counted(printer.printed, 'record')} printed."
    if printer.is_cut_off:
        said += " More may have been written out."
    if reverse or printer.last is None:
        return said
    return f"{said} --from {printer.last.id} goes on behind the last one."


def _print(cli: CliContext, name: str, scanner: Scanner, *, reverse: bool) -> None:
    printer = BodyPrinter(cli, record_fields, _about)
    with accounted(cli, partial(_account, printer, reverse=reverse)) as interrupts:
        for batch in scanner.batches():
            with interrupts.step():
                printer.print_all(batch)
    if not printer.printed:
        cli.remark(f"Log {name} has no such record; those of the last 2.5 seconds or so are not shown yet.")


def _export(cli: CliContext, scanner: Scanner, file: Path, *, as_parquet: bool) -> None:
    """Write all records into a file that data frames read: Arrow's IPC format, or Parquet."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415 - as above

        from cqueue.log.arrow import SCHEMA  # noqa: PLC0415 - as above
    except ImportError as exc:
        raise BadInput("This needs pyarrow: pip install 'cassandra-cqueue[arrow]'") from exc

    open_file = parquet.ParquetWriter if as_parquet else pa.ipc.new_file
    rows = 0
    with atomic_file(file) as part, open_file(str(part), SCHEMA) as writer:
        for batch in scanner.to_arrow():
            writer.write_batch(batch)
            rows += batch.num_rows
    cli.emit({"file": str(file), "rows": rows}, f"{counted(rows, 'record')} written to {file}.")


def record_fields(record: LogRecord) -> dict[str, Any]:
    """Return what --json shows of a record."""
    text, encoding = body_text(record.body)
    return {
        "id": record.id,
        "time": record.time,
        "partition": record.partition,
        "topic": record.topic,
        "key": record.key,
        "headers": dict(record.headers),
        "body": text,
        "encoding": encoding,
    }


def _about(record: LogRecord) -> list[str]:
    key = [] if record.key is None else [f"key {record.key}"]
    return [show_moment(record.time), record.topic, f"partition {record.partition}", *key]
