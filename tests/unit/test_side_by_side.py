"""Test protocol functions that run side by side: each gets its own answers, and one that fails stops all."""

from collections.abc import Iterator
from typing import Any

import pytest

from cqueue.errors import NotDone, OutcomeUnknown, Unavailable
from cqueue.protocol.side_by_side import side_by_side
from cqueue.protocol.spec import Proto
from cqueue.store.operations import Now, Operation, Pause, ReadHead, Together, WideRow


def read(number: int) -> ReadHead:
    return ReadHead(WideRow("q@1", number, 0))


def run(script: Proto[None], answer: Any = lambda operation: operation) -> list[list[int]]:
    """Run to the end. Return the reads of each round, as numbers; an answer is what was asked."""
    rounds: list[list[int]] = []
    value: Any = None
    while True:
        try:
            operation = script.send(value)
        except StopIteration:
            return rounds
        if isinstance(operation, Together):
            rounds.append([one.wide_row.time_shard for one in operation.operations])
            value = [answer(one) for one in operation.operations]
        else:
            value = operation  # of a clock, or of a pause


def reading(numbers: range, got: list[Operation[Any]]) -> Proto[None]:
    for number in numbers:
        answer = yield read(number)
        got.append(answer)


@pytest.mark.parametrize("most", [1, 2, 3, 9])
def test_each_function_gets_its_own_answers_in_order(most):
    """However many run at a time, and however long each is."""
    got: list[list[Operation[Any]]] = [[] for _ in range(4)]
    numbers = [range(0), range(10, 13), range(20, 21), range(30, 35)]
    rounds = run(side_by_side(map(reading, numbers, got), most))
    assert got == [[read(number) for number in some] for some in numbers]
    assert max(map(len, rounds)) == min(most, 3)


def test_a_function_that_ends_makes_room_for_the_next():
    """The next one is not even made before: it may hold much."""
    made: list[int] = []

    def scripts() -> Iterator[Proto[None]]:
        for number, length in enumerate([3, 1, 1, 1]):
            made.append(number)
            yield reading(range(number * 10, number * 10 + length), [])

    script = side_by_side(scripts(), 2)
    next(script)
    assert made == [0, 1]
    script.close()
    assert run(side_by_side(scripts(), 2)) == [[0, 10], [1, 20], [2, 30]]


def test_nothing_to_run_asks_nothing():
    """Nor do functions that ask nothing, though others wait behind them."""
    assert run(side_by_side((), 8)) == []
    assert run(side_by_side([reading(range(0), []), reading(range(0), []), reading(range(7, 8), [])], 2)) == [
        [7]
    ]


def test_operations_of_a_function_that_go_together_get_their_answers_together():
    """They are answered as a list with their errors, and do not end the function."""
    got = []

    def several() -> Proto[None]:
        got.append((yield Together((read(1), read(2)))))

    def answer(operation: ReadHead) -> Any:
        return failed if operation == read(2) else operation

    failed = NotDone("no")
    assert run(side_by_side([several(), reading(range(3, 4), got)], 8), answer) == [[1, 2, 3]]
    assert got == [[read(1), failed], read(3)]


def test_clocks_and_pauses_are_asked_for_one_by_one():
    """No store is asked for them."""
    got = []

    def looking() -> Proto[None]:
        got.append((yield Now()))
        got.append((yield Pause(1.0)))
        got.append((yield read(1)))

    assert run(side_by_side([looking()], 8)) == [[1]]
    assert got == [Now(), Pause(1.0), read(1)]


def test_a_failure_that_a_function_expects_is_its_own_affair():
    """A walk that crosses too many tombstones reads on in shorter pieces."""
    got = []

    def twice() -> Proto[None]:
        try:
            yield read(1)
        except NotDone:
            got.append((yield read(2)))

    run(
        side_by_side([twice()], 8), lambda operation: Unavailable("no") if operation == read(1) else operation
    )
    assert got == [read(2)]


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ({1: Unavailable("one")}, "one"),
        ({1: Unavailable("one"), 2: OutcomeUnknown("two")}, "two"),
        ({2: OutcomeUnknown("two"), 3: OutcomeUnknown("three")}, "two"),
        ({1: Unavailable("one"), 3: Unavailable("three")}, "one"),
    ],
)
def test_a_failure_ends_all_after_the_round(errors, told):
    """An unknown outcome is told before a refusal. The functions that were answered have noted it."""
    got: list[Operation[Any]] = []
    scripts = [reading(range(number, 100), got) for number in (1, 2, 3)]
    with pytest.raises((NotDone, OutcomeUnknown), match=f"^{told}$"):
        run(
            side_by_side(scripts, 3),
            lambda operation: errors.get(operation.wide_row.time_shard, operation),
        )
    assert got == [read(number) for number in (1, 2, 3) if number not in errors]
