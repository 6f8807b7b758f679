"""plan, apply and verify: the work of `cqueue schema`, without any printing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cassandra import InvalidRequest

from cqueue.errors import ConfigError, Unavailable
from cqueue.schema.drift import Drift, all_drift
from cqueue.schema.execute import await_agreement, run
from cqueue.schema.lock import SchemaLock
from cqueue.schema.migrations import Migration, load_migrations
from cqueue.schema.options import Options
from cqueue.schema.plan import Plan, Step, make_plan
from cqueue.schema.state import State, read_state
from cqueue.settings import Settings
from cqueue.store.connection import Connection

_VISIBLE_S: Final = 5.0
"""Seconds for which a step is repeated while a new keyspace is not visible: several rounds of gossip."""
_VISIBLE_POLL_S: Final = 0.1
"""Seconds between two such attempts."""
_DEFINITIONS: Final = ("CREATE", "ALTER", "DROP")
"""Statements that change the schema, after which all nodes must agree."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` steps are complete; `text` is the step that runs now."""

    text: str
    done: int = 0
    total: int = 0


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply` did: statements run, differences left to the operator, and notes about chosen defaults."""

    statements: tuple[str, ...]
    drift: tuple[Drift, ...]
    notes: tuple[str, ...]


def plan(options: Options, state: State, settings: Settings, *, only_pre: bool = False) -> Plan:
    """Return what `apply` would run, without running it.

    Args:
        options: what the operator asked for.
        state: from `read_state`, or `State(keyspace=…)` for a keyspace that does not exist yet.
        settings: defaults of a new keyspace.
        only_pre: plan only what may be applied while old code is running.

    Raises:
        SchemaMismatch: the keyspace is newer than this code, or has another serial consistency.
        ConfigError: the options do not fit the cluster.
    """
    return make_plan(options, state, load_migrations(), settings, only_pre=only_pre)


def apply(
    connection: Connection,
    settings: Settings,
    options: Options | None = None,
    *,
    migrations: Sequence[Migration] | None = None,
    only_pre: bool = False,
    report: Report = lambda _: None,
) -> Applied:
    """Create the keyspace and its tables, or bring them up to date. A repeated call changes nothing.

    Several processes may call it at once: one works, the others wait for it. Differences in options are
    reported, never altered.

    Args:
        connection: opened with `use_keyspace=False`; the call selects the keyspace.
        settings: name the keyspace.
        options: None for the defaults.
        migrations: instead of this package's own.
        only_pre: apply only what may be applied while old code is running.
        report: called at each step.

    Raises:
        SchemaMismatch: the keyspace is newer than this code, or has another serial consistency.
        ConfigError: the options do not fit the cluster, or Cassandra refused a statement as wrong.
        Refused: the role lacks a right, or a guardrail is in the way.
        Unavailable: the cluster did not answer, or another process held the lock for 5 minutes. Steps that
            were reported before have been run. Repeat the call.
        OutcomeUnknown: a statement may or may not have been run. Repeat the call.
        OwnershipLost: the lock could not be renewed in time. Repeat the call.
    """
    known = tuple(migrations) if migrations is not None else load_migrations()

    def planned() -> Plan:
        state = read_state(connection, settings.keyspace)
        return make_plan(options or Options(), state, known, settings, only_pre=only_pre)

    first = planned()
    if not first.steps:
        return Applied((), first.drift, first.notes)
    done = _prepare(connection, first, report)
    lock = SchemaLock(connection.session, settings.keyspace)
    with lock.held(lambda text: report(Progress(text))):
        # Another process may have done part of the work, or all; its changes must be visible here first.
        await_agreement(connection)
        second = planned()
        done += _run_steps(connection, second, lock, report, before=len(done))
    return Applied(done, second.drift, first.notes)


def verify(
    connection: Connection, settings: Settings, *, migrations: Sequence[Migration] | None = None
) -> list[Drift]:
    """Return all differences between the keyspace and this code with the keyspace's own recorded options.

    Raises:
        SchemaMismatch: the keyspace is newer than this code.
        Unavailable: the cluster did not answer.
    """
    known = tuple(migrations) if migrations is not None else load_migrations()

    def drift() -> list[Drift]:
        state = read_state(connection, settings.keyspace)
        state.check_not_newer(known)
        return all_drift(state, known)

    found = drift()
    if found:  # perhaps only where it was asked: a node that was away does not know the newest tables yet
        with suppress(Unavailable):  # nodes may disagree for hours; what one of them says is told then
            await_agreement(connection)
        found = drift()
    return found


def _prepare(connection: Connection, plan_: Plan, report: Report) -> tuple[str, ...]:
    """Run the steps that make the lock possible. Several processes may run them at once."""
    steps = [step for step in plan_.steps if step.before_lock]
    for number, step in enumerate(steps):
        report(Progress(_title(step), number, len(plan_.steps)))
        _run_when_visible(connection, step)
    return tuple(step.cql for step in steps)


def _run_when_visible(connection: Connection, step: Step) -> None:
    """Run a step, again while Cassandra does not know its keyspace.

    A keyspace that another process is creating is listed a moment before it can be used.
    """
    deadline = time.monotonic() + _VISIBLE_S
    while True:
        try:
            return _run_step(connection, step)
        except ConfigError as exc:
            if not isinstance(exc.__cause__, InvalidRequest) or time.monotonic() >= deadline:
                raise
        time.sleep(_VISIBLE_POLL_S)


def _run_steps(
    connection: Connection, plan_: Plan, lock: SchemaLock, report: Report, *, before: int
) -> tuple[str, ...]:
    steps = [step for step in plan_.steps if not step.before_lock]
    total = before + len(steps)
    for number, step in enumerate(steps, start=before):
        report(Progress(_title(step), number, total))
        lock.check()
        _run_step(connection, step)
    report(Progress("Done", total, total))
    return tuple(step.cql for step in steps)


def _run_step(connection: Connection, step: Step) -> None:
    run(connection.session, step.cql, serial=step.serial)
    if step.cql.startswith(_DEFINITIONS):
        await_agreement(connection)


def _title(step: Step) -> str:
    return " ".join(step.cql.replace("IF NOT EXISTS ", "").split()[:3])
