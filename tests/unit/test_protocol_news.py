"""What a process has sent itself is claimed unread: never at the cost of what others sent."""

from cqueue.protocol import ack
from cqueue.protocol.news import moments
from cqueue.protocol.view import MOST_UNREAD, REMEMBERED_US, RIVALS_US, RowView
from cqueue.store.operations import Mutate, ReadIds, ReadSlice
from tests.simulation.hand import Table, ids_of


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
    view.hear(table.news(sent, began))
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
    table.pass_time(RIVALS_US)
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
    view.hear(table.news(sent, began)._replace(received=True))
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
    assert not any(view.unread.values())
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
