"""Least privilege: what each kind of process must be granted on the tables of a keyspace, and no more.

Cassandra grants on tables, not on rows or columns: who may write to a queue may write to all queues of the
keyspace. SECURITY.md says what follows from that. The roles have no login: grant them to those that have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_CONNECTED: Final = ("deployment", "schema_migrations")  # what every client checks
_MESSAGES: Final = ("messages", "bodies", "shards", "message_keys")
_RECORDS: Final = ("log", "log_shards")
# A consumer writes `queues`, where it moves the epoch at which a queue's registry starts, and `log`, where it
# stores dead letters of a log.
_CONSUMED: Final = (*_MESSAGES, "reservations", "queues", "listeners", *_RECORDS, "subscriptions")
# `deployment` has the counter that tells clients of an altered queue; schedules alter theirs.
# A dispatcher appends to the histories of queues that keep one.
_DISPATCHED: Final = (
    *_MESSAGES,
    *("reservations", "queues", "listeners", "deployment", "schedules", "workers", "results"),
    *_RECORDS,
)


@dataclass(frozen=True, slots=True)
class Role:
    """What one role is for, the tables that it reads and writes, and its other rights."""

    name: str
    purpose: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    rights: tuple[tuple[str, str], ...] = ()


ROLES: Final = (
    Role(
        "bootstrap",
        "`cqueue schema apply`; creates, alters and deletes queues and logs; redrives and purges.",
        rights=tuple((right, "KEYSPACE {keyspace}") for right in ("CREATE", "ALTER", "SELECT", "MODIFY")),
    ),
    Role(
        "producer",
        "Sends messages and appends records; reads neither.",
        reads=(*_CONNECTED, "queues", "listeners", "logs"),
        writes=(*_MESSAGES, *_RECORDS),
    ),
    Role(
        "consumer",
        "Receives and sends messages, and listens to logs.",
        reads=(*_CONNECTED, "logs", *_CONSUMED),
        writes=_CONSUMED,
    ),
    Role(
        "dispatcher",
        "`cqueue dispatch`: receives and sends messages, creates its queues, runs schedules, keeps results.",
        reads=("schema_migrations", "logs", *_DISPATCHED),
        writes=_DISPATCHED,
    ),
    Role(
        "reader",
        "Reads everything, bodies too, and writes nothing: the dashboard, `cqueue metrics`, `cqueue doctor`.",
        rights=(
            ("SELECT", "KEYSPACE {keyspace}"),
            ("SELECT", "KEYSPACE system_views"),
            ("SELECT", "system_distributed.parent_repair_history"),
        ),
    ),
)


def render(keyspace: str) -> Iterator[str]:
    """Yield CQL, a statement or a comment a line, which makes the roles and grants them what they need."""
    for role in ROLES:
        yield f"-- {role.purpose}"
        yield f"CREATE ROLE IF NOT EXISTS {keyspace}_{role.name}"
        for right, on in _rights(role):
            yield f"GRANT {right} ON {on.format(keyspace=keyspace)} TO {keyspace}_{role.name}"


def statements(keyspace: str) -> list[str]:
    """Return the statements of `render`, in the order in which they are to be run; each may be repeated."""
    return [line for line in render(keyspace) if not line.startswith("--")]


def _rights(role: Role) -> Iterator[tuple[str, str]]:
    yield from role.rights
    for right, tables in (("SELECT", role.reads), ("MODIFY", role.writes)):
        yield from ((right, f"{{keyspace}}.{table}") for table in tables)
