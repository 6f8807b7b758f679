"""Durable queues on Apache Cassandra.

A public name is imported when it is first used: `cqueue --help`, and an application that only enqueues, start
without loading consumers, dispatchers and pyarrow. Type checkers see plain imports.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cqueue._version import __version__

if TYPE_CHECKING:
    from cqueue.aio.client import AsyncClient
    from cqueue.aio.connecting import connect_async
    from cqueue.aio.consumer import AsyncConsumer, AsyncReceivedMessage
    from cqueue.aio.log import AsyncFollower, AsyncLog, AsyncScanner
    from cqueue.aio.queue import AsyncDeadLetters, AsyncQueue, AsyncSchedules
    from cqueue.client import Client, connect
    from cqueue.config import QueueConfig
    from cqueue.consumer import Consumer
    from cqueue.dead_letters import DeadLetter, DeadLetters, LetterGroup, LettersResult
    from cqueue.delay_queue import DelayQueue
    from cqueue.dispatcher.application.app import App
    from cqueue.dispatcher.application.handle import TaskHandle
    from cqueue.dispatcher.application.tasks import Task
    from cqueue.dispatcher.execution.actions import Cancel, Dead, Retry, Snooze
    from cqueue.dispatcher.execution.context import Binding, Context, Firing, current_context, current_message
    from cqueue.dispatcher.execution.dispatcher import Dispatcher
    from cqueue.dispatcher.execution.middleware import Middleware
    from cqueue.dispatcher.schedules.schedules import Schedule, Schedules
    from cqueue.dispatcher.schedules.triggers import Cron, Repeating, RunOnce
    from cqueue.doorbell.datagram import HintCounts
    from cqueue.errors import (
        AckUnknown,
        AppendUnknown,
        BadArguments,
        BadInput,
        BatchTooLarge,
        BodyTooLarge,
        Closed,
        ConfigError,
        CqueueError,
        DamagedRow,
        DelayOutOfRange,
        DevError,
        Duplicate,
        HeadersTooLarge,
        InvalidLogId,
        InvalidMessageId,
        InvalidQueueName,
        InvalidToken,
        LeaseLost,
        LetterNotFound,
        LogExists,
        LogNotFound,
        MessageHeld,
        NoResult,
        NotDone,
        NotKeyed,
        OutcomeUnknown,
        OwnershipLost,
        PartitionOutOfRange,
        PayloadMismatch,
        PositionExpired,
        PriorityOutOfRange,
        QueueExists,
        QueueNotFound,
        RecordRejected,
        RedriveLimit,
        Refused,
        ResultTimeout,
        ScheduleExists,
        ScheduleNotFound,
        SchemaMismatch,
        SendUnknown,
        SpoolFailed,
        SpoolFull,
        SpoolLocked,
        SpoolTooOld,
        TaskFailed,
        TlsFailed,
        TooManyTombstones,
        Unavailable,
        UnknownTask,
        WrongDataCentre,
    )
    from cqueue.history import HistoryEvent
    from cqueue.log.config import LogConfig
    from cqueue.log.fanout import feed
    from cqueue.log.follower import Follower
    from cqueue.log.http_push import HttpPush
    from cqueue.log.listeners import batched
    from cqueue.log.log import AppendResult, Log
    from cqueue.log.metrics import LagCollector
    from cqueue.log.records import LogId, LogRecord, Record
    from cqueue.log.scanner import Scanner
    from cqueue.log.stats import LogStats
    from cqueue.log.subscription import Lag, Subscription
    from cqueue.message import Message, MessageId
    from cqueue.pages import Page
    from cqueue.producer import SendResult
    from cqueue.queue import Queue, QueueStats, StoredMessage, TaskResult
    from cqueue.received import ReceivedMessage
    from cqueue.sending.changes import ChangeResult
    from cqueue.unique import Unique
    from cqueue.where import Where

__all__ = [
    "AckUnknown",
    "App",
    "AppendResult",
    "AppendUnknown",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDeadLetters",
    "AsyncFollower",
    "AsyncLog",
    "AsyncQueue",
    "AsyncReceivedMessage",
    "AsyncScanner",
    "AsyncSchedules",
    "BadArguments",
    "BadInput",
    "BatchTooLarge",
    "Binding",
    "BodyTooLarge",
    "Cancel",
    "ChangeResult",
    "Client",
    "Closed",
    "ConfigError",
    "Consumer",
    "Context",
    "CqueueError",
    "Cron",
    "DamagedRow",
    "Dead",
    "DeadLetter",
    "DeadLetters",
    "DelayOutOfRange",
    "DelayQueue",
    "DevError",
    "Dispatcher",
    "Duplicate",
    "Firing",
    "Follower",
    "HeadersTooLarge",
    "HintCounts",
    "HistoryEvent",
    "HttpPush",
    "InvalidLogId",
    "InvalidMessageId",
    "InvalidQueueName",
    "InvalidToken",
    "Lag",
    "LagCollector",
    "LeaseLost",
    "LetterGroup",
    "LetterNotFound",
    "LettersResult",
    "Log",
    "LogConfig",
    "LogExists",
    "LogId",
    "LogNotFound",
    "LogRecord",
    "LogStats",
    "Message",
    "MessageHeld",
    "MessageId",
    "Middleware",
    "NoResult",
    "NotDone",
    "NotKeyed",
    "OutcomeUnknown",
    "OwnershipLost",
    "Page",
    "PartitionOutOfRange",
    "PayloadMismatch",
    "PositionExpired",
    "PriorityOutOfRange",
    "Queue",
    "QueueConfig",
    "QueueExists",
    "QueueNotFound",
    "QueueStats",
    "ReceivedMessage",
    "Record",
    "RecordRejected",
    "RedriveLimit",
    "Refused",
    "Repeating",
    "ResultTimeout",
    "Retry",
    "RunOnce",
    "Scanner",
    "Schedule",
    "ScheduleExists",
    "ScheduleNotFound",
    "Schedules",
    "SchemaMismatch",
    "SendResult",
    "SendUnknown",
    "Snooze",
    "SpoolFailed",
    "SpoolFull",
    "SpoolLocked",
    "SpoolTooOld",
    "StoredMessage",
    "Subscription",
    "Task",
    "TaskFailed",
    "TaskHandle",
    "TaskResult",
    "TlsFailed",
    "TooManyTombstones",
    "Unavailable",
    "Unique",
    "UnknownTask",
    "Where",
    "WrongDataCentre",
    "__version__",
    "batched",
    "connect",
    "connect_async",
    "current_context",
    "current_message",
    "feed",
]

_HOMES = {
    "aio.client": ("AsyncClient",),
    "aio.connecting": ("connect_async",),
    "aio.consumer": ("AsyncConsumer", "AsyncReceivedMessage"),
    "aio.log": ("AsyncFollower", "AsyncLog", "AsyncScanner"),
    "aio.queue": ("AsyncDeadLetters", "AsyncQueue", "AsyncSchedules"),
    "client": ("Client", "connect"),
    "config": ("QueueConfig",),
    "consumer": ("Consumer",),
    "dead_letters": ("DeadLetter", "DeadLetters", "LetterGroup", "LettersResult"),
    "delay_queue": ("DelayQueue",),
    "dispatcher.application.app": ("App",),
    "dispatcher.execution.context": ("Binding", "Context", "Firing", "current_context", "current_message"),
    "dispatcher.execution.dispatcher": ("Dispatcher",),
    "dispatcher.execution.middleware": ("Middleware",),
    "dispatcher.schedules.schedules": ("Schedule", "Schedules"),
    "dispatcher.application.handle": ("TaskHandle",),
    "dispatcher.application.tasks": ("Task",),
    "dispatcher.schedules.triggers": ("Cron", "Repeating", "RunOnce"),
    "dispatcher.execution.actions": ("Cancel", "Dead", "Retry", "Snooze"),
    "doorbell.datagram": ("HintCounts",),
    "history": ("HistoryEvent",),
    "log.config": ("LogConfig",),
    "log.listeners": ("batched",),
    "log.fanout": ("feed",),
    "log.log": ("AppendResult", "Log"),
    "log.http_push": ("HttpPush",),
    "log.metrics": ("LagCollector",),
    "log.records": ("LogId", "LogRecord", "Record"),
    "log.follower": ("Follower",),
    "log.scanner": ("Scanner",),
    "log.stats": ("LogStats",),
    "log.subscription": ("Lag", "Subscription"),
    "message": ("Message", "MessageId"),
    "pages": ("Page",),
    "producer": ("SendResult",),
    "queue": ("Queue", "QueueStats", "StoredMessage", "TaskResult"),
    "received": ("ReceivedMessage",),
    "unique": ("Unique",),
    "sending.changes": ("ChangeResult",),
    "where": ("Where",),
}
_HOME_OF = {name: f"cqueue.{home}" for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # to a type checker it would make any name an Any

    def __getattr__(name: str) -> Any:
        """Import a public name from its module in `_HOMES`; a public name that in none is an error."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF.get(name, "cqueue.errors")), name)
        globals()[name] = value  # later look-ups find the name without this function
        return value

    def __dir__() -> list[str]:
        """List all public names, whether imported yet or not."""
        return sorted({*__all__, *globals()})
