"""Tools for tests: an application in a sandbox, clients in memory, and a checker of a queue's promises.

`App.testing` makes a `Sandbox`; a `MemoryClient` is for code without an application. A `Recorder` writes a
history of what clients did, and `check` finds broken promises in it. Names are imported at first use: no tool
needs another.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "events": ("HistoryError",),
    "history": ("check", "judge"),
    "jobs": ("DeadJob", "Job", "Run", "Runs"),
    "memory": ("MemoryClient",),
    "twin": ("memory_async",),
    "recorder": ("Recorder", "recording"),
    "report": ("Duplicate", "Finding", "Report"),
    "sandbox": ("Endless", "Sandbox"),
}
_HOME_OF = {name: f"cqueue.testing.{home}" for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would take any name of this module for an Any

    def __getattr__(name: str) -> Any:
        """Import a public name from where it stands."""
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value  # found without this function from now on
        return value
