"""Keep an outcome unknown where what follows is not done: neither error may hide the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from cqueue.errors import NotDone, OutcomeUnknown

E = TypeVar("E", bound=BaseException)


def caused(error: E, cause: BaseException | None) -> E:
    """Return an error that is handed on as a value, with its cause."""
    error.__cause__ = cause
    return error


@contextmanager
def looking_again(unknown: OutcomeUnknown | None) -> Iterator[None]:
    """Look whether a change without an answer is stored. If that fails, it stays unknown."""
    try:
        yield
    except NotDone as exc:
        if unknown is None:
            raise
        raise unknown from exc


@contextmanager
def unknown_if_not_done(what: str) -> Iterator[None]:
    """Raise a `NotDone` as `OutcomeUnknown`: `what` was done before."""
    try:
        yield
    except NotDone as exc:
        raise OutcomeUnknown(f"{what}: repeat the call ({exc})") from exc
