"""`python -m cqueue.dev start`: the commands of `cqueue dev` alone, e.g. for `make setup`."""

from __future__ import annotations

import sys

import typer

from cqueue.cli.dev import app
from cqueue.errors import CqueueError


def main() -> None:
    """Run the command line; an error of ours is one message and exit code 1, no traceback."""
    try:
        app(prog_name="python -m cqueue.dev")
    except CqueueError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
