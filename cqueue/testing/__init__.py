"""Tools for tests: an application in a sandbox, clients in memory, and a checker of a queue's promises.

`App.testing` makes a `Sandbox`; a `MemoryClient` is for code without an application. A `Recorder` writes a
history of what clients did, and `check` finds broken promises in it.
"""

from cqueue.testing.events import HistoryError
from cqueue.testing.history import check, judge
from cqueue.testing.jobs import DeadJob, Job, Run, Runs
from cqueue.testing.memory import MemoryClient
from cqueue.testing.recorder import Recorder, recording
from cqueue.testing.report import Duplicate, Finding, Report
from cqueue.testing.sandbox import Endless, Sandbox
from cqueue.testing.twin import memory_async

__all__ = [
    "DeadJob",
    "Duplicate",
    "Endless",
    "Finding",
    "HistoryError",
    "Job",
    "MemoryClient",
    "Recorder",
    "Report",
    "Run",
    "Runs",
    "Sandbox",
    "check",
    "judge",
    "memory_async",
    "recording",
]
