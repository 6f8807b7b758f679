"""A consumer's rounds: where it looks, and how soon."""

from functools import partial

import pytest

from cqueue.catalog import ACTIVE
from cqueue.errors import NotDone
from cqueue.protocol import ack, shards
from cqueue.protocol.claim import claim
from cqueue.protocol.news import News
from cqueue.protocol.poll import EARLY_US, OTHERS_EVERY_US, SEARCH_EVERY_US, Poll
from cqueue.protocol.spec import QueueSpec, SuspectGate
from cqueue.store.operations import (
    CreateQueue,
    Mutate,
    Now,
    QueueRow,
    RandomBits,
    ReadHead,
    ReadIds,
    ReadShards,
    WideRow,
)
from tests.simulation.hand import NOON_US, Table, nothing


def started(table: Table) -> Poll:
    spec: QueueSpec = table.spec
    row = QueueRow(
        spec.name, spec.incarnation, 1, ACTIVE, "{}", spec.epoch_ms, shards.epoch_at(spec, NOON_US // 1000), 0
    )
    table.store.execute(CreateQueue(row))
    return Poll(row, spec, SuspectGate())


def told_once(news: list[News]) -> list[News]:
    told = list(news)
    news.clear()
    return told


def put(table: Table, shard: int, *, now: bool = False) -> WideRow:
    time_us = table.time_us if now else table.row.time_shard * 1000
    row = shards.normal_row(table.spec, time_us, shard)
    for registration in shards.registration(table.spec, row, 0):
        table.store.execute(registration)
    table.put(table.time_us, row=row)
    return row


def took(table: Table, poll: Poll, share=None) -> int:
    """How many messages one round gives, one claim each."""
    table.run(poll.begin(table.spec, tuple, share))
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
        table.run(poll.begin(table.spec, lambda: [News(mine, frozenset({0}))]))
        assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1
        table.pass_time(50_000)
    put(table, 0)
    put(table, 1)
    table.log.clear()
    table.pass_time(SEARCH_EVERY_US)
    table.run(poll.begin(table.spec, lambda: [News(mine, frozenset({0}))]))
    assert other.shard in probed(table)
    assert mine.shard not in probed(table)
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1
    table.log.clear()
    assert took(table, poll) == 0  # nothing else to do: it looks everywhere
    assert set(probed(table)) == {0, 1}


def one_step(table: Table, poll: Poll, hook=nothing) -> tuple[bool, int]:
    """Whether something is found, and how many times it waited for the store."""
    waited = []

    def counted(script):
        value = None
        try:
            while True:
                operation = script.send(value)
                waited.extend([operation] if type(operation) not in {Now, RandomBits} else [])
                value = yield operation
        except StopIteration as stop:
            return stop.value

    table.run(counted(poll.search_on(table.spec)), hook)
    return poll.has_found, len(waited)


def searching(table: Table) -> tuple[Poll, WideRow]:
    """A consumer that has taken what there was, and whose next search is due soon; then something comes."""
    poll = started(table)
    put(table, 0)
    assert took(table, poll) == 1
    table.pass_time(SEARCH_EVERY_US - EARLY_US - 1)
    return poll, put(table, 1)


def test_between_rounds_a_search_goes_on_a_read_at_a_time():
    """So that what is sent meanwhile waits for one read at most; the next round need not search."""
    table = Table(shards=4)
    poll, _ = searching(table)
    assert one_step(table, poll) == (False, 0)  # not due yet
    table.pass_time(1)
    steps = [one_step(table, poll) for _ in range(5)]
    assert steps == [(False, 1), (False, 1), (True, 1), (True, 0), (True, 0)]
    table.pass_time(EARLY_US)
    table.log.clear()
    table.run(poll.begin(table.spec, tuple))
    assert not table.log  # the last search is not long ago
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1
    table.pass_time(SEARCH_EVERY_US - 2 * EARLY_US)
    assert one_step(table, poll) == (False, 1)  # it is due soon again


def test_a_round_between_two_steps_claims_as_ever():
    """What it searches itself ends the other search."""
    table = Table(shards=4)
    poll, _ = searching(table)
    table.pass_time(1)
    one_step(table, poll)
    mine = put(table, 0)
    table.run(poll.begin(table.spec, lambda: [News(mine, frozenset({0}))]))
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1
    one_step(table, poll)
    assert took(table, poll) == 1  # by a search of its own
    assert one_step(table, poll) == (False, 0)


def test_a_search_between_rounds_is_one_beside_other_work():
    """It leaves out what claims have seen since the last one."""
    table = Table(shards=4)
    poll, other = searching(table)
    mine = put(table, 0)
    table.run(poll.begin(table.spec, lambda: [News(mine, frozenset({0}))]))
    assert len(table.run(poll.next_claim(table.spec, 10)).taken) == 1
    table.pass_time(1)
    table.log.clear()
    for _ in range(3):
        one_step(table, poll)
    assert probed(table) == [other.shard]


def test_a_claim_between_two_steps_hides_nothing():
    """A probe reads one id more than slots list. One that is listed by then says nothing of the next ones."""
    table = Table(shards=4)
    poll, row = searching(table)
    table.pass_time(1)
    one_step(table, poll)
    assert one_step(table, poll) == (False, 1)  # the head, in which nothing is listed; then the ids are read
    view, meanwhile = poll.registry.views[row], []

    def claim_meanwhile(operation):
        if type(operation) is ReadIds and not meanwhile:
            put(table, row.shard)
            meanwhile.extend(table.run(claim(view, table.spec, poll.gate, 1)).taken)

    assert one_step(table, poll, claim_meanwhile) == (True, 1)
    assert len(meanwhile) == 1
    assert took(table, poll) == 1


def test_what_was_retired_between_two_steps_is_not_found():
    """It would be passed over, retired and dropped a second time, while messages wait."""
    table = Table(shards=4)
    poll = started(table)
    rows = [put(table, shard) for shard in range(3)]
    table.run(poll.begin(table.spec, tuple))
    while (claimed := table.run(poll.next_claim(table.spec, 10))) is not None:
        poll.finished += table.run(ack.ack(claimed.taken))
    table.run(poll.tidy(at_once=True))
    table.pass_time(table.end_us - table.time_us + table.spec.settle_us + table.spec.skew_us)
    present = put(table, 3, now=True)
    told = [News(present, frozenset({0}))]

    def round_() -> int:
        table.run(poll.begin(table.spec, partial(told_once, told)))
        claimed = table.run(poll.next_claim(table.spec, 10))
        return len(claimed.taken) if claimed is not None else 0

    assert round_() == 1  # the first of the three has been retired before
    table.pass_time(SEARCH_EVERY_US - EARLY_US)
    put(table, 2, now=True)
    one_step(table, poll)
    one_step(table, poll)  # the heads of two wide rows that can be retired, and of the present
    for _ in range(2):
        put(table, 3, now=True)
        told.append(News(present, frozenset({0})))
        assert round_() == 1
    for _ in range(3):
        one_step(table, poll)
    while round_():
        pass
    retired = [op.wide_row for op in table.log if type(op) is Mutate and op.retire]
    assert sorted(retired) == sorted(rows)


def test_what_a_search_leaves_out_keeps_its_turn():
    """Of many wide rows a search finds some at a time; what was told of is not forgotten for the next one."""
    table = Table(shards=40)
    for _ in range(4):
        next(table._numbers)  # so that the wide row in question is not among the first
    poll = started(table)
    rows = [put(table, shard) for shard in range(40)]
    assert sum(iter(lambda: took(table, poll), 0)) == 40
    table.pass_time(SEARCH_EVERY_US - EARLY_US)
    for _ in range(400):
        put(table, 39)

    def round_(*told: WideRow, want: int = 1) -> int:
        news = [News(row, frozenset({0})) for row in told]
        table.run(poll.begin(table.spec, partial(told_once, news)))
        return table.run(poll.next_claim(table.spec, want)).taken[0].lease.wide_row.shard

    one_step(table, poll)
    table.pass_time(10_000)
    put(table, 0)
    assert round_(rows[0], want=10) == 0
    assert round_(rows[39]) == 39
    put(table, 0)
    sent_us, told = table.time_us, [rows[0]]
    while round_(*told) != 0:
        told.clear()
        one_step(table, poll)
        table.pass_time(25_000)
    assert table.time_us - sent_us <= SEARCH_EVERY_US


def test_what_is_told_of_and_found_is_claimed_from_once():
    table = Table(shards=4)
    poll = started(table)
    first, second = put(table, 0), put(table, 1)
    news = [News(row, frozenset({0})) for row in (first, second)]
    table.run(poll.begin(table.spec, partial(told_once, news)))
    assert [len(table.run(poll.next_claim(table.spec, 10)).taken) for _ in range(2)] == [1, 1]
    assert not poll.has_found


def test_a_search_between_rounds_that_comes_to_nothing_does_not_count_for_others():
    """What is another worker's to look at first is looked at by the next search that comes to its end."""
    table = Table(shards=4)
    poll = started(table)
    mine = put(table, 0)
    share = {mine}.__contains__
    assert took(table, poll, share) == 1
    table.pass_time(OTHERS_EVERY_US - EARLY_US)
    put(table, 0)
    assert took(table, poll, share) == 1
    other = put(table, 1)
    table.pass_time(SEARCH_EVERY_US - EARLY_US)
    one_step(table, poll)  # of all wide rows; thrown away by the round, which comes late
    put(table, 0)
    table.pass_time(EARLY_US)
    assert took(table, poll, share) == 2
    assert other in poll.registry.views


def test_what_is_sent_during_a_search_need_not_wait_for_its_end():
    """A poll that has nothing else to do looks everywhere, a read at a time; it goes on in the next one."""
    table = Table(shards=4)
    poll = started(table)
    put(table, 0)
    assert took(table, poll) == 1
    other, told = put(table, 1), []

    def send_meanwhile(operation):
        if type(operation) is ReadShards and not told:
            told.append(News(put(table, 2), frozenset({0})))

    table.log.clear()
    table.run(poll.begin(table.spec, partial(told_once, told)))
    (taken,) = table.run(poll.next_claim(table.spec, 10), send_meanwhile).taken
    assert taken.lease.wide_row.shard == 2
    assert other.shard not in probed(table)
    told = [None]  # nothing more
    table.run(poll.begin(table.spec, tuple))
    (taken,) = table.run(poll.next_claim(table.spec, 10), send_meanwhile).taken
    assert taken.lease.wide_row == other
    assert len([op for op in table.log if type(op) is ReadShards]) == 1


def interrupted(table: Table) -> Poll:
    """A consumer whose search was interrupted, when it had read the registry, by what its process sent."""
    poll, told = started(table), []
    put(table, 0)
    assert took(table, poll) == 1

    def send_meanwhile(operation):
        if type(operation) is ReadShards:
            told.append(News(put(table, 2), frozenset({0})))

    table.run(poll.begin(table.spec, partial(told_once, told)))
    assert len(table.run(poll.next_claim(table.spec, 10), send_meanwhile).taken) == 1
    return poll


def test_a_search_that_was_interrupted_is_followed_by_a_whole_one():
    """What came after its reads is there: a poll that says there is nothing would be wrong."""
    table = Table(shards=4)
    poll = interrupted(table)
    late = put(table, 3)
    table.run(poll.begin(table.spec, tuple))
    (taken,) = table.run(poll.next_claim(table.spec, 10)).taken
    assert taken.lease.wide_row == late
    table.run(poll.begin(table.spec, tuple))
    assert table.run(poll.next_claim(table.spec, 10)) is None


def test_a_claim_that_fails_during_a_search_does_not_end_it():
    """Other wide rows may give something; if none does, the failure is told."""
    table = Table(shards=4)
    poll, told = interrupted(table), []
    other = put(table, 3)

    def trouble(operation):
        if type(operation) is ReadShards and not told:
            told.append(News(put(table, 1), frozenset({0})))
        if getattr(operation, "wide_row", other).shard == 1:
            raise NotDone("no answer")

    table.run(poll.begin(table.spec, partial(told_once, told)))
    (taken,) = table.run(poll.next_claim(table.spec, 10), trouble).taken
    assert taken.lease.wide_row == other
    table.run(poll.begin(table.spec, lambda: [News(put(table, 1), frozenset({0}))]))
    with pytest.raises(NotDone):
        table.run(poll.next_claim(table.spec, 10), trouble)


def test_a_search_that_fails_between_rounds_is_made_by_a_round_in_time():
    """Which can say so; however often the steps fail, others wait for half a second at most."""
    table = Table(shards=4)
    poll, _ = searching(table)

    def fail(operation):
        if type(operation) is ReadHead:
            raise NotDone("no answer")

    table.pass_time(1)
    for _ in range(5):
        one_step(table, poll, fail)
    table.pass_time(EARLY_US)
    for _ in range(5):
        one_step(table, poll, fail)
    with pytest.raises(NotDone):
        table.run(poll.begin(table.spec, tuple), fail)
    table.pass_time(SEARCH_EVERY_US)
    assert took(table, poll) == 1


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
        table.run(poll.begin(table.spec, tuple))
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
        table.run(poll.begin(table.spec, tuple))
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
    table.run(poll.begin(table.spec, tuple))
    table.run(poll.next_claim(table.spec, 1))
    for _ in range(3):
        told, sent_us = [News(put(table, 1), frozenset({0}))], table.time_us
        while True:
            table.run(poll.begin(table.spec, partial(told_once, told)))
            table.pass_time(1000)
            (taken,) = table.run(poll.next_claim(table.spec, 1)).taken
            if taken.lease.wide_row.shard == 1:
                break
            table.pass_time(10_000)
        waited_us.append(table.time_us - sent_us)
        table.run(poll.begin(table.spec, tuple))
        table.run(poll.next_claim(table.spec, 1))  # the backlog again, whose lock is kept
    assert max(waited_us) <= SEARCH_EVERY_US + 20_000


def test_what_we_are_told_of_waits_for_one_of_the_wide_rows_that_a_search_found():
    """Four of them to be retired would keep it waiting for as long as a dozen claims take."""
    table = Table(shards=4)
    poll = started(table)
    for shard in range(4):
        put(table, shard)
    table.run(poll.begin(table.spec, tuple))
    for _ in range(4):
        claimed = table.run(poll.next_claim(table.spec, 1))
        poll.finished += table.run(ack.ack(claimed.taken))
    table.run(poll.tidy(at_once=True))
    table.pass_time(table.end_us - table.time_us + table.spec.settle_us + table.spec.skew_us)
    told, waited = [], []

    def send_during_the_first(operation):
        if type(operation) is Mutate and operation.retire:
            waited.append(operation)
            if len(waited) == 1:
                told.append(News(put(table, 0, now=True), frozenset({0})))

    table.run(poll.begin(table.spec, partial(told_once, told)))
    (taken,) = table.run(poll.next_claim(table.spec, 10), send_during_the_first).taken
    assert taken.lease.wide_row.time_shard > table.row.time_shard
    assert len(waited) == 1
    assert poll.has_found
    assert table.run(poll.next_claim(table.spec, 10), send_during_the_first) is None
    assert len(waited) == 4
    assert not poll.has_found
