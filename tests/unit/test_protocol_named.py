"""Test claims of messages that a hint names: no read comes before the mutation, and nothing is missed."""

import pytest

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown, Unavailable
from cqueue.protocol import ack
from cqueue.protocol.claim import MAX_SLOTS_BY_NAME, claim
from cqueue.protocol.hint import MAX_NAMED, Hint
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.lock import acquire, unlock
from cqueue.protocol.row_memory import MAX_NAMED_ABOVE, RIVAL_WINDOW_US
from cqueue.protocol.work import Reason, WorkList
from cqueue.store.operations import DeleteMessages, Mutate, ReadHead, ReadMessages, ReadSlice, SlotState
from tests.simulation.hand import NOON_US, SECOND_US, Table, ids_of, nothing


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
    table.pass_time(10 * SECOND_US)
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


def test_messages_that_cannot_be_read_are_given_back(table, view):
    sent = table.put(table.time_us)

    def fails(operation):
        if type(operation) is ReadMessages:
            raise Unavailable("too few replicas")

    with pytest.raises(NotDone):
        told(table, view, sent, hook=fails)
    (taken,) = table.claim().taken
    assert (taken.row.id, taken.lease.attempt) == (sent[0], 1)


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


def a_timeout_is_over(table, view):
    told(table, view, table.put(table.time_us))
    table.pass_time(60 * SECOND_US)
    return view, {"due_us": table.time_us - 50 * SECOND_US}


@pytest.mark.parametrize(
    "state",
    [
        new,
        locked,
        left_some,
        a_timeout_is_over,
        lambda _, view: (view, {"want": 1}),
        lambda _, view: (view, {"priorities": (0, 5)}),
        lambda _, view: (view, {"due_us": NOON_US - 1}),
        lambda table, view: (view, {"due_us": table.time_us + 1}),
        lambda _, view: (view, {"due_us": NOON_US + SECOND_US - 1}),  # below the boundary
    ],
)
def test_else_the_wide_row_is_read(table, view, state):
    view, how = state(table, view)
    due_us = how.pop("due_us", table.time_us)
    told(table, view, table.put(due_us, due_us), **how)
    assert kinds(table)[0] is not Mutate or table.log[0].lock.until_ms  # a lock at most


def test_a_wide_row_that_is_over_is_read(table, view):
    sent = table.put(table.end_us - 1)
    table.pass_time(table.end_us + table.spec.settle_us + table.spec.skew_us - table.time_us)
    assert ids_of(told(table, view, sent)) == sent
    assert ReadHead in kinds(table)


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
    assert ids.is_message(one)
