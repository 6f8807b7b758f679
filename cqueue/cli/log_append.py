"""`cqueue log append`: records from arguments, a file or standard input, or one a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cqueue.cli.context import CliContext
from cqueue.cli.failures import worst
from cqueue.cli.opening import open_log
from cqueue.cli.options import BodyFile, Headers, LogName
from cqueue.cli.sources import check_source, lines_of, read_body
from cqueue.cli.values import parse_headers
from cqueue.errors import BadInput, CqueueError

if TYPE_CHECKING:
    from cqueue.log.records import Record


def append(
    cli: CliContext,
    name: LogName,
    topic: Annotated[str, "TOPIC", "The topic."],
    body: Annotated[
        list[str] | None, "[BODY…|-]", "Bodies as text, a record each; - reads standard input."
    ] = None,
    *,
    key: Annotated[str | None, "TEXT", "Records of one key go to one partition, in order."] = None,
    partition: Annotated[int | None, "Go to this partition, whatever the key."] = None,
    header: Headers = None,
    file: BodyFile = None,
    lines: Annotated[bool, "Each line of standard input (or of --file) is a record."] = False,
) -> None:
    """Append records; done once Cassandra has acknowledged them.

    Prints the id of each, or with --lines how many were appended. Ctrl-C lets the batch under way end
    and says how many lines are appended, so that the rest can be appended later.
    """
    bodies = list(body or ())
    if len(bodies) > 1 and "-" in bodies:
        raise BadInput("- is all of standard input: it stands alone.")
    check_source(bodies[0] if bodies else None, file, lines=lines, verb="append")
    headers = parse_headers(header or ()) or None

    def make(content: bytes) -> Record:
        from cqueue.log.records import Record  # noqa: PLC0415 - not for --help

        return Record(topic, content, key, partition, headers)

    if lines:
        _append_lines(cli, name, file, make)
    else:
        contents = [read_body(text, None) for text in bodies] or [read_body(None, file)]
        _append_all(cli, name, topic, list(map(make, contents)))


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
        raise worst(error for _, error in result.failed)
