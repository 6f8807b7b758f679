"""Test claims of messages that a hint names: no read comes before the mutation, and nothing is missed."""

from dataclasses import replace

import pytest

import cqueue
from cqueue import Message, MessageId, ids
from cqueue.errors import NotDone, OutcomeUnknown, Unavailable
from cqueue.protocol import ack
from cqueue.protocol.claim import MAX_SLOTS_BY_NAME, claim
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.lock import acquire, unlock
from cqueue.protocol.poll import Reason, WorkList
from cqueue.protocol.probe import probe
from cqueue.protocol.row_memory import MAX_NAMED, MAX_NAMED_ABOVE, MAX_UNSEEN_US, RIVAL_WINDOW_US, Hint
from cqueue.runtime.wakeups import HintInbox
from cqueue.store.operations import (
    DeleteMessages,
    Mutate,
    ReadHead,
    ReadIds,
    ReadMessages,
    ReadShards,
    ReadSlice,
    SlotState,
)
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, SKEW_US, Table, ids_of, nothing


def hint(table: Table, named, priorities=(0,)) -> Hint:
    return Hint(table.row, frozenset(priorities), tuple(named))


def told(table: Table, view, named, *, want=10, priorities=(0,), hook=nothing):
    """Claim once by a hint that names these messages."""
    table.log.clear()
    script = claim(view, table.spec, SuspectGate(), want, hint=hint(table, named, priorities))
    return table.run(script, hook)


def kinds(table: Table) -> list[type]:
    return [type(operation) for operation in table.log]


BY_NAME = [Mutate, ReadMessages]


@pytest.fixture
def table():
    table = Table()
    table.pass_time(SECOND_US)
    return table


@pytest.fixture
def view(table):
    """A consumer's memory of a wide row that it has emptied a while ago."""
    view = table.view()
    sent = table.put(table.time_us)
    claimed = table.claim(view)
    assert ids_of(claimed) == sent
    view.finished += table.run(ack.ack(claimed.taken))
    table.pass_time(RIVAL_WINDOW_US)
    return view


def test_what_a_hint_names_is_claimed_before_anything_is_read(table, view):
    sent = table.put(table.time_us, table.time_us)
    before = table.cursor()
    assert ids_of(told(table, view, sent)) == sent
    assert kinds(table) == BY_NAME
    assert table.listed() == sent
    assert table.cursor() == before  # so that later reads find what no hint has named


def test_what_no_hint_has_named_is_found_by_the_next_claim_that_reads(table, view):
    unnamed, named = table.put(table.time_us, table.time_us)
    told(table, view, [named])
    assert ids_of(table.claim(view)) == [unnamed]


def test_what_is_named_and_does_not_live_is_delivered_to_nobody(table, view):
    """The next claim frees the slot."""
    sent = table.put(table.time_us, table.time_us, table.time_us)
    table.store.execute(DeleteMessages(table.row, 0, (sent[1],)))
    assert ids_of(told(table, view, sent)) == [sent[0], sent[2]]
    assert ids_of(told(table, view, [table.id_at(table.time_us)])) == []
    assert len(view.finished) == 1
    told(table, view, table.put(table.time_us))
    assert view.finished == []
    assert sum(slot.state is SlotState.CLAIMED for slot in table.head().slots) == 2


def test_a_repeated_hint_of_held_messages_costs_nothing(table, view):
    sent = table.put(table.time_us)
    told(table, view, sent)
    assert ids_of(told(table, view, sent)) == []
    assert table.log == []


def test_slots_are_used_again(table, view):
    """Also those that were freed between two claims."""
    for freed in (False, True, False, True):
        claimed = told(table, view, table.put(table.time_us))
        assert kinds(table) == BY_NAME
        view.finished += table.run(ack.ack(claimed.taken))
        if freed:
            view.remembered.note_freed(table.run(ack.free(view.finished)))
            view.finished = []
    assert len(table.head().slots) == 1


def test_a_slot_that_changed_twice_is_remembered_as_it_was_read(table, view):
    """Its present tally would not fit the rest of the head."""
    claimed = told(table, view, table.put(table.time_us, table.time_us))
    lease = claimed.taken[0].lease
    table.run(ack.nack(lease, [lease.slot.ids[0]], 60_000, ack.Shared()))
    view.finished += table.run(ack.ack(claimed.taken[1:]))
    view.remembered.note_freed(table.run(ack.free(view.finished)))
    view.finished = []
    told(table, view, table.put(table.time_us))
    assert table.head().is_whole


def test_somebody_who_claims_meanwhile_is_noticed(table, view):
    """By the fence. The messages are his."""
    sent = table.put(table.time_us)
    table.claim()
    assert ids_of(told(table, view, sent)) == []
    assert kinds(table)[:3] == [*BY_NAME, ReadHead]
    table.pass_time(RIVAL_WINDOW_US - 1)
    assert ids_of(told(table, view, more := table.put(table.time_us))) == more
    assert kinds(table) != BY_NAME  # he may claim again


def test_a_sweep_of_somebody_else_is_in_nobodys_way(table, view):
    """It lists nothing, so the fence stands, and with it what was read before."""
    table.pass_time(SETTLE_US + SKEW_US)
    table.run(probe([view], table.spec, SuspectGate()))
    before = table.head()
    assert ids_of(table.claim()) == []
    after = table.head()
    assert after.cursors != before.cursors
    assert after.lock == before.lock
    assert after.is_whole
    sent = table.put(table.time_us)
    assert ids_of(told(table, view, sent)) == sent
    assert kinds(table) == BY_NAME
    assert table.head().is_whole


def test_messages_that_cannot_be_read_are_given_back(table, view):
    sent = table.put(table.time_us)

    def fails(operation):
        if type(operation) is ReadMessages:
            raise Unavailable("too few replicas")

    with pytest.raises(NotDone):
        told(table, view, sent, hook=fails)
    (taken,) = table.claim().taken
    assert (taken.row.id, taken.lease.attempt) == (sent[0], 1)


def test_messages_that_can_be_neither_read_nor_given_back_are_claimed_for_all_that_is_known(table, view):
    """They come again after their timeout, so the claim is not "not done"."""
    sent, claimed = table.put(table.time_us), []

    def fails(operation):
        if type(operation) is ReadMessages or claimed:
            raise Unavailable("too few replicas")
        if type(operation) is Mutate:
            claimed.append(operation)

    with pytest.raises(OutcomeUnknown):
        told(table, view, sent, hook=fails)
    assert ids_of(table.claim()) == []
    table.pass_time(table.spec.visibility_ms * 1000 + SKEW_US)
    assert ids_of(table.claim()) == sent


def test_messages_are_read_again_if_the_first_read_fails(table, view):
    sent, failures = table.put(table.time_us), [Unavailable("too few replicas")]

    def fails_once(operation):
        if type(operation) is ReadMessages and failures:
            raise failures.pop()

    assert ids_of(told(table, view, sent, hook=fails_once)) == sent


def test_an_unknown_outcome_is_found_out(table, view):
    sent, failures = table.put(table.time_us), [OutcomeUnknown("no answer")]

    def unknown(operation):
        if type(operation) is Mutate and failures:
            table.store.execute(operation)
            raise failures.pop()

    assert ids_of(told(table, view, sent, hook=unknown)) == sent


def test_so_many_are_claimed_by_name_until_a_claim_reads(table, view):
    """A read from the boundary crosses the tombstones of all of them."""
    for _ in range(MAX_NAMED_ABOVE // MAX_NAMED):
        claimed = told(table, view, table.put(*[table.time_us] * MAX_NAMED))
        assert kinds(table) == BY_NAME
        view.finished += table.run(ack.ack(claimed.taken))
    sent = table.put(table.time_us)
    assert ids_of(told(table, view, sent)) == sent
    assert ReadSlice in kinds(table)
    assert table.cursor().boundary == sent[0]
    told(table, view, table.put(table.time_us))
    assert kinds(table) == BY_NAME


def test_few_slots_are_made_by_name(table, view):
    for _ in range(MAX_SLOTS_BY_NAME):
        told(table, view, table.put(table.time_us))
        assert kinds(table) == BY_NAME
    told(table, view, table.put(table.time_us))
    assert ReadHead in kinds(table)


def new(table, _):
    return table.view(), {}


def locked(table, view):
    table.run(acquire(view, table.spec))
    return view, {}


def left_some(table, view):
    table.put(table.time_us, table.time_us)
    table.claim(view, want=1)
    table.run(unlock(view))
    return view, {}


def of_another_wide_row(_, view):
    view.priorities.add(5)  # nothing was claimed of it here, so it has no boundary
    return view, {"due_us": NOON_US - 1, "priorities": (5,)}


def torn(_, view):
    head = view.remembered.head
    view.remembered.head = replace(head, lock=head.lock._replace(tally=head.lock.tally + 1))
    return view, {}


@pytest.mark.parametrize(
    "state",
    [
        new,
        locked,
        left_some,
        torn,
        lambda _, view: (view, {"want": 1}),
        lambda _, view: (view, {"priorities": (0, 5)}),
        of_another_wide_row,
        lambda table, view: (view, {"due_us": table.time_us + 1}),
        lambda _, view: (view, {"due_us": NOON_US + SECOND_US - 1}),  # below the boundary
    ],
)
def test_else_the_wide_row_is_read(table, view, state):
    view, how = state(table, view)
    due_us = how.pop("due_us", table.time_us)
    told(table, view, table.put(due_us, due_us), **how)
    assert kinds(table)[0] is not Mutate or table.log[0].lock.until_ms  # a lock at most


def test_some_that_are_held_already_are_left_out(table, view):
    held = table.put(table.time_us)
    told(table, view, held)
    sent = table.put(table.time_us)
    assert ids_of(told(table, view, held + sent)) == sent


def test_what_has_waited_longer_comes_first():
    """As long as a timeout is over, claims read."""
    table = Table(visibility_ms=1000)
    view = table.view()
    table.pass_time(SECOND_US)
    expired = table.put(table.time_us)
    assert ids_of(table.claim(view)) == expired
    table.pass_time(table.spec.visibility_ms * 1000 + table.spec.skew_us)
    assert ids_of(told(table, view, table.put(table.time_us))) == expired


def test_an_open_wide_row_is_read(table):
    """It has no boundary, so a claim cannot leave messages above it."""
    table.row = table.row._replace(shard=-1)
    view = table.view()
    table.put(table.time_us)
    view.finished += table.run(ack.ack(table.claim(view).taken))
    table.pass_time(SECOND_US)
    sent = table.put(table.time_us)
    assert ids_of(told(table, view, sent)) == sent
    assert kinds(table) != BY_NAME


def test_a_fence_that_a_probe_has_shown_will_do(table, view):
    """Of another consumer's claim that is long past."""
    table.put(table.time_us)
    table.claim()
    table.run(probe([view], table.spec, SuspectGate()))
    table.pass_time(RIVAL_WINDOW_US + 10)
    assert ids_of(told(table, view, sent := table.put(table.time_us))) == sent
    assert kinds(table) == BY_NAME


def test_a_round_passes_on_what_a_hint_names(table):
    poll = table.rounds()
    table.receive(poll, hint(table, table.put(table.time_us)))
    table.pass_time(2 * SECOND_US)
    sent = table.put(table.time_us)
    table.log.clear()
    assert table.receive(poll, hint(table, sent)) == sent
    assert [kind for kind in kinds(table) if kind is not ReadShards] == BY_NAME


@pytest.mark.parametrize(
    ("priorities", "are_named"),
    [([3], True), ([3] * MAX_NAMED, True), ([3] * (MAX_NAMED + 1), False), ([3, 4], False)],
)
def test_a_send_names_a_few_messages_of_one_priority(priorities, are_named):
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("mail")
        inbox = HintInbox()
        client._wakeups["mail"].join(inbox, client._catalog.entry("mail").spec.partition)
        sent = queue.send_many([Message(b"x", priority=priority) for priority in priorities])
        (said,) = inbox.hints
        names = {str(MessageId.of(said.wide_row, 3, id_)) for id_ in said.named}
        assert names == ({str(one) for one in sent.ids} if are_named else set())


def test_a_wide_row_that_is_over_is_read(table, view):
    sent = table.put(table.end_us - 1)
    table.pass_time(table.end_us + table.spec.settle_us + table.spec.skew_us - table.time_us)
    view.remembered.note_read(table.head(), table.time_us)  # as a probe does
    assert ids_of(told(table, view, sent)) == sent
    assert ReadSlice in kinds(table)


def test_hints_of_one_wide_row_are_merged_and_what_else_is_known_of_it_means_to_look(table, view):
    one, other, *rest = (table.id_at(NOON_US + n) for n in range(MAX_NAMED + 1))
    first, second = hint(table, [one]), hint(table, [other, one])
    for said, named in [
        ([first, second], (one, other)),
        ([first, hint(table, [])], ()),
        ([first, hint(table, [other], [5])], ()),
        ([second, hint(table, rest)], ()),
    ]:
        work = WorkList()
        for each in said:
            work.add(view, Reason.HINT, each)
        assert work.next(suspects=False).hint.named == named
    for reason in (Reason.FOUND, Reason.LEFT):
        work = WorkList()
        work.add(view, reason)
        work.add(view, Reason.HINT, first)
        assert work.next(suspects=False) == (view, Reason.HINT, None)


def waits_s(gap_us, *, gives_back=False) -> float:
    """Return after how many seconds a message without a hint comes, while named ones keep coming."""
    table = Table(width_ms=600_000)
    poll = table.rounds()
    table.receive(poll, hint(table, table.put(table.time_us)))
    table.pass_time(2 * SECOND_US)
    unnamed = table.put(table.time_us)
    if gives_back:
        (taken,) = received(table, poll, hint(table, unnamed)).taken
        table.run(ack.nack(taken.lease, unnamed, 1000, ack.Shared()))
    began_us = table.time_us
    while table.time_us < began_us + 30 * SECOND_US:
        table.pass_time(gap_us)
        claimed = received(table, poll, hint(table, table.put(table.time_us)))
        if unnamed[0] in ids_of(claimed):
            break
        poll.finished.extend(table.run(ack.ack(claimed.taken)))
    return (table.time_us - began_us) / SECOND_US


def received(table: Table, poll, said):
    table.run(poll.begin(table.spec, [said]))
    return table.run(poll.next_claim(table.spec, 10))


@pytest.mark.parametrize("gap_us", [20_000, 100_000, SECOND_US])
@pytest.mark.parametrize("gives_back", [False, True])
def test_what_no_hint_names_waits_a_few_seconds_while_hints_keep_coming(gap_us, gives_back):
    assert waits_s(gap_us, gives_back=gives_back) <= (MAX_UNSEEN_US + gap_us) / SECOND_US


def test_a_search_looks_where_claims_by_name_have_looked_for_nothing(table, view):
    before_us = view.emptied_us
    table.run(probe([view], table.spec, SuspectGate()))
    told(table, view, table.put(table.time_us))
    assert kinds(table) == BY_NAME
    assert view.emptied_us == before_us < view.remembered.read_us


def test_the_tombstones_of_what_was_named_are_counted(table, view):
    """A read of the whole wide row is cut where it would cross too many."""
    for _ in range(8):
        for _ in range(MAX_NAMED_ABOVE // MAX_NAMED):
            table.pass_time(1000)
            claimed = told(table, view, table.put(*range(table.time_us - MAX_NAMED, table.time_us)))
            assert kinds(table) == BY_NAME
            view.finished += table.run(ack.ack(claimed.taken))
        table.pass_time(1000)
        told(table, view, table.put(table.time_us))
        assert ReadSlice in kinds(table)
    first, last = ids.lowest_at(NOON_US), table.cursor().boundary
    assert table.store.execute(ReadIds(table.row, 0, first, last, 2000)).tombstones > 1000
    upto = view.reads.budget.counted_end(0, first, last)
    assert table.store.execute(ReadIds(table.row, 0, first, upto, 2000)).tombstones == 0  # or few


def test_a_slot_of_which_nothing_lives_is_freed_soon(table):
    """Also if no other claim comes."""
    poll = table.rounds()
    table.receive(poll, hint(table, table.put(table.time_us)))
    table.pass_time(2 * SECOND_US)
    table.receive(poll)
    assert table.receive(poll, hint(table, [table.id_at(table.time_us)])) == []
    assert any(slot.in_use and slot.ids[0] >= ids.lowest_at(table.time_us) for slot in table.head().slots)
    table.run(poll.tidy(at_once=True))
    assert not any(slot.in_use and slot.ids[0] >= ids.lowest_at(table.time_us) for slot in table.head().slots)


def test_a_priority_that_the_registry_does_not_list_is_not_claimed(table, view):
    told(table, view, table.put(table.time_us, priority=7), priorities=(7,))
    assert kinds(table) != BY_NAME
