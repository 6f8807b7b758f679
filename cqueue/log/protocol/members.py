"""Decide which members of a subscription are alive, and which member reads each partition.

Members write heartbeats, and each computes the same assignment from the same rows. The row of a position
decides ownership (see `progress`): two members that disagree about who is alive cannot both own a partition.

A member trusts its ownership only while all others must take it for alive. After that it changes the fences
of all its positions, which makes any takeover under way fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from cqueue.log.protocol.spec import LogSpec
from cqueue.runtime.rendezvous import Names
from cqueue.store.log_operations import MemberRow, SubscriptionKey

HEARTBEAT_US = 1_500_000
"""µs between heartbeats, and between reads of the subscription: half of `EXPIRY_US`."""
EXPIRY_US = 3_000_000
"""µs for which a heartbeat counts: long enough for one to be lost, short enough for a quick takeover."""
MEMBER_TTL_S = 30
"""Seconds until a member's row expires: far longer than a heartbeat counts, so that no row vanishes while a
member still counts it."""


def is_alive(spec: LogSpec, row: MemberRow, now_us: int) -> bool:
    """Return whether a member counts as alive. Its clock and the reader's may differ by ε."""
    return now_us <= row.seen + EXPIRY_US + spec.skew_us


def is_surely_alive(spec: LogSpec, beat_us: int, now_us: int) -> bool:
    """Return whether all others certainly take a member alive whose last heartbeat was at `beat_us`."""
    return now_us < beat_us + EXPIRY_US - spec.skew_us


def member_info(partitions: Iterable[int] | None) -> str:
    """Return a member's description of itself: the partitions that it can read; None for all."""
    return json.dumps({"partitions": None if partitions is None else sorted(partitions)})


def assigned(
    key: SubscriptionKey, me: str, alive: Iterable[MemberRow], partitions: Iterable[int]
) -> set[int]:
    """Return which of the partitions are assigned to the member `me`, among those alive."""
    readers = [(row.member, _readable(row)) for row in alive]
    mine: set[int] = set()
    for partition in partitions:
        names = [name for name, some in readers if some is None or partition in some]
        if me in names and Names(names).first(f"{key.log}\0{key.name}\0{partition}".encode()) == me:
            mine.add(partition)
    return mine


def _readable(row: MemberRow) -> frozenset[int] | None:
    """Return the partitions in a member's `member_info`; None for all, or if another version wrote it."""
    some = json.loads(row.info).get("partitions")
    is_known = isinstance(some, list) and all(type(each) is int for each in some)
    return frozenset(some) if is_known else None
