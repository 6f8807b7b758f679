"""The `cqueue` command: global options, and one place for errors and exit codes."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cqueue._version import __version__
from cqueue.cli.commands import print_json
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode, report_failure
from cqueue.cli.groups import LazyGroup

app = typer.Typer(
    cls=LazyGroup,
    name="cqueue",
    help="Durable queues on Apache Cassandra.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        args: without the program's name; None takes the process's own.
    """
    given = list(sys.argv[1:] if args is None else args)
    context = CliContext()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # shows what its encoding lacks
    try:
        typer.main.get_command(app).main(given, prog_name="cqueue", obj=context)
    except SystemExit as exc:
        return _exit_status(exc)
    except (Exception, KeyboardInterrupt) as exc:  # noqa: BLE001 - the place where all errors end
        return report_failure(exc, context)
    return ExitCode.DONE


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - called by typer
    if wanted:
        typer.echo(f"cqueue {__version__}")
        raise typer.Exit


@app.callback()
def _globals(
    context: typer.Context,
    *,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="cassandra://HOST/KEYSPACE?local_dc=DC (by default that of CQUEUE_URL or cqueue.toml).",
        ),
    ] = None,
    json: Annotated[  # noqa: ARG001 - its callback has done it
        bool, typer.Option("--json", help="Print results as JSON.", callback=print_json)
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Show tracebacks, and what the driver logs."),
    ] = False,
    version: Annotated[  # noqa: ARG001 - as above
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=_show_version,
        ),
    ] = False,
) -> None:
    obj = context.ensure_object(CliContext)
    obj.given_url, obj.verbose = url, verbose
    logging.getLogger("cqueue").addHandler(logging.NullHandler())  # a command says itself what matters
    if verbose:
        # The command is an application: what libraries may not do, it may.
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _exit_status(exc: SystemExit) -> int:
    return exc.code if isinstance(exc.code, int) else ExitCode.DONE if exc.code is None else ExitCode.USAGE
