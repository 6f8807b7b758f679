"""What a run is like: parameters, small so that rare states are common, and how a seed draws them.

Most runs are of all kinds of trouble at once. Some rules, though, only matter in situations that such a
mixture hardly ever makes, so that a part of the seeds draw one of the profiles, each a situation made
dense: sends that take about W, burials under faults, nacks of many consumers, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random


@dataclass(frozen=True, slots=True)
class Params:
    """What a run is like; drawn from the seed unless given."""

    profile: str = "mixed"
    settle_ms: int = 500
    skew_ms: int = 100
    shards: int = 1
    max_attempts: int = 3
    gc_grace_s: int = 30
    width_ms: int = 1000
    epoch_widths: int = 2
    visibility_ms: int = 2000
    faults: float = 0.04
    replays: bool = False
    torn: float = 0.0
    lag: float = 0.1
    lost_hints: float = 0.1
    pauses: float = 0.02
    longest_pause_us: int = 4_000_000
    stops: float = 0.0  # how likely a program stands still, five times a second
    longest_stop_us: int = 6_000_000
    crashes: float = 0.2  # a second
    downs: float = 0.0  # how likely a node stops, five times a second
    away: bool = False  # one node is away for longer than gc_grace
    node_skew_us: int = 0
    extreme: bool = False  # clients' clocks are as far apart as ε allows
    marker_s: int = 3600  # how long the marker of a retired wide row stays
    busy_us: int = 3_000_000
    producers: int = 2
    consumers: int = 2
    batches: int = 2
    batch: int = 4
    gap_s: float = 1.5
    at_the_edge: bool = False  # sends are made when a time shard ends, and take about W
    packed: int = 0  # most messages that are sent alike and share a row; 0: none do
    rows_at_once: int = 0  # rows of one request, so that a read takes several; 0: as it is
    delayed: float = 0.3
    derived: bool = False  # sends have sources, and are repeated by others
    longest_delay_us: int = 2_000_000
    late_hints_s: float = 0.0  # how long after the answer one consumer is told of all sends, at most
    rivals_us: int = 0  # for how long a claim by somebody else counts; 0: as it is
    priorities: tuple[int, ...] = (0, 0, 5)
    large: float = 0.1
    ttl: float = 0.0
    poison: float = 0.0
    purges: bool = False
    controls_s: float = 0.0  # how long somebody waits between changes by id, at most; 0: nobody makes any
    poll_s: float = 0.4
    longest_idle_s: float = 1.2
    want: int = 5
    stays: float = 0.5  # how likely a consumer keeps the lock for its next claim
    most_listed: int = 1000  # messages of one slot
    read_bytes: int = 4 << 20  # of one slice
    work_s: float = 3.0
    serial: bool = False  # a consumer handles its messages before it asks for more
    claims_ahead: bool = False  # some rounds, which leave suspects where they are
    actions: tuple[int, ...] = (60, 10, 5, 8, 5, 4, 5, 3)


ONLY_ACKS = (1, 0, 0, 0, 0, 0, 0, 0)
LATE_SENDS = Params(
    profile="late sends", settle_ms=200, skew_ms=500, faults=0.03, torn=0.1, pauses=0.12,
    longest_pause_us=900_000, crashes=0, consumers=1, producers=3, batch=1, batches=3, delayed=0.0,
    gap_s=0.7, priorities=(0,), poll_s=0.1, extreme=True, large=0.0, actions=ONLY_ACKS, work_s=0.1,
)  # fmt: skip
SHARD_ENDS = Params(
    profile="shard ends", settle_ms=100, skew_ms=30, width_ms=350, epoch_widths=3, visibility_ms=500,
    faults=0.01, pauses=0.05, longest_pause_us=120_000, crashes=0, consumers=1, producers=5, batch=1,
    batches=4, at_the_edge=True, extreme=True, delayed=0.0, priorities=(0,), poll_s=0.02,
    longest_idle_s=0.02, large=0.0, actions=ONLY_ACKS, work_s=0.02, busy_us=1_500_000,
)  # fmt: skip
BURIALS = Params(
    profile="burials", settle_ms=200, skew_ms=50, visibility_ms=500, width_ms=200, epoch_widths=10,
    faults=0.1, pauses=0.1, longest_pause_us=3_000_000, gc_grace_s=20, batches=1, crashes=0.3, producers=1,
    delayed=0.0, priorities=(0,), work_s=0.1, actions=(20, 0, 0, 0, 80, 0, 0, 0),
)  # fmt: skip
SLOW_BURIALS = replace(
    BURIALS, profile="slow burials", faults=0.05, gc_grace_s=2, pauses=0.15, longest_pause_us=5_000_000,
    busy_us=6_000_000, gap_s=0.5,
)  # fmt: skip
NACKS = Params(
    profile="nacks", settle_ms=200, skew_ms=500, width_ms=4000, faults=0.08, lost_hints=0.8, pauses=0.05,
    longest_pause_us=100_000, batches=1, batch=6, producers=1, consumers=3, crashes=0, poll_s=0.05,
    priorities=(0,), work_s=0.05, max_attempts=0, want=2, actions=(20, 60, 20, 0, 0, 0, 0, 0),
    busy_us=2_500_000, gap_s=0.5,
)  # fmt: skip
STOLEN_LOCKS = Params(
    profile="stolen locks", faults=0.05, pauses=0.06, longest_pause_us=3_000_000, consumers=3, poll_s=0.1,
    priorities=(0,), work_s=0.5, actions=(60, 10, 10, 10, 0, 0, 10, 0),
)  # fmt: skip
DERIVED = Params(
    profile="derived sends", derived=True, settle_ms=500, skew_ms=20, width_ms=500, gc_grace_s=10,
    faults=0.01, pauses=0.2, longest_pause_us=150_000, crashes=0, consumers=4, producers=2, batch=2,
    batches=5, delayed=0.0, gap_s=0.3, priorities=(0,), poll_s=0.02,
    longest_idle_s=0.04, work_s=0.02, large=0.0, want=1,
    actions=(90, 0, 0, 0, 0, 0, 0, 10), busy_us=1_500_000,
)  # fmt: skip
AWAY = Params(
    profile="node away", faults=0.0, pauses=0.0, crashes=0.0, away=True, gc_grace_s=4, width_ms=20_000,
    settle_ms=200, lag=0.0, lost_hints=0.0, batches=1, delayed=0.0, consumers=1, work_s=2.0, large=0.0,
    priorities=(0,), busy_us=2_000_000, gap_s=0.5, actions=ONLY_ACKS,
)  # fmt: skip
SLEEPERS = Params(
    profile="sleepers", faults=0.02, pauses=0.0, crashes=0.0, marker_s=8, stops=0.15,
    longest_stop_us=16_000_000, consumers=3, batches=1, batch=2, work_s=0.1, priorities=(0,), settle_ms=200,
)  # fmt: skip
KILLERS = Params(
    profile="killers", faults=0.02, pauses=0.02, crashes=0, poison=0.15, batch=4, batches=1, max_attempts=3,
    work_s=0.5, gap_s=0.5, serial=False, priorities=(0,), actions=(8, 0, 0, 0, 0, 0, 2, 0),
)  # fmt: skip
HINTS = Params(
    profile="hints", settle_ms=200, skew_ms=50, width_ms=8000, faults=0.01, pauses=0.02,
    longest_pause_us=100_000, crashes=0.1, producers=3, consumers=2, batches=12, batch=1, gap_s=0.05,
    delayed=0.0, late_hints_s=0.03, rivals_us=10_000, priorities=(0,), poll_s=0.2, longest_idle_s=0.3,
    work_s=0.02, large=0.0, want=20, actions=(90, 4, 2, 0, 0, 2, 0, 2), busy_us=1_500_000,
    claims_ahead=True,
)  # fmt: skip
BACKLOG = replace(
    HINTS, profile="backlog", batch=9, gap_s=0.15, read_bytes=300, stays=0.95, faults=0.02, pauses=0.05,
    torn=0.05, actions=(80, 10, 4, 0, 0, 2, 2, 2), batches=6,
)  # fmt: skip
NAMED = replace(
    HINTS, profile="named", width_ms=3000, visibility_ms=600, rivals_us=1000, torn=0.1, lag=0.3, faults=0.04,
    longest_pause_us=500_000, crashes=0.2, producers=2, batch=2, gap_s=0.1, work_s=0.1, settle_ms=500,
    actions=(60, 10, 5, 5, 2, 5, 5, 5), busy_us=2_500_000,
)  # fmt: skip
CROWD = Params(
    profile="crowd", settle_ms=200, skew_ms=20, shards=12, width_ms=1500, visibility_ms=4000, faults=0.0,
    pauses=0.0, crashes=0.0, producers=3, consumers=1, batches=16, batch=6, gap_s=0.2, delayed=0.2,
    priorities=(0, 0, 0, 5), poll_s=0.1, longest_idle_s=0.2, want=1, stays=1.0, work_s=0.01, serial=True,
    large=0.0, late_hints_s=0.05, actions=(90, 5, 3, 0, 0, 2, 0, 0), busy_us=4_000_000,
)  # fmt: skip
PACKS = Params(
    profile="packs", packed=8, rows_at_once=1, settle_ms=200, skew_ms=50, width_ms=3000, visibility_ms=600,
    faults=0.06, torn=0.1, lag=0.6, lost_hints=0.6, pauses=0.02, longest_pause_us=500_000, downs=0.05,
    batch=1, batches=3, consumers=3, want=4, gap_s=0.6, delayed=0.1, priorities=(0,), large=0.05, poll_s=0.1,
    longest_idle_s=0.3, work_s=0.3, actions=(70, 10, 4, 4, 2, 2, 5, 3), busy_us=2_000_000,
    most_listed=3,
)  # fmt: skip
SHARES = {
    "mixed": (16, None), "named": (2, NAMED), "hints": (1, HINTS), "backlog": (1, BACKLOG),
    "late sends": (3, LATE_SENDS), "shard ends": (3, SHARD_ENDS),
    "burials": (2, BURIALS), "slow burials": (2, SLOW_BURIALS), "nacks": (2, NACKS),
    "stolen locks": (2, STOLEN_LOCKS), "derived sends": (3, DERIVED), "node away": (1, AWAY),
    "sleepers": (1, SLEEPERS), "killers": (2, KILLERS), "crowd": (1, CROWD),
}  # fmt: skip
"""Weight of each profile among all seeds; `mixed` draws a mixture."""


UNPACKED = frozenset({"derived sends", "crowd"})
"""Profiles whose messages never share rows: derived ids cannot, and one is of many single ones."""


UNCONTROLLED = frozenset({"derived sends", "crowd", "node away"})
"""Profiles without changes by id, of sends that are repeated, of turns, and of a node that is rebuilt."""


def with_packs(params: Params, rng: Random) -> Params:
    """In two of five runs messages that are sent alike share rows; some are of that alone."""
    fate = rng.random()
    if fate < 0.6 or params.profile in UNPACKED:
        return params
    if fate < 0.64:
        return PACKS
    return replace(
        params, packed=rng.choice((2, 3, 6)), rows_at_once=rng.choice((0, 1, 2)),
        batch=(params.batch + 1) // 2, batches=(params.batches + 1) // 2,
        consumers=max(params.consumers, 2 if params.away else 1),
    )  # fmt: skip


def with_controls(params: Params, rng: Random) -> Params:
    """In one of five runs somebody changes messages by id."""
    if rng.random() < 0.8 or params.profile in UNCONTROLLED:
        return params
    return replace(params, controls_s=rng.choice((0.2, 0.8)))


def draw(rng: Random) -> Params:
    """Parameters of a run."""
    (name,) = rng.choices(tuple(SHARES), [share for share, _ in SHARES.values()])
    return SHARES[name][1] or _mixed(rng)


def _mixed(rng: Random) -> Params:
    params = Params(
        settle_ms=rng.choice((200, 500, 1000, 2000)),
        skew_ms=rng.choice((50, 200, 500)),
        width_ms=rng.choice((1000, 1000, 1000, 8000)),
        shards=rng.choice((1, 1, 2)),
        max_attempts=rng.choice((2, 3, 3)),
        faults=rng.choice((0.0, 0.02, 0.05, 0.1)),
        torn=rng.choice((0.0, 0.05, 0.3)),
        lag=rng.choice((0.0, 0.1, 0.5)),
        lost_hints=rng.choice((0.0, 0.3, 1.0)),
        pauses=rng.choice((0.0, 0.005, 0.02)),
        longest_pause_us=rng.choice((500_000, 2_000_000, 6_000_000)),
        stops=rng.choice((0.0, 0.0, 0.02)),
        crashes=rng.choice((0.0, 0.2, 0.6)),
        downs=rng.choice((0.0, 0.05)),
        node_skew_us=rng.choice((0, 20_000, 30_000_000)),
        extreme=rng.random() < 0.3,
        consumers=rng.choice((1, 2, 2, 3)),
        batch=rng.choice((1, 3, 6)),
        delayed=rng.choice((0.0, 0.3, 0.8)),
        longest_delay_us=rng.choice((300_000, 2_000_000)),
    )
    params = replace(
        params,
        priorities=rng.choice(((0,), (0,), (0, 0, 5))),
        poison=rng.choice((0.0, 0.0, 0.05)),
        ttl=rng.choice((0.0, 0.0, 0.2)),
        purges=rng.random() < 0.1,
        poll_s=rng.choice((0.1, 0.4, 0.8)),
        want=rng.choice((1, 3, 5)),
        work_s=rng.choice((0.1, 2.0)),
        serial=rng.random() < 0.3,
        **_replays(rng),
    )
    return replace(params, claims_ahead=rng.random() < 0.5, most_listed=rng.choice((1, 2, 1000)))


def _replays(rng: Random) -> dict[str, bool | int]:
    """Batches may be replayed a minute later only where gc_grace is longer."""
    return {"replays": True, "gc_grace_s": 120} if rng.random() < 0.3 else {}
