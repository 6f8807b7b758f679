"""Predicates over the messages of a queue: what `Queue.list` and `Queue.exists` look for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final

from cqueue.errors import BadInput
from cqueue.message import MAX_DELAY, MAX_PRIORITY, check_duration, check_headers
from cqueue.protocol.inspection import Found
from cqueue.runtime.durations import show_duration

STATES: Final = ("ready", "claimed", "waiting", "delayed", "expired", "quarantined")
"""States of a stored message, as `StoredMessage.state` has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What messages have to be like: all that is given must be true of them.

    Attributes:
        headers: headers that the message has, with these values; it may have others.
        state: one or several of ready, claimed (a consumer holds it), waiting (nacked or snoozed), delayed,
            expired and quarantined.
        task: its task's name.
        priority: one or several of 0 to 9. Messages of other priorities are not read.
        older_than: sent this long ago or longer, 0 to 10 years.
        younger_than: sent less than this long ago, 0 to 10 years.

    Raises:
        BadInput: a value is out of its range, a name or type is wrong, or the two ages leave no time between
            them.

    Example:
        Where(task="shop:pay", headers={"tenant": "7"}, state=("waiting", "claimed"))
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    state: str | Collection[str] | None = None
    task: str | None = None
    priority: int | Collection[int] | None = None
    older_than: timedelta | None = None
    younger_than: timedelta | None = None

    def __post_init__(self) -> None:
        """Check each field."""
        check_headers(self.headers)
        checked_states(self.state, STATES)
        if self.task is not None and (not isinstance(self.task, str) or not self.task):
            raise BadInput(f"task is {self.task!r}; it takes a text that is not empty")
        for priority in _each(self.priority, "priority"):
            if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
                raise BadInput(f"priority is {priority!r}; it goes from 0 to {MAX_PRIORITY}")
        for name, age in (("older_than", self.older_than), ("younger_than", self.younger_than)):
            if age is not None:
                check_duration(name, age, timedelta(), MAX_DELAY)
        older, younger = self.older_than, self.younger_than
        if older is not None and younger is not None and older >= younger:
            raise BadInput(
                f"older_than is {show_duration(older)} and younger_than {show_duration(younger)}: no message "
                "is older than the one and younger than the other"
            )


def as_where(given: Where | Mapping[str, Any] | None) -> Where:
    """Return predicates that are given as `Where`, or as a mapping of its fields.

    Raises:
        BadInput: there is no such field, or a value is wrong.
    """
    if given is None or isinstance(given, Where):
        return given or Where()
    if not isinstance(given, Mapping):
        raise BadInput(f"where is a {type(given).__name__}; it takes a Where, or a mapping of its fields")
    known = [one.name for one in fields(Where)]
    for name in given:
        if name not in known:
            raise BadInput(f"where has no {name!r}; it has {', '.join(known)}")
    return Where(**given)


def priorities_of(where: Where) -> frozenset[int] | None:
    """Return the priorities to read; None: all."""
    return None if where.priority is None else frozenset(_each(where.priority, "priority"))


def fits_at(where: Where, now_us: int) -> Callable[[Found], bool]:
    """Return a function that says of a stored message whether it is like this. now_us: cluster time."""
    states = checked_states(where.state, STATES)
    latest_ms = None if where.older_than is None else (now_us - _us(where.older_than)) // 1000
    after_ms = None if where.younger_than is None else (now_us - _us(where.younger_than)) // 1000

    def fits(found: Found) -> bool:
        row, headers = found.row, found.row.headers or {}
        return (
            (not states or found.state in states)
            and (where.task is None or row.task == where.task)
            and (latest_ms is None or row.sent_at <= latest_ms)
            and (after_ms is None or row.sent_at > after_ms)
            and all(headers.get(name) == text for name, text in where.headers.items())
        )

    return fits


def checked_states(given: str | Collection[str] | None, known: Sequence[str]) -> frozenset[str]:
    """Return one state or several; none if none is given.

    Raises:
        BadInput: one is not among those that there are.
    """
    states = _each(given, "state")
    for state in states:
        if state not in known:
            raise BadInput(f"state is {state!r}; it takes {', '.join(known)}")
    return frozenset(states)


def _each(given: Any, name: str) -> Collection[Any]:
    """Return one value or several as several."""
    if given is None or isinstance(given, str | int):
        return () if given is None else (given,)
    if not isinstance(given, Collection) or not given:
        raise BadInput(f"{name} is {given!r}; it takes one value or several")
    return given


def _us(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
