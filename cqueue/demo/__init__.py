"""`cqueue demo`: real messages through a real queue, and an account of every one of them."""

from __future__ import annotations

from cqueue.demo.accounting import Ledger, Report, Snapshot
from cqueue.demo.input import Input
from cqueue.demo.runner import Demo, Options

__all__ = ["Demo", "Input", "Ledger", "Options", "Report", "Snapshot"]
