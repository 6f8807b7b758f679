"""The log: records that every subscriber sees, each at its own position."""

from cqueue.log.config import LogConfig
from cqueue.log.log import AppendResult, Log
from cqueue.log.records import LogId, LogRecord, Record
from cqueue.log.scanner import Scanner
from cqueue.log.stats import LogStats

__all__ = ["AppendResult", "Log", "LogConfig", "LogId", "LogRecord", "LogStats", "Record", "Scanner"]
