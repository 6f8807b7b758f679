"""`cqueue schema`: plan, apply, verify."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext, output
from cqueue.cli.failures import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cqueue.schema import Drift, Options, Progress

app = typer.Typer(help="Make a keyspace ready, bring it up to date, or check it.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of the keyspace that `plan` and `apply` share."""

    replication: Annotated[
        str | None, "DC=N,…", "Copies per data centre. \\[default: min(3, nodes) locally]"
    ] = None
    compaction: Annotated[
        str | None, "ucs|lcs|stcs|JSON", "Compaction of the large tables. \\[default: ucs]"
    ] = None
    gc_grace: Annotated[
        int | None, "SECONDS", "How long deletions are kept, above 3 h. \\[default: 86400]"
    ] = None
    serial_consistency: Annotated[str | None, "local_serial|serial", "Fixed once and for all."] = None
    settle: Annotated[
        int | None, "MS", "Bound on how long a send takes to become readable. \\[default: 2000]"
    ] = None
    skew: Annotated[int | None, "MS", "Bound on the disagreement of two clocks. \\[default: 500]"] = None
    only_pre: Annotated[bool, "Only migrations that are safe while old code is running."] = False

    def checked(self) -> Options:
        """Parse what was given.

        Raises:
            ConfigError: a value means nothing, or is out of its range.
        """
        from cqueue.schema import Options, parse_compaction, parse_replication  # noqa: PLC0415 - the driver is slow

        serial: Any = None if self.serial_consistency is None else self.serial_consistency.lower()
        return Options(
            replication=None if self.replication is None else parse_replication(self.replication),
            compaction=None if self.compaction is None else parse_compaction(self.compaction),
            gc_grace_s=self.gc_grace,
            serial_consistency=serial,
            settle_ms=self.settle,
            skew_ms=self.skew,
        )


@command(app, "plan")
def plan_command(
    cli: CliContext,
    wanted: Wanted,
    *,
    offline: Annotated[bool, "Do not connect: assume nothing exists."] = False,
) -> None:
    """Print the CQL that `apply` would run, and change nothing. The output can be piped to cqlsh."""
    from cqueue.schema import State, plan, read_state, render_plan  # noqa: PLC0415 - the driver is slow to import

    options = wanted.checked()
    settings = cli.settings()
    if offline:
        state = State(keyspace=settings.keyspace)
    else:
        with cli.connection() as connection:
            state = read_state(connection, settings.keyspace)
    planned = plan(options, state, settings, only_pre=wanted.only_pre)
    if cli.json:
        cli.emit(planned)
    else:
        output().write(render_plan(planned))


@command(app, "apply")
def apply_command(cli: CliContext, wanted: Wanted) -> None:
    """Make the keyspace and its tables, or bring them up to date. Repeating it does nothing.

    Exit code 1: an existing keyspace differs from these options; what to run is printed, nothing is altered.
    """
    from cqueue.schema import apply  # noqa: PLC0415 - as above

    options = wanted.checked()
    settings = cli.settings()
    with cli.connection() as connection, _progress(cli) as report:
        result = apply(connection, settings, options, only_pre=wanted.only_pre, report=report)
    for note in result.notes:
        cli.remark(note)
    done = len(result.statements)
    idle = "nothing altered. What differs, and what changes it:" if result.drift else "nothing to do."
    cli.emit(result, f"{settings.address}: {f'{done} statements run.' if done else idle}")
    _show_drift(cli, result.drift)


@command(app, "verify")
def verify_command(cli: CliContext) -> None:
    """Compare the keyspace with this version of cqueue and its recorded options.

    Exit code 1: they differ; each difference is named.
    """
    from cqueue.schema import verify  # noqa: PLC0415 - as above

    settings = cli.settings()
    with cli.connection() as connection:
        drift = verify(connection, settings)
    if cli.json or not drift:
        cli.emit({"keyspace": settings.keyspace, "drift": drift}, f"{settings.address}: no drift.")
    _show_drift(cli, drift)


@command(app, "roles")
def roles_command(
    cli: CliContext,
    *,
    make: Annotated[bool, "--apply", "Make them, as an operator who may."] = False,
) -> None:
    """Print the roles of bootstrap, producer, consumer, dispatcher and reader, with what each may do.

    The output can be piped to cqlsh. Repeating it grants what a newer version needs; nothing is revoked.
    """
    from cqueue import roles  # noqa: PLC0415 - as above

    settings = cli.settings()
    wanted = roles.statements(settings.keyspace)
    if make:
        from cqueue.schema.execute import run  # noqa: PLC0415 - as above
        from cqueue.store.connection import open_session  # noqa: PLC0415 - as above

        with open_session(settings) as connection:  # refused, with nothing made, while there is no keyspace
            for cql in wanted:
                run(connection.session, cql)
        cli.emit({"statements": wanted}, f"{settings.address}: {len(wanted)} statements run.")
    else:
        lines = (line if line.startswith("--") else f"{line};" for line in roles.render(settings.keyspace))
        cli.emit({"statements": wanted}, lambda: cli.line("\n".join(lines)))


def _show_drift(cli: CliContext, drift: Sequence[Drift]) -> None:
    """Name each difference and leave with exit code 1; without one, return."""
    if not drift:
        return
    if not cli.json:
        for item in drift:
            cli.line(str(item))
            for cql in item.cql:
                cli.line(f"    {cql};")
    raise typer.Exit(ExitCode.CHECK_FAILED)


@contextmanager
def _progress(cli: CliContext) -> Iterator[Callable[[Progress], None]]:
    """Show a bar on a terminal; elsewhere a line for each thing that is waited for."""
    if cli.json or not cli.err_console.is_terminal:
        yield lambda event: None if event.total else cli.remark(event.text)
        return
    with cli.bar("", None) as tell:
        yield lambda event: tell(event.done, total=event.total or None, text=event.text)
