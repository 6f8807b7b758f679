"""What a process has sent itself is claimed unread: never at the cost of what others sent."""

import pytest

from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol import ack
from cqueue.protocol.early import HELD_EARLY, PATIENCE_US
from cqueue.protocol.news import MOST_UNREAD, STRANGERS_US, Heard, News, Underway, moments, news_of
from cqueue.protocol.poll import Poll
from cqueue.protocol.view import REMEMBERED_US, RowView, Sizes
from cqueue.store.operations import InsertMessages, Mutate, Pause, ReadHead, ReadIds, ReadSlice, SlotState
from tests.simulation.hand import SETTLE_US, SKEW_US, Table, ids_of, message


def started(table: Table) -> RowView:
    """A view whose last claim read the head and found nothing left; it has heard of all that is there."""
    view = table.view()
    send(table, view)
    table.claim(view)
    return view


def send(table: Table, view: RowView) -> list[int]:
    """Send one message from the view's own process."""
    began = next(moments)
    sent = table.put(table.time_us)
    table.pass_time(100)
    view.heard.hear(table.news(sent, began))
    return sent


def kinds(table: Table) -> set[type]:
    """Operations since the last call."""
    seen = {type(operation) for operation in table.log}
    table.log.clear()
    return seen


def claim_of_one(table: Table, view: RowView) -> set[type]:
    """Send one, and claim it: by which operations."""
    mine = send(table, view)
    kinds(table)
    assert ids_of(table.claim(view)) == mine
    return kinds(table)


def test_others_messages_stay_above_the_boundary():
    """A claim without a read leaves them where the next claim that reads finds them, and any other one."""
    table = Table()
    view = started(table)
    boundary = table.cursor().boundary
    (strange,) = table.put(table.time_us)
    mine = send(table, view)
    kinds(table)
    assert ids_of(table.claim(view)) == mine
    assert kinds(table) == {Mutate}
    assert table.cursor().boundary == boundary < strange < mine[0]
    assert ids_of(table.poll(table.view())) == [strange], "a probe looks past what is listed"


def test_where_others_send_everything_is_read():
    """Once a claim has read what nobody told of, the claims of the next second read."""
    table = Table()
    view = started(table)
    (strange,) = table.put(table.time_us)
    table.pass_time(REMEMBERED_US)
    assert ids_of(table.claim(view)) == [strange]
    table.pass_time(REMEMBERED_US)
    send(table, view)
    table.claim(view)  # which takes note
    assert ReadSlice in claim_of_one(table, view)
    table.pass_time(STRANGERS_US)
    send(table, view)
    table.claim(view)
    assert claim_of_one(table, view) == {Mutate}


def test_late_news_of_what_was_read_is_no_stranger():
    """A slice may give what this process has stored, and its sender not told yet."""
    table = Table()
    view = started(table)
    began = next(moments)
    sent = table.put(table.time_us)
    table.pass_time(REMEMBERED_US)
    assert ids_of(table.claim(view)) == sent
    view.heard.hear(table.news(sent, began)._replace(received=True))
    table.pass_time(REMEMBERED_US)
    send(table, view)
    table.claim(view)
    assert claim_of_one(table, view) == {Mutate}


def test_the_next_read_passes_what_was_claimed_unread():
    """The boundary follows, acked or not, and the tombstones between are counted."""
    table = Table()
    view = started(table)
    claimed = []
    for _ in range(5):
        send(table, view)
        claimed += table.claim(view).taken
    view.finished.extend(table.run(ack.ack(claimed[:3])))
    table.pass_time(REMEMBERED_US)
    (last,) = send(table, view)
    assert ids_of(table.claim(view)) == [last]
    assert table.cursor().boundary == last
    assert not any(view.heard.unread.values())
    assert sum(stretch.rows for stretch in view.passed[0]) == 1 + 5 + 1


def test_what_lands_late_before_a_listed_row_at_the_end_of_a_slice_is_not_passed(monkeypatch):
    """The read of what stands behind that slice was begun later: it begins at the last row that is kept."""
    monkeypatch.setattr(Sizes, "within", lambda *_: 5)
    table = Table()
    view = started(table)
    table.pass_time(200_000)
    sent_us = table.time_us
    mine = send(table, view)
    assert ids_of(table.claim(view)) == mine
    others = table.put(*(sent_us - 150_000 + number for number in range(19)))
    others += table.put(*(sent_us + 1000 + number for number in range(30)))
    late_us = sent_us - 40_000
    table.time_us = late_us + SETTLE_US + SKEW_US - 150_000
    assert ids_of(table.claim(view, want=20)) == others[:5]
    table.pass_time(50_000)
    assert ids_of(table.claim(view, want=20)) == others[5:10]
    (late,) = table.put(late_us)  # its sender's clock lags by less than ε
    for pause_us, wanted in (120_000, others[10:15]), (10_000, others[15:19]):
        table.pass_time(pause_us)
        assert ids_of(table.claim(view, want=20)) == wanted
    table.pass_time(10_000)
    table.claim(view, want=20)
    assert table.cursor().cursor < late or late in table.listed()


def test_after_many_unread_claims_one_reads():
    """So no read has to cross many tombstones above the boundary."""
    table = Table(shards=1)
    view = started(table)
    seen = [claim_of_one(table, view) for _ in range(MOST_UNREAD + 1)]
    assert seen[:-1] == [{Mutate}] * MOST_UNREAD
    assert ReadSlice in seen[-1]


def test_a_probe_asks_for_no_more_than_it_needs():
    """One id, and one more for each that is listed above the boundary."""
    table = Table()
    view = started(table)
    send(table, view)
    table.claim(view)
    table.log.clear()
    table.poll(table.view())
    assert [operation.limit for operation in table.log if type(operation) is ReadIds] == [2]


def test_a_small_slice_gets_past_what_somebody_else_claimed_unread():
    """Other consumers' claims above the boundary take no room in it, with or without a remembered head."""
    table = Table()
    mine, other = started(table), table.view()
    for _ in range(20):
        send(table, mine)
        table.claim(mine)
    below = table.put(*(table.time_us - 1500 for _ in range(3)))
    for _ in below:
        table.pass_time(REMEMBERED_US)
        assert len(ids_of(table.claim(other, want=1))) == 1


def test_a_purge_ends_it():
    """What was sent before is not claimed unread any more, whoever has heard of it."""
    table = Table()
    view = started(table)
    (sent,) = send(table, view)
    view.heard.distrust()
    table.log.clear()
    assert ids_of(table.claim(view)) == [sent]
    assert ReadSlice in kinds(table)


def test_less_urgent_messages_are_read():
    """Somebody else may have sent a more urgent one meanwhile."""
    table = Table()
    view = table.view(None, 0, 5)
    send(table, view)
    table.claim(view)
    began = next(moments)
    sent = table.put(table.time_us, priority=5)
    table.pass_time(100)
    view.heard.hear(news_of(table.row, [message(id_, 5) for id_ in sent], began))
    table.log.clear()
    assert ids_of(table.claim(view)) == sent
    assert ReadSlice in kinds(table)


def test_what_is_remembered_is_bounded():
    """However much is sent while nobody claims, by however many."""
    heard = Heard()
    heard.begin(0)
    table = Table()
    for number in range(3 * MOST_UNREAD):
        heard.hear(table.news([table.id_at(number)], next(moments)))
        heard.found([table.id_at(number)])
    assert max(map(len, (heard.rows, heard.ids, heard.strange))) <= MOST_UNREAD
    assert not heard.whole


# ── told of as they are being written ──


def one_being_written(table: Table, *, priority: int = 0) -> tuple[News, Underway]:
    """A message that a send of this process begins to write."""
    sending, id_ = Underway(), table.id_at(table.time_us)
    news = news_of(table.row, [message(id_, priority)], next(moments))
    return news._replace(sending=sending), sending


def received_before(table: Table) -> Poll:
    """A consumer that knows the wide row, and finds nothing there."""
    poll = table.rounds()
    first = table.put(table.time_us)
    table.pass_time(1000)
    assert table.receive(poll) == first
    table.log.clear()
    return poll


def test_a_message_is_claimed_as_it_is_written_and_delivered_when_it_is_stored():
    """If the answer comes a moment after the claim, at once."""
    table = Table()
    poll = received_before(table)
    news, sending = one_being_written(table)
    seen = []

    def store(operation):
        seen.append(type(operation))
        if seen.count(Pause) == 3:
            table.store.execute(InsertMessages(table.row, news.rows))
            sending.stored = news.ids

    assert table.receive(poll, news, hook=store) == list(news.ids)
    assert {type(operation) for operation in table.log} - {InsertMessages} == {Mutate}
    (slot,) = [slot for slot in table.head().slots if set(slot.ids) == news.ids]
    assert slot.attempt == 1


def test_what_takes_longer_is_put_by_and_holds_nothing_up():
    """Others' messages are received meanwhile, and it is delivered when its sender says that it is stored."""
    table = Table()
    poll = received_before(table)
    news, sending = one_being_written(table)
    before_us = table.time_us
    assert table.receive(poll, news) == []
    assert table.time_us - before_us < 2 * PATIENCE_US
    other, stored = one_being_written(table)
    table.store.execute(InsertMessages(table.row, other.rows))
    stored.stored = other.ids
    assert table.receive(poll, other) == list(other.ids)
    table.store.execute(InsertMessages(table.row, news.rows))
    sending.stored = news.ids
    table.log.clear()
    assert table.receive(poll, news._replace(sending=None)) == list(news.ids)
    assert table.log == []
    assert table.receive(poll) == []


def test_what_takes_too_long_is_given_back():
    """While most of its timeout is left: whoever takes it over finds it there, or not, as a first attempt."""
    table = Table()
    poll = received_before(table)
    news, _ = one_being_written(table)
    assert table.receive(poll, news) == []
    table.store.execute(InsertMessages(table.row, news.rows))  # it lands, and its sender is not told
    table.pass_time(table.spec.visibility_ms * 1000 // HELD_EARLY - 100_000)
    assert table.receive(poll) == []
    table.pass_time(100_000)
    table.run(poll.begin(table.spec, tuple))
    (taken,) = table.run(poll.next_claim(table.spec, 10)).taken
    assert ({taken.row.id}, taken.lease.attempt) == (news.ids, 1)
    assert not poll.early.leases


@pytest.mark.parametrize("known", [True, False])
def test_what_was_given_back_with_its_lease_is_not_delivered(known):
    """One of two is stored; a failure gives back the lease, and with it the other. Or perhaps it does."""
    table = Table()
    poll = received_before(table)
    good, other = one_being_written(table), one_being_written(table)
    for news, _ in (good, other):
        table.store.execute(InsertMessages(table.row, news.rows))
    good[1].stored = good[0].ids
    table.run(poll.begin(table.spec, lambda: (good[0], other[0])))
    claimed = table.run(poll.next_claim(table.spec, 10))
    assert ids_of(claimed) == list(good[0].ids)
    assert poll.early.leases == {claimed.taken[0].lease}

    def lose_answer(operation):
        if type(operation) is Mutate:
            table.store.execute(operation)
            raise OutcomeUnknown("no answer")
        if type(operation) is ReadHead:
            raise NotDone("no answer")

    release = ack.release(claimed.taken[0].lease)
    if known:
        table.run(release)
    else:
        with pytest.raises(OutcomeUnknown):
            table.run(release, lose_answer)
    assert ids_of(table.claim()) == [*good[0].ids, *other[0].ids]
    other[1].stored = other[0].ids
    assert table.receive(poll) == []
    assert not poll.early.leases


def test_a_consumer_that_leaves_gives_back_what_it_put_by():
    table = Table()
    poll = received_before(table)
    news, _ = one_being_written(table)
    assert table.receive(poll, news) == []
    table.run(poll.early.give_back())
    (slot,) = [slot for slot in table.head().slots if set(slot.ids) == news.ids]
    assert (slot.state, slot.attempt) == (SlotState.WAITING, 0)
    assert not poll.early.leases


def test_of_several_the_stored_ones_are_delivered():
    """One of two failed: it is given back alone, and nothing else of it is delivered."""
    table = Table()
    poll = received_before(table)
    good, failing = one_being_written(table), one_being_written(table)
    table.store.execute(InsertMessages(table.row, good[0].rows))
    good[1].stored = good[0].ids

    def fail(operation):
        if type(operation) is Mutate:
            failing[1].stored = frozenset()

    assert table.receive(poll, good[0], failing[0], hook=fail) == list(good[0].ids)
    assert table.receive(poll) == []
    used = [set(slot.ids) for slot in table.head().slots if slot.state is not SlotState.FREE]
    assert good[0].ids in used


def test_one_that_is_known_to_have_failed_is_not_claimed():
    table = Table()
    poll = received_before(table)
    news, sending = one_being_written(table)
    sending.stored = frozenset()
    assert table.receive(poll, news) == []
    assert Mutate not in kinds(table)


@pytest.mark.parametrize("why", ["unknown", "forgotten", "strangers", "less urgent", "purged"])
def test_where_it_would_have_to_be_read_it_is_not_looked_for_yet(why):
    """It might not be there; we are told again."""
    table = Table()
    poll = table.rounds() if why == "unknown" else received_before(table)
    news, _ = one_being_written(table, priority=5 if why == "less urgent" else 0)
    if why == "forgotten":
        table.pass_time(REMEMBERED_US)
    elif why == "strangers":
        next(iter(poll.registry.views.values())).heard.stranger_us = table.time_us
    elif why == "purged":
        news = news._replace(rows=())
    assert not poll.claims_unread(news, table.time_us)
    poll._whole_us = table.time_us  # no search is due
    table.run(poll.begin(table.spec, lambda: [news]))
    assert not poll._told
