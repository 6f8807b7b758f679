"""`cqueue list`: the messages of a queue that are like this, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.message_view import print_stored, stored_fields
from cqueue.cli.opening import find_queue, open_client, say_left_out
from cqueue.cli.options import QueueName, given, number
from cqueue.cli.values import counted, parse_headers

if TYPE_CHECKING:
    from cqueue.queue import Queue, StoredMessage
    from cqueue.where import Where

app = typer.Typer()

DEFAULT_LIMIT = 50
MAX_ROWS = 100_000
"""Messages that one command reads, if the user does not say: some ten seconds' work."""


@dataclass(frozen=True, slots=True)
class Predicates:
    """What messages have to be like."""

    header: Annotated[list[str] | None, "NAME=VALUE", "With this header; may be repeated."] = None
    state: Annotated[
        list[str] | None,
        "STATE",
        "ready, claimed, waiting, delayed, expired or quarantined; may be repeated.",
    ] = None
    task: Annotated[str | None, "--task NAME", "Messages of this task."] = None
    priority: Annotated[list[int] | None, "Of this priority, 0 to 9; may be repeated."] = None
    older_than: Annotated[timedelta | None, "Sent this long ago or longer."] = None
    younger_than: Annotated[timedelta | None, "Sent less than this long ago."] = None

    def where(self) -> Where:
        """Return them as the library takes them.

        Raises:
            BadInput, BadParameter: one means nothing.
        """
        from cqueue.where import Where  # noqa: PLC0415 - not needed for --help

        said: dict[str, Any] = {
            "headers": parse_headers(self.header) if self.header else None,
            "state": self.state or None,
            "task": self.task,
            "priority": self.priority or None,
            "older_than": self.older_than,
            "younger_than": self.younger_than,
        }
        return Where(**given(**said))


@command(app, "list")
def list_messages(
    cli: CliContext,
    name: QueueName,
    which: Predicates,
    *,
    limit: Annotated[int, "How many to show, 1 to 1,000."] = DEFAULT_LIMIT,
    max_rows: Annotated[int, number("How many to read for that, about.", 1)] = MAX_ROWS,
    token: Annotated[str | None, "TOKEN", "Go on where an earlier command stopped."] = None,
) -> None:
    """List the messages of a queue that are like this, about in order of due times, without receiving them.

    All that is given has to be true of a message. If more may follow, the command says with which --token to
    go on. With --json one object: messages, token (null at the end) and rows_read.
    """
    where = which.where()
    with open_client(cli) as client:
        queue = find_queue(client, name)
        with cli.status("Looking…"):
            found, token, rows = _read(queue, where, limit, max_rows, token)
        if cli.json:
            told = [stored_fields(message) for message in found]
            cli.emit({"messages": told, "token": token, "rows_read": rows})
        else:
            print_stored(cli, found, none=f"Queue {name}: none of {counted(rows, 'message')} read fits.")
        say_left_out(cli, client, "messages")
    if token is not None:
        cli.remark(f"{counted(rows, 'message')} read. Go on with --token {token}")


def _read(
    queue: Queue, where: Where, limit: int, max_rows: int, token: str | None
) -> tuple[list[StoredMessage], str | None, int]:
    """Read pages until there are enough messages, or enough was read, or the queue ends."""
    page = queue.list(where, limit=limit, token=token)
    found, rows = list(page.messages), page.rows_read
    while page.token is not None and len(found) < limit and rows < max_rows:
        page = queue.list(where, limit=limit - len(found), token=page.token)
        found, rows = [*found, *page.messages], rows + page.rows_read
    return found, page.token, rows
