"""Who is alive in a subscription, and whose a partition is.

A member writes down that it lives, and everybody computes from the same rows whose a partition is. What
decides is the position's row (see `progress`): two members that differ about who lives cannot both have one.

A member trusts its partitions only for as long as others must take it for alive; after that it changes all
its positions' fences, which fails whoever is just about to take one over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from cqueue.log.protocol.spec import LogSpec
from cqueue.rendezvous import Names
from cqueue.store.subscriptions import MemberRow, SubscriptionKey

BEAT_US = 1_500_000
"""A member says so often that it lives, and looks so often who else does."""
EXPIRY_US = 3_000_000
"""So long one heartbeat lasts: one may be lost."""
MEMBER_TTL_S = 30
"""Longer than anybody counts a heartbeat: a row must not go before all agree that it is over."""


def is_alive(spec: LogSpec, row: MemberRow, now_us: int) -> bool:
    """Whether others take the member for alive: its clock and ours may differ by the skew."""
    return now_us <= row.seen + EXPIRY_US + spec.skew_us


def is_sure(spec: LogSpec, beat_us: int, now_us: int) -> bool:
    """Whether a member whose last heartbeat was then knows that all others take it for alive."""
    return now_us < beat_us + EXPIRY_US - spec.skew_us


def member_info(partitions: Iterable[int] | None) -> str:
    """What a member says of itself: which partitions it would read; None for all."""
    return json.dumps({"partitions": None if partitions is None else sorted(partitions)})


def assigned(
    key: SubscriptionKey, me: str, alive: Iterable[MemberRow], partitions: Iterable[int]
) -> set[int]:
    """Which of the partitions are mine among those who live."""
    readers = [(row.member, _readable(row)) for row in alive]
    mine: set[int] = set()
    for partition in partitions:
        names = [name for name, some in readers if some is None or partition in some]
        if me in names and Names(names).first(f"{key.log}\0{key.name}\0{partition}".encode()) == me:
            mine.add(partition)
    return mine


def _readable(row: MemberRow) -> frozenset[int] | None:
    """What `member_info` says; everything if it was written by a version that says it otherwise."""
    some = json.loads(row.info).get("partitions")
    is_known = isinstance(some, list) and all(type(each) is int for each in some)
    return frozenset(some) if is_known else None
