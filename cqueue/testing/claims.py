"""Who held which message, from when, until when, and what ended it.

The end of a lease is cluster time. It is carried over to the monotonic clock by the client that was
told of it, through its own cluster clock at that moment: so a history needs no agreement of wall
clocks, and a client whose wall clock steps says nothing false.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cqueue.testing.events import FAIL, NEVER, OK, Call
from cqueue.testing.report import GIVEN_BACK, NACKED

GIVES_BACK: Final = {"nack": NACKED, "snooze": NACKED, "dead": GIVEN_BACK}
ROUNDING_NS: Final = 2_000_000
"""Ends of leases are told in whole ms."""


@dataclass(slots=True)
class Claim:
    """One delivery of one message. until_ns: when its timeout passes; gone_ns: when it was given up."""

    id: str
    key: str
    owner: tuple[str, str]
    began_ns: float
    at_ns: float
    until_ns: float
    fence: int
    attempt: int
    origin: str | None  # of a dead letter: the id of the message that died
    gone_ns: float = NEVER
    why: str | None = None  # how it was given up, if it was

    def is_over(self, at_ns: float) -> bool:
        """Whether somebody else may hold the message at that moment."""
        return at_ns >= self.until_ns - ROUNDING_NS or at_ns >= self.gone_ns

    def give_up(self, at_ns: float, why: str) -> None:
        """Its holder let it go, or may have."""
        if at_ns < self.gone_ns:
            self.gone_ns, self.why = at_ns, why


def claims_of(everything: Iterable[Call]) -> list[Claim]:
    """All deliveries, with what their holders did to them later."""
    book = _Book()
    # In order of ends for receives, of beginnings for the rest: a holder acts on what it has got.
    for call in sorted(everything, key=_acts_ns):
        book.enter(call)
    return book.claims


class _Book:
    """Claims so far, and the latest of each owner for each message."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self._held: dict[tuple[tuple[str, str], str], Claim] = {}
        self._by_owner: dict[tuple[str, str], list[Claim]] = defaultdict(list)

    def enter(self, call: Call) -> None:
        """Take one call into account."""
        if call.operation == "receive" and call.outcome == OK:
            self._receive(call)
        elif call.operation == "extend" and call.outcome == OK:
            self._extend(call)
        elif call.operation in GIVES_BACK and not (call.outcome == FAIL and len(call.asked) == 1):
            for one in call.asked:
                if (call.owner, one["id"]) in self._held:
                    self._held[call.owner, one["id"]].give_up(call.began_ns, GIVES_BACK[call.operation])
        elif call.operation == "close" and call.note.get("give_back"):
            for claim in self._by_owner.pop(call.owner, ()):
                claim.give_up(call.began_ns, GIVEN_BACK)

    def _receive(self, call: Call) -> None:
        for claim in _taken(call):
            self.claims.append(claim)
            self._held[claim.owner, claim.id] = claim
            self._by_owner[claim.owner].append(claim)

    def _extend(self, call: Call) -> None:
        for one in call.answered:
            claim = self._held.get((call.owner, one["id"]))
            if claim is not None:
                claim.until_ns = _on_monotonic(call, one["due_ms"])


def _acts_ns(call: Call) -> float:
    return call.ended_ns if call.operation == "receive" else call.began_ns


def _taken(call: Call) -> Iterable[Claim]:
    for one in call.answered:
        yield Claim(
            id=one["id"],
            key=one["key"],
            owner=call.owner,
            began_ns=call.began_ns,
            at_ns=call.ended_ns,
            until_ns=_on_monotonic(call, one["due_ms"]),
            fence=one["fence"],
            attempt=one["attempt"],
            origin=one.get("origin"),
        )


def _on_monotonic(call: Call, due_ms: int) -> float:
    """A moment of cluster time on the monotonic clock; without cluster time, by the wall clock."""
    cluster_us = call.wall_ns // 1000 if call.cluster_us is None else call.cluster_us
    return call.ended_ns + (due_ms * 1000 - cluster_us) * 1000
