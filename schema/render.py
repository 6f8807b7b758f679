"""A plan as text for cqlsh: statements, and everything else as comments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cqueue.schema.plan import Plan, Step
from cqueue.schema.statements import in_cqlsh

_LOCK_REMARK = (
    "`cqueue schema apply` holds the row 'cqueue' of schema_lock from here on; run by hand, these statements",
    "take no lock: run them once. In cqlsh, say CONSISTENCY QUORUM; before them: clients ask a quorum.",
)


def render_plan(plan: Plan) -> str:
    """Return a plan as CQL; an empty plan is only comments."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    yield from _comments(plan.notes)
    if not plan.steps:
        yield "-- Nothing to do."
    yield from _statements(plan.steps)
    for drift in plan.drift:
        yield ""
        yield from _comments([f"Drift, for you to decide: {drift}", *(f"    {cql};" for cql in drift.cql)])


def _statements(steps: Iterable[Step]) -> Iterator[str]:
    comment, locked = "", False
    for step in steps:
        if step.comment != comment:
            yield ""
        if not locked and not step.before_lock:
            locked = True
            yield from _comments(_LOCK_REMARK)
        if step.comment != comment:
            yield from _comments([comment := step.comment])
        if step.serial is not None:
            yield from _comments([in_cqlsh(step.serial)])
        yield f"{step.cql};"


def _comments(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from (f"-- {line}" for line in text.splitlines())
