"""Run several protocol functions side by side, on one thread: a request of each is under way at a time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol.spec import Proto
from cqueue.store.operations import Now, Operation, Pause, RandomBits, Together

LOCAL = (Now, RandomBits, Pause)
"""Operations that a driver runs without the store. A `Together` holds none of them."""


def side_by_side(scripts: Iterable[Proto[None]], most: int) -> Proto[None]:
    """Run protocol functions in rounds, up to `most` at a time; one that has ended makes room for the next.

    A round is one `Together` of what each asks next, so it takes as long as the slowest of them.

    Raises:
        OutcomeUnknown, NotDone: some function has failed; an unknown outcome goes before a refusal. The
            others have had their answers of that round. No function is asked for more.
    """
    waiting = iter(scripts)
    answered: list[tuple[Proto[None], Any]] = []
    while True:
        asked: list[tuple[Proto[None], Operation[Any]]] = []
        errors: list[NotDone | OutcomeUnknown] = []
        for script, answer in chain(answered, zip(waiting, repeat(None))):
            try:
                operation = yield from _go_on(script, answer)
            except (NotDone, OutcomeUnknown) as exc:
                errors.append(exc)
            else:
                asked += [(script, operation)] if operation is not None else []
            if len(asked) == most:
                break
        if errors:
            raise next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
        if not asked:
            return
        operations = tuple(one for _, operation in asked for one in _parts(operation))
        answers = iter((yield Together(operations)))
        answered = [
            (script, [next(answers) for _ in each.operations] if type(each) is Together else next(answers))
            for script, each in asked
        ]


def _go_on(script: Proto[None], answer: Any) -> Proto[Operation[Any] | None]:
    """Give a function its answer; return what it asks the store next, or None if it has ended."""
    while True:
        try:
            asked = script.throw(answer) if isinstance(answer, Exception) else script.send(answer)
        except StopIteration:
            return None
        if not isinstance(asked, LOCAL):
            return asked
        answer = yield asked


def _parts(asked: Operation[Any]) -> tuple[Operation[Any], ...]:
    return asked.operations if type(asked) is Together else (asked,)
