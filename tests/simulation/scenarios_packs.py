"""Scenarios of messages that share a row: three replicas, each client with a store, chosen quorums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from cqueue import ids
from cqueue.protocol import ack
from cqueue.protocol.claim_draft import Claim
from cqueue.protocol.row_memory import RowMemory
from cqueue.store import packs
from cqueue.store.operations import (
    DeleteMessages,
    InsertMessages,
    MessageRow,
    Operation,
    ReadIds,
    ReadMessages,
    ReadSlice,
    WideRow,
)
from tests.simulation.cluster import Cluster
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, SKEW_US, Table, ids_of
from tests.simulation.oracle import Oracle
from tests.simulation.replica import ALL, BITS, View
from tests.simulation.rows import RowStore, planned
from tests.simulation.world import World

A, B, C = BITS
END = ids.highest_at(NOON_US + 86_400_000_000)
GRACE_US = 3_600_000_000


class ChosenCluster(Cluster):
    """Replicas whose quorums are chosen: `reads` and `writes` say which answer."""

    reads = A | B
    writes = ALL

    def _pair(self) -> int:
        return self.reads

    def _reach(self) -> int:
        return self.writes

    def _deliver_later(self, write: Any, op: Any, bit: int) -> None:
        """Never, unless a read or a repair brings it."""

    def another_view(self, wide_row: WideRow) -> View:
        """The same replicas."""
        return self._view(None, self.part(wide_row))


class PackTable(Table):
    """A table over three replicas. `client` is the store of the client that acts at present."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(**changes)
        self.world = World(Random(1), SKEW_US, self.time_us)
        self.oracle = Oracle(self.world)
        self.oracle.sent.add(b"m")
        self.cluster = self.world.cluster = ChosenCluster(self.world, self.oracle)
        self.client = self.new_client()
        self.store: Any = self

    def new_client(self) -> RowStore:
        """The store of another client."""
        return RowStore(self.cluster)

    def execute(self, operation: Operation[Any]) -> Any:
        """As a store does; what was written is acknowledged."""
        self.world.now_us = self.time_us
        sent = planned(operation, self.client)
        answer = self.cluster.execute(sent, None, self.client)
        if type(operation) is DeleteMessages:
            sent.answered(None)
        return answer

    @contextmanager
    def quorum(self, *, reads: int = 0, writes: int = 0) -> Iterator[None]:
        """Others answer, or get what is written."""
        before = self.cluster.reads, self.cluster.writes
        self.cluster.reads, self.cluster.writes = reads or before[0], writes or before[1]
        yield
        self.cluster.reads, self.cluster.writes = before

    # ── things to do ──

    def pack_at(self, us: int, count: int, *, acknowledged: bool = True) -> list[int]:
        """Send messages that share a row."""
        some = self.new_ids(us, count)
        self.send(some, acknowledged=acknowledged)
        return some

    def single_at(self, us: int) -> int:
        """Send one that has a row of its own."""
        (one,) = self.pack_at(us, 1)
        return one

    def new_ids(self, us: int, count: int) -> list[int]:
        """Ids of messages that share a row; of one that has its own."""
        return list(ids.packed(us * 10, next(self._numbers), count)) if count > 1 else [self.id_at(us)]

    def send(self, some: Sequence[int], *, acknowledged: bool = True) -> None:
        """Store messages, each of which has its id for a body."""
        rows = tuple(
            MessageRow(0, id_, b"%d" % id_, None, None, None, None, None, None, 0, None, 0) for id_ in some
        )
        self.oracle.sent.update(row.body or b"" for row in rows)
        self.execute(InsertMessages(self.row, rows))
        if acknowledged:
            keys = self.oracle.promised_keys.setdefault(self.row, {})
            keys.update({(self.row, 0, row.id): row.body or b"" for row in rows})

    def delete(self, *some: int, by: RowStore | None = None) -> None:
        """Ack messages."""
        before, self.client = self.client, by or self.client
        self.execute(DeleteMessages(self.row, 0, some))
        self.client = before

    def read(self, after: int = ids.START, upto: int = END, limit: int = 100) -> list[int]:
        """The messages that a slice gives, whose bodies have to be theirs."""
        rows = self.execute(ReadSlice(self.row, 0, after, upto, limit)).rows
        assert [row.body for row in rows] == [b"%d" % row.id for row in rows]
        return [row.id for row in rows]

    def listed_ids(self, after: int = ids.START, upto: int = END, limit: int = 100) -> list[int]:
        """The ids that are read alone."""
        found: list[int] = self.execute(ReadIds(self.row, 0, after, upto, limit)).ids
        return found

    def sees(self, some: list[int]) -> bool:
        """Whether each pair of replicas shows these messages, and no others, in each kind of read."""
        asked = tuple(sorted({*some, *(key[2] for key in self.oracle.written)}))
        for reads in (A | B, B | C, A | C):
            with self.quorum(reads=reads), patch.object(self.cluster, "read_repair", new=False):
                by_id = [row.id for row in self.execute(ReadMessages(self.row, 0, asked))]
                if not self.read() == self.listed_ids() == by_id == sorted(some):
                    return False
        return True

    def stored(self) -> list[int]:
        """Ids of rows of which any replica has something but a tombstone."""
        cells = self.cluster.part(self.row).of(0).cells
        return sorted(id_ for id_, cell in cells.items() if not cell.gone and not cell.is_empty)

    def drain(self) -> None:
        """What is on its way arrives."""
        self.pass_time(SECOND_US)
        self.world.now_us = self.time_us
        self.cluster._drain()

    def compact(self) -> None:
        """After gc_grace the nodes that are up forget their tombstones."""
        self.pass_time(GRACE_US + SECOND_US)
        self.world.now_us = self.time_us
        self.cluster.compact(GRACE_US)

    def ack(self, claimed: Claim, view: RowMemory | None = None) -> None:
        """Ack what a claim gave."""
        finished = self.run(ack.ack(claimed.taken))
        if view is not None:
            view.finished.extend(finished)

    def retired(self, view: RowMemory, tries: int = 6) -> list[int]:
        """What consumers find once the wide row is over, until it is retired."""
        self.pass_time(max(0, self.end_us + SETTLE_US + SKEW_US - self.time_us))
        found: list[int] = []
        for _ in range(tries):
            self.pass_time(31 * SECOND_US)
            claimed = self.claim(view)
            found += ids_of(claimed)
            self.ack(claimed, view)
            if view.retired:
                return found
        raise AssertionError("the wide row is not retired")


def part_of_a_row_is_deleted() -> None:
    """What is acked of a pack is gone, and the others are there; the last ones take the row with them."""
    table = PackTable()
    pack = table.pack_at(NOON_US, 6)
    assert table.sees(pack)
    table.delete(pack[1], pack[3])
    assert table.sees([pack[0], pack[2], pack[4], pack[5]])
    table.delete(*pack[4:])
    assert table.sees([pack[0], pack[2]])
    table.delete(pack[0], pack[2])
    assert table.stored() == []


def halves_add_up() -> None:
    """Two consumers ack halves of a pack at once, and different replicas miss that: nothing is left."""
    table = PackTable()
    pack = table.pack_at(NOON_US, 6)
    one, other = table.new_client(), table.new_client()
    with table.quorum(writes=A | C):
        table.delete(*pack[:3], by=one)
    assert table.sees(pack[3:])
    with table.quorum(writes=A | B):
        table.delete(pack[5], pack[3], by=other)
    assert table.sees([pack[4]])
    with table.quorum(writes=B | C):
        table.delete(pack[4], by=other)
    assert table.sees([])


def only_empty_rows_are_reaped() -> None:
    """A reader deletes a row in which nothing is left; a row that has something left stays."""
    table = PackTable()
    pack, begun = table.pack_at(NOON_US, 4), table.pack_at(NOON_US + 1, 4)
    table.delete(*pack[:2], *begun[:2], by=table.new_client())
    table.delete(*pack[2:], by=table.new_client())
    assert table.stored() == [pack[0], begun[0]]
    assert table.read() == begun[2:]
    table.drain()
    assert table.sees(begun[2:])
    assert table.stored() == [begun[0]]


def claims_share_a_row() -> None:
    """Several claims take a pack one after the other, each message once."""
    table = PackTable()
    pack = table.pack_at(NOON_US, 5)
    table.pass_time(1000)
    first, second = table.claim(want=2), table.claim(want=2)
    assert (ids_of(first), ids_of(second)) == (pack[:2], pack[2:4])
    table.ack(second)
    third = table.claim(want=10)
    assert ids_of(third) == pack[4:]
    assert table.sees([*pack[:2], pack[4]])


def rest_of_a_row_is_taken_over() -> None:
    """What a holder has not acked of a pack is given to others when its time is over."""
    table = PackTable()
    pack = table.pack_at(NOON_US, 3)
    table.pass_time(1000)
    held = table.claim()
    table.delete(pack[0])
    assert ids_of(held) == pack
    found = []
    for _ in range(3):
        table.pass_time(30 * SECOND_US + SKEW_US)
        claimed = table.claim()
        found += ids_of(claimed)
        table.ack(claimed)
    assert found == pack[1:]


def _swept() -> tuple[PackTable, RowMemory]:
    """A wide row that is over, its cursor above its messages: what lands below is a stray."""
    table = PackTable()
    view = table.view()
    table.single_at(NOON_US + 30 * SECOND_US)
    table.pass_time(31 * SECOND_US)
    table.ack(table.claim(view), view)
    table.pass_time(table.end_us - table.time_us + SETTLE_US + SKEW_US - 1)
    table.poll(view)
    assert ids.time_us(table.cursor().cursor) > NOON_US + 20 * SECOND_US
    return table, view


def rest_of_a_row_is_not_dropped() -> None:
    """A pack that landed below the cursor keeps its wide row until the last of it is delivered."""
    table, view = _swept()
    pack = table.pack_at(NOON_US, 4, acknowledged=False)
    table.delete(pack[0])
    assert sorted(table.retired(view)) == pack[1:]


def _behind() -> tuple[PackTable, RowMemory]:
    """A boundary half a second after NOON."""
    table = PackTable(width_ms=3_600_000)
    view = table.view()
    table.single_at(NOON_US + 500_000)
    table.pass_time(600_000)
    table.ack(table.claim(view), view)
    return table, view


def late_row_is_swept_whole() -> None:
    """A pack that landed below the boundary in time is found by the sweep, with all that is left of it."""
    table, view = _behind()
    pack = table.pack_at(NOON_US + 400_000, 4)
    table.delete(pack[2])
    table.pass_time(SETTLE_US + SKEW_US)
    assert ids_of(table.poll(view)) == [*pack[:2], pack[3]]


def part_of_an_insert_is_no_message() -> None:
    """A read of ids copies no bodies: what it leaves on other replicas is passed, and read once it is whole.

    As the sender, who has no answer yet, sends it again, and is told that it is stored.
    """
    for count in (1, 4):
        table, view = _behind()
        some = table.new_ids(NOON_US + 400_000, count)
        with table.quorum(writes=A):
            table.send(some, acknowledged=False)
        with table.quorum(reads=A | B):
            assert table.listed_ids() == some
        with table.quorum(reads=B | C):
            assert table.listed_ids() == some
            assert table.read() == []
            assert table.execute(ReadMessages(table.row, 0, tuple(some))) == []
        table.send(some)
        assert table.sees(some)
        table.pass_time(SETTLE_US + SKEW_US)
        assert ids_of(table.poll(view)) == some


@contextmanager
def _short_requests() -> Iterator[None]:
    """One row is asked for at first."""
    with patch.object(packs, "FIRST_ROWS", 1), patch.object(packs, "LEAST_IDS", 1):
        yield


def _several() -> tuple[PackTable, list[int]]:
    """Packs and single messages, some of which are gone."""
    table = PackTable()
    some: list[int] = []
    for at in range(6):
        some += table.pack_at(NOON_US + at * 10, 3) if at % 3 else [table.single_at(NOON_US + at * 10)]
    other = table.new_client()
    table.delete(*some[1:3], by=other)
    table.delete(some[3], by=table.new_client())  # so that nothing is left in the row
    table.delete(some[5])
    return table, [*some[4:5], *some[6:], some[0]]


def range_is_read_to_its_end() -> None:
    """A read whose rows hold less than was thought goes on until it has enough, or there is no more."""
    with _short_requests():
        table, left = _several()
        assert table.listed_ids() == sorted(left)
        assert PackTable.read(table) == sorted(left)


def range_gives_nothing_twice() -> None:
    """Each message once, whatever parts a read is made of."""
    range_is_read_to_its_end()


def _single_lost(table: PackTable, some: list[int]) -> None:
    """An insert that nobody acknowledged reached one replica; a sweep copies ids; that replica is lost."""
    with table.quorum(writes=C):
        table.send(some, acknowledged=False)
    with table.quorum(reads=B | C):
        assert table.listed_ids(*_around(some)) == some
    table.cluster.level(A | B)  # as the node is rebuilt


def _around(some: list[int]) -> tuple[int, int]:
    return some[0] - 1, some[-1]


def phantoms_do_not_keep_a_wide_row() -> None:
    """Ids without a message, which only an insert that nobody acknowledged leaves, do not stay for ever."""
    for count in (4, 1):
        table = PackTable()
        view = table.view()
        some = table.new_ids(NOON_US + 30 * SECOND_US, count)
        _single_lost(table, some)
        assert table.read() == []
        assert table.retired(view) == []


def strays_behind_others_are_kept() -> None:
    """A read of strays that is full of what has landed since says nothing of those behind."""
    table, view = _swept()
    some, behind = (table.pack_at(NOON_US + at, 2, acknowledged=False) for at in (0, 20))
    landed: list[int] = []

    def land(operation: Any) -> None:
        if type(operation) is ReadSlice and operation.upto == behind[-1] and not landed:
            landed.extend(table.pack_at(NOON_US + 10, 2, acknowledged=False))

    table.pass_time(SECOND_US)
    claimed = table.claim(view, hook=land)
    assert ids_of(claimed) == some
    table.ack(claimed, view)
    assert sorted(table.retired(view)) == [*landed, *behind]


def node_away_revives_nothing() -> None:
    """A node that was away while others acked packs, whole and in part, for longer than gc_grace."""
    table = PackTable()
    pack, begun = table.pack_at(NOON_US, 4), table.pack_at(NOON_US + 10, 4)
    table.cluster.go_down(2)
    with table.quorum(writes=A | B):
        table.delete(pack[1])
        table.delete(*begun[:2])
        table.delete(pack[0], *pack[2:])
        table.compact()
    assert table.stored() == [pack[0], begun[0]]
    table.cluster.rebuild(2)
    assert table.sees(begun[2:])


def late_marks_revive_nothing() -> None:
    """Marks that come when the tombstone of their row is forgotten make a row without messages."""
    table = PackTable()
    pack = table.pack_at(NOON_US, 4)
    late = planned(DeleteMessages(table.row, 0, (pack[1],)), table.client)
    table.delete(*pack)
    table.compact()
    assert table.stored() == []
    table.execute(late)
    assert table.stored() == [pack[0]]
    assert table.sees([])
    assert table.retired(table.view()) == []
