"""The one store wrapper that makes operations fail, between a client and the store that executes them."""

from __future__ import annotations

import os
import signal

from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.store.memory import MemoryStore


class FaultyStore:
    """Hands operations to `store`, by default one in memory, as far as its two hooks let it.

    A subclass that must see which operations a client sends together overrides `together`; `execute` goes
    through `together` as well.

    Attributes:
        trouble: called with an operation before it is executed; gives the error that the client gets
            instead, or None. It may also raise, wait for a test's event, or take notes.
        around: called with an operation and a function that executes it; gives what the client gets, or
            raises. So an operation can be executed and its answer be lost, or changed.
        asked: how many operations clients have asked for.
    """

    def __init__(self, store=None, *, trouble=lambda _: None, around=lambda _, do: do()):
        self.store = MemoryStore() if store is None else store
        self.trouble = trouble
        self.around = around
        self.asked = 0

    @property
    def quarantine(self):
        return self.store.quarantine

    def execute(self, operation):
        (result,) = self.together((operation,))
        if isinstance(result, Exception):
            raise result
        return result

    def together(self, operations):
        """The results, one by one; a `NotDone` or `OutcomeUnknown` stands in its operation's place."""
        return [self._result(operation) for operation in operations]

    def _result(self, operation):
        self.asked += 1
        try:
            error = self.trouble(operation)
            if error:
                raise error
            return self.around(operation, lambda: self.store.execute(operation))
        except (NotDone, OutcomeUnknown) as exc:
            return exc

    def sample_time_us(self):
        return self.store.sample_time_us()

    def close(self):
        self.store.close()


class Dying(FaultyStore):
    """SIGKILL as soon as the nth operation of this kind has been executed."""

    def __init__(self, store, kind, nth):
        super().__init__(store)
        self._kind = kind
        self._left = nth

    def together(self, operations):
        results = self.store.together(operations)
        self._left -= sum(isinstance(operation, self._kind) for operation in operations)
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return results
