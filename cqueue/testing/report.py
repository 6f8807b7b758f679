"""The result of checking a history."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

# Reasons that allow a further delivery of a message.
EXPIRED: Final = "timeout expired"
NACKED: Final = "nacked"
GIVEN_BACK: Final = "given back"
SEND_UNKNOWN: Final = "unknown send repeated"
REMADE: Final = "remade late"
PROMISES: Final = ("lost", "unexpected", "resurrected", "overlapping", "stale")
"""Fields of a report that hold broken promises, one kind each."""
SHOWN = 5
"""Broken promises of each kind in the text: enough to recognize a pattern."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that was broken for one message."""

    id: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key} ({self.id}): {self.text}"


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A delivery beyond the first.

    Attributes:
        id: id of the message.
        key: name of the message's body.
        reason: what allows the delivery.
        after_s: seconds since the delivery before it.
    """

    id: str
    key: str
    reason: str
    after_s: float


@dataclass(slots=True)
class Report:
    """The judgement of a history. The first five fields must be empty; the rest are figures.

    Attributes:
        lost: messages whose send was acknowledged, and that are neither acked, dead, expired, left nor
            replaced by another one of their unique key.
        unexpected: deliveries of messages that were never sent, or under an id that no send can have made.
        resurrected: deliveries by a receive that began after the message's ack was acknowledged.
        overlapping: deliveries to a second consumer before the first lease had expired or was given up.
        stale: later claims with a lower fence than an earlier one.
        duplicated: deliveries beyond the first, each with the reason that allows it.
        inversions: messages delivered after one that was sent later. Order is no promise.
        sends, unknown_sends, deliveries, acks: numbers of messages.
        early_s, late_s: longest time by which a first delivery came before, or after, its due time, in
            seconds.
    """

    lost: list[Finding] = field(default_factory=list)
    unexpected: list[Finding] = field(default_factory=list)
    resurrected: list[Finding] = field(default_factory=list)
    overlapping: list[Finding] = field(default_factory=list)
    stale: list[Finding] = field(default_factory=list)
    duplicated: list[Duplicate] = field(default_factory=list)
    inversions: int = 0
    sends: int = 0
    unknown_sends: int = 0
    deliveries: int = 0
    acks: int = 0
    early_s: float = 0.0
    late_s: float = 0.0

    @property
    def broken(self) -> list[tuple[str, Finding]]:
        """All broken promises, each with its kind."""
        return [(name, finding) for name in PROMISES for finding in getattr(self, name)]

    @property
    def clean(self) -> bool:
        """Whether every promise was kept."""
        return not self.broken

    @property
    def reasons(self) -> Counter[str]:
        """Numbers of duplicates by reason."""
        return Counter(duplicate.reason for duplicate in self.duplicated)

    def figures(self) -> dict[str, Any]:
        """Return all results as numbers."""
        counts = {name: getattr(self, name) for name in ("sends", "unknown_sends", "deliveries", "acks")}
        lengths = {name: len(getattr(self, name)) for name in (*PROMISES, "duplicated")}
        return {**counts, **lengths, "inversions": self.inversions}

    def __str__(self) -> str:
        """Return the figures, the reasons of duplicates, and the first broken promises of each kind."""
        lines = [" ".join(f"{name}={value}" for name, value in self.figures().items())]
        lines += [f"duplicated: {count} × {reason}" for reason, count in sorted(self.reasons.items())]
        shown: Counter[str] = Counter()
        for name, finding in self.broken:
            shown[name] += 1
            if shown[name] <= SHOWN:
                lines.append(f"{name}: {finding}")
        return "\n".join(lines)
