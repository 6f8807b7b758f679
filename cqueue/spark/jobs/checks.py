"""Checks of what jobs are given."""

from __future__ import annotations

from datetime import datetime

from cqueue.errors import BadInput


def check_aware(name: str, moment: datetime | None) -> None:
    """Check that a time has a zone.

    Raises:
        BadInput: the time has none.
    """
    if moment is not None and moment.tzinfo is None:
        raise BadInput(f"{name} is {moment}, without a time zone; give an aware datetime")


def check_count(name: str, count: int | None) -> None:
    """Check that a limit is a whole number of at least 1.

    Raises:
        BadInput: it is not.
    """
    if count is not None and (not isinstance(count, int) or count < 1):
        raise BadInput(f"{name} is {count!r}; it takes a whole number from 1 on")
