"""Options of `spark.read`, `spark.readStream` and the writers: texts in, checked values out.

All of them are checked in the driver before anything is read or written: a mistake in an option must not
first show in the middle of a job.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cqueue.errors import ConfigError
from cqueue.log.positions import EARLIEST, LATEST
from cqueue.message import MAX_PRIORITY, check_queue_name, datetime_us
from cqueue.runtime.suggestions import suggest_or_list
from cqueue.runtime.texts import check_text
from cqueue.settings import Settings, load
from cqueue.spark.views import INFLIGHT, LOG, QUEUE_VIEWS, SHARDS

PARTITION_ROWS: Final = 100_000
MAX_ROWS: Final = 1 << 62
ERROR, RESEND = "error", "resend"

READ_OPTIONS: Final = (
    "url", "queue", "log", "view", "since", "until", "topics", "priorities", "columns", "limit", "asOf",
    "partitionRows", "maxRowsPerBatch", "failOnDataLoss",
)  # fmt: skip
WRITE_OPTIONS: Final = (
    "url", "queue", "log", "topic", "due", "idColumn", "rate", "rerunSince", "staleBatch",
)  # fmt: skip
SPARK_OPTIONS: Final = ("checkpointLocation", "queryName", "outputMode", "mergeSchema")
"""Options that Spark itself adds to those of a source or sink."""
OF_BATCHES: Final = ("until", "asOf", "limit", "partitionRows", "rerunSince")
OF_STREAMS: Final = ("maxRowsPerBatch", "failOnDataLoss", "staleBatch")
"""Options that have an effect in batches only, and in streams only."""
_ONLY_OF: Final = {
    "topics": "log", "topic": "log", "rerunSince": "log",
    "priorities": "queue", "due": "queue", "staleBatch": "queue",
}  # fmt: skip
"""Options that queues do not have, or logs."""
_DATE: Final = re.compile(r"\d{8}")
LAST_US: Final = datetime_us(datetime.max.replace(tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. `_us`: µs since 1970, None for no bound; `until_us` is exclusive.

    given: the names of those that the caller gave.
    """

    settings: Settings
    view: str
    name: str
    given: frozenset[str] = frozenset()
    since_us: int | None = None
    until_us: int | None = None
    as_of_us: int | None = None
    topics: frozenset[str] | None = None
    priorities: frozenset[int] | None = None
    columns: tuple[str, ...] | None = None
    limit: int | None = None
    partition_rows: int = PARTITION_ROWS
    from_latest: bool = False
    max_rows_per_batch: int | None = None
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. due_us: µs since 1970, for rows that have no time of their own.

    given: the names of those that the caller gave.
    """

    settings: Settings
    kind: str  # "queue" or "log"
    name: str
    given: frozenset[str] = frozenset()
    topic: str | None = None
    due_us: int | None = None
    id_column: str | None = None
    rate: float | None = None
    rerun_since_us: int | None = None  # of a log with id_column: earlier copies are not older
    stale_batch: str = ERROR


class _Texts:
    """Options by name in any case, as Spark gives them."""

    def __init__(self, what: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        lower = {name.lower(): name for name in (*known, *SPARK_OPTIONS)}
        for given in options:
            if given.lower() == "path":
                raise ConfigError(
                    f"{options[given]!r} has no effect; the options queue and log say what is read or written"
                )
            if given.lower() not in lower:
                raise ConfigError(f"a {what} has no option {given!r}.{suggest_or_list(given, known)}")
        texts = {lower[name.lower()]: (value or "").strip() for name, value in options.items()}
        self._values = {name: value for name, value in texts.items() if value}

    @property
    def given(self) -> frozenset[str]:
        """Return the names of the options that have a value."""
        return frozenset(self._values)

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def listed(self, name: str) -> tuple[str, ...] | None:
        value = self.text(name)
        if value is None:
            return None
        parts = dict.fromkeys(part for part in map(str.strip, value.split(",")) if part)
        if not parts:
            raise ConfigError(f"option {name}={value!r} names none; it takes some with commas between them")
        return tuple(parts)

    def whole(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isdecimal() or not 1 <= int(value) <= MAX_ROWS:
            raise ConfigError(f"option {name}={value!r}; it takes a whole number from 1 on")
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
        kind, name = ("log", log or "") if queue is None else ("queue", queue)
        check_queue_name(name.removesuffix(".dead"), kind)
        for option, of in _ONLY_OF.items():
            if option in self.given and of != kind:
                raise ConfigError(f"option {option} is for a {of}; {name!r} is a {kind}")
        return kind, name


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse and check the options of a read.

    Raises:
        ConfigError: one is unknown, out of range, or does not fit the others.
    """
    texts = _Texts("read", options, READ_OPTIONS)
    kind, name = texts.target()
    views = (LOG,) if kind == "log" else QUEUE_VIEWS
    view = texts.choice("view", views, views[0])
    if "asOf" in texts.given and view in {INFLIGHT, SHARDS}:
        raise ConfigError(f"option asOf does not go with view {view!r}, which shows what is there now")
    since = texts.text("since") or EARLIEST
    found = ReadOptions(
        settings=load(texts.text("url")),
        view=view,
        name=name,
        given=texts.given,
        since_us=None if since.lower() in {EARLIEST, LATEST} else texts.time_us("since"),
        until_us=texts.time_us("until"),
        as_of_us=texts.time_us("asOf"),
        topics=_topics(texts.listed("topics")),
        priorities=_priorities(texts.listed("priorities")),
        columns=texts.listed("columns"),
        limit=texts.whole("limit"),
        partition_rows=texts.whole("partitionRows") or PARTITION_ROWS,
        from_latest=since.lower() == LATEST,
        max_rows_per_batch=texts.whole("maxRowsPerBatch"),
        fail_on_data_loss=texts.choice("failOnDataLoss", ("true", "false"), "true") == "true",
    )
    if found.since_us is not None and found.until_us is not None and found.since_us > found.until_us:
        raise ConfigError(f"since={since!r} is later than until={texts.text('until')!r}; exchange them")
    return found


def check_batch(options: ReadOptions) -> None:
    """Check that a batch can be read with these options.

    Raises:
        ConfigError: it would begin where a stream waits for what comes; or an option that only a stream has.
    """
    check_use(options, is_stream=False)
    if options.from_latest:
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
    check_use(options, is_stream=True)


def check_use(options: ReadOptions | WriteOptions, *, is_stream: bool) -> None:
    """Check that no option is given that has no effect here.

    Raises:
        ConfigError: one is.
    """
    for name in OF_BATCHES if is_stream else OF_STREAMS:
        if name in options.given:
            raise ConfigError(f"option {name} is for a {'batch' if is_stream else 'stream'}; leave it out")


def _topics(value: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if value is None else frozenset(value)


def _priorities(value: tuple[str, ...] | None) -> frozenset[int] | None:
    if value is None:
        return None
    if not all(part.isdecimal() and int(part) <= MAX_PRIORITY for part in value):
        raise ConfigError(f"option priorities={','.join(value)!r}; each goes from 0 to {MAX_PRIORITY}")
    return frozenset(map(int, value))


def write_options(options: Mapping[str, str], *, overwrite: bool) -> WriteOptions:
    """Parse and check the options of a write.

    Raises:
        ConfigError: one is unknown, out of range, or does not fit the others; or the mode is "overwrite".
    """
    if overwrite:
        raise ConfigError(
            'nothing is ever overwritten; take mode("append"), for a stream outputMode("append")'
        )
    texts = _Texts("write", options, WRITE_OPTIONS)
    kind, name = texts.target()
    if "rerunSince" in texts.given and "idColumn" not in texts.given:
        raise ConfigError("option rerunSince goes with idColumn, which tells the rows of an earlier run")
    topic = texts.text("topic")
    return WriteOptions(
        settings=load(texts.text("url")),
        kind=kind,
        name=name,
        given=texts.given,
        topic=None if topic is None else check_text("option topic", topic),
        due_us=texts.time_us("due"),
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

    Eight digits are a date: as seconds they would be in the first three years of these.

    Raises:
        ConfigError: the text is neither, or a time beyond the year 9999, as milliseconds would be.
    """
    words = f"{EARLIEST}, of a stream {LATEST}, " if name == "since" else ""
    wrong = (
        f"option {name}={value!r}; it takes {words}a time such as 2026-01-31T12:00:00Z, or seconds since 1970"
    )
    try:
        at_us = None if _DATE.fullmatch(value) else round(float(value) * 1e6)
    except OverflowError:
        at_us = LAST_US + 1
    except ValueError:
        at_us = None
    if at_us is None:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError as exc:
            raise ConfigError(wrong) from exc
        at_us = datetime_us(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    if at_us > LAST_US:
        raise ConfigError(f"{wrong}, not milliseconds")
    return at_us
