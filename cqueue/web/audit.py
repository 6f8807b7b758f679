"""Everything that an operator does: who, what, when, and what came of it.

An action is written down before it begins, in the log `cqueue.audit` beside the queues. If that fails, the
action is not done. Once it has ended in any way, its outcome is appended. An action that shows no outcome was
under way when the dashboard, or the connection to Cassandra, ended.

Both also go where the process's log goes, as the event `operator_action`; a refused request is
`operator_refused`, and only there, so that nobody can fill Cassandra. None holds bodies, headers or tokens.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from cqueue.errors import CqueueError, LogNotFound, NotDone, OutcomeUnknown
from cqueue.log.config import LogConfig
from cqueue.runtime.logs import logger
from cqueue.web import reading
from cqueue.web.access import Person
from cqueue.web.shared import LOGGER

if TYPE_CHECKING:
    from starlette.requests import Request

    from cqueue.client import Client

ACTION: Final = "operator_action"
REFUSED: Final = "operator_refused"
LOG: Final = "cqueue.audit"
CONFIG: Final = LogConfig(partitions=1, ttl=timedelta(days=400), time_shard=timedelta(days=1))
"""A year and a month, so that a yearly review finds all of its year."""
SHOWN: Final = 200
"""Actions that a page shows."""
OWN: Final = frozenset({"action", "who", "address", "outcome"})
"""Names that say nothing of what an action was done to."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action. outcome: begun, done, not_done, unknown or failed; about: what it was done to."""

    at: datetime
    who: str
    address: str
    action: str
    outcome: str
    about: Mapping[str, Any]


class Trail:
    """The log of actions, in Cassandra and in the process's own log. Thread-safe."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @contextmanager
    def action(
        self, person: Person, address: str | None, what: str, **about: Any
    ) -> Iterator[dict[str, Any]]:
        """Write down what an operator does, before and after. Yield a mapping for further fields.

        what: `pause_queue`, `redrive` and so on; about: what it was done to.

        Raises:
            NotDone: the action could not be written down, and was not begun.
        """
        fields: dict[str, Any] = {"who": person.name, "address": address, "action": what, **about}
        id_ = secrets.token_hex(8)
        self._begin(id_, fields)
        fields["outcome"] = "failed"
        try:
            yield fields
            if fields["outcome"] == "failed":
                fields["outcome"] = "done"
        except OutcomeUnknown:
            fields["outcome"] = "unknown"
            raise
        except CqueueError as exc:
            fields |= {"outcome": "not_done", "error": type(exc).__name__}
            raise
        finally:
            logger(LOGGER).info(ACTION, **fields)
            self._end(id_, fields)

    def _begin(self, id_: str, fields: Mapping[str, Any]) -> None:
        try:
            self._append(id_, {**fields, "outcome": "begun"})
        except OutcomeUnknown as exc:  # of the append, or of the first use's creation of the log
            raise NotDone(f"not begun, as it may not have been written down: {exc}") from exc

    def _end(self, id_: str, fields: Mapping[str, Any]) -> None:
        try:
            self._append(id_, fields)
        except CqueueError as exc:
            logger(LOGGER).warning("outcome_not_kept", action=fields["action"], error=str(exc))

    def _append(self, id_: str, fields: Mapping[str, Any]) -> None:
        reading.own_log(self._client, LOG, CONFIG).append(id_, json.dumps(fields).encode())

    def read(self) -> list[Action]:
        """Return the last 200 actions, the newest first; those of the last 3 seconds may be missing."""
        found: dict[str, Action] = {}
        try:
            with self._client.log(LOG).scan(reverse=True, limit=2 * SHOWN, on_expired="earliest") as records:
                for record in records:
                    if (action := _action_of(record.time, record.body)) is not None:
                        # The outcome comes first when reading backwards, and the beginning says when.
                        last = found.get(record.topic, action)
                        found[record.topic] = replace(last, at=action.at)
        except LogNotFound:
            return []
        return list(found.values())[:SHOWN]


def address_of(request: Request) -> str | None:
    """Return the address that the request comes from, which may be a proxy's."""
    return request.client.host if request.client else None


def refused(request: Request, who: str | None, why: str) -> None:
    """Log a request that was refused."""
    address, path = address_of(request), request.url.path[:300]
    logger(LOGGER).warning(REFUSED, who=who, address=address, method=request.method, path=path, why=why)


def _action_of(at: datetime, body: bytes) -> Action | None:
    """Return the action that a record tells of; None if it has another form."""
    try:
        fields = json.loads(body)
        about = {name: value for name, value in fields.items() if name not in OWN}
        said = [str(fields.get(name) or "–") for name in ("who", "address", "action", "outcome")]
    except (ValueError, AttributeError):
        return None
    who, address, action, outcome = said
    return Action(at, who, address, action, outcome, about)
