"""`cqueue send`: one message, or one a line."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from cqueue.cli.context import CliContext
from cqueue.cli.opening import open_queue
from cqueue.cli.options import Json, QueueName
from cqueue.cli.values import parse_duration, parse_headers, parse_moment
from cqueue.errors import BadInput

app = typer.Typer()


@app.command()
def send(
    ctx: typer.Context,
    name: QueueName,
    body: Annotated[
        str | None, typer.Argument(metavar="[BODY|-]", help="The body as text; - reads standard input.")
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="The body is a file.")] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of standard input (or of --file) is a message.")
    ] = False,
    delay: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION", parser=parse_duration, help="Deliver so much later: 30s, 5m, 1h30m, 2d."
        ),
    ] = None,
    due: Annotated[
        datetime | None,
        typer.Option(
            metavar="TIME", parser=parse_moment, help="Deliver then: ISO 8601 with a zone, 2030-01-31T08:00Z."
        ),
    ] = None,
    priority: Annotated[int, typer.Option(metavar="N", help="0, the most urgent, to 9.")] = 0,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    ttl: Annotated[
        timedelta | None,
        typer.Option(
            metavar="DURATION", parser=parse_duration, help="Not to be delivered any more after so long."
        ),
    ] = None,
    _json: Json = False,
) -> None:
    """Send a message, or with --lines one a line; done once Cassandra has acknowledged it.

    Prints the message's id, or with --lines how many were sent. Ctrl-C lets the batch under way end
    and says how many lines are sent, so that the rest can be sent later.
    """
    options: dict[str, Any] = {
        "delay": delay,
        "due": due,
        "priority": priority,
        "headers": parse_headers(header or ()) or None,
        "ttl": ttl,
    }
    check_source(body, file, lines=lines)
    if lines:
        from cqueue.cli.send_lines import send_lines  # noqa: PLC0415 - only where it is needed

        send_lines(ctx.obj, name, file, options)
    else:
        _send_one(ctx.obj, name, read_body(body, file), options)


def check_source(body: str | None, file: Path | None, *, lines: bool, verb: str = "send") -> None:
    """Exactly one source of what is sent."""
    if body is not None and file is not None:
        raise BadInput("Give a body or --file, not both.")
    if lines and body not in {None, "-"}:
        raise BadInput("--lines reads standard input or --file; leave the body out.")
    if body is None and file is None and not lines:
        raise BadInput(f"Nothing to {verb}: give a body, - for standard input, --file or --lines.")


def read_body(body: str | None, file: Path | None) -> bytes:
    """The bytes of the one source there is."""
    if body == "-":
        return sys.stdin.buffer.read()
    if body is not None:
        # What the shell passed may be no UTF-8; these are its bytes.
        return body.encode("utf-8", "surrogateescape")
    with open_source(file) as source:
        return source.read()


def open_source(file: Path | None) -> BinaryIO:
    """The file, or standard input.

    Raises:
        BadInput: it cannot be read.
    """
    if file is None:
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as exc:
        raise BadInput(f"{file} cannot be read: {exc.strerror}.") from exc


def _send_one(cli: CliContext, name: str, body: bytes, options: dict[str, Any]) -> None:
    with open_queue(cli, name) as queue:
        id_ = queue.send(body, **options)
    cli.emit({"queue": name, "id": id_}, id_)
