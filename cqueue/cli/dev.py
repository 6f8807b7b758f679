"""`cqueue dev`: a real Cassandra on this machine, started and stopped by one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cqueue.cli.commands import command
from cqueue.cli.confirm import Yes, confirm
from cqueue.cli.context import CliContext
from cqueue.cli.interrupts import held_back
from cqueue.cli.options import number
from cqueue.cli.table import print_table
from cqueue.dev import ClusterState, DevCluster, Status, ensure_jars
from cqueue.settings import DEFAULT_URL

app = typer.Typer(
    help="Run a real Cassandra on this machine, without Docker (needs Java 17; Maven for the first start).",
    no_args_is_help=True,
)

Directory = Annotated[
    Path | None, "--dir DIR", "Where the cluster lives; by default cqueue/dev in $XDG_DATA_HOME."
]


@command(app)
def start(
    cli: CliContext,
    *,
    nodes: Annotated[int | None, "1 to 9, by default 1; fixed until `wipe`."] = None,
    commitlog_sync: Annotated[
        Literal["batch", "periodic"] | None,
        "MODE",
        "By default `batch`; `periodic` loses acknowledged writes when a node is killed.",
    ] = None,
    heap: Annotated[
        str | None, "SIZE", "Of each node; by default 512m, or 640m if there are several."
    ] = None,
    directory: Directory = None,
    cql_port: Annotated[int | None, "Where clients connect; by default 9042."] = None,
    storage_port: Annotated[int | None, "Where nodes connect; by default 7000."] = None,
    auth: Annotated[bool | None, "--auth/--no-auth", "Ask for a password, and check grants."] = None,
    tls: Annotated[bool | None, "--tls/--no-tls", "Encrypt connections (needs OpenSSL 3)."] = None,
    client_certificates: Annotated[
        bool | None,
        "--client-certs/--no-client-certs",
        "With --tls: refuse clients that have no certificate.",
    ] = None,
) -> None:
    """Start the cluster, or what is missing of it, and wait until it answers.

    Options that are not given keep what the cluster was made with.
    """
    cluster = DevCluster(
        directory,
        nodes=nodes,
        commitlog_sync=commitlog_sync,
        heap=heap,
        cql_port=cql_port,
        storage_port=storage_port,
        auth=auth,
        tls=tls,
        client_certificates=client_certificates,
    )
    with held_back(), cli.status("Starting Cassandra") as progress:
        status = cluster.start(progress)
    _show(cli, status)


@command(app)
def status(cli: CliContext, *, directory: Directory = None) -> None:
    """Show the nodes and the URL under which they are found."""
    _show(cli, DevCluster(directory).status())


@command(app)
def stop(cli: CliContext, *, directory: Directory = None) -> None:
    """Stop all nodes. The data stays."""
    cluster = DevCluster(directory)
    with cli.status("Stopping Cassandra"):
        cluster.stop()
    _show(cli, cluster.status())


@command(app)
def wipe(cli: CliContext, *, directory: Directory = None, yes: Yes = False) -> None:
    """Stop all nodes and delete their data."""
    cluster = DevCluster(directory)
    confirm(cli, f"Delete the Cassandra in {cluster.directory} and all its data?", yes=yes)
    with cli.status("Deleting the cluster"):
        cluster.wipe()
    _show(cli, cluster.status())


@command(app)
def logs(
    cli: CliContext,
    *,
    node: Annotated[int, "Which node, from 1."] = 1,
    lines: Annotated[int, number("How many of the last lines.", 1)] = 50,
    directory: Directory = None,
) -> None:
    """Show the end of a node's log."""
    found = DevCluster(directory).logs(node, lines)
    cli.emit(found, lambda: cli.line("\n".join(found)) if found else None)


@command(app)
def jars(cli: CliContext) -> None:
    """Fetch the server, so that the first start need not."""
    with cli.status("Looking for the server") as progress:
        found = ensure_jars(progress)
    folder = found[0].parent
    cli.emit(
        {"directory": str(folder), "jars": len(found)}, lambda: cli.line(f"{len(found)} jars in {folder}")
    )


def _show(cli: CliContext, current: Status) -> None:
    cli.emit(current, lambda: _print(cli, current))


def _print(cli: CliContext, current: Status) -> None:
    cli.line(f"Cassandra: {current.state.value}")
    if current.nodes:
        rows = [
            # A pid is to be copied: no comma within it.
            (one.number, f"{one.address}:{one.port}", one.pid and str(one.pid), one.state.value)
            for one in current.nodes
        ]
        print_table(cli, ("node", "address", "pid", "state"), rows, right=("pid",))
    if current.state is not ClusterState.STOPPED and current.url:
        cli.line(f"URL: {current.url}")
        if current.url != DEFAULT_URL:
            cli.line("Programs do not find it by themselves. Run this in each terminal:")
            cli.line(f"export CQUEUE_URL='{current.url}'")  # alone, so that the line can be copied
