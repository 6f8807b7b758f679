"""The `cqueue` command, also as `python -m cqueue`. It imports the rest where it can answer a Ctrl-C."""

from __future__ import annotations

import sys


def run() -> None:
    """Entry point of the installed command."""
    try:
        from cqueue.cli.main import main  # noqa: PLC0415 - this is what takes the time of the start

        code: int = main()
    except KeyboardInterrupt:  # before `main` reports it
        sys.stderr.write("Interrupted.\n")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    run()
