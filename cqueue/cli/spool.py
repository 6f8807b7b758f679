"""`cqueue spool`: look into a producer's spool, check its files, forward what its producer left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.cli.opening import open_client
from cqueue.cli.options import duration
from cqueue.cli.table import one_line, print_table
from cqueue.cli.values import body_text, counted, show_moment

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.spool import QueueStatus, Spool, SpoolRecord

app = typer.Typer(help="Look into a spool, check it, forward what its producer left.", no_args_is_help=True)

LOOK_S = 0.2
"""Seconds between two looks at what is left: a progress line that a reader can follow."""
MEGABYTE = 1 << 20

SpoolPath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="The spool's directory.", exists=True, file_okay=False, show_default=False
    ),
]
Topic = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Only this one: queue.NAME or log.NAME; by default all.")
]


@command(app)
def status(cli: CliContext, path: SpoolPath) -> None:
    """Show what waits in a spool, also while its producer runs."""
    with _look(path) as spool:
        found = spool.status()
    if cli.json:
        cli.emit([_fields(each) for each in found])
    elif found:
        _print(cli, found)
    else:
        cli.remark("Nothing was ever appended to this spool.")


def _fields(one: QueueStatus) -> dict[str, Any]:
    oldest = None if one.oldest_ms is None else _moment(one.oldest_ms).isoformat()
    return {
        "topic": one.topic,
        "waiting": one.end - one.progress,
        "first": one.first,
        "progress": one.progress,
        "end": one.end,
        "bytes": one.bytes,
        "segments": one.segments,
        "lost": [[each.start, each.stop] for each in one.lost],
        "oldest": oldest,
    }


def _print(cli: CliContext, found: list[QueueStatus]) -> None:
    rows = [
        (
            one.topic,
            f"{one.end - one.progress:,}",
            "–" if one.oldest_ms is None else show_moment(_moment(one.oldest_ms)),
            f"{sum(map(len, one.lost)):,}",
            f"{one.bytes / MEGABYTE:,.1f}",
            f"{one.progress:,}",
            f"{one.end:,}",
        )
        for one in found
    ]
    header = ("topic", "waiting", "oldest", "lost", "MiB", "progress", "end")
    print_table(cli, header, rows, right=set(header) - {"topic", "oldest"}, spare=("end", "progress", "MiB"))


@command(app)
def verify(cli: CliContext, path: SpoolPath) -> None:
    """Read every record and check it; exit code 1 if something is damaged. Changes nothing."""
    with _look(path) as spool:
        found = spool.verify()
    if cli.json:
        cli.emit(
            [
                {
                    "path": str(each.path),
                    "text": each.text,
                    "offsets": [each.offsets.start, each.offsets.stop],
                }
                for each in found
            ]
        )
    for each in () if cli.json else found:
        costs = f" Lost: {each.offsets.start} to {each.offsets.stop - 1}." if each.offsets else ""
        cli.emit(None, f"{each.path.relative_to(path)}: {each.text}.{costs}")
    if found:
        raise typer.Exit(ExitCode.CHECK_FAILED)
    cli.remark("All records are whole.")


@command(app)
def dump(
    cli: CliContext,
    path: SpoolPath,
    topic: Topic = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what is forwarded already and still on the disk.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most N of each topic.")] = None,
) -> None:
    """Print what waits in a spool, one a line, also while its producer runs. Changes nothing."""
    with _look(path) as spool:
        for one in _chosen(spool, topic):
            start = one.first if everything else one.progress
            for count, record in enumerate(spool.records(one.topic, 0, start), 1):
                fields = _record(one.topic, record)
                cli.emit(fields, lambda fields=fields: _show(cli, fields))
                if count == limit:
                    break


def _record(topic: str, record: SpoolRecord) -> dict[str, Any]:
    from cqueue.spool.forward_frame import Frame  # noqa: PLC0415 - not for --help

    frame = Frame.unpack(record.payload)
    body, encoding = body_text(frame.body)
    return {
        "topic": topic,
        "offset": record.offset,
        "spooled": _moment(frame.at_us // 1000).isoformat(),
        "due": _moment(frame.due_us // 1000).isoformat(),
        "priority": frame.priority,
        **frame.more,
        "body": body,
        "encoding": encoding,
    }


def _show(cli: CliContext, fields: dict[str, Any]) -> None:
    spooled = show_moment(datetime.fromisoformat(fields["spooled"]))
    line = f"{fields['topic']}  {fields['offset']}  {spooled}  {one_line(fields['body'])}"
    cli.line(line)


@command(app)
def forward(
    cli: CliContext,
    path: SpoolPath,
    topic: Topic = None,
    *,
    again: Annotated[
        bool, typer.Option("--again", help="Also what is older than gc_grace: some may be delivered twice.")
    ] = False,
    wait: Annotated[
        timedelta | None, duration("When to give up; by default try until all is forwarded.")
    ] = None,
) -> None:
    """Forward what the producer of a spool has left. No other process may have the spool open.

    Queues and logs of the spool are sent to those of the same name. Repeat it after Ctrl-C: messages of
    queues are not sent twice.
    """
    from cqueue.spool import Spool  # noqa: PLC0415 - not for --help

    end_s = None if wait is None else time.monotonic() + wait.total_seconds()
    with Spool(path) as spool, open_client(cli) as client:
        for one in _chosen(spool, topic):
            _forward(cli, client, spool, one.topic, again=again, end_s=end_s)


def _forward(
    cli: CliContext, client: Client, spool: Spool, topic: str, *, again: bool, end_s: float | None
) -> None:
    """Forward one topic, until an error that lasts or until the time is over."""
    from cqueue.errors import NotDone  # noqa: PLC0415 - as above

    forwarder = client._spools.forwarder(spool, topic, again=again)  # noqa: SLF001 - the library's own
    forwarder.start()
    try:
        with cli.status(topic) as tell:
            while not forwarder.drain(LOOK_S):
                tell(f"{topic}: {counted(forwarder.waiting, 'record')} to go")
                if forwarder.refusal is not None:
                    raise forwarder.refusal
                if end_s is not None and time.monotonic() >= end_s:
                    left = f"{counted(forwarder.waiting, 'record')} of {topic} are still in the spool"
                    raise NotDone(f"{left}: {forwarder.error or 'there was no more time'}")
    finally:
        forwarder.close(0.0)
    result = {"topic": topic, "forwarded": forwarder.forwarded}
    cli.emit(result, f"{topic}: {counted(forwarder.forwarded, 'record')} forwarded.")


def _look(path: Path) -> Spool:
    """Open a spool read-only; its producer may go on."""
    from cqueue.spool import Spool  # noqa: PLC0415 - not for --help

    return Spool.open_readonly(path)


def _chosen(spool: Spool, topic: str | None) -> Iterator[QueueStatus]:
    """Yield the status of all topics, or of one.

    Raises:
        BadInput: the spool has no topic of that name.
    """
    from cqueue.errors import BadInput  # noqa: PLC0415 - as above

    found = [one for one in spool.status() if topic in {None, one.topic}]
    if topic is not None and not found:
        raise BadInput(f"the spool has no topic {topic!r}; `cqueue spool status` shows what there is")
    yield from found


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
