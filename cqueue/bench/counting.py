"""A store that counts what is asked of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cqueue.store.operations import Mutate, Operation, Store


class CountingStore:
    """Counts the operations that pass through it.

    mutations: the conditional ones of wide rows. crossed: reads of which Cassandra said that they met more
        tombstones than `tombstone_warn_threshold`, by default 1,000.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.operations = self.mutations = self.crossed = 0
        self.quarantine = store.quarantine

    def execute(self, operation: Operation[Any]) -> Any:
        """Count an operation, and run it."""
        self._count((operation,))
        answer = self._store.execute(operation)
        self.crossed += _crossed(answer)
        return answer

    def together(self, operations: tuple[Operation[Any], ...]) -> list[Any]:
        """Count operations, and run them together."""
        self._count(operations)
        answers = self._store.together(operations)
        self.crossed += sum(map(_crossed, answers))
        return answers

    def sample_time_us(self) -> list[tuple[int, int]]:
        """Sample the clocks; count an operation for each coordinator that answers."""
        answers = self._store.sample_time_us()
        self.operations += len(answers)
        return answers

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _count(self, operations: Iterable[Operation[Any]]) -> None:
        kinds = [type(operation) for operation in operations]
        self.operations += len(kinds)
        self.mutations += kinds.count(Mutate)


def _crossed(answer: Any) -> bool:
    return bool(getattr(answer, "tombstones", 0))
