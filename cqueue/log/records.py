"""Define records as applications see them: to append, by id, and as read."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from cqueue import ids
from cqueue.errors import BadInput, InvalidLogId, PartitionOutOfRange
from cqueue.log.protocol.append import Entry
from cqueue.message import check_body, check_headers, to_datetime
from cqueue.runtime.texts import check_text, quoted
from cqueue.store.log_operations import RecordRow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """A record to append.

    topic: 1 to 1,000 characters. body: bytes, at most 1 MiB. key: records of one key go to one partition,
    in order. partition: go to this one (0 up to the log's `partitions`), whatever the key.
    headers: at most 64 strings by name, 16 KiB together.
    """

    topic: str
    body: bytes = field(repr=False)
    key: str | None = None
    partition: int | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)


class LogId(str):
    """An opaque, URL-safe string that names one record of one log. Keep it whole; do not parse it."""

    __slots__ = ()

    @classmethod
    def of(cls, log: str, partition: int, id_: int) -> LogId:
        """Return the id of a record. log: the log's name in partition keys."""
        packed = struct.pack(">BH", 1, partition) + ids.to_bytes(id_) + log.encode()
        return cls(base64.urlsafe_b64encode(packed).decode().rstrip("="))

    def locate(self) -> tuple[str, int, int]:
        """Return the log's name in partition keys, the partition, and the id.

        Raises:
            InvalidLogId: the text was not made by this library.
        """
        try:
            packed = base64.urlsafe_b64decode(self + "=" * (-len(self) % 4))
            _, partition = struct.unpack_from(">BH", packed)
            id_, log = ids.from_bytes(packed[3:19]), packed[19:].decode("ascii")
        except (ValueError, struct.error) as exc:
            raise InvalidLogId(f"{quoted(str(self))} is not a record id") from exc
        if "@" not in log or self.of(log, partition, id_) != self:
            raise InvalidLogId(f"{quoted(str(self))} is not a record id")
        return log, partition, id_


class LogRecord:
    """A record that was read.

    Attributes:
        topic, key, headers, body: as appended.
        partition: from 0.
    """

    __slots__ = ("_id", "_log", "body", "headers", "key", "partition", "topic")

    def __init__(self, log: str, partition: int, row: RecordRow) -> None:
        self._log = log
        self.partition = partition
        self._id, self.topic, self.key, headers, self.body = row
        self.headers = headers or {}

    @property
    def id(self) -> LogId:
        """Return the record's id, which is also a position in its partition."""
        return LogId.of(self._log, self.partition, self._id)

    @property
    def time(self) -> datetime:
        """Return when the record was appended, in UTC, by the cluster's clock."""
        return to_datetime(ids.time_us(self._id) // 1000)

    def __repr__(self) -> str:
        return f"<record {self.id} partition={self.partition} topic={self.topic!r} bytes={len(self.body)}>"


def entry_of(record: Record, partitions: int) -> Entry:
    """Check a record's limits and convert it for the protocol.

    Raises:
        BadInput: a field is out of its limits; the subclass says which.
    """
    if not isinstance(record, Record):
        raise BadInput(f"an entry is a Record, not {type(record).__name__}: Record(topic, body, ...)")
    body = check_body(record.body)
    check_text("topic", record.topic)
    if record.key is not None:
        check_text("key", record.key)
    if record.partition is not None:
        check_partition(record.partition, partitions)
    headers = dict(check_headers(record.headers)) if record.headers else None
    return Entry(record.topic, body, record.key, record.partition, headers)


def check_partition(partition: int, partitions: int) -> int:
    """Return a partition that the log has.

    Raises:
        PartitionOutOfRange: the log has no such partition.
    """
    if type(partition) is not int or not 0 <= partition < partitions:
        raise PartitionOutOfRange(f"partition is {partition!r}; the log has 0 to {partitions - 1}")
    return partition


def check_partitions(partitions: Iterable[int] | None, count: int) -> frozenset[int] | None:
    """Return some of the log's partitions; None for all.

    Raises:
        BadInput: there is no partition among them.
        PartitionOutOfRange: the log lacks one of them.
    """
    return several("partitions", "numbers", partitions, lambda each: check_partition(each, count))


def check_topics(topics: Iterable[str] | None) -> frozenset[str] | None:
    """Return some topics; None for all.

    Raises:
        BadInput: there is no topic among them, or one is out of its limits.
    """
    return several("topics", "texts", topics, lambda each: check_text("topic", each))


def several(name: str, kind: str, values: Iterable[T] | None, check: Callable[[T], T]) -> frozenset[T] | None:
    """Return what an argument of several values names; None for all. name, kind: for the error.

    Raises:
        BadInput: it is one value, or there is none in it; or `check` refuses one.
    """
    if values is None:
        return None
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise BadInput(f"{name} is {values!r}; it takes several {kind}")
    found = frozenset(map(check, values))
    if not found:
        raise BadInput(f"{name} is empty; leave it out for all of them")
    return found
