"""The schema of a keyspace: plan, apply, verify; and the check that every client makes at connect."""

from cqueue.schema.bootstrap import Applied as Applied
from cqueue.schema.bootstrap import Progress as Progress
from cqueue.schema.bootstrap import apply as apply
from cqueue.schema.bootstrap import plan as plan
from cqueue.schema.bootstrap import verify as verify
from cqueue.schema.centres import Centre as Centre
from cqueue.schema.centres import Decision as Decision
from cqueue.schema.centres import newest_centre as newest_centre
from cqueue.schema.centres import read_centre as read_centre
from cqueue.schema.centres import resume_retiring as resume_retiring
from cqueue.schema.centres import switch_home as switch_home
from cqueue.schema.deployment import Deployment as Deployment
from cqueue.schema.deployment import check_deployment as check_deployment
from cqueue.schema.drift import Drift as Drift
from cqueue.schema.migrations import Migration as Migration
from cqueue.schema.migrations import load_migrations as load_migrations
from cqueue.schema.options import Options as Options
from cqueue.schema.options import parse_compaction as parse_compaction
from cqueue.schema.options import parse_replication as parse_replication
from cqueue.schema.plan import Plan as Plan
from cqueue.schema.plan import Step as Step
from cqueue.schema.render import render_plan as render_plan
from cqueue.schema.state import State as State
from cqueue.schema.state import read_state as read_state
from cqueue.store.operations import FORMAT as FORMAT
