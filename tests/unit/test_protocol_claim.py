"""What a claim costs, and what keeps claims apart."""

from cqueue.protocol.lock import unlock
from cqueue.store.operations import Mutate
from tests.simulation.hand import SECOND_US, Table, ids_of


def mutations(table: Table) -> int:
    return sum(type(operation) is Mutate for operation in table.log)


def claimed(table: Table, view, want: int = 10) -> list[int]:
    """What a claim gives, and let go of the lock if it was kept."""
    found = ids_of(table.claim(view, want=want))
    table.run(unlock(view))
    return found


def put(table: Table, count: int = 1) -> list[int]:
    found = table.put(*(table.time_us + number for number in range(count)))
    table.pass_time(1000)
    return found


def test_who_claimed_last_claims_in_one_mutation():
    """A trickle that one consumer takes costs one Paxos round a message, not two."""
    table = Table()
    view = table.view()
    put(table)
    claimed(table, view)
    for _ in range(5):
        before = mutations(table)
        new = put(table)
        assert claimed(table, view) == new
        assert mutations(table) == before + 1
        table.pass_time(SECOND_US // 10)


def test_a_claim_that_finds_nothing_writes_nothing():
    """Being told of what somebody else has taken is no reason for a Paxos round."""
    table = Table()
    view = table.view()
    put(table)
    claimed(table, view)
    before = mutations(table)
    assert claimed(table, view) == []
    assert mutations(table) == before


def test_a_claim_of_another_consumer_ends_that():
    """The fence has moved: lock again, and take only what nobody holds."""
    table = Table()
    mine, theirs = table.view(), table.view()
    put(table)
    claimed(table, mine)
    taken = put(table, 2)
    assert claimed(table, theirs, want=1) == taken[:1]
    before = mutations(table)
    assert claimed(table, mine) == taken[1:]
    assert mutations(table) == before + 2


def test_a_claim_in_between_makes_the_mutation_fail():
    """Read, overtaken, refused: nothing is claimed twice, and nothing stays behind."""
    table = Table()
    mine, theirs = table.view(), table.view()
    put(table)
    claimed(table, mine)
    taken = put(table, 3)
    between = [True]

    def overtake(operation):
        if type(operation) is Mutate and between:
            between.clear()
            assert claimed(table, theirs, want=2) == taken[:2]

    assert ids_of(table.claim(mine, hook=overtake)) == []
    assert claimed(table, mine) == taken[2:]
