"""`cqueue log append`: records from arguments, a file or standard input, or one a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cqueue.cli.context import CliContext
from cqueue.cli.opening import open_log
from cqueue.cli.options import BodyFile, Headers, LogName
from cqueue.cli.sources import check_source, lines_of, read_body
from cqueue.cli.values import parse_headers
from cqueue.errors import BadInput, CqueueError, NotDone, OutcomeUnknown

if TYPE_CHECKING:
    from cqueue.log.log import AppendResult
    from cqueue.log.records import Record


def append(
    cli: CliContext,
    name: LogName,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)],
    body: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BODY…|-]", help="Bodies as text, a record each; - reads standard input."),
    ] = None,
    *,
    key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Records of one key go to one partition, in order.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", help="Go to this partition, whatever the key.")
    ] = None,
    header: Headers = None,
    file: BodyFile = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of standard input (or of --file) is a record.")
    ] = False,
) -> None:
    """Append records; done once Cassandra has acknowledged them.

    Prints the id of each, or with --lines how many were appended. Ctrl-C lets the batch under way end
    and says how many lines are appended, so that the rest can be appended later.
    """
    bodies = list(body or ())
    _check(bodies, file, lines=lines)
    headers = parse_headers(header or ()) or None

    def make(content: bytes) -> Record:
        from cqueue.log.records import Record  # noqa: PLC0415 - not for --help

        return Record(topic, content, key, partition, headers)

    if lines:
        _append_lines(cli, name, file, make)
    else:
        contents = [read_body(text, None) for text in bodies] or [read_body(None, file)]
        _append_all(cli, name, topic, list(map(make, contents)))


def _check(bodies: list[str], file: Path | None, *, lines: bool) -> None:
    """Refuse all but exactly one source of bodies."""
    if len(bodies) > 1 and "-" in bodies:
        raise BadInput("- is all of standard input: it stands alone.")
    check_source(bodies[0] if bodies else None, file, lines=lines, verb="append")


def _append_lines(cli: CliContext, name: str, file: Path | None, make: Callable[[bytes], Record]) -> None:
    from cqueue.cli.send_lines import Target, send_each  # noqa: PLC0415 - only where it is needed

    with lines_of(file) as source, open_log(cli, name) as log:

        def send(bodies: list[bytes]) -> list[tuple[int, CqueueError]]:
            return log.append_many(list(map(make, bodies))).failed

        send_each(cli, Target("log", name, "record", "appended", send), source)


def _append_all(cli: CliContext, name: str, topic: str, records: list[Record]) -> None:
    with open_log(cli, name) as log:
        result = log.append_many(records)
    for id_ in result.ids:
        if id_ is not None:
            cli.emit({"log": name, "topic": topic, "partition": id_.locate()[1], "id": id_}, str(id_))
    if result.failed:
        raise _worst(result)


def _worst(result: AppendResult) -> CqueueError:
    """Return the worst error: an unknown outcome, else one that says not done, else the first."""
    errors = [error for _, error in result.failed]
    for kind in (OutcomeUnknown, NotDone):
        if found := [error for error in errors if isinstance(error, kind)]:
            return found[0]
    return errors[0]
