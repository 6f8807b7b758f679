"""`cqueue peek`: the first messages, without receiving them."""

from __future__ import annotations

from typing import Annotated

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.message_view import print_stored
from cqueue.cli.opening import find_queue, open_client, say_left_out
from cqueue.cli.options import QueueName

app = typer.Typer()


@command(app)
def peek(
    cli: CliContext,
    name: QueueName,
    *,
    limit: Annotated[int, "How many, 1 to 10,000."] = 10,
) -> None:
    """Look at the first messages in order of time and priority. Nothing is claimed or counted.

    Messages that consumers hold are shown too; their state is `claimed`. With --json an object a line.
    """
    with open_client(cli) as client:
        queue = find_queue(client, name)
        with cli.status("Looking…"):
            messages = queue.peek(limit)
        print_stored(cli, messages, none=f"Queue {name} is empty.")
        say_left_out(cli, client, "messages")
