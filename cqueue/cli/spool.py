"""`cqueue spool`: look into a producer's spool, check its files, forward what its producer left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode, exit_code, report_failure, worst
from cqueue.cli.interrupts import going_on
from cqueue.cli.opening import open_client
from cqueue.cli.options import number
from cqueue.cli.render import print_list
from cqueue.cli.table import one_line
from cqueue.cli.values import body_text, counted, show_moment
from cqueue.errors import BadInput, CqueueError, DamagedRow, NotDone
from cqueue.message import to_datetime

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.spool import QueueStatus, Spool, SpoolRecord
    from cqueue.spool.damage import Finding

app = typer.Typer(help="Look into a spool, check it, forward what its producer left.", no_args_is_help=True)

LOOK_S = 0.2
"""Seconds between two looks at what is left: a progress line that a reader can follow."""
MEGABYTE = 1 << 20
NOTHING = "Nothing waits."


def _checked(path: Path) -> Path:
    """Return the path of a spool.

    Raises:
        BadInput: the directory is none. Opened as one, it would look like a spool that is empty.
        NotDone: the directory cannot be read.
    """
    from cqueue.spool.spool import is_spool  # noqa: PLC0415 - not for --help

    try:
        is_one = is_spool(path)
    except OSError as exc:
        raise NotDone(f"{path} cannot be read: {exc}") from exc
    if not is_one:
        raise BadInput(f"{path} is no spool: no producer has opened it, and it holds no queue.")
    return path


SpoolPath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="The spool's directory.", exists=True, file_okay=False, callback=_checked
    ),
]
Topic = Annotated[str | None, "TOPIC", "Only this one: queue.NAME or log.NAME; by default all."]


@command(app)
def status(cli: CliContext, path: SpoolPath) -> None:
    """Show what waits in a spool, also while its producer runs."""
    with _look(path) as spool:
        found = spool.status()
    columns: dict[str, Callable[[QueueStatus], Any]] = {
        "topic": attrgetter("topic"),
        "waiting": lambda one: one.end - one.progress,
        "oldest": lambda one: None if one.oldest_ms is None else to_datetime(one.oldest_ms),
        "lost": lambda one: sum(map(len, one.lost)),
        "MiB": lambda one: round(one.bytes / MEGABYTE, 1),
        "progress": attrgetter("progress"),
        "end": attrgetter("end"),
    }
    none = "Nothing was ever appended to this spool."
    print_list(cli, found, _fields, columns, none=none, spare=("end", "progress", "MiB"))


def _fields(one: QueueStatus) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "waiting": one.end - one.progress,
        "first": one.first,
        "progress": one.progress,
        "end": one.end,
        "bytes": one.bytes,
        "segments": one.segments,
        "lost": [[each.start, each.stop] for each in one.lost],
        "oldest": None if one.oldest_ms is None else to_datetime(one.oldest_ms),
    }


@command(app)
def verify(cli: CliContext, path: SpoolPath) -> None:
    """Read every record and check it; exit code 1 if something is damaged. Changes nothing."""
    with _look(path) as spool:
        found = spool.verify()
    if found or cli.json:
        fields = [
            {"path": each.path, "text": each.text, "offsets": [each.offsets.start, each.offsets.stop]}
            for each in found
        ]
        cli.emit(fields, lambda: cli.line("\n".join(_damage(each, path) for each in found)))
    if found:
        raise typer.Exit(ExitCode.CHECK_FAILED)
    cli.remark("All records are whole.")


def _damage(one: Finding, path: Path) -> str:
    costs = f" Lost: {one.offsets.start} to {one.offsets.stop - 1}." if one.offsets else ""
    return f"{one.path.relative_to(path)}: {one.text}.{costs}"


@command(app)
def dump(
    cli: CliContext,
    path: SpoolPath,
    *,
    topic: Topic = None,
    all_: Annotated[bool, "Also what is forwarded already and still on the disk."] = False,
    limit: Annotated[int | None, number("At most N of each topic.", 1)] = None,
) -> None:
    """Print what waits in a spool, one a line, also while its producer runs. Changes nothing."""
    printed = False
    with _look(path) as spool:
        for one in _chosen(spool, topic):
            start = one.first if all_ else one.progress
            for record in islice(_read(spool, one.topic, start), limit):
                _print_record(cli, one.topic, record)
                printed = True
    if not printed:
        cli.remark(NOTHING)


def _read(spool: Spool, topic: str, start: int) -> Iterator[SpoolRecord]:
    """Yield the records of a topic.

    Raises:
        NotDone: the disk cannot read one.
    """
    try:
        yield from spool.records(topic, 0, start)
    except OSError as exc:
        raise NotDone(f"{topic}: a record cannot be read: {exc}") from exc


def _print_record(cli: CliContext, topic: str, record: SpoolRecord) -> None:
    from cqueue.spool.forward_frame import Frame  # noqa: PLC0415 - not for --help

    try:
        frame = Frame.unpack(record.payload)
    except DamagedRow as exc:  # of another version or program; the others are printed all the same
        damaged = {"topic": topic, "offset": record.offset, "error": str(exc)}
        cli.emit(damaged, f"{topic}  {record.offset}  {exc}")
        return
    spooled = to_datetime(frame.at_us // 1000)
    body, encoding = body_text(frame.body)
    fields = {
        "topic": topic,
        "offset": record.offset,
        "spooled": spooled,
        "due": to_datetime(frame.due_us // 1000),
        "priority": frame.priority,
        **frame.more,
        "body": body,
        "encoding": encoding,
    }
    text = f"{topic}  {record.offset}  {show_moment(spooled)}  {one_line(body)}"
    cli.emit(fields, lambda: cli.line(text))


@command(app)
def forward(
    cli: CliContext,
    path: SpoolPath,
    *,
    topic: Topic = None,
    again: Annotated[bool, "Also what is older than gc_grace: some may be delivered twice."] = False,
    wait: Annotated[timedelta | None, "When to give up; by default try until all is forwarded."] = None,
) -> None:
    """Forward what the producer of a spool has left. No other process may have the spool open.

    Queues and logs of the spool are sent to those of the same name. If one cannot be, the others are sent
    all the same. Repeat it after Ctrl-C: messages of queues are not sent twice.
    """
    from cqueue.spool import Spool  # noqa: PLC0415 - not for --help

    end_s = None if wait is None else time.monotonic() + wait.total_seconds()
    failed: list[CqueueError] = []
    with Spool(path) as spool, open_client(cli) as client, going_on(cli):
        chosen = list(_chosen(spool, topic))
        for one in chosen:
            try:
                _forward(cli, client, spool, one.topic, again=again, end_s=end_s)
            except CqueueError as exc:
                report_failure(exc, cli)
                failed.append(exc)
    if failed:
        raise typer.Exit(exit_code(worst(failed)))
    if not chosen:
        cli.remark(NOTHING)


def _forward(
    cli: CliContext, client: Client, spool: Spool, topic: str, *, again: bool, end_s: float | None
) -> None:
    """Forward one topic, until an error that lasts or until the time is over."""
    if spool.progress(topic) >= spool.end(topic):  # its queue may be gone, or never have been
        cli.emit({"topic": topic, "forwarded": 0}, f"{topic}: {counted(0, 'record')} forwarded.")
        return
    forwarder = client._spools.forwarder(spool, topic, again=again)  # noqa: SLF001 - the library's own
    forwarder.start()
    try:
        with cli.status(topic) as tell:
            while not forwarder.drain(LOOK_S):
                tell(f"{topic}: {counted(forwarder.waiting, 'record')} to go")
                if (refusal := forwarder.refusal) is not None:
                    raise refusal
                if end_s is not None and time.monotonic() >= end_s:
                    left = f"{counted(forwarder.waiting, 'record')} of {topic} are still in the spool"
                    raise NotDone(f"{left}: {forwarder.error or 'there was no more time'}")
    finally:
        forwarder.close(0.0)
    forwarded = spool.forwarding[topic].forwarded
    cli.emit({"topic": topic, "forwarded": forwarded}, f"{topic}: {counted(forwarded, 'record')} forwarded.")


def _look(path: Path) -> Spool:
    """Open a spool read-only; its producer may go on."""
    from cqueue.spool import Spool  # noqa: PLC0415 - not for --help

    return Spool.open_readonly(path)


def _chosen(spool: Spool, topic: str | None) -> Iterator[QueueStatus]:
    """Yield the status of all topics, or of one.

    Raises:
        BadInput: the spool has no topic of that name.
    """
    found = [one for one in spool.status() if topic in {None, one.topic}]
    if topic is not None and not found:
        raise BadInput(f"the spool has no topic {topic!r}; `cqueue spool status` shows what there is")
    yield from found
