"""`python -m cqueue` is the `cqueue` command."""

from __future__ import annotations

from cqueue.cli.main import run

if __name__ == "__main__":
    run()
