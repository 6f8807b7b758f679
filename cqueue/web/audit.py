"""A line in the log for everything that an operator does: who, what, when, and what came of it.

The lines go where the process's log goes, as the event `operator_action`; a refused request is
`operator_refused`. Neither holds bodies, headers or tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from cqueue.errors import CqueueError, OutcomeUnknown
from cqueue.runtime.logs import logger
from cqueue.web.access import Person
from cqueue.web.shared import LOGGER

ACTION: Final = "operator_action"
REFUSED: Final = "operator_refused"


@contextmanager
def action(person: Person, address: str | None, what: str, **about: Any) -> Iterator[dict[str, Any]]:
    """Log what an operator does, once it has ended in any way. Yield a mapping for further fields.

    what: `pause_queue`, `redrive` and so on; about: what it was done to.
    """
    more: dict[str, Any] = {}
    outcome = "failed"
    try:
        yield more
        outcome = "done"
    except OutcomeUnknown:
        outcome = "unknown"
        raise
    except CqueueError as exc:
        outcome = "not_done"
        more["error"] = type(exc).__name__
        raise
    finally:
        fields = {**about, "outcome": outcome, **more}
        logger(LOGGER).info(ACTION, who=person.name, address=address, action=what, **fields)


def refused(who: str | None, address: str | None, method: str, path: str, why: str) -> None:
    """Log a request that was refused."""
    logger(LOGGER).warning(REFUSED, who=who, address=address, method=method, path=path[:300], why=why)
