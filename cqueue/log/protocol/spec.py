"""Describe a log to protocol functions: its time shards, and how far readers may go."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from cqueue import ids
from cqueue.store.log_operations import LogShard

MARGIN_US = 600_000_000
"""µs above the earliest record at which a reader begins that goes on from there, a tenth of the ttl at most:
its first reads have this time, before they are overtaken by what expires."""
UNSEEN_US = 20_000_000
"""µs (20 s) for which a reader may not know that its log has gained a partition: above the 15 s for which a
member of a subscription keeps a configuration. For logs that a version altered which does not store when."""
EXPIRES_EARLY_US = 1_000_000
"""µs by which a record may expire before its ttl is over: Cassandra counts from a write's whole second on."""


class EarlierTtl(NamedTuple):
    """A ttl that a log had before. It holds for what was appended then. ms since 1970; ttl_s: 0 for ever."""

    since_ms: int
    until_ms: int
    ttl_s: int


class Growth(NamedTuple):
    """A change of a log's partitions. at_ms: ms since 1970; before: how many there were until then."""

    at_ms: int
    before: int


@dataclass(frozen=True, slots=True)
class LogSpec:
    """A log as the protocol sees it. ttl_s: 0 for ever; created_ms: no record is older.

    earlier: ttls before the present one, the oldest first. growths: as far as they are known.
    """

    name: str
    incarnation: str
    partitions: int
    width_ms: int
    ttl_s: int
    created_ms: int
    settle_us: int  # W
    skew_us: int  # ε
    earlier: tuple[EarlierTtl, ...] = ()
    growths: tuple[Growth, ...] = ()

    @property
    def partition(self) -> str:
        """The log's name in partition keys: a log deleted and made again starts on fresh partitions."""
        return f"{self.name}@{self.incarnation}"

    @property
    def registry_ttl_s(self) -> int:
        """Return the ttl of a registry row in s, so that it outlives every record in its partition."""
        return self.ttl_s + 2 * (self.width_ms // 1000 + 1) + 60 if self.ttl_s else 0

    def shard_at(self, partition: int, us: int) -> LogShard:
        """Return the Cassandra partition of a record of that time (µs since 1970)."""
        return LogShard(self.partition, partition, us // 1000 // self.width_ms * self.width_ms)

    def time_shards(self, since_us: int, now_us: int) -> range:
        """Return the time shards from that of `since_us` to the next one: a writer's clock may be ahead."""
        first = self.shard_at(0, since_us).time_shard
        return range(first, now_us // 1000 + self.width_ms, self.width_ms)

    def oldest_us(self, now_us: int) -> int:
        """Return the time (µs since 1970) before which no reader begins: a shorter ttl holds at once."""
        oldest_us = self.created_ms * 1000 - self.skew_us
        if self.ttl_s:
            oldest_us = max(oldest_us, now_us - self.ttl_s * 1_000_000)
        for since_ms, until_ms, ttl_s in self.earlier:
            # The earlier ttl has taken what comes first now, up to where the next one applied
            if ttl_s and since_ms * 1000 - self.skew_us <= oldest_us:
                oldest_us = max(oldest_us, min(until_ms * 1000, now_us - ttl_s * 1_000_000))
        return oldest_us

    def earliest(self, now_us: int) -> int:
        """Return the id behind which the first record that can be read stands."""
        return ids.lowest_at(self.oldest_us(now_us)) - 1

    def forgotten_us(self, now_us: int) -> int:
        """Return the time (µs since 1970) from which on nothing has expired; 0 if nothing has.

        Records of an earlier and longer ttl may be left before that.
        """
        expired_us = (
            min(until_us, now_us - ttl_s * 1_000_000)
            for since_us, until_us, ttl_s in self._ttls(now_us)
            if ttl_s and since_us < now_us - ttl_s * 1_000_000
        )
        return max(expired_us, default=0)

    def beginning(self, now_us: int, margin_us: int = MARGIN_US, *, lenient: bool = False) -> int:
        """Return the id behind which a reader begins that goes on from the earliest record.

        margin_us: leave out what expires within this time, or within a tenth of the shortest ttl if that is
            less.
        lenient: whether the reader does not mind what has expired; another one begins where it is told of
            all that expires from now on, so behind all that has.
        """
        if lenient:
            return self.earliest(now_us)
        now_us += min(margin_us, self.shortest_ttl_s(now_us) * 100_000)
        return max(self.earliest(now_us), ids.lowest_at(self.forgotten_us(now_us)) - 1)

    def shortest_ttl_s(self, now_us: int) -> int:
        """Return the shortest ttl in s of what can be read: what was appended under it expires next.

        0 if nothing expires.
        """
        oldest_us = self.oldest_us(now_us)
        ttls_s = [self.ttl_s, *(one.ttl_s for one in self.earlier if one.until_ms * 1000 > oldest_us)]
        return min((ttl_s for ttl_s in ttls_s if ttl_s), default=0)

    def beginning_beside(
        self, partition: int, positions: Collection[int], now_us: int, *, lenient: bool = False
    ) -> int:
        """Return the id behind which a reader begins a partition that the log may have gained meanwhile.

        positions: where the reader is in those that it knows. If it has not read for long, it may have missed
            the first records of the new one, too. Where it is known since when the partition is there, none
            are older than that.
        lenient: as in `beginning`.
        """
        beginning, last = self.beginning(now_us, lenient=lenient), min(positions, default=None)
        if last is None or (not lenient and self.has_forgotten(last, now_us)):
            return beginning
        beside = min(beginning, ids.lowest_at(ids.time_us(last) - UNSEEN_US))
        added = [at_ms * 1000 for at_ms, before in self.growths if before <= partition]
        added_us = max((at_us for at_us in added if at_us <= now_us), default=self.created_ms * 1000)
        return max(beside, ids.lowest_at(added_us - self.skew_us) - 1)

    def has_forgotten(self, position: int, now_us: int) -> bool:
        """Return whether records behind a position may have expired by now.

        A ttl that became shorter takes nothing of what was appended before, and its first record only later.
        """
        forgotten_us = self.forgotten_us(now_us + EXPIRES_EARLY_US + self.skew_us)
        return position < ids.lowest_at(forgotten_us) - 1

    def going_on(self, position: int, now_us: int) -> int:
        """Return the id behind which a reader goes on from a position: not where nothing is left."""
        return max(position, ids.lowest_at(self.left_us(now_us)) - 1)

    def left_us(self, now_us: int) -> int:
        """Return the time (µs since 1970) before which no record is left, under whatever ttl it came."""
        return min(
            max(since_us - self.skew_us, now_us - ttl_s * 1_000_000 if ttl_s else 0)
            for since_us, until_us, ttl_s in self._ttls(now_us)
            if not ttl_s or until_us > now_us - ttl_s * 1_000_000
        )

    def _ttls(self, now_us: int) -> Iterator[tuple[int, int, int]]:
        """Yield since when and until when (µs since 1970) each ttl (s) held, the present one last."""
        since_ms = self.created_ms  # of the first one that is remembered, too
        for one in self.earlier:
            yield since_ms * 1000, one.until_ms * 1000, one.ttl_s
            since_ms = one.until_ms
        yield since_ms * 1000, now_us, self.ttl_s

    def horizon(self, began_us: int) -> int:
        """Return the id up to which a read that began at `began_us` sees all acknowledged records."""
        return ids.lowest_at(began_us - self.settle_us - self.skew_us)


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key in a log with that many partitions."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") % partitions
