"""Sources of bodies: an argument, a file or standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from cqueue.errors import BadInput


def check_source(body: str | None, file: Path | None, *, lines: bool, verb: str = "send") -> None:
    """Refuse all but exactly one source of bodies."""
    if body is not None and file is not None:
        raise BadInput("Give a body or --file, not both.")
    if lines and body not in {None, "-"}:
        raise BadInput("--lines reads standard input or --file; leave the body out.")
    if body is None and file is None and not lines:
        raise BadInput(f"Nothing to {verb}: give a body, - for standard input, --file or --lines.")


def read_body(body: str | None, file: Path | None) -> bytes:
    """Return the bytes of the body argument, of standard input for `-`, or of the file."""
    if body == "-":
        return sys.stdin.buffer.read()
    if body is not None:
        # What the shell passed may be no UTF-8; these are its bytes.
        return body.encode("utf-8", "surrogateescape")
    with open_source(file) as source:
        return source.read()


def open_source(file: Path | None) -> BinaryIO:
    """Open the file, or return standard input.

    Raises:
        BadInput: the file cannot be read.
    """
    if file is None:
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as exc:
        raise BadInput(f"{file} cannot be read: {exc.strerror}.") from exc


@contextmanager
def lines_of(file: Path | None) -> Iterator[BinaryIO]:
    """Open the file, closed at the end of the block, or yield standard input."""
    source = open_source(file)
    with closing(source) if file else nullcontext():
        yield source
