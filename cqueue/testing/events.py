"""Lines of a history: what a client asked, and what it was told.

A call leaves two lines: *invoke* before anything happens, and *ok*, *fail* (certainly not done) or *unknown*
after. A killed process leaves an invoke without an end, which is judged as unknown. Lines are ordered by the
monotonic clock, which all processes of a machine share; the wall clock is for people.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cqueue.errors import BadInput

INVOKE: Final = "invoke"
OK: Final = "ok"
FAIL: Final = "fail"
UNKNOWN: Final = "unknown"
SKIPPED: Final = "skipped"
"""Outcome of one message of a send: not sent, as another one of its unique key was in the way."""
NEVER: Final = math.inf
"""Time of an event that does not happen."""

Note = Mapping[str, Any]
"""Values about a message or a call."""


class HistoryError(BadInput):
    """A file is no history, or a damaged one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLine:
    """One line of a history.

    Attributes:
        operation: send, receive, ack, nack, snooze, extend, dead, close or left.
        phase: invoke, ok, fail or unknown.
        call: number of the call in its process.
        process: name of the process.
        holder: the consumer; for a send the thread.
        queue: name of the queue.
        mono_ns, wall_ns: monotonic and wall time, in ns.
        cluster_us: the client's cluster time, in µs since 1970; None if unknown.
        messages: notes about the call's messages.
        note: note about the call.
    """

    operation: str
    phase: str
    call: int
    process: str
    holder: str
    queue: str
    mono_ns: int
    wall_ns: int = 0
    cluster_us: int | None = None
    messages: tuple[Note, ...] = ()
    note: Note = field(default_factory=dict)

    def line(self) -> bytes:
        """Return the line as the file stores it."""
        values = {name: getattr(self, name) for name in HistoryLine.__slots__}
        kept = {name: value for name, value in values.items() if value not in (None, (), {})}
        return json.dumps(kept, separators=(",", ":")).encode() + b"\n"


@dataclass(slots=True)
class Call:
    """What a client did: an invocation and its end."""

    operation: str
    queue: str
    owner: tuple[str, str]  # process, holder
    began_ns: float
    asked: tuple[Note, ...]
    ended_ns: float = NEVER
    outcome: str = UNKNOWN
    answered: tuple[Note, ...] = ()
    cluster_us: int | None = None
    wall_ns: int = 0
    note: Note = field(default_factory=dict)


def read(paths: Iterable[Path]) -> Iterator[HistoryLine]:
    """Yield all lines of these files. A last line that a kill has cut off is left out.

    Raises:
        HistoryError: any other line cannot be read.
    """
    for path in paths:
        lines = path.read_bytes().split(b"\n")
        # After the last newline comes nothing, or a line that a kill has cut off.
        for number, line in enumerate(lines[:-1], 1):
            yield _parse(line, f"{path}:{number}")


def _parse(line: bytes, where: str) -> HistoryLine:
    try:
        values = json.loads(line)
        return HistoryLine(**{**values, "messages": tuple(values.get("messages", ()))})
    except (ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise HistoryError(f"{where} is not a line of a history: {exc}") from exc


def calls(events: Iterable[HistoryLine]) -> list[Call]:
    """Return invocations with their ends, in the order of their beginnings.

    Raises:
        HistoryError: an end has no beginning.
    """
    ordered = sorted(events, key=lambda event: (event.mono_ns, event.phase != INVOKE))
    found: dict[tuple[str, int], Call] = {}
    for event in ordered:
        key = (event.process, event.call)
        if event.phase == INVOKE:
            owner = (event.process, event.holder)
            found[key] = Call(
                event.operation, event.queue, owner, event.mono_ns, event.messages, note=event.note
            )
        elif key in found:
            _end(found[key], event)
        else:
            raise HistoryError(f"call {event.call} of {event.process} ends without having begun")
    return list(found.values())


def _end(call: Call, event: HistoryLine) -> None:
    call.ended_ns = event.mono_ns
    call.outcome = event.phase
    call.answered = event.messages
    call.cluster_us = event.cluster_us
    call.wall_ns = event.wall_ns
    call.note = {**call.note, **event.note}
