"""Lines of a history: what a client asked, and what it was told.

A call leaves two lines: *invoke* before anything happens, and one of *ok*, *fail* (certainly not done)
or *unknown* after. A process that is killed leaves an invoke without an end, which is judged as
unknown. All order comes from the monotonic clock, which all processes of a machine share; the wall
clock is there for people.
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
NEVER: Final = math.inf

Note = Mapping[str, Any]


class HistoryError(BadInput):
    """A file is no history, or a damaged one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line. holder: the consumer, or for a send the thread. cluster_us: the client's cluster time."""

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
        """As it stands in the file."""
        values = {name: getattr(self, name) for name in Event.__slots__}
        kept = {name: value for name, value in values.items() if value not in (None, (), {})}
        return json.dumps(kept, separators=(",", ":")).encode() + b"\n"


@dataclass(slots=True)
class Call:
    """What a client did: an invocation and what became of it."""

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


def read(paths: Iterable[Path]) -> Iterator[Event]:
    """All events of these files. A last line that is cut off, by a kill in mid-write, is left out.

    Raises:
        HistoryError: any other line cannot be read.
    """
    for path in paths:
        lines = path.read_bytes().split(b"\n")
        # After the last newline stands nothing, or a line that a kill cut off.
        for number, line in enumerate(lines[:-1], 1):
            yield _parse(line, f"{path}:{number}")


def _parse(line: bytes, where: str) -> Event:
    try:
        values = json.loads(line)
        return Event(**{**values, "messages": tuple(values.get("messages", ()))})
    except (ValueError, TypeError, AttributeError) as exc:
        raise HistoryError(f"{where} is not a line of a history: {exc}") from exc


def calls(events: Iterable[Event]) -> list[Call]:
    """Invocations with their ends, in order of their beginnings.

    Raises:
        HistoryError: an end without a beginning.
    """
    ordered = sorted(events, key=lambda event: (event.mono_ns, event.phase != INVOKE))
    found: dict[tuple[str, int], Call] = {}
    for event in ordered:
        key = (event.process, event.call)
        if event.phase == INVOKE:
            owner = (event.process, event.holder)
            found[key] = Call(event.operation, event.queue, owner, event.mono_ns, event.messages)
            found[key].note = event.note
        elif key in found:
            _end(found[key], event)
        else:
            raise HistoryError(f"call {event.call} of {event.process} ends without having begun")
    return list(found.values())


def _end(call: Call, event: Event) -> None:
    call.ended_ns = event.mono_ns
    call.outcome = event.phase
    call.answered = event.messages
    call.cluster_us = event.cluster_us
    call.wall_ns = event.wall_ns
    call.note = {**call.note, **event.note}
