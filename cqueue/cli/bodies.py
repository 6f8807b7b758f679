"""Bodies: from an argument, a file or standard input, or of a task's arguments as people type them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from cqueue.errors import BadInput
from cqueue.runtime.texts import typed_json


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
        return standard_input().buffer.read()
    if body is not None:
        # What the shell passed may be no UTF-8; these are its bytes.
        return body.encode("utf-8", "surrogateescape")
    with open_source(file) as source:
        return source.read()


def standard_input() -> TextIO:
    """Return standard input.

    Raises:
        BadInput: the process was started without one.
    """
    if sys.stdin is None:
        raise BadInput("Standard input is closed.")
    return sys.stdin


@contextmanager
def open_source(file: Path | None) -> Iterator[BinaryIO]:
    """Open the file, closed at the end of the block, or yield standard input.

    Raises:
        BadInput: the file cannot be read, or standard input is closed.
    """
    if file is None:
        yield standard_input().buffer
        return
    try:
        source = file.open("rb")
    except OSError as exc:
        raise BadInput(f"{file} cannot be read: {exc.strerror}.") from exc
    with source:
        yield source


def encoded(args: str | None, kwargs: str | None = None) -> tuple[bytes, str]:
    """Return the body that `enqueue` would store, and its codec.

    args: a JSON array, or an object of arguments by name; kwargs: an object.

    Raises:
        BadInput: one of them is no such JSON.
    """
    from cqueue.dispatcher.application.payload import Arguments, codec, encode  # noqa: PLC0415 - not for --help

    positional: Any = [] if args is None else _json("--args", args)
    named: Any = {} if kwargs is None else _json("--kwargs", kwargs)
    if not isinstance(positional, list | dict):
        raise BadInput("--args takes a JSON array, or a JSON object of arguments by name.")
    if not isinstance(named, dict):
        raise BadInput("--kwargs takes a JSON object of arguments by name.")
    if isinstance(positional, dict):
        if kwargs is not None:
            raise BadInput("Give arguments by name in --args or in --kwargs, not in both.")
        positional, named = [], positional
    return encode(Arguments(tuple(positional), named), codec("json")), "json"


def _json(option: str, text: str) -> Any:
    try:
        return typed_json(text)
    except (ValueError, RecursionError) as exc:
        raise BadInput(f'{option} takes JSON such as \'["a@b", 3]\' or \'{{"to": "a@b"}}\': {exc}') from exc
