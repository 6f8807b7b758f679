"""`cqueue receive`: print messages, and ack them once they are printed."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from enum import Enum
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.interrupts import Interrupts, accounted
from cqueue.cli.messages import message_fields
from cqueue.cli.opening import open_queue
from cqueue.cli.options import QueueName, number
from cqueue.cli.outage import Outage, closed_when_unread
from cqueue.cli.render import BodyPrinter
from cqueue.cli.values import counted, show_moment
from cqueue.errors import BadInput, LeaseLost

if TYPE_CHECKING:
    from cqueue.consumer import Consumer
    from cqueue.message import MessageId
    from cqueue.received import ReceivedMessage

app = typer.Typer()

BATCH = 100
DEFAULT_MAX = 10
FOLLOW_WAIT = timedelta(seconds=5)
"""How long one receive waits under --follow, before the next one; an outage is told at its end."""


class Settle(Enum):
    """How a printed message is settled."""

    ACK = "acked"
    NACK = "nacked"
    LEAVE = "left to the timeout"


class Receiving:
    """The messages of one command: received, printed, and only then settled."""

    def __init__(self, printer: BodyPrinter[ReceivedMessage], how: Settle) -> None:
        self._printer = printer
        self._how = how
        self._settled = 0
        self.step = Lock()  # held from the printing to the ack
        # Printed under --nack: given back after the last receive, or the next one would get them again.
        self._held: dict[MessageId, ReceivedMessage] = {}

    def account(self) -> str:
        """Say what was printed, and what became of it."""
        printed = self._printer.printed
        text = f"{counted(printed, 'message')} printed, {self._settled:,} of them {self._how.value}."
        if self._settled < printed:
            text += f" The other {printed - self._settled:,} may come again."
        if self._printer.is_cut_off:
            text += " More may have been written out; it is not settled, and comes again."
        return text

    def run(
        self,
        consumer: Consumer,
        interrupts: Interrupts,
        limit: int | None,
        wait: timedelta,
        follow: Outage | None,
    ) -> None:
        """Print until the limit is reached, nothing more is due, or Ctrl-C comes.

        follow: waits for more, and until Cassandra answers.
        """
        while limit is None or self._printer.printed < limit:
            want = BATCH if limit is None else min(BATCH, limit - self._printer.printed)
            receive = partial(consumer.receive, want)
            messages = follow.outlive(receive, wait) if follow else receive(wait)
            if any(message.id in self._held for message in messages):
                break  # a slow reader of a pipe let the first ones' timeout pass
            if messages:
                with interrupts.step(), self.step:
                    self._printer.print_all(messages)
                    interrupts.is_printed = True
                    self._settle(consumer, messages)
            elif not follow:
                break
            if not follow:
                wait = timedelta()  # the wait was for the first one
        if self._held:
            with suppress(LeaseLost):  # a message whose timeout has passed is back already
                consumer.nack(list(self._held.values()))
            self._settled += len(self._held)

    def _settle(self, consumer: Consumer, messages: list[ReceivedMessage]) -> None:
        """Ack messages once they are printed and flushed: one that was not printed must come again."""
        if self._how is Settle.NACK:
            self._held.update({message.id: message for message in messages})
            return
        if self._how is Settle.ACK:
            consumer.ack(messages)
        self._settled += len(messages)


@command(app)
def receive(
    cli: CliContext,
    name: QueueName,
    *,
    max_: Annotated[
        int | None,
        number(
            f"At most this many; by default {DEFAULT_MAX}, without limit under --follow.", 1, None, "--max"
        ),
    ] = None,
    wait: Annotated[timedelta | None, "How long to wait for the first message; by default 0s."] = None,
    ack: Annotated[
        bool | None,
        "--ack/--no-ack",
        "Ack what is printed (the default), or leave it to its timeout.",
    ] = None,
    nack: Annotated[bool, "Give all of them back at the end instead; the attempt counts."] = False,
    follow: Annotated[bool, "--follow -f", "Go on until Ctrl-C."] = False,
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
    patience = FOLLOW_WAIT if follow else wait or timedelta()
    printer = BodyPrinter(cli, received_fields, _about)
    receiving = Receiving(printer, how)
    with open_queue(cli, name) as queue, accounted(cli, receiving.account) as interrupts:
        if is_paused := queue.paused:
            cli.remark(f"Queue {name} is paused; `cqueue queue resume {name}` lets its messages be received.")
        consumer = queue.consumer()
        close = partial(consumer.close, give_back=how is not Settle.LEAVE)
        with closed_when_unread(close, receiving.step):
            receiving.run(consumer, interrupts, limit, patience, Outage(cli) if follow else None)
    if not printer.printed and not is_paused:
        cli.remark(f"Queue {name} has nothing that is due.")


def received_fields(message: ReceivedMessage) -> dict[str, Any]:
    """Return what --json shows of a message that was received."""
    more = {"attempt": message.attempt, "visible_again": message.visible_again}
    return {**message_fields(message), **more}


def _about(message: ReceivedMessage) -> list[str]:
    priority = [f"priority {message.priority}"] if message.priority else []
    return [f"sent {show_moment(message.sent_at)}", f"attempt {message.attempt}", *priority]
