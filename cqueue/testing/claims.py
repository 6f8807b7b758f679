"""Which consumer held which message, from when until when, and what ended the lease.

A lease ends by cluster time. The client that got the lease converts its end to the monotonic clock, through
its own cluster clock at that moment. So a history needs no agreement of wall clocks, and a client whose wall
clock steps reports nothing false.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cqueue.testing.events import FAIL, NEVER, OK, Call, Note
from cqueue.testing.report import GIVEN_BACK, NACKED

GIVES_BACK: Final = {"nack": NACKED, "snooze": NACKED, "dead": GIVEN_BACK}
"""Operations that end a lease, and why the next delivery is allowed then."""
ROUNDING_NS: Final = 2_000_000
"""Tolerance at the end of a lease, 2 ms in ns: ends are reported in whole ms, at two places."""

Owner = tuple[str, str]
"""Process and consumer."""


@dataclass(slots=True)
class Claim:
    """One delivery of one message. Times are monotonic ns.

    Attributes:
        id: id of the message.
        key: name of the message's body.
        owner: process and consumer.
        began_ns, at_ns: beginning and end of the receive.
        until_ns: when the lease's timeout passes.
        fence, attempt: as delivered.
        origin: for a dead letter, the id of the message that died.
        gone_ns: when the consumer gave the lease up.
        why: how the consumer gave it up, if it did.
    """

    id: str
    key: str
    owner: Owner
    began_ns: float
    at_ns: float
    until_ns: float
    fence: int
    attempt: int
    origin: str | None
    gone_ns: float = NEVER
    why: str | None = None

    def is_over(self, at_ns: float) -> bool:
        """Return whether another consumer may hold the message at that moment."""
        return at_ns >= self.until_ns - ROUNDING_NS or at_ns >= self.gone_ns

    def give_up(self, at_ns: float, why: str) -> None:
        """Note that the consumer gave the lease up, or may have."""
        if at_ns < self.gone_ns:
            self.gone_ns, self.why = at_ns, why


def claims_of(everything: Iterable[Call]) -> list[Claim]:
    """Return all deliveries, with what their consumers did to them later."""
    found: list[Claim] = []
    by_owner: dict[Owner, list[Claim]] = defaultdict(list)
    latest: dict[tuple[Owner, str], Claim] = {}
    # Receives by their ends, other calls by their beginnings: a consumer acts on what it has received.
    for call in sorted(everything, key=_acts_ns):
        if call.operation == "receive" and call.outcome == OK:
            claims = [_claim(call, one) for one in call.answered]
            found += claims
            by_owner[call.owner] += claims
            latest |= {(call.owner, claim.id): claim for claim in claims}
        elif call.operation == "extend" and call.outcome == OK:
            for one in call.answered:
                if claim := latest.get((call.owner, one["id"])):
                    claim.until_ns = _on_monotonic(call, one["due_ms"])
        elif call.operation in GIVES_BACK and not (call.outcome == FAIL and len(call.asked) == 1):
            held = [latest.get((call.owner, one["id"])) for one in call.asked]
            for claim in filter(None, held):
                claim.give_up(call.began_ns, GIVES_BACK[call.operation])
        elif call.operation == "close" and call.note.get("give_back"):
            for claim in by_owner[call.owner]:
                claim.give_up(call.began_ns, GIVEN_BACK)
    return found


def _acts_ns(call: Call) -> float:
    return call.ended_ns if call.operation == "receive" else call.began_ns


def _claim(call: Call, one: Note) -> Claim:
    return Claim(
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
    """Convert cluster time to the monotonic clock; without cluster time, by the wall clock."""
    cluster_us = call.wall_ns // 1000 if call.cluster_us is None else call.cluster_us
    return call.ended_ns + (due_ms * 1000 - cluster_us) * 1000
