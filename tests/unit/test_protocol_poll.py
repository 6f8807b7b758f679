"""A consumer's rounds: where it looks, and how soon."""

from collections import deque

from cqueue.catalog import ACTIVE
from cqueue.protocol import shards
from cqueue.protocol.news import News
from cqueue.protocol.poll import OTHERS_EVERY_US, SEARCH_EVERY_US, Poll
from cqueue.protocol.spec import QueueSpec, SuspectGate
from cqueue.store.operations import CreateQueue, Mutate, QueueRow, ReadHead, WideRow
from tests.simulation.hand import NOON_US, Table


def started(table: Table) -> Poll:
    spec: QueueSpec = table.spec
    row = QueueRow(
        spec.name, spec.incarnation, 1, ACTIVE, "{}", spec.epoch_ms, shards.epoch_at(spec, NOON_US // 1000), 0
    )
    table.store.execute(CreateQueue(row))
    return Poll(row, spec, SuspectGate())


def put(table: Table, shard: int) -> WideRow:
    row = WideRow(table.spec.partition, table.row.time_shard, shard)
    for registration in shards.registration(table.spec, row, 0):
        table.store.execute(registration)
    table.put(table.time_us, row=row)
    return row


def took(table: Table, poll: Poll, share=None) -> int:
    """How many messages one round gives, one claim each."""
    table.run(poll.begin(table.spec, deque(), share))
    count = 0
    while (claimed := table.run(poll.next_claim(table.spec, 1))) is not None:
        count += len(claimed.taken)
    return count


def test_a_share_is_looked_at_first_and_all_within_two_seconds():
    """Workers divide the wide rows among them, and what a dead one leaves waits two seconds at most."""
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
    """Shards whose heads were read since the log was cleared, by a search: a claim reads one alone."""
    return sorted(op.wide_row.shard for op in table.log if type(op) is ReadHead)


def test_a_busy_search_leaves_out_what_claims_have_seen():
    """Where this process sends all the time, its claims find what others sent there as well."""
    table = Table(shards=4)
    poll = started(table)
    mine = put(table, 0)
    other = put(table, 1)
    assert took(table, poll) == 2
    for _ in range(15):  # 0.75 s: there is a search in it
        put(table, 0)
        table.run(poll.begin(table.spec, deque([News(mine, frozenset({0}))])))
        assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1
        table.pass_time(50_000)
    put(table, 0)
    put(table, 1)
    table.log.clear()
    table.pass_time(SEARCH_EVERY_US)
    table.run(poll.begin(table.spec, deque([News(mine, frozenset({0}))])))
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


def test_backlogs_of_several_wide_rows_are_drained_in_turn():
    """A search goes round all of them, with one mutation each; what is left in them is not searched for."""
    table = Table(shards=4)
    poll = started(table)
    for shard in range(4):
        for _ in range(10):
            put(table, shard)
    order = []
    for _ in range(13):
        table.run(poll.begin(table.spec, deque()))
        (taken,) = table.run(poll.next_claim(table.spec, 1)).taken
        order.append(taken.lease.wide_row.shard)
        table.pass_time(10_000)
    assert sorted(order[:4]) == [0, 1, 2, 3]
    assert set(order[3:]) == {order[3]}  # the last one's lock is kept
    held = order[3]
    table.log.clear()
    table.pass_time(SEARCH_EVERY_US)
    order.clear()
    for _ in range(4):
        table.run(poll.begin(table.spec, deque()))
        (taken,) = table.run(poll.next_claim(table.spec, 1)).taken
        order.append(taken.lease.wide_row.shard)
    assert {*order, held} == {0, 1, 2, 3}
    assert order[2] == order[3]
    claims = [op for op in table.log if type(op) is Mutate and op.slots]
    unlocks = [op for op in table.log if type(op) is Mutate and not op.slots]
    assert len(claims) == 4
    assert [op.wide_row.shard for op in unlocks] == [held]
    assert len(probed(table)) == 3  # by the claims themselves: none was probed


def test_what_is_known_takes_its_turn_at_each_search():
    """Beside a backlog whose lock is held, what this process sends elsewhere waits half a second at most."""
    table = Table(shards=4)
    poll = started(table)
    for _ in range(200):
        put(table, 0)
    waited_us = []
    table.run(poll.begin(table.spec, deque()))
    table.run(poll.next_claim(table.spec, 1))
    for _ in range(3):
        told, sent_us = deque([News(put(table, 1), frozenset({0}))]), table.time_us
        while True:
            table.run(poll.begin(table.spec, told))
            table.pass_time(1000)
            (taken,) = table.run(poll.next_claim(table.spec, 1)).taken
            if taken.lease.wide_row.shard == 1:
                break
            table.pass_time(10_000)
        waited_us.append(table.time_us - sent_us)
        table.run(poll.begin(table.spec, deque()))
        table.run(poll.next_claim(table.spec, 1))  # the backlog again, whose lock is kept
    assert max(waited_us) <= SEARCH_EVERY_US + 20_000
