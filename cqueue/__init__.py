"""Durable queues on Apache Cassandra.

A public name is imported when it is first used: `cqueue --help`, and an application that only enqueues, start
without loading consumers, dispatchers and pyarrow. Only errors are imported at once. Type checkers see plain
imports; `as` tells them that a name is public.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cqueue._version import __version__ as __version__
from cqueue.errors import AckUnknown as AckUnknown
from cqueue.errors import AppendUnknown as AppendUnknown
from cqueue.errors import BadArguments as BadArguments
from cqueue.errors import BadInput as BadInput
from cqueue.errors import BatchTooLarge as BatchTooLarge
from cqueue.errors import BodyTooLarge as BodyTooLarge
from cqueue.errors import Closed as Closed
from cqueue.errors import ConfigError as ConfigError
from cqueue.errors import CqueueError as CqueueError
from cqueue.errors import DamagedRow as DamagedRow
from cqueue.errors import DelayOutOfRange as DelayOutOfRange
from cqueue.errors import DevError as DevError
from cqueue.errors import Duplicate as Duplicate
from cqueue.errors import HeadersTooLarge as HeadersTooLarge
from cqueue.errors import InvalidLogId as InvalidLogId
from cqueue.errors import InvalidMessageId as InvalidMessageId
from cqueue.errors import InvalidQueueName as InvalidQueueName
from cqueue.errors import InvalidToken as InvalidToken
from cqueue.errors import LeaseLost as LeaseLost
from cqueue.errors import LetterNotFound as LetterNotFound
from cqueue.errors import LogExists as LogExists
from cqueue.errors import LogNotFound as LogNotFound
from cqueue.errors import MessageHeld as MessageHeld
from cqueue.errors import NoResult as NoResult
from cqueue.errors import NotDone as NotDone
from cqueue.errors import NotKeyed as NotKeyed
from cqueue.errors import OutcomeUnknown as OutcomeUnknown
from cqueue.errors import OwnershipLost as OwnershipLost
from cqueue.errors import PartitionOutOfRange as PartitionOutOfRange
from cqueue.errors import PayloadMismatch as PayloadMismatch
from cqueue.errors import PositionExpired as PositionExpired
from cqueue.errors import PriorityOutOfRange as PriorityOutOfRange
from cqueue.errors import QueueExists as QueueExists
from cqueue.errors import QueueNotFound as QueueNotFound
from cqueue.errors import RecordRejected as RecordRejected
from cqueue.errors import RedriveLimit as RedriveLimit
from cqueue.errors import Refused as Refused
from cqueue.errors import ResultTimeout as ResultTimeout
from cqueue.errors import ScheduleExists as ScheduleExists
from cqueue.errors import ScheduleNotFound as ScheduleNotFound
from cqueue.errors import SchemaMismatch as SchemaMismatch
from cqueue.errors import SendUnknown as SendUnknown
from cqueue.errors import SpoolFailed as SpoolFailed
from cqueue.errors import SpoolFull as SpoolFull
from cqueue.errors import SpoolLocked as SpoolLocked
from cqueue.errors import SpoolTooOld as SpoolTooOld
from cqueue.errors import TaskFailed as TaskFailed
from cqueue.errors import TlsFailed as TlsFailed
from cqueue.errors import TooManyTombstones as TooManyTombstones
from cqueue.errors import Unavailable as Unavailable
from cqueue.errors import UnknownTask as UnknownTask
from cqueue.errors import WrongDataCentre as WrongDataCentre

if TYPE_CHECKING:
    from cqueue.aio.client import AsyncClient as AsyncClient
    from cqueue.aio.connecting import connect_async as connect_async
    from cqueue.aio.consumer import AsyncConsumer as AsyncConsumer
    from cqueue.aio.consumer import AsyncReceivedMessage as AsyncReceivedMessage
    from cqueue.aio.log import AsyncFollower as AsyncFollower
    from cqueue.aio.log import AsyncLog as AsyncLog
    from cqueue.aio.log import AsyncScanner as AsyncScanner
    from cqueue.aio.queue import AsyncDeadLetters as AsyncDeadLetters
    from cqueue.aio.queue import AsyncQueue as AsyncQueue
    from cqueue.aio.queue import AsyncSchedules as AsyncSchedules
    from cqueue.client import Client as Client
    from cqueue.client import connect as connect
    from cqueue.config import QueueConfig as QueueConfig
    from cqueue.consumer import Consumer as Consumer
    from cqueue.dead_letters import DeadLetter as DeadLetter
    from cqueue.dead_letters import DeadLetters as DeadLetters
    from cqueue.dead_letters import LetterGroup as LetterGroup
    from cqueue.dead_letters import LettersResult as LettersResult
    from cqueue.delay_queue import DelayQueue as DelayQueue
    from cqueue.dispatcher.application.app import App as App
    from cqueue.dispatcher.application.handle import TaskHandle as TaskHandle
    from cqueue.dispatcher.application.tasks import Task as Task
    from cqueue.dispatcher.execution.actions import Cancel as Cancel
    from cqueue.dispatcher.execution.actions import Dead as Dead
    from cqueue.dispatcher.execution.actions import Retry as Retry
    from cqueue.dispatcher.execution.actions import Snooze as Snooze
    from cqueue.dispatcher.execution.context import Binding as Binding
    from cqueue.dispatcher.execution.context import Context as Context
    from cqueue.dispatcher.execution.context import Firing as Firing
    from cqueue.dispatcher.execution.context import current_context as current_context
    from cqueue.dispatcher.execution.context import current_message as current_message
    from cqueue.dispatcher.execution.dispatcher import Dispatcher as Dispatcher
    from cqueue.dispatcher.execution.interrupt import Interrupted as Interrupted
    from cqueue.dispatcher.execution.middleware import Middleware as Middleware
    from cqueue.dispatcher.schedules.schedules import Schedule as Schedule
    from cqueue.dispatcher.schedules.schedules import Schedules as Schedules
    from cqueue.dispatcher.schedules.triggers import Cron as Cron
    from cqueue.dispatcher.schedules.triggers import Repeating as Repeating
    from cqueue.dispatcher.schedules.triggers import RunOnce as RunOnce
    from cqueue.doorbell.datagram import HintCounts as HintCounts
    from cqueue.history import HistoryEvent as HistoryEvent
    from cqueue.log.config import LogConfig as LogConfig
    from cqueue.log.fanout import feed as feed
    from cqueue.log.follower import Follower as Follower
    from cqueue.log.http_push import HttpPush as HttpPush
    from cqueue.log.listeners import batched as batched
    from cqueue.log.log import AppendResult as AppendResult
    from cqueue.log.log import Log as Log
    from cqueue.log.metrics import LagCollector as LagCollector
    from cqueue.log.records import LogId as LogId
    from cqueue.log.records import LogRecord as LogRecord
    from cqueue.log.records import Record as Record
    from cqueue.log.scanner import Scanner as Scanner
    from cqueue.log.stats import LogStats as LogStats
    from cqueue.log.subscription import Lag as Lag
    from cqueue.log.subscription import Subscription as Subscription
    from cqueue.message import Message as Message
    from cqueue.message import MessageId as MessageId
    from cqueue.pages import Page as Page
    from cqueue.producer import SendResult as SendResult
    from cqueue.producer import SendStatement as SendStatement
    from cqueue.queue import Queue as Queue
    from cqueue.queue import QueueStats as QueueStats
    from cqueue.queue import StoredMessage as StoredMessage
    from cqueue.queue import TaskResult as TaskResult
    from cqueue.received import ReceivedMessage as ReceivedMessage
    from cqueue.sending.changes import ChangeResult as ChangeResult
    from cqueue.unique import Unique as Unique
    from cqueue.where import Where as Where

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
    "dispatcher.execution.interrupt": ("Interrupted",),
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
    "producer": ("SendResult", "SendStatement"),
    "queue": ("Queue", "QueueStats", "StoredMessage", "TaskResult"),
    "received": ("ReceivedMessage",),
    "unique": ("Unique",),
    "sending.changes": ("ChangeResult",),
    "where": ("Where",),
}
_HOME_OF = {name: f"cqueue.{home}" for home, names in _HOMES.items() for name in names}
_ERRORS = [name for name, one in globals().items() if isinstance(one, type) and issubclass(one, Exception)]

if not TYPE_CHECKING:  # a type checker goes by the imports above; a `__getattr__` would make any name an Any
    __all__ = ["__version__", *_ERRORS, *_HOME_OF]  # noqa: PLE0604

    def __getattr__(name: str) -> Any:
        """Import a public name from its module in `_HOMES`."""
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value  # later look-ups find the name without this function
        return value

    def __dir__() -> list[str]:
        """List all public names, whether imported yet or not."""
        return sorted({*__all__, *globals()})
