"""`Unique`: when a message is not to be sent twice, and what happens to the second one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, get_args

from cqueue.errors import BadInput
from cqueue.protocol.unique import Rule
from cqueue.runtime.durations import given
from cqueue.runtime.texts import check_text

While = Literal["pending", "running", "ever"]
OnConflict = Literal["raise", "skip", "replace", "debounce", "throttle"]

SHORTEST_WITHIN: Final = timedelta(milliseconds=1)
LONGEST_WITHIN: Final = timedelta(days=3650)
"""Range of `within`: up to ten years, as a delay."""
USUAL_WHILE: Final = {"debounce": "pending", "throttle": "ever"}
"""What `while_` is by default, by `on_conflict`; otherwise "running"."""


@dataclass(frozen=True, slots=True)
class Unique:
    """Send a message only if no other message of its key, in the same queue, is in the way.

    All senders of a key should give the same `Unique`. The message of an earlier one is judged by the later
    one's.

    Attributes:
        key: 1 to 1,000 characters. None: the message's `key`; for a task, its name and arguments.
        args: of a task, the names of the arguments that make the key; None for all of them.
        while_: how long a message is in the way. "pending": while it waits for a consumer, also between two
            attempts. "running": also while a consumer holds it. "ever": also when it is done. A dead letter
            is not in the way, except with "ever". Default: "running"; "pending" with `debounce`, "ever" with
            `throttle`.
        within: no longer than this after it was sent, 1 ms to ten years. None: no such limit, but a message
            that waits for more than 30 days after it was due is not in the way any more, unless with "ever".
        on_conflict: "raise" `Duplicate`. "skip" the send: the returned id is that of the message in the way,
            and its `skipped` is True. "replace" that message, which is deleted. "debounce": replace it while
            it waits, so that a `delay` begins anew with each send. "throttle": skip; at most one message is
            sent `within` that time.

    Example:
        queue.send(b"...", unique=Unique(key="report-7", on_conflict="skip"))
    """

    key: str | None = None
    args: tuple[str, ...] | None = None
    while_: While | None = None
    within: timedelta | None = None
    on_conflict: OnConflict = "raise"

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            BadInput: a value is out of range, or does not fit another one.
        """
        if self.key is not None:
            check_text("the unique key", self.key)
        if self.on_conflict not in get_args(OnConflict):
            raise BadInput(f"on_conflict is {self.on_conflict!r}; it takes {', '.join(get_args(OnConflict))}")
        if self.while_ is not None and self.while_ not in get_args(While):
            raise BadInput(f"while_ is {self.while_!r}; it takes {', '.join(get_args(While))}")
        if self.within is not None and (
            not isinstance(self.within, timedelta) or not SHORTEST_WITHIN <= self.within <= LONGEST_WITHIN
        ):
            raise BadInput(f"within is {given(self.within)}; it goes from 1 ms to 10 years")
        usual = USUAL_WHILE.get(self.on_conflict)
        if usual is not None and self.while_ not in {None, usual}:
            raise BadInput(f"{self.on_conflict} goes with {usual!r}, not with {self.while_!r}")
        if self.on_conflict == "throttle" and self.within is None:
            raise BadInput("throttle lets one message through within a time: say within how long")
        if self.args is not None and (
            self.key is not None
            or not isinstance(self.args, tuple)
            or not all(isinstance(name, str) for name in self.args)
        ):
            raise BadInput(f"args is {self.args!r}; it takes a tuple of names, and no key beside it")


def rule_of(unique: Unique, key: str) -> Rule:
    """Return the rule for the protocol."""
    return Rule(
        key=key,
        while_=unique.while_ or USUAL_WHILE.get(unique.on_conflict, "running"),  # type: ignore[arg-type]
        within_us=None if unique.within is None else unique.within // timedelta(microseconds=1),
        replace=unique.on_conflict in {"replace", "debounce"},
    )
