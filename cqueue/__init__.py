"""Durable queues on Apache Cassandra."""

from cqueue._version import __version__
from cqueue.client import Client, connect
from cqueue.config import QueueConfig
from cqueue.consumer import Consumer, ReceivedMessage
from cqueue.errors import (
    AckUnknown,
    BadInput,
    BatchTooLarge,
    BodyTooLarge,
    Closed,
    ConfigError,
    CqueueError,
    DelayOutOfRange,
    DevError,
    HeadersTooLarge,
    InvalidMessageId,
    InvalidQueueName,
    LeaseLost,
    NotDone,
    OutcomeUnknown,
    OwnershipLost,
    PriorityOutOfRange,
    QueueExists,
    QueueNotFound,
    SchemaMismatch,
    SendUnknown,
    Unavailable,
)
from cqueue.message import Message, MessageId
from cqueue.producer import SendResult
from cqueue.queue import Queue, QueueStats, StoredMessage

__all__ = [
    "AckUnknown",
    "BadInput",
    "BatchTooLarge",
    "BodyTooLarge",
    "Client",
    "Closed",
    "ConfigError",
    "Consumer",
    "CqueueError",
    "DelayOutOfRange",
    "DevError",
    "HeadersTooLarge",
    "InvalidMessageId",
    "InvalidQueueName",
    "LeaseLost",
    "Message",
    "MessageId",
    "NotDone",
    "OutcomeUnknown",
    "OwnershipLost",
    "PriorityOutOfRange",
    "Queue",
    "QueueConfig",
    "QueueExists",
    "QueueNotFound",
    "QueueStats",
    "ReceivedMessage",
    "SchemaMismatch",
    "SendResult",
    "SendUnknown",
    "StoredMessage",
    "Unavailable",
    "__version__",
    "connect",
]
