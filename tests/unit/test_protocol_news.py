"""What a process has sent itself is claimed unread: never at the cost of what others sent."""

from cqueue.protocol import ack
from cqueue.protocol.news import MOST_UNREAD, STRANGERS_US, Heard, moments, news_of
from cqueue.protocol.view import REMEMBERED_US, RowView
from cqueue.store.operations import Mutate, ReadIds, ReadSlice
from tests.simulation.hand import Table, ids_of, message


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
