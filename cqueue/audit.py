"""Everything that an operator does: who, what, when, and what came of it.

An action is written down before it begins, in the log `cqueue.audit` beside the queues. If that fails, the
dashboard does not do it, and the command line says so and goes on. Once an action has ended in any way, its
outcome is appended. One that shows no outcome was under way when its process, or the connection to Cassandra,
ended.

The outcome also goes where the process's log goes, as the event `operator_action`. Neither holds bodies,
headers or tokens.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from cqueue.client import Client
from cqueue.dead_letters import LettersResult
from cqueue.errors import CqueueError, LogNotFound, NotDone, OutcomeUnknown
from cqueue.log.config import LogConfig
from cqueue.log.log import Log
from cqueue.runtime.logs import logger

LOGGER: Final = "cqueue.audit"
ACTION: Final = "operator_action"
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
    def action(self, who: str, address: str | None, what: str, **about: Any) -> Iterator[dict[str, Any]]:
        """Write down what an operator does, before and after. Yield a mapping for further fields.

        who: the operator's name. address: the machine it came from. what: `pause_queue`, `redrive` and so on.
        about: what it was done to.

        Raises:
            NotDone: the action could not be written down, and was not begun.
        """
        fields: dict[str, Any] = {"who": who, "address": address, "action": what, **about}
        id_ = secrets.token_hex(8)
        self._begin(id_, fields)
        fields["outcome"] = "failed"
        try:
            yield fields
            if fields["outcome"] == "failed":
                fields["outcome"] = "done"
        except (OutcomeUnknown, KeyboardInterrupt):
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
            _append(own_log(self._client, LOG, CONFIG), id_, {**fields, "outcome": "begun"})
        except OutcomeUnknown as exc:  # of the append, or of the first use's creation of the log
            raise NotDone(f"it may not have been written down: {exc}") from exc

    def _end(self, id_: str, fields: Mapping[str, Any]) -> None:
        try:
            _append(self._client.log(LOG), id_, fields)  # not made again, if it is this that was deleted
        except CqueueError as exc:
            logger(LOGGER).warning("outcome_not_kept", action=fields["action"], error=str(exc))

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


def _append(log: Log, id_: str, fields: Mapping[str, Any]) -> None:
    log.append(id_, json.dumps(fields).encode())


def of_letters(result: LettersResult) -> dict[str, Any]:
    """Return the fields that say what became of dead letters; `ids` names the first 100."""
    fields: dict[str, Any] = {name: len(getattr(result, name)) for name in ("done", "held", "failed")}
    if any(isinstance(error, OutcomeUnknown) for _, error in result.failed):
        fields["outcome"] = "unknown"
    elif not result.done:
        fields["outcome"] = "not_done"
    return {**fields, "ids": [str(id_) for id_ in result.done[:100]]}


def own_log(client: Client, name: str, config: LogConfig) -> Log:
    """Open a log that cqueue keeps for operators, which is created with this configuration at its first use.

    Raises:
        NotDone, OutcomeUnknown: Cassandra does not answer, or refuses it.
    """
    try:
        return client.log(name)
    except LogNotFound:
        return client.create_log(name, config, exist_ok=True)


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
