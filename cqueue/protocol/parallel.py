"""Run operations side by side: all of them must succeed, or some are enough."""

from __future__ import annotations

from typing import Any

from cqueue.protocol.spec import Proto
from cqueue.store.operations import Operation, Together


def together(*operations: Operation[Any]) -> Proto[list[Any]]:
    """Run operations side by side; return their results, or raise the first error."""
    if len(operations) == 1:
        return [(yield from operations[0])]
    results = (yield from Together(operations)) if operations else []
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def some_of(reads: tuple[Operation[Any], ...]) -> Proto[list[Any]]:
    """Run reads side by side; return results and errors. Raise the first error if all reads failed."""
    answers = yield from Together(reads, retried=False)  # the next poll reads again anyway
    if all(isinstance(answer, Exception) for answer in answers):
        raise answers[0]
    return answers
