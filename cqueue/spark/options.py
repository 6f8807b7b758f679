"""Options of `spark.read`, `spark.readStream` and the writers: texts in, checked values out.

All of them are checked in the driver before anything is read or written: a mistake in an option must not
first show in the middle of a job.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cqueue.errors import ConfigError
from cqueue.message import MAX_PRIORITY, check_queue_name, datetime_us
from cqueue.runtime.suggestions import suggest_or_list
from cqueue.settings import Settings, load
from cqueue.spark.views import LOG, QUEUE_VIEWS

PARTITION_ROWS: Final = 100_000
MAX_ROWS: Final = 1 << 62
EARLIEST, LATEST = "earliest", "latest"
ERROR, RESEND = "error", "resend"

READ_OPTIONS: Final = (
    "url", "queue", "log", "view", "since", "until", "topics", "priorities", "columns", "limit", "asOf",
    "partitionRows", "maxRowsPerBatch", "failOnDataLoss", "pushFilters",
)  # fmt: skip
WRITE_OPTIONS: Final = (
    "url", "queue", "log", "topic", "due", "idColumn", "rate", "rerunSince", "staleBatch",
)  # fmt: skip
SPARK_OPTIONS: Final = ("path", "checkpointLocation", "queryName", "outputMode", "mergeSchema")
"""Options that Spark itself adds to those of a source or sink."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. `_us`: µs since 1970, None for no bound; `until_us` is exclusive."""

    settings: Settings
    view: str
    name: str
    since_us: int | None = None
    until_us: int | None = None
    as_of_us: int | None = None
    topics: frozenset[str] | None = None
    priorities: frozenset[int] | None = None
    partitions: frozenset[int] | None = None  # of a log; only by a filter
    columns: tuple[str, ...] | None = None
    limit: int | None = None
    partition_rows: int = PARTITION_ROWS
    start: str | None = None
    max_rows_per_batch: int | None = None
    fail_on_data_loss: bool = True
    push_filters: bool = False


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. due_us: µs since 1970, for rows that have no time of their own."""

    settings: Settings
    kind: str  # "queue" or "log"
    name: str
    topic: str | None = None
    due_us: int | None = None
    id_column: str | None = None
    rate: float | None = None
    rerun_since_us: int | None = None  # of a log with id_column: earlier copies are not older
    stale_batch: str = ERROR


class _Texts:
    """Options by name in any case, as Spark gives them."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        lower = {name.lower(): name for name in (*known, *SPARK_OPTIONS)}
        for given in options:
            if given.lower() not in lower:
                raise ConfigError(f"there is no option {given!r}.{suggest_or_list(given, known)}")
        self._values = {lower[name.lower()]: value for name, value in options.items()}

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        return value.strip() if value is not None and value.strip() else None

    def listed(self, name: str) -> tuple[str, ...] | None:
        value = self.text(name)
        if value is None:
            return None
        return tuple(part for part in (part.strip() for part in value.split(",")) if part)

    def whole(self, name: str, low: int, high: int = MAX_ROWS) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isdecimal() or not low <= int(value) <= high:
            raise ConfigError(f"option {name}={value!r}; it takes a whole number from {low:,} on")
        return int(value)

    def time_us(self, name: str) -> int | None:
        value = self.text(name)
        return None if value is None else time_us(name, value)

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name) or default
        if value.lower() not in allowed:
            raise ConfigError(f"option {name}={value!r}; it takes one of {', '.join(allowed)}")
        return value.lower()

    def target(self) -> tuple[str, str]:
        """Return `queue` or `log`, and its name."""
        queue, log = self.text("queue"), self.text("log")
        if (queue is None) == (log is None):
            raise ConfigError("give one of the options queue and log")
        name = queue or log or ""
        check_queue_name(name.removesuffix(".dead"))
        return ("log", name) if queue is None else ("queue", name)


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse and check the options of a read.

    Raises:
        ConfigError: one is unknown, out of range, or does not fit the others.
    """
    texts = _Texts(options, READ_OPTIONS)
    kind, name = texts.target()
    views = (LOG,) if kind == "log" else QUEUE_VIEWS
    view = texts.choice("view", views, views[0])
    since = texts.text("since")
    return ReadOptions(
        settings=load(texts.text("url")),
        view=view,
        name=name,
        since_us=None if since in {EARLIEST, LATEST} else texts.time_us("since"),
        until_us=texts.time_us("until"),
        as_of_us=texts.time_us("asOf"),
        topics=_topics(view, texts.listed("topics")),
        priorities=_priorities(view, texts.listed("priorities")),
        columns=texts.listed("columns"),
        limit=texts.whole("limit", 1),
        partition_rows=texts.whole("partitionRows", 1) or PARTITION_ROWS,
        start=since if since in {EARLIEST, LATEST} else None,
        max_rows_per_batch=texts.whole("maxRowsPerBatch", 1),
        fail_on_data_loss=texts.choice("failOnDataLoss", ("true", "false"), "true") == "true",
        push_filters=texts.choice("pushFilters", ("true", "false"), "false") == "true",
    )


def check_batch(options: ReadOptions) -> None:
    """Check that a batch can be read with these options.

    Raises:
        ConfigError: it would begin where a stream waits for what comes.
    """
    if options.start == LATEST:
        raise ConfigError(
            f"option since={LATEST!r} is for a stream; a batch reads what is there: give a time"
        )


def check_stream(options: ReadOptions) -> None:
    """Check that a stream can be read with these options.

    Raises:
        ConfigError: it is a queue, which has no offsets; or an option that only a batch has.
    """
    if options.view != LOG:
        raise ConfigError(
            f"queue {options.name!r} cannot be read as a stream: a message is leased to one consumer, and "
            "gone once it is acked, so there is no offset to begin again from after a crash. Receive it "
            "with a dispatcher, or append to a log and read that as a stream"
        )
    given = {"until": options.until_us, "asOf": options.as_of_us, "limit": options.limit}
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"option {name} is for a batch; a stream goes on")


def _topics(view: str, value: tuple[str, ...] | None) -> frozenset[str] | None:
    if value is None:
        return None
    if view != LOG:
        raise ConfigError(f"option topics is for a log, not for view {view!r}")
    return frozenset(value)


def _priorities(view: str, value: tuple[str, ...] | None) -> frozenset[int] | None:
    if value is None:
        return None
    if view == LOG:
        raise ConfigError("option priorities is for a queue; records of a log have none")
    if not all(part.isdecimal() and int(part) <= MAX_PRIORITY for part in value):
        raise ConfigError(f"option priorities={','.join(value)!r}; each goes from 0 to {MAX_PRIORITY}")
    return frozenset(map(int, value))


def write_options(options: Mapping[str, str], *, overwrite: bool) -> WriteOptions:
    """Parse and check the options of a write.

    Raises:
        ConfigError: one is unknown, out of range, or does not fit the others; or the mode is "overwrite".
    """
    if overwrite:
        raise ConfigError('nothing is ever overwritten; write with mode("append")')
    texts = _Texts(options, WRITE_OPTIONS)
    kind, name = texts.target()
    topic, due_us = texts.text("topic"), texts.time_us("due")
    if kind == "queue" and topic is not None:
        raise ConfigError("option topic is for a log; messages of a queue have none")
    if kind == "log" and due_us is not None:
        raise ConfigError("option due is for a queue; a log stores records as they come")
    return WriteOptions(
        settings=load(texts.text("url")),
        kind=kind,
        name=name,
        topic=topic,
        due_us=due_us,
        id_column=texts.text("idColumn"),
        rate=_rate(texts.text("rate")),
        rerun_since_us=texts.time_us("rerunSince"),
        stale_batch=texts.choice("staleBatch", (ERROR, RESEND), ERROR),
    )


def _rate(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        rate = float(value)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise ConfigError(f"option rate={value!r}; it takes rows per second, more than 0")
    return rate


def time_us(name: str, value: str) -> int:
    """Parse a time into µs since 1970: ISO 8601 (UTC where no zone is given) or seconds since 1970.

    Raises:
        ConfigError: the text is neither.
    """
    try:
        return round(float(value) * 1e6)
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as exc:
        raise ConfigError(
            f"option {name}={value!r}; it takes a time such as 2026-01-31T12:00:00Z, or seconds since 1970"
        ) from exc
    return datetime_us(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
