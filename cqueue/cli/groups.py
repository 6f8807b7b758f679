"""Commands that are imported when they are used, so that `cqueue --help` need not import all of them.

To add one, add a line to `ENTRIES`; its module exports `app`, a `typer.Typer`. An `app` with a single command
and no callback becomes that command, and so does a command of `app` that has the entry's name; others become
groups.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from cqueue.cli.context import CliContext, on_stderr
from cqueue.cli.failures import report_failure
from cqueue.errors import BadInput

GLOBAL_OPTIONS: Final = ("--url", "--verbose", "-v")
_JSON: Final = f"{__name__}.json"
"""Key in a context's `meta`: whether `--json` stands anywhere on the command line."""


def _without_types(kind: Any) -> None:
    """Let help show the words of a choice only: `--help <bool>` looks as if it took a value."""
    shown = kind.display_type

    def display_type(own: Any, ctx: Any) -> Any:
        is_choice = getattr(getattr(own, "type_descriptor", None), "is_choice", True)
        return shown(own, ctx) if is_choice else ""

    kind.display_type = display_type


with suppress(AttributeError):  # a later typer may show types in another way
    _without_types(TyperArgument)
    _without_types(TyperOption)


class Deferred(TyperCommand):
    """A placeholder of a command in listings; the command is imported when it is invoked or completed.

    Args:
        name: of the command.
        text: its line of `cqueue --help`.
        module: of this package; by default the one of that name.
    """

    def __init__(self, name: str, text: str, module: str = "") -> None:
        super().__init__(name, help=text)
        self._module = f"cqueue.cli.{module or name}"

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the real command; the caller goes on with the `command` in it."""
        return self.load().make_context(info_name, args, parent=parent, **extra)

    def load(self) -> Any:
        """Import the real command."""
        command: Any = typer.main.get_command(importlib.import_module(self._module).app)
        command = getattr(command, "commands", {}).get(self.name, command)
        command.name = self.name
        # Made as if it were a program of its own; completion belongs to `cqueue`.
        command.params = [param for param in command.params if not str(param.name).endswith("_completion")]
        return command


ENTRIES: Final = (
    Deferred("schema", "Make a keyspace ready, bring it up to date, or check it."),
    Deferred("dc", "Show and move the data centre that clients work in."),
    Deferred("doctor", "Look for what is wrong, and say what to do."),
    Deferred("dev", "Run a real Cassandra on this machine, without Docker."),
    Deferred("queue", "Make, look at, change and remove queues."),
    Deferred("send", "Send a message, or one a line."),
    Deferred("receive", "Receive messages, print them, ack them."),
    Deferred("peek", "Look at the first messages without receiving them.", "messages"),
    Deferred("list", "List messages by state, task, headers, age or priority.", "messages"),
    Deferred("find", "Show where a message stands, in any queue.", "messages"),
    Deferred("cancel", "Delete messages, so that they do not come any more.", "changes"),
    Deferred("reschedule", "Make messages due at another time.", "changes"),
    Deferred("set-priority", "Give messages another priority.", "changes"),
    Deferred("extend", "Keep what a consumer holds invisible for longer.", "changes"),
    Deferred("history", "Show what became of a queue's messages."),
    Deferred("dead", "Look at dead letters, send them back, drop them."),
    Deferred("stats", "Show what queues hold."),
    Deferred("dispatch", "Run the handlers of an application, as a daemon."),
    Deferred("metrics", "Show what all queues hold to Prometheus."),
    Deferred("workers", "Show which processes run handlers of which queues."),
    Deferred("web", "Serve the dashboard: queues in a browser (extra `web`)."),
    Deferred("schedule", "Make, look at, change and remove schedules."),
    Deferred("log", "Make logs, append to them, read and follow them."),
    Deferred("subscription", "Look at and move subscriptions to logs; run listeners."),
    Deferred("spool", "Look into a producer's spool, check it, forward what is left."),
    Deferred("spark", "Files, reports, archives and streams, by Spark (extra `spark`)."),
    Deferred("quarantine", "List, show and drop rows that cannot be read."),
    Deferred("demo", "Send and consume 10,000 messages, and account for each."),
    Deferred("bench", "Measure throughput, latency and idle cost."),
)


class LazyGroup(TyperGroup):
    """The group `cqueue`, with its deferred commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({str(entry.name): entry for entry in ENTRIES})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the global options; raise what `_in_json` raises."""
        ctx.meta[_JSON] = "--json" in args
        with _in_json(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; raise what `_in_json` raises. Typer says nothing of a Ctrl-C but its exit code."""
        try:
            with _in_json(ctx):
                return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort) as exc:
            if isinstance(exc, typer.Abort) and not isinstance(exc.__context__, KeyboardInterrupt):
                raise  # the input of a prompt has ended
            raise typer.Exit(report_failure(KeyboardInterrupt(), ctx.ensure_object(CliContext))) from None


@contextmanager
def _in_json(ctx: Any) -> Iterator[None]:
    """Print errors of usage, or let them be answered in JSON if `--json` stands anywhere, read or not.

    Raises:
        BadInput: the usage is wrong, and JSON is wanted.
        Exit: the usage is wrong, and that is printed, unless standard error takes nothing.
    """
    try:
        yield
    except typer.TyperException as exc:
        exc.message = exc.message.replace("Value error, ", "")  # a word of the library that checks values
        option = getattr(exc, "option_name", None)
        if option in GLOBAL_OPTIONS and ctx.invoked_subcommand:
            exc.message = f"{option} goes before the command: cqueue {option} … {ctx.invoked_subcommand} …"
        elif option and option[1:].isdigit():
            exc.message += ". Write -- before an argument that begins with a dash."
        message, cli = exc.format_message(), ctx.ensure_object(CliContext)
        cli.json = cli.json or ctx.meta[_JSON]
        if not message:  # help was printed
            raise
        if cli.json:
            raise BadInput(message) from exc
        with on_stderr():
            exc.show(sys.stderr or io.StringIO())  # type: ignore[attr-defined]  # all that Typer raises have it
        raise typer.Exit(exc.exit_code) from exc
