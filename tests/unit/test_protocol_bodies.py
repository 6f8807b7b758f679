"""Large bodies, which stand apart from their messages, and what is left where one is lost."""

from types import SimpleNamespace

from cqueue.protocol.bodies import HEADER_LOST, look_everywhere, reads, without_body
from cqueue.protocol.lease import Taken
from tests.simulation.hand import NOON_US, Table, message


def large(table, size, **columns):
    return message(table.id_at(NOON_US))._replace(body=None, size=size, **columns)


def test_bodies_are_asked_for_with_their_sizes():
    """By these the store bounds how many bytes are under way at once, wherever it asks."""
    table = Table()
    rows = [large(table, 70_000), message(table.id_at(NOON_US)), large(table, 1 << 20)]
    (read,) = reads([(table.row, row) for row in rows])
    wanted = (rows[0].id, rows[2].id), (70_000, 1 << 20)
    assert (read.ids, read.sizes, read.everywhere) == (*wanted, False)
    taken = [Taken(row, SimpleNamespace(wide_row=table.row)) for row in (rows[0], rows[2])]
    (read,) = next(look_everywhere(taken)).operations
    assert (read.ids, read.sizes, read.everywhere) == (*wanted, True)


def test_a_message_without_its_body_says_how_large_it_was():
    """Beside all that its sender said of it."""
    left = without_body(large(Table(), 70_000, headers={"tenant": "7"}))
    assert (left.body, left.size) == (b"", None)
    assert left.headers == {"tenant": "7", HEADER_LOST: "70000"}
