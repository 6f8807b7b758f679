"""`cqueue dc`: in which data centre clients work, and moving them to another one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cqueue.cli.commands import command
from cqueue.cli.confirm import Yes, YesLater, confirm
from cqueue.cli.context import CliContext
from cqueue.errors import BadInput

if TYPE_CHECKING:
    from cqueue.schema import Centre, Decision

app = typer.Typer(help="Show and move the data centre that clients work in.", no_args_is_help=True)

Reason = Annotated[str, "TEXT", "For the record that `show` prints."]

_NOT_TOLD = (
    "Clients that still run in {home} cannot be told. Stop every one of them: they would go on to deliver "
    "messages, and drop what clients of {new} send."
)
_RESUME = (
    "No partition is dropped from now on. Repair every node of all data centres, once {home} can be "
    "reached, and run `cqueue dc resume-retiring --repaired`; if {home} never comes back, `--given-up`."
)


@command(app, "show")
def show_command(cli: CliContext) -> None:
    """Show the home of the keyspace, whether partitions are dropped, and who decided what."""
    from cqueue.schema import newest_centre  # noqa: PLC0415 - the driver is slow to import

    with cli.connection() as connection:
        centre = newest_centre(connection, cli.settings())
    _emit(cli, centre)


@command(app, "switch")
def switch_command(
    cli: CliContext,
    new_dc: Annotated[str, "NEW_DC", "The data centre to work in from now on."],
    *,
    old_centre_lost: Annotated[bool, "Do not wait for the old one. Its clients must be stopped."] = False,
    reason: Reason = "",
    yes: Yes = False,
) -> None:
    """Move the home of the keyspace, with local_dc=NEW_DC in the URL.

    Stop all clients in the old one first. From then on clients there are refused, and no partition is dropped
    until `resume-retiring`.
    """
    from cqueue.schema import read_centre, switch_home  # noqa: PLC0415 - as above

    settings = cli.settings()
    with cli.connection() as connection:
        home = read_centre(connection, settings).deployment.home_dc
        question = f"Let clients of keyspace {settings.keyspace} work in {new_dc}, and no longer in {home}?"
        if old_centre_lost:
            question = f"{_NOT_TOLD.format(home=home, new=new_dc)} {question}"
        confirm(cli, question, yes=yes, otherwise="Nothing was changed.")
        centre = switch_home(connection, settings, new_dc, old_centre_lost=old_centre_lost, reason=reason)
    _emit(cli, centre)
    if old_centre_lost:
        cli.remark(_NOT_TOLD.format(home=home, new=new_dc))
    cli.remark(_RESUME.format(home=home))


@command(app, "resume-retiring")
def resume_command(
    cli: CliContext,
    *,
    repaired: Annotated[bool, "The old home is back, and every node has been repaired."] = False,
    given_up: Annotated[bool, "It never comes back; what it had not copied is lost."] = False,
    reason: Reason = "",
    yes: YesLater = False,
) -> None:
    """After a switch, let partitions be dropped again. Consumers first look for what has come back."""
    from cqueue.schema import resume_retiring  # noqa: PLC0415 - as above

    if repaired == given_up:
        raise BadInput("Say --repaired or --given-up, one of them.")
    settings = cli.settings()
    question = "Has every node of all data centres been repaired, to its end, since the old home came back?"
    if given_up:
        question = "Give up, for good, what the old home acknowledged and has not copied?"
    confirm(cli, question, yes=yes, otherwise="Nothing was changed.")
    with cli.connection() as connection:
        centre = resume_retiring(connection, settings, repaired=repaired, reason=reason)
    _emit(cli, centre)


def _emit(cli: CliContext, centre: Centre) -> None:
    row = centre.deployment
    cli.emit(
        {
            "serial_consistency": row.serial_consistency,
            "home": row.home_dc,
            "epoch": row.centre_epoch,
            "retiring": row.retiring,
            "opens_at": _time(row.opens_at_ms) if row.opens_at_ms else None,
            "decisions": [{"at": _text(one.at), **one.did} for one in centre.decisions],
        },
        lambda: "\n".join(_lines(centre)),
    )


def _lines(centre: Centre) -> list[str]:
    row = centre.deployment
    nowhere = "every data centre (serial)" if row.serial_consistency == "serial" else "not recorded yet"
    kept = "all kept, until `cqueue dc resume-retiring`"
    shown = {
        "home": row.home_dc or nowhere,
        "epoch": row.centre_epoch,
        "partitions": "dropped when they are done with" if row.retiring else kept,
        **({"opens at": _time(row.opens_at_ms)} if row.opens_at_ms else {}),
    }
    return [*(f"{name:<11}{value}" for name, value in shown.items()), *map(_line, centre.decisions)]


def _line(decision: Decision) -> str:
    did = decision.did
    if did["what"] == "switch":
        lost = " (old centre lost)" if did["old_centre_lost"] else ""
        what = f"switch {did['from']} → {did['to']}{lost}"
    else:
        what = "resume retiring, " + ("repaired" if did["repaired"] else "given up")
    reason = f": {did['reason']}" if did["reason"] else ""
    return f"{_text(decision.at)}  {did['who']}  {what}{reason}"


def _time(ms: int) -> str:
    return _text(datetime.fromtimestamp(ms / 1000, UTC))


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
