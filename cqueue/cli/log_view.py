"""How logs and their records look: tables and sheets for people, bodies for pipes, objects for JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from cqueue.cli.context import CliContext
from cqueue.cli.table import print_sheet, print_table
from cqueue.cli.values import body_text, safe_for_terminal, show_moment
from cqueue.config import to_ms
from cqueue.durations import show_duration

if TYPE_CHECKING:
    from cqueue.log.log import Log
    from cqueue.log.records import LogRecord

_FIXED = ("time_shard_ms",)


def described(log: Log) -> dict[str, Any]:
    """What --json shows of a log: durations in ms; a ttl of null is for ever."""
    config = log.config
    return {
        "log": log.name,
        "partitions": config.partitions,
        "ttl_ms": None if config.ttl is None else to_ms(config.ttl),
        "time_shard_ms": config.time_shard_ms,
    }


def print_logs(cli: CliContext, rows: Sequence[Mapping[str, Any]]) -> None:
    """All logs: a line each."""
    titles = [_title(name) for name in rows[0]]
    cells = [[_shown(name, value) for name, value in row.items()] for row in rows]
    print_table(cli, titles, cells, right=titles[1:], spare=("time shard",))


def print_log(cli: CliContext, fields: Mapping[str, Any]) -> None:
    """One log: a line for each setting, or for each figure of what it holds."""
    fixed = {name: "  (fixed)" if name in _FIXED else "" for name in fields}
    print_sheet(cli, {_title(name): _shown(name, value) + fixed[name] for name, value in fields.items()})


def _title(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _shown(name: str, value: Any) -> str:
    if name == "ttl_ms" and value is None:
        return "for ever"
    if name.endswith("_ms"):
        return show_duration(timedelta(milliseconds=value))
    if value is None or isinstance(value, datetime):
        return show_moment(value)
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


class RecordPrinter:
    """Writes records as they come."""

    def __init__(self, cli: CliContext) -> None:
        self._cli = cli
        self._to_terminal = cli.console.is_terminal

    def record(self, record: LogRecord) -> None:
        """One line of JSON; or the body, after a dim line about it if people see both."""
        if self._cli.json:
            sys.stdout.write(json.dumps(record_fields(record), ensure_ascii=False) + "\n")
            return
        text, encoding = body_text(record.body)
        if not self._to_terminal:
            sys.stdout.write(text + "\n")
            return
        self._cli.console.print(_about(record, encoding), style="dim", highlight=False, markup=False)
        self._cli.console.print(safe_for_terminal(text), highlight=False, markup=False, soft_wrap=True)


def record_fields(record: LogRecord) -> dict[str, Any]:
    """What --json shows of a record."""
    text, encoding = body_text(record.body)
    return {
        "id": record.id,
        "time": record.time.isoformat(),
        "partition": record.partition,
        "topic": record.topic,
        "key": record.key,
        "headers": dict(record.headers),
        "body": text,
        "encoding": encoding,
    }


def _about(record: LogRecord, encoding: str) -> str:
    parts = [show_moment(record.time), safe_for_terminal(record.topic), f"partition {record.partition}"]
    if record.key is not None:
        parts.append(safe_for_terminal(f"key {record.key}"))
    parts += [safe_for_terminal(f"{name}={value}") for name, value in sorted(record.headers.items())]
    if encoding != "utf-8":
        parts.append(f"{len(record.body):,} bytes in {encoding}")
    return "  ".join(("──", *parts))
