"""The checks of `cqueue doctor`: what is wrong with a cluster, a keyspace, its queues and their processes.

Each module has one subject. Its `check` reads, and a pure function judges what was read.
"""

from cqueue.doctor.examination import CHECKS, DEFAULT_LIMIT_S, Check, examine
from cqueue.doctor.finding import Finding, Severity
from cqueue.doctor.site import Site, open_site

__all__ = ["CHECKS", "DEFAULT_LIMIT_S", "Check", "Finding", "Severity", "Site", "examine", "open_site"]
