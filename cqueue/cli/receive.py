"""`cqueue receive`: print messages, and ack them once they are printed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.interrupts import Interrupts, accounted
from cqueue.cli.message_view import received_printer
from cqueue.cli.opening import find_queue, open_client, say_left_out
from cqueue.cli.options import QueueName, duration
from cqueue.cli.values import counted
from cqueue.errors import BadInput, LeaseLost

if TYPE_CHECKING:
    from cqueue.cli.render import BodyPrinter
    from cqueue.consumer import Consumer
    from cqueue.message import MessageId
    from cqueue.queue import Queue
    from cqueue.received import ReceivedMessage

app = typer.Typer()

BATCH = 100
DEFAULT_MAX = 10
FOLLOW_WAIT = timedelta(seconds=20)
"""How long one receive waits under --follow, before the next one."""


class Settle(Enum):
    """How a printed message is settled."""

    ACK = "acked"
    NACK = "nacked"
    LEAVE = "left to the timeout"


@dataclass(slots=True)
class Account:
    """The account of one command: messages printed, and messages settled."""

    how: Settle
    printed: int = 0
    settled: int = 0
    held: dict[MessageId, ReceivedMessage] = field(default_factory=dict)
    """Printed under --nack: given back after the last receive, or the next one would get them again."""

    def text(self) -> str:
        """Say what was printed, and what became of it."""
        text = f"{counted(self.printed, 'message')} printed, {self.settled:,} of them {self.how.value}."
        if self.settled < self.printed:
            text += f" The other {self.printed - self.settled:,} may come again."
        return text


@command(app)
def receive(
    cli: CliContext,
    name: QueueName,
    *,
    max_: Annotated[
        int | None,
        typer.Option(
            "--max",
            min=1,
            metavar="N",
            help=f"At most this many; by default {DEFAULT_MAX}, without limit under --follow.",
        ),
    ] = None,
    wait: Annotated[
        timedelta | None, duration("How long to wait for the first message; by default 0s.")
    ] = None,
    ack: Annotated[
        bool | None,
        typer.Option("--ack/--no-ack", help="Ack what is printed (the default), or leave it to its timeout."),
    ] = None,
    nack: Annotated[
        bool, typer.Option("--nack", help="Give all of them back at the end instead; the attempt counts.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
) -> None:
    """Receive messages and print them: a body a line, or with --json an object a line.

    A message is acked when its line has been written and flushed: if this command dies, what it had not
    printed comes again after the visibility timeout. What was acked is gone, whatever the reader of a pipe
    does with it. A body that is no UTF-8 is printed in base64.
    """
    if nack and ack is not None:
        raise BadInput("Give --nack, or --ack/--no-ack, not both.")
    if nack and follow:
        raise BadInput("--nack gives messages back after the last receive, and --follow has none.")
    if follow and wait is not None:
        raise BadInput("--follow waits until Ctrl-C; leave --wait out.")
    how = Settle.NACK if nack else Settle.LEAVE if ack is False else Settle.ACK
    limit = max_ or (None if follow else DEFAULT_MAX)
    account = Account(how)
    with open_client(cli) as client:
        queue = find_queue(client, name)
        with accounted(cli, account.text) as interrupts, _consumer(queue, how) as consumer:
            _loop(consumer, received_printer(cli), account, interrupts, limit, wait, follow=follow)
            _give_back(consumer, account)
        say_left_out(cli, client, "messages")
    if not account.printed:
        cli.remark(f"Queue {name} has nothing that is due.")


def _loop(
    consumer: Consumer,
    printer: BodyPrinter[ReceivedMessage],
    account: Account,
    interrupts: Interrupts,
    limit: int | None,
    wait: timedelta | None,
    *,
    follow: bool,
) -> None:
    patience = FOLLOW_WAIT if follow else wait or timedelta()
    while limit is None or account.printed < limit:
        want = BATCH if limit is None else min(BATCH, limit - account.printed)
        messages = consumer.receive(want, wait=patience)
        if any(message.id in account.held for message in messages):
            return  # a slow reader of a pipe let the first ones' timeout pass
        if messages:
            with interrupts.step():
                _print_and_settle(consumer, printer, account, messages)
        elif not follow:
            return
        if not follow:
            patience = timedelta()  # the wait was for the first one


def _print_and_settle(
    consumer: Consumer,
    printer: BodyPrinter[ReceivedMessage],
    account: Account,
    messages: list[ReceivedMessage],
) -> None:
    """Print messages, flush, and only then ack: a message that was not printed must come again."""
    for message in messages:
        printer.print(message)
        account.printed += 1
    sys.stdout.flush()
    if account.how is Settle.ACK:
        consumer.ack(messages)
    elif account.how is Settle.NACK:
        account.held.update({message.id: message for message in messages})
        return
    account.settled += len(messages)


def _give_back(consumer: Consumer, account: Account) -> None:
    """Give back the messages that --nack printed; a message whose timeout has passed is back already."""
    if account.held:
        with suppress(LeaseLost):
            consumer.nack(list(account.held.values()))
        account.settled += len(account.held)


@contextmanager
def _consumer(queue: Queue, how: Settle) -> Iterator[Consumer]:
    """Open a consumer; with --no-ack, close it without giving back the messages it holds."""
    consumer = queue.consumer()
    if how is not Settle.LEAVE:
        with consumer:
            yield consumer
        return
    try:
        yield consumer
    finally:
        consumer.close(give_back=False)
