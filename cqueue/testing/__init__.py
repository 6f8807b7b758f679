"""Tools that find out whether a queue kept its promises: a recorder, and a checker of what it recorded."""

from cqueue.testing.events import HistoryError
from cqueue.testing.history import check, judge
from cqueue.testing.recorder import Recorder, recording
from cqueue.testing.report import Duplicate, Finding, Report

__all__ = ["Duplicate", "Finding", "HistoryError", "Recorder", "Report", "check", "judge", "recording"]
