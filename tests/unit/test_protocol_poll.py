"""Test a consumer's poll rounds: which wide rows it claims from, and how soon."""

from contextlib import suppress

import pytest

from cqueue.errors import NotDone, TooManyTombstones
from cqueue.protocol import ack, by_id, registry
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.lock import acquire, prepare_fence, unlock
from cqueue.protocol.poll import (
    ENOUGH_FOUND,
    FREE_AFTER_US,
    MAX_FINISHED,
    MAX_SEARCH_DELAY_US,
    OTHERS_EVERY_US,
    PROBED_AT_ONCE,
    SEARCH_EVERY_US,
    TURNS,
    Poll,
    Reason,
    WorkList,
)
from cqueue.protocol.probe import MAX_REST_US, MAX_WAITING_REST_US, probe
from cqueue.protocol.registry import refresh
from cqueue.protocol.row_memory import HEAD_REMEMBERED_US, Hint
from cqueue.protocol.spec import QueueSpec
from cqueue.runtime.catalog import ACTIVE
from cqueue.store.operations import (
    CreateQueue,
    DeleteMessages,
    LockState,
    Mutate,
    Pause,
    QueueRow,
    ReadHead,
    ReadIds,
    ReadMessages,
    ReadQueue,
    ReadShards,
    ReadSlice,
    WideRow,
)
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, SKEW_US, Hook, Table, nothing


def started(table: Table) -> Poll:
    spec: QueueSpec = table.spec
    epoch = registry.epoch_at(spec, NOON_US // 1000)
    row = QueueRow(spec.name, spec.incarnation, 1, ACTIVE, "{}", spec.epoch_ms, epoch, 0)
    table.store.execute(CreateQueue(row))
    return Poll(row, spec, SuspectGate())


def hint(row: WideRow) -> Hint:
    return Hint(row, frozenset({0}))


def put(table: Table, shard: int, *, now: bool = False) -> WideRow:
    time_us = table.time_us if now else table.row.time_shard * 1000
    row = registry.normal_row(table.spec, time_us, shard)
    for registration in registry.registration(table.spec, row, 0):
        table.store.execute(registration)
    table.put(table.time_us, row=row)
    return row


def took(table: Table, poll: Poll, share=None) -> int:
    """Return how many messages one round takes, one claim each."""
    table.run(poll.begin(table.spec, (), share))
    count = 0
    while (claimed := table.run(poll.next_claim(table.spec, 1))) is not None:
        count += len(claimed.taken)
    return count


def test_a_share_is_looked_at_first_and_all_within_two_seconds():
    """Workers divide the wide rows, and those of a dead worker wait two seconds at most."""
    table = Table(shards=4)
    poll = started(table)
    mine = put(table, 0)
    assert took(table, poll, lambda row: row == mine) == 1  # the first search looks everywhere
    others = [put(table, shard) for shard in (1, 2, 3)]
    put(table, 0)
    table.pass_time(600_000)
    table.log.clear()
    assert took(table, poll, lambda row: row == mine) == 1
    assert not {op.wide_row for op in table.log if type(op) is ReadHead} & set(others)
    table.pass_time(OTHERS_EVERY_US)
    assert took(table, poll, lambda row: row == mine) == 3


def probed(table: Table) -> list[int]:
    """Return the shards that a search has probed since the store's log was cleared."""
    return sorted(op.wide_row.shard for op in table.log if type(op) is ReadHead)


def test_what_others_are_assigned_to_is_probed_when_it_is_due():
    """Exactly two seconds after the last time."""
    table = Table(shards=4)
    poll = started(table)
    mine = put(table, 0)
    assert took(table, poll, lambda row: row == mine) == 1
    put(table, 1)
    table.pass_time(OTHERS_EVERY_US - 1)
    assert took(table, poll, lambda row: row == mine) == 0
    table.pass_time(1)
    assert took(table, poll, lambda row: row == mine) == 1


def test_a_search_that_finds_nothing_is_one_read_of_the_head():
    """No claim looks there in vain, after it."""
    table = Table()
    poll = started(table)
    put(table, 0)
    assert took(table, poll) == 1
    table.pass_time(SEARCH_EVERY_US)
    table.log.clear()
    assert took(table, poll) == 0
    assert probed(table) == [0]


def test_a_busy_search_leaves_out_what_claims_have_seen():
    """In a process that sends all the time, its own claims also find what others sent there."""
    table = Table(shards=4)
    poll = started(table)
    mine = put(table, 0)
    other = put(table, 1)
    assert took(table, poll) == 2
    for _ in range(50):  # 2.5 s: there is a search in it
        put(table, 0)
        table.run(poll.begin(table.spec, [hint(mine)]))
        assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1
        table.pass_time(50_000)
    put(table, 0)
    put(table, 1)
    table.log.clear()
    table.pass_time(MAX_SEARCH_DELAY_US)
    table.run(poll.begin(table.spec, [hint(mine)]))
    assert other.shard in probed(table)
    assert mine.shard not in probed(table)
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1
    table.log.clear()
    assert took(table, poll) == 0  # nothing else to do: it looks everywhere
    assert set(probed(table)) == {0, 1}


def test_without_a_share_everything_is_looked_at():
    table = Table(shards=4)
    poll = started(table)
    for shard in range(4):
        put(table, shard)
    assert took(table, poll) == 4


def shards_of(table: Table, poll: Poll, rounds: int, *hints: Hint, want: int = 1) -> list[int]:
    """Return the shards that several rounds of one claim each take from; the first round has a hint."""
    found = []
    for number in range(rounds):
        table.run(poll.begin(table.spec, hints if number == 0 else ()))
        claimed = table.run(poll.next_claim(table.spec, want))
        found.append(claimed.taken[0].lease.wide_row.shard)
    return found


def test_backlogs_of_several_wide_rows_are_drained_in_turn():
    """Each wide row gives a few claims under one lock, then the next one does, without a search."""
    table = Table(shards=4)
    poll = started(table)
    for shard in range(4):
        for _ in range(3 * TURNS):
            put(table, shard)
    order = shards_of(table, poll, 12 * TURNS)
    turns = [order[start : start + TURNS] for start in range(0, len(order), TURNS)]
    assert all(len(set(turn)) == 1 for turn in turns)
    assert [{turn[0] for turn in turns[start : start + 4]} for start in (0, 4, 8)] == [{0, 1, 2, 3}] * 3
    locks = [op for op in table.log if type(op) is Mutate and not op.slots]
    assert len(locks) == 4, "nobody has claimed there yet; later the last claim of a turn lets go itself"


def test_a_hint_waits_for_a_few_claims():
    """A hinted wide row has its turn beside a backlog whose lock is kept."""
    table = Table(shards=4)
    poll = started(table)
    for _ in range(20):
        put(table, 0)
    assert shards_of(table, poll, 2) == [0, 0]
    other = put(table, 1)
    assert 1 in shards_of(table, poll, TURNS, hint(other))


def test_a_backlog_that_a_hint_interrupts_goes_on_behind_it():
    """Without a search, though its lock was let go for the hinted wide row."""
    table = Table(shards=4)
    poll = started(table)
    for _ in range(2 * TURNS):
        put(table, 0)
    assert shards_of(table, poll, TURNS + 1) == [0] * (TURNS + 1)
    assert poll.work.held is not None
    other = put(table, 1)
    table.run(poll.begin(table.spec, [hint(other)]))
    claims = [table.run(poll.next_claim(table.spec, 1)) for _ in range(2)]
    assert [claimed and claimed.taken[0].lease.wide_row.shard for claimed in claims] == [1, 0]


def test_a_finished_slot_waits_for_a_claim_no_longer_than_it_may():
    """After 0.2 s it is freed by a mutation of its own."""
    table = Table()
    poll = started(table)
    put(table, 0)
    table.run(poll.begin(table.spec))
    (taken,) = table.run(poll.next_claim(table.spec, 10)).taken
    poll.finished += table.run(ack.ack([taken]))
    for waits_us, is_freed in ((0, False), (FREE_AFTER_US - 1, False), (1, True)):
        table.pass_time(waits_us)
        table.run(poll.tidy())
        assert (table.listed() == []) is is_freed


def test_only_wide_rows_without_claims_get_mutations_that_free_slots():
    """Where messages come often, the next claim frees finished slots on its way, and hints need not wait."""
    table = Table(shards=2)
    poll = started(table)
    left, busy = put(table, 0), put(table, 1)
    table.run(poll.begin(table.spec))
    for _ in range(2):
        poll.finished += table.run(ack.ack(table.run(poll.next_claim(table.spec, 10)).taken))
    assert not table.run(poll.next_claim(table.spec, 10))
    for _ in range(3):
        table.pass_time(FREE_AFTER_US // 2)
        table.put(table.time_us, row=busy)
        table.run(poll.begin(table.spec, [hint(busy)]))
        claimed = table.run(poll.next_claim(table.spec, 10))
        poll.finished += table.run(ack.ack(claimed.taken))
        table.log.clear()
        table.run(poll.tidy())
        assert {op.wide_row for op in table.log if type(op) is Mutate} <= {left}
    assert not [slot for slot in table.head(left).slots if slot.in_use]
    table.pass_time(FREE_AFTER_US)
    table.run(poll.tidy())
    assert not [slot for slot in table.head(busy).slots if slot.in_use]


def test_many_finished_slots_do_not_wait_for_claims_that_free_a_few():
    """A claim of messages that others have given back takes a slot each, and frees four."""
    table = Table(shards=1, max_attempts=50)
    poll, most = table.rounds(), 0
    for step in range(60):
        table.put(*[table.time_us - number for number in range(6)])
        for number, taken in enumerate(table.claim(want=6).taken):
            table.bits = 100 * step + number
            table.run(ack.nack(taken.lease, [taken.row.id], 1, ack.Shared()))
        table.pass_time(FREE_AFTER_US // 2)
        table.run(poll.begin(table.spec, [hint(table.row)]))
        while (claimed := table.run(poll.next_claim(table.spec, 10))) is not None:
            poll.finished += table.run(ack.ack(claimed.taken))
        table.run(poll.tidy())
        most = max(most, len(table.head().slots))
    assert most <= 4 * MAX_FINISHED


def test_a_message_that_no_hint_names_is_found_by_the_round_after_a_busy_search():
    """The busy search leaves out the wide row that a claim has just emptied, so another one follows."""
    table = Table(shards=2)
    poll = started(table)
    emptied, other = put(table, 0), put(table, 1)
    assert took(table, poll) == 2
    table.pass_time(SEARCH_EVERY_US)
    table.run(poll.begin(table.spec))
    assert table.run(poll.next_claim(table.spec, 10)) is None
    table.pass_time(HEAD_REMEMBERED_US)
    table.put(table.time_us, row=emptied)
    assert shards_of(table, poll, 1, hint(emptied), want=10) == [0]
    table.pass_time(1000)
    table.put(table.time_us, row=emptied)
    table.pass_time(MAX_SEARCH_DELAY_US)
    table.put(table.time_us, row=other)
    assert shards_of(table, poll, 1, hint(other), want=10) == [1]
    assert poll.has_work
    table.run(poll.begin(table.spec))
    assert table.run(poll.next_claim(table.spec, 10)).taken[0].lease.wide_row == emptied


def test_a_search_beside_other_work_is_not_made_once_more():
    """Once the backlog is empty, nothing is left for the next round to look for at once."""
    table = Table(shards=4)
    poll = started(table)
    for _ in range(3):
        put(table, 0)
    table.run(poll.begin(table.spec))
    assert len(table.run(poll.next_claim(table.spec, 1)).taken) == 1
    table.pass_time(SEARCH_EVERY_US)
    table.log.clear()
    table.run(poll.begin(table.spec))
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 2
    assert [type(op) for op in table.log].count(ReadShards) == 1
    assert not poll.has_work


def test_a_hint_is_followed_by_no_search():
    """If a hint finds nothing, another consumer was quicker, and the round ends without a search."""
    table = Table(shards=4)
    poll = started(table)
    mine = put(table, 0)
    assert took(table, poll) == 1
    put(table, 1)
    table.log.clear()
    table.run(poll.begin(table.spec, [hint(mine)]))
    assert table.run(poll.next_claim(table.spec, 10)) is None
    assert not [op for op in table.log if type(op) is ReadShards]
    table.pass_time(MAX_SEARCH_DELAY_US)
    table.run(poll.begin(table.spec, [hint(mine)]))
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1


def test_what_a_hint_tells_of_waits_for_no_search_and_the_next_round_makes_it():
    """At a message a second a search is always due; it comes after the hinted message."""
    table = Table(shards=4)
    poll = started(table)
    mine = put(table, 0)
    assert took(table, poll) == 1
    other = put(table, 1)
    put(table, 0)
    table.pass_time(SEARCH_EVERY_US)
    table.log.clear()
    table.run(poll.begin(table.spec, [hint(mine)]))
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1
    assert {op.wide_row for op in table.log if hasattr(op, "wide_row")} == {mine}
    assert not [op for op in table.log if type(op) is ReadShards]
    assert poll.has_work
    assert took(table, poll) == 1
    assert other.shard in probed(table)
    assert not poll.has_work


@pytest.mark.parametrize(
    "wrong",
    [
        Hint(WideRow("another@1", NOON_US // 1000, 0), frozenset({0})),
        Hint(WideRow("q@1", NOON_US // 1000 + 60_000, 0), frozenset({0})),
        Hint(WideRow("q@1", NOON_US // 1000, 7), frozenset({0})),
        Hint(WideRow("q@1", NOON_US // 1000, 0), frozenset({9})),
        Hint(WideRow("q@1", NOON_US // 1000, 0), frozenset()),
        Hint(WideRow("q@1", 0, -1), frozenset({0})),
    ],
    ids=[
        "another queue",
        "the future",
        "a wide row that is not there",
        "a priority that is not there",
        "no priority",
        "an open wide row that is not there, and would be read from 1970 on",
    ],
)
def test_a_wrong_hint_gives_nothing_and_hides_nothing(wrong):
    table = Table(shards=4)
    poll = started(table)
    table.run(poll.begin(table.spec, [wrong]))
    assert table.run(poll.next_claim(table.spec, 10)) is None
    put(table, 0)
    table.pass_time(MAX_SEARCH_DELAY_US)
    table.run(poll.begin(table.spec, [wrong]))
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1


def test_many_wide_rows_are_probed_in_turn():
    """However many wide rows have work all the time, the others are probed next."""
    table = Table(shards=40)
    poll = started(table)
    rows = [put(table, shard) for shard in range(40)]
    seen = set()
    for _ in range(40):
        table.run(poll.begin(table.spec))
        claimed = table.run(poll.next_claim(table.spec, 10))
        seen.add(claimed.taken[0].lease.wide_row)
        put(table, claimed.taken[0].lease.wide_row.shard)
        table.pass_time(SEARCH_EVERY_US)
        if len(seen) == len(rows):
            break
    assert seen == set(rows)
    assert ENOUGH_FOUND < PROBED_AT_ONCE < len(rows)


def test_a_search_goes_on_until_it_has_found_something():
    """A message is found in the first round, however many wide rows without work are probed before."""
    table = Table(shards=2 * PROBED_AT_ONCE)
    poll = started(table)
    for shard in range(2 * PROBED_AT_ONCE):
        for registration in registry.registration(table.spec, table.row._replace(shard=shard), 0):
            table.store.execute(registration)
    table.pass_time(table.end_us - NOON_US)
    put(table, 0, now=True)
    assert took(table, poll) == 1


def test_a_search_that_has_found_enough_ends():
    """Its other wide rows come with the next searches."""
    table = Table(shards=3 * PROBED_AT_ONCE)
    poll = started(table)
    for shard in range(3 * PROBED_AT_ONCE):
        put(table, shard)
    table.run(poll.begin(table.spec))
    assert len(table.run(poll.next_claim(table.spec, 1)).taken) == 1
    assert len(set(probed(table))) == PROBED_AT_ONCE


def test_a_claim_that_fails_keeps_no_other_waiting():
    """Other wide rows may have messages; if none has, the failure is raised."""
    table = Table(shards=4)
    poll = started(table)
    bad, good = put(table, 1), put(table, 2)

    def trouble(operation):
        if getattr(operation, "wide_row", good) == bad and type(operation) is not ReadIds:
            raise NotDone("no answer")

    table.run(poll.begin(table.spec, [hint(bad), hint(good)]))
    (taken,) = table.run(poll.next_claim(table.spec, 10), trouble).taken
    assert taken.lease.wide_row == good
    table.run(poll.begin(table.spec, [hint(bad)]))
    with pytest.raises(NotDone):
        table.run(poll.next_claim(table.spec, 10), trouble)


def test_a_claim_that_fails_lets_go_of_its_lock_and_later_ones_read_less():
    """Others may claim at once, the round ends, and a read that was too large is not repeated for ever."""
    table = Table()
    poll = started(table)
    (row,) = {put(table, 0) for _ in range(20)}
    table.run(poll.begin(table.spec))
    assert len(table.run(poll.next_claim(table.spec, 1)).taken) == 1
    assert table.head(row).lock.state is LockState.LOCKED
    sizes = poll.registry.rows[row].reads.sizes
    before, tries = sizes.count_within(0, 1 << 20), iter("123")

    def trouble(operation):
        if type(operation) is ReadHead and next(tries):
            raise NotDone("no answer")

    table.pass_time(HEAD_REMEMBERED_US)
    with pytest.raises(NotDone):
        table.run(poll.next_claim(table.spec, 1), trouble)
    assert table.head(row).lock.state is LockState.FREE
    assert sizes.count_within(0, 1 << 20) < before


def test_searches_that_fail_keep_no_backlog_waiting():
    """The replicas of the only other wide row are down; messages are claimed between the searches."""
    table = Table(shards=2)
    poll = started(table)
    for _ in range(40):
        put(table, 0)
    down = put(table, 1)
    assert shards_of(table, poll, 1, hint(table.row)) == [0]

    def trouble(operation):
        if getattr(operation, "wide_row", None) == down or type(operation) is ReadShards:
            raise NotDone("no answer")

    claims = failures = 0
    for _ in range(30):
        table.pass_time(50_000)
        try:
            table.run(poll.begin(table.spec), trouble)
            claims += table.run(poll.next_claim(table.spec, 1), trouble) is not None
        except NotDone:
            failures += 1
    assert failures
    assert claims >= 20


def test_a_wide_row_whose_messages_cannot_be_read_hides_no_other():
    """Another one, with an expired timeout, is claimed from by the same search, and by each later one."""
    table = Table(shards=2)
    poll = started(table)
    bad, good = put(table, 0), put(table, 1)
    assert len(table.claim(table.view(good)).taken) == 1
    table.pass_time((table.spec.visibility_ms + 1000) * 1000)

    def trouble(operation):
        if type(operation) is ReadIds and operation.wide_row == bad:
            raise NotDone("no answer")

    table.run(poll.begin(table.spec), trouble)
    (taken,) = table.run(poll.next_claim(table.spec, 10), trouble).taken
    assert taken.lease.wide_row == good


def test_a_search_that_fails_is_followed_by_one_of_other_wide_rows():
    """Where more wide rows wait than one look covers."""
    table = Table(shards=PROBED_AT_ONCE + 4)
    poll = started(table)
    bad = {put(table, shard) for shard in range(PROBED_AT_ONCE)}
    good = [put(table, PROBED_AT_ONCE + number) for number in range(4)]
    table.run(refresh(poll.registry, table.spec))
    for row in good:  # probed last, so a search begins with the others
        poll.registry.rows[row].probed_us = 1

    def trouble(operation):
        if getattr(operation, "wide_row", None) in bad:
            raise NotDone("no answer")

    table.run(poll.begin(table.spec), trouble)
    with pytest.raises(NotDone):
        table.run(poll.next_claim(table.spec, 10), trouble)
    table.pass_time(SEARCH_EVERY_US)
    table.run(poll.begin(table.spec), trouble)
    (taken, *_) = table.run(poll.next_claim(table.spec, 10), trouble).taken
    assert taken.lease.wide_row in good


def started_with_two_priorities(table: Table) -> tuple[Poll, WideRow]:
    """Begin with a wide row that has priorities 0 and 5, and no message left."""
    poll, row = started(table), put(table, 0)
    for registration in registry.registration(table.spec, row, 5):
        table.store.execute(registration)
    work_off(table, poll)
    return poll, row


def work_off(table: Table, poll: Poll, hook: Hook = nothing) -> list[int]:
    """One round, whose messages are acked; return their ids."""
    table.run(poll.begin(table.spec), hook)
    claimed = table.run(poll.next_claim(table.spec, 10), hook)
    taken = claimed.taken if claimed is not None else []
    poll.finished += table.run(ack.ack(taken))
    return [one.row.id for one in taken]


def purged(table: Table, row: WideRow, count: int, priority: int = 0, every_us: int = 20) -> None:
    """Leave the tombstones of messages that stood alone in their rows, and that nobody claimed."""
    some = [table.id_at(table.time_us + every_us * number) for number in range(count)]
    table.insert(some, priority, row)
    table.pass_time(SECOND_US + every_us * count)
    for start in range(0, count, 500):
        table.store.execute(DeleteMessages(row, priority, tuple(some[start : start + 500])))


def refusing(table: Table, refused: list[int]) -> Hook:
    """Refuse, as Cassandra does from 100,000 on, to cross more than 10,000 tombstones in one read."""

    def refuse(operation):
        if isinstance(operation, ReadIds | ReadSlice):
            tombstones = table.store.execute(operation).tombstones
            if tombstones > 10_000:
                refused.append(tombstones)
                raise TooManyTombstones("tombstone_failure_threshold")

    return refuse


def test_after_a_purge_polls_do_not_cross_its_tombstones_again():
    """The boundary moves over them once nothing can land there any more; later messages are delivered."""
    table = Table(width_ms=3_600_000)
    poll = started(table)
    row = put(table, 0)
    work_off(table, poll)
    purged(table, row, 5000)
    crossed: list[int] = []

    def note(operation):
        if isinstance(operation, ReadIds | ReadSlice) and operation.wide_row == row:
            crossed.append(table.store.execute(operation).tombstones)

    mutations = 0
    for _ in range(40):
        table.pass_time(SEARCH_EVERY_US)
        before = len(table.log)
        table.receive(poll, hook=note)
        mutations += sum(type(one) is Mutate for one in table.log[before:])
    assert crossed[-20:] == [0] * 20
    assert mutations < 12
    (late,) = table.put(table.time_us, row=row)
    table.pass_time(SEARCH_EVERY_US)
    assert table.receive(poll) == [late]


@pytest.mark.parametrize("is_over", [False, True])
def test_a_purge_whose_tombstones_cassandra_refuses_to_cross_stops_no_wide_row(is_over):
    """What is sent there afterwards is delivered, and the wide row is retired."""
    table = Table(width_ms=3_600_000, visibility_ms=30_000)
    poll = started(table)
    row = put(table, 0)
    work_off(table, poll)
    table.pass_time(1_800_000_000)
    purged(table, row, 12_000)
    (late,) = table.put(table.time_us, row=row)
    refused: list[int] = []
    refuse = refusing(table, refused)
    if is_over:
        table.time_us = table.end_us + SETTLE_US + SKEW_US
    got: list[int] = []
    for _ in range(60):
        table.pass_time(SEARCH_EVERY_US)
        with suppress(TooManyTombstones):
            got += work_off(table, poll, refuse)
    assert late in got
    assert 0 < len(refused) < 30, "pieces get shorter where a read was refused"
    if is_over:
        table.pass_time(3_600_000_000)
        for _ in range(1000):
            table.pass_time(SEARCH_EVERY_US)
            with suppress(TooManyTombstones):
                table.receive(poll, hook=refuse)
            if row not in poll.registry.rows:
                break
        assert row not in poll.registry.rows


def test_a_purge_of_one_priority_does_not_stop_the_others():
    """A claim reads the urgent one first; what it took there is delivered though the next read is refused."""
    table = Table(width_ms=3_600_000)
    poll, row = started_with_two_priorities(table)
    purged(table, row, 12_000, priority=5)
    late = {*table.put(table.time_us, row=row), *table.put(table.time_us, priority=5, row=row)}
    got: set[int] = set()
    for _ in range(60):
        table.pass_time(SEARCH_EVERY_US)
        with suppress(TooManyTombstones):
            got |= {*work_off(table, poll, refusing(table, []))}
    assert late <= got


def test_a_refused_purge_leaves_pieces_of_the_sweep_as_long_as_before():
    """The refused read crossed minutes. The sweep finds messages that land late, under traffic, too."""
    table = Table(width_ms=3_600_000)
    poll, row = started_with_two_priorities(table)
    table.pass_time(120 * SECOND_US)
    purged(table, row, 12_000, priority=5, every_us=500)
    table.pass_time(180 * SECOND_US)
    late: list[int] = []
    refused: list[int] = []
    got: set[int] = set()
    for number in range(240):
        table.pass_time(SEARCH_EVERY_US)
        for priority in (0, 5):
            table.put(table.time_us, priority=priority, row=row)
        if number % 20 == 10:
            late += table.put(table.time_us - 1_700_000, row=row)
        for _ in range(2):
            with suppress(TooManyTombstones):
                got |= {*work_off(table, poll, refusing(table, refused))}
    assert refused
    assert len(late) == 12
    assert set(late) <= got


def test_the_boundary_of_a_wide_row_that_is_over_does_not_pass_its_end():
    """Else a sweep walks the empty hours behind it in pieces that suit the densest part of the row."""
    table = Table(width_ms=30_000)
    poll = started(table)
    row = put(table, 0)
    for _ in range(10):
        table.pass_time(SEARCH_EVERY_US)
        table.put(table.time_us, row=row)
        work_off(table, poll)
    purged(table, row, 12_000)
    table.time_us = table.end_us + 3600 * SECOND_US
    poll = Poll(table.store.execute(ReadQueue("q")), table.spec, SuspectGate())
    polls = 0
    while not polls or row in poll.registry.rows:
        polls += 1
        assert polls < 200
        table.pass_time(SEARCH_EVERY_US)
        with suppress(TooManyTombstones):
            table.receive(poll, hook=refusing(table, []))


def with_open_row(table: Table, *priorities: int) -> tuple[Poll, WideRow]:
    """A queue with one open wide row, for a consumer that runs rounds."""
    spec, hour_ms = table.spec, NOON_US // 1000
    normal, open_ = (registry.epoch_at(spec, hour_ms, open_=is_open) for is_open in (False, True))
    queue = QueueRow(spec.name, spec.incarnation, 1, ACTIVE, "{}", spec.epoch_ms, normal, open_)
    table.store.execute(CreateQueue(queue))
    row = registry.open_row(spec, NOON_US, b"x")
    for priority in priorities:
        for registration in registry.registration(spec, row, priority):
            table.store.execute(registration)
    return Poll(queue, spec, SuspectGate()), row


def idle_beside_an_open_row(hours: float) -> tuple[Table, Poll, WideRow]:
    """A consumer that began to poll `hours` after noon, and has just made a whole pass over the row."""
    table = Table(gc_grace_us=86_400_000_000, derived_sends=True)
    poll, row = with_open_row(table, 0)
    table.pass_time(int(hours * 3600 * SECOND_US))
    for _ in range(20):
        table.pass_time(300 * SECOND_US)
        assert work_off(table, poll) == []
    return table, poll, row


@pytest.mark.parametrize("hours", [0, 12])
def test_what_comes_late_into_an_open_row_is_found_by_its_hint(hours):
    """As from a statement that was executed minutes after it was made: it waits for no pass."""
    table, poll, row = idle_beside_an_open_row(hours)
    some = table.put(*(NOON_US + number for number in range(12)), row=row)
    hints = [Hint(row, frozenset({0}), tuple(part)) for part in (some[:8], some[8:])]
    table.log.clear()
    assert table.receive(poll, *hints) == some[:10]
    assert table.receive(poll) == some[10:]
    assert not [op for op in table.log if type(op) is ReadSlice and op.after < some[-1]]


def test_a_hint_of_an_open_row_costs_two_reads_by_id_at_most_however_often_it_comes():
    """Of messages that are done; nothing is read from the row's start, and nothing written."""
    table, poll, row = idle_beside_an_open_row(12)
    some = tuple(table.put(*(NOON_US + number for number in range(8)), row=row))
    table.store.execute(DeleteMessages(row, 0, some))
    for _ in range(20):
        table.log.clear()
        assert table.receive(poll, Hint(row, frozenset({0}), some)) == []
        kinds = [type(op) for op in table.log]
        assert kinds.count(ReadMessages) <= 2
        assert not {ReadSlice, Mutate} & set(kinds)
        table.pass_time(1000)
    table.pass_time(SEARCH_EVERY_US)
    table.log.clear()
    assert table.receive(poll) == []  # without a hint nothing is read there by id any more
    assert ReadMessages not in {type(op) for op in table.log}


@pytest.mark.parametrize(("named", "passes"), [(True, 0), (False, 3)])
def test_hints_of_an_old_open_row_bring_its_next_pass_only_if_they_name_nothing(named, passes):
    """So a sender that goes on costs no pass; one whose hints name nothing costs one a minute."""
    table, poll, row = idle_beside_an_open_row(12)
    (message,) = table.put(NOON_US, row=row)
    table.store.execute(DeleteMessages(row, 0, (message,)))
    table.receive(poll)
    table.log.clear()
    for _ in range(48):
        table.receive(poll, Hint(row, frozenset({0}), (message,) if named else ()))
        table.pass_time(5 * SECOND_US)
    begun = [op for op in table.log if type(op) is ReadSlice and op.wide_row == row and op.after < message]
    assert len(begun) == passes


def test_what_a_hint_named_is_looked_for_again_after_a_failure():
    """The next search does, though no second hint comes, and nothing else is to be done there."""
    table, poll, row = idle_beside_an_open_row(12)
    (message,) = table.put(NOON_US, row=row)

    def fail(operation: object) -> None:
        if type(operation) is ReadMessages:
            raise NotDone("no answer")

    with pytest.raises(NotDone):
        table.receive(poll, Hint(row, frozenset({0}), (message,)), hook=fail)
    table.pass_time(SEARCH_EVERY_US)
    assert table.receive(poll) == [message]


def test_dead_messages_of_a_hint_hide_no_live_one():
    """However few a claim wants."""
    table, poll, row = idle_beside_an_open_row(12)
    some = table.put(*(NOON_US + number for number in range(4)), row=row)
    table.store.execute(DeleteMessages(row, 0, tuple(some[:2])))
    table.run(poll.begin(table.spec, [Hint(row, frozenset({0}), tuple(some))]))
    found = [table.run(poll.next_claim(table.spec, 1)) for _ in range(2)]
    assert [one.row.id for claimed in found for one in claimed.taken] == some[2:]


@pytest.mark.parametrize("priority", [0, 5])
@pytest.mark.parametrize("every_us", [20, 500])
def test_a_purge_of_dead_letters_stops_no_open_wide_row(priority, every_us):
    table = Table(name="q.dead", width_ms=3_600_000, max_attempts=0, gc_grace_us=86_400_000_000)
    poll, row = with_open_row(table, 0, priority)
    table.pass_time(1_800_000_000)
    purged(table, row, 12_000, priority, every_us)
    table.pass_time(600_000_000)
    letters = {*table.put(table.time_us, row=row), *table.put(table.time_us + 1, priority=priority, row=row)}
    got: set[int] = set()
    refused: list[int] = []
    for _ in range(60):
        table.pass_time(SEARCH_EVERY_US)
        with suppress(TooManyTombstones):
            got |= {*work_off(table, poll, refusing(table, refused))}
    assert refused
    assert letters <= got


def test_the_reason_of_a_claim_is_told():
    """Operators see how many messages hints have found, and how many polling has."""
    table = Table(shards=4)
    poll = started(table)
    row = put(table, 0)
    table.run(poll.begin(table.spec))
    assert not table.run(poll.next_claim(table.spec, 10)).told
    put(table, 0)
    table.run(poll.begin(table.spec, [hint(row)]))
    assert table.run(poll.next_claim(table.spec, 10)).told


def test_what_others_send_is_found_beside_much_other_work():
    """Beside many endless backlogs, a wide row without a hint still has its turn."""
    busy = ENOUGH_FOUND + 2
    table = Table(shards=busy + 1)
    poll = started(table)
    for shard in range(busy):
        put(table, shard)
    took(table, poll)
    for shard in range(busy):
        put(table, shard)
        put(table, shard)
    hints = [hint(registry.normal_row(table.spec, NOON_US, n)) for n in range(busy)]
    table.run(poll.begin(table.spec, hints))
    put(table, busy)
    for _ in range(TURNS * (busy + 1) + 2 * SEARCH_EVERY_US // 10_000):
        (taken,) = table.run(poll.next_claim(table.spec, 1)).taken
        shard = taken.lease.wide_row.shard
        if shard == busy:
            return
        put(table, shard)
        table.pass_time(10_000)
        table.run(poll.begin(table.spec))
    raise AssertionError("nobody looked there")


def test_a_look_for_a_suspect_that_fails_keeps_no_lock():
    """Such a claim stands between two rounds, and the next round may come much later."""
    table = Table()
    poll = started(table)
    row = put(table, 0)
    view = poll.registry.add(table.spec, row, frozenset({0}))
    table.claim(table.view(row))  # a rival: the lock is taken first
    poll.work.add(view, Reason.SUSPECT)
    failed = []

    def fail_after_the_lock(operation) -> None:
        locked = table.head(row).lock
        if type(operation) is ReadSlice and locked is not None and locked.until_ms and not failed:
            failed.append(operation)
            raise NotDone("no answer")

    with pytest.raises(NotDone):
        table.run(poll.claim_suspect(table.spec, 10), fail_after_the_lock)
    lock = table.head(row).lock
    assert failed
    assert lock is not None
    assert not lock.until_ms
    assert poll.work.held is None


def test_a_late_hint_does_not_retire_a_wide_row_again():
    """A late hint costs neither a read nor a Paxos round."""
    table = Table()
    poll = started(table)
    row = put(table, 0)
    (taken,) = table.claim().taken
    table.run(ack.free(table.run(ack.ack([taken]))))
    table.pass_time(table.end_us - NOON_US + SETTLE_US + SKEW_US)
    assert took(table, poll) == 0
    assert poll.registry.rows[row].retired
    before = len(table.log)
    table.run(poll.begin(table.spec, [hint(row)]))
    assert table.run(poll.next_claim(table.spec, 10)) is None
    assert [
        op for op in table.log[before:] if type(op) is Mutate or getattr(op, "wide_row", None) == row
    ] == []


def test_a_hint_counts_where_a_search_has_found_the_wide_row_before():
    """If another consumer holds the wide row, the retry comes within moments, not with the next search."""
    table = Table()
    poll = started(table)
    row = put(table, 0)
    table.run(poll.begin(table.spec))
    poll.work.add(poll.registry.add(table.spec, row, frozenset({0})), Reason.FOUND)
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1
    put(table, 0)
    poll.work.add(poll.registry.rows[row], Reason.FOUND)
    rival = table.view(row)
    table.run(prepare_fence(rival, table.spec))
    table.run(acquire(rival, table.spec))

    def let_go(operation) -> None:
        if type(operation) is Pause:
            table.run(unlock(rival))

    table.run(poll.begin(table.spec, [hint(row)]))
    claimed = table.run(poll.next_claim(table.spec, 10), let_go)
    assert len(claimed.taken) == 1
    assert claimed.told


def test_a_look_for_a_suspect_gives_nothing_that_was_purged():
    """Such a claim stands between two rounds, and uses nothing that was read ahead."""
    table = Table()
    poll = started(table)
    row = put(table, 0)
    some = [id_ for _ in range(30) for id_ in table.put(table.time_us, row=row)]
    table.pass_time(1000)
    table.run(poll.begin(table.spec))
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 10
    poll.work.add(poll.registry.rows[row], Reason.SUSPECT)
    table.store.execute(DeleteMessages(row, 0, tuple(some)))
    assert table.run(poll.claim_suspect(table.spec, 10)).taken == []


def test_a_look_for_a_suspect_where_none_was_left_gives_nothing():
    table = Table()
    poll = started(table)
    put(table, 0)
    assert table.run(poll.claim_suspect(table.spec, 10)).taken == []


def test_claims_that_may_take_suspects_come_to_those_that_were_left():
    """After the other work. A wide row that they have claimed from for another reason is forgotten as one."""
    table = Table()
    first, second = (table.view(table.row._replace(shard=shard)) for shard in (0, 1))
    work = WorkList()
    for view in (first, second):
        work.add(view, Reason.SUSPECT)
    work.add(second, Reason.HINT)
    assert work.next(suspects=True) == (second, Reason.HINT, None)
    assert work.next(suspects=True) == (first, Reason.SUSPECT, None)
    assert not work.has_suspects


def test_a_hinted_wide_row_overtakes_the_others_by_one_claim_at_a_time():
    """A message just sent waits for one claim of what a search found, which is not starved either."""
    table = Table(shards=8)
    views = [table.view(table.row._replace(shard=shard)) for shard in range(6)]
    work = WorkList()
    for view in views[:3]:
        work.add(view, Reason.FOUND)
    for view in (views[3], views[4], views[2]):
        work.add(view, Reason.HINT, hint(view.wide_row))
    order = [
        (next_.memory.wide_row.shard, work.is_last_turn)
        for _ in range(5)
        if (next_ := work.next(suspects=False))
    ]
    assert order == [(3, True), (0, False), (4, True), (1, False), (2, False)]
    assert work.next(suspects=False) is None


def test_a_wide_row_that_was_overtaken_has_a_claim_less_in_its_turn():
    table = Table(shards=3)
    found, other, hinted = (table.view(table.row._replace(shard=shard)) for shard in range(3))
    work = WorkList()
    work.add(found, Reason.FOUND)
    work.add(other, Reason.FOUND)
    work.add(hinted, Reason.HINT, hint(hinted.wide_row))
    order = []
    while next_ := work.next(suspects=False):
        order.append(next_.memory)
        work.held = None if work.is_last_turn or next_.memory is other else next_.memory
    assert order == [hinted, *[found] * (TURNS - 1), other]


def test_a_message_sent_during_claims_that_take_nothing_waits_for_one_of_them():
    """Sweeps of other wide rows, of which each costs several reads and a mutation."""
    table = Table(shards=8)
    poll = started(table)
    for shard in range(6):
        put(table, shard)
    assert took(table, poll) == 6
    table.pass_time(SETTLE_US + SKEW_US + SECOND_US)
    sent: list[Hint] = []
    claims: list[int] = []

    def watch(operation):
        if type(operation) is Mutate:
            claims.append(operation.wide_row.shard)
            if len(claims) == 2:
                sent.append(hint(put(table, 7)))

    def hints():
        told = list(sent)
        sent.clear()
        return told

    table.run(poll.begin(table.spec))
    (taken,) = table.run(poll.next_claim(table.spec, 10, hints=hints), watch).taken
    assert taken.lease.wide_row.shard == 7
    assert len(set(claims)) == 3, "two sweeps, and the claim of the message"


def swept(table: Table, count: int) -> list[int]:
    """Return messages that a consumer holds, in a wide row without anything else to do."""
    some = table.put(*(NOON_US + number for number in range(count)))
    table.pass_time(1000)
    table.claim()
    table.pass_time(SETTLE_US + SKEW_US)
    table.claim()
    return some


def test_a_wide_row_that_is_over_rests_while_its_messages_are_held():
    """From W + ε after its end nothing can land in it. Before, each search looks there again."""
    table = Table(visibility_ms=600_000)
    swept(table, 1)
    over_us, view = table.end_us + SETTLE_US + SKEW_US, table.view()
    for table.time_us, rests_until_us in ((over_us - 1, 0), (over_us, over_us + MAX_REST_US)):
        assert table.run(probe([view], table.spec, SuspectGate())) == []
        assert view.rest_until_us == rests_until_us, "they may be given back at any time"


def test_a_wide_row_that_is_over_rests_longer_while_its_messages_wait():
    """Thousands of messages that were put off for hours must not be looked at all the time."""
    table = Table()
    (message,) = table.put(NOON_US)
    later_us = table.end_us + 3_600_000_000
    table.run(by_id.reschedule(table.spec, table.row, 0, [message], later_us // 1000))
    view = table.view()
    for at_us in (table.end_us + SETTLE_US + SKEW_US, later_us - SECOND_US):
        table.time_us = at_us
        table.claim()  # sweeps
        assert table.run(probe([view], table.spec, SuspectGate())) == []
        assert view.rest_until_us == min(table.time_us + MAX_WAITING_REST_US, later_us)


def test_a_wide_row_that_could_not_be_read_does_not_rest():
    """A message that no slot lists may be due there; another wide row answers."""
    table = Table(shards=2)
    rows = [table.row, table.row._replace(shard=1)]
    for row in rows:
        (message,) = table.put(NOON_US, row=row)
        later_ms = (table.end_us + 3_600_000_000) // 1000
        table.run(by_id.reschedule(table.spec, row, 0, [message], later_ms))
    table.time_us = table.end_us + SETTLE_US + SKEW_US
    for row in rows:
        table.claim(table.view(row))  # sweeps
    views = [table.view(row) for row in rows]

    def trouble(operation):
        if type(operation) is ReadIds and operation.wide_row == rows[0]:
            raise NotDone("no answer")

    assert table.run(probe(views, table.spec, SuspectGate()), trouble) == []
    assert views[0].rest_until_us == 0
    assert views[1].rest_until_us > table.time_us


def test_a_claim_ends_the_rest_of_its_wide_row():
    """What the claim delivers may be given back at once."""
    table = Table()
    poll = started(table)
    row = put(table, 0)
    table.run(refresh(poll.registry, table.spec))
    memory = poll.registry.rows[row]
    memory.rest_until_us = table.time_us + MAX_WAITING_REST_US
    assert len(table.receive(poll, hint(row))) == 1
    assert memory.rest_until_us == 0


def test_a_wide_row_with_the_next_suspect_does_not_rest():
    """A search takes it as soon as this process has finished the suspect that it holds."""
    table, gate = Table(visibility_ms=60_000), SuspectGate()
    some = swept(table, 2)
    view = table.view()
    table.pass_time(61 * SECOND_US)
    (first,) = table.poll(view, gate).taken
    table.run(unlock(view))
    view.rest_until_us = NOON_US
    assert table.run(probe([view], table.spec, gate)) == []
    assert view.rest_until_us == 0
    table.run(ack.ack([first]))
    assert [one.row.id for one in table.poll(view, gate).taken] == some[1:]
