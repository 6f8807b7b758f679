"""The schema of a keyspace: plan, apply, verify; and the check that every client makes at connect."""

from __future__ import annotations

from cqueue.schema.bootstrap import Applied, Progress, apply, plan, verify
from cqueue.schema.centres import Centre, Decision, newest_centre, read_centre, resume_retiring, switch_home
from cqueue.schema.deployment import Deployment, check_deployment
from cqueue.schema.drift import Drift
from cqueue.schema.migrations import Migration, load_migrations
from cqueue.schema.options import Options, parse_compaction, parse_replication
from cqueue.schema.plan import Plan, Step
from cqueue.schema.render import render_plan
from cqueue.schema.state import State, read_state
from cqueue.store.operations import FORMAT

__all__ = [
    "FORMAT",
    "Applied",
    "Centre",
    "Decision",
    "Deployment",
    "Drift",
    "Migration",
    "Options",
    "Plan",
    "Progress",
    "State",
    "Step",
    "apply",
    "check_deployment",
    "load_migrations",
    "newest_centre",
    "parse_compaction",
    "parse_replication",
    "plan",
    "read_centre",
    "read_state",
    "render_plan",
    "resume_retiring",
    "switch_home",
    "verify",
]
