"""The renderer under all commands: fields for `--json`, a sheet for one thing, a table for several.

A command describes a thing once, as the fields that `--json` prints; people see the same fields. Messages and
records, which come one by one, are printed by `BodyPrinter`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from cqueue.cli.context import CliContext
from cqueue.cli.table import print_sheet, print_table
from cqueue.cli.values import NONE, body_text, safe_for_terminal, show_moment
from cqueue.runtime.durations import show_duration

_WORDS = {("ttl_ms", None): "for ever", ("max_attempts", 0): "no limit"}
"""Values that people would misread as figures."""


class _Content(Protocol):
    @property
    def body(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


Thing = TypeVar("Thing")
Content = TypeVar("Content", bound=_Content)


def print_fields(cli: CliContext, fields: Mapping[str, Any], *, fixed: Collection[str] = ()) -> None:
    """Print a sheet: a line for each field; the settings in `fixed` are marked, as nobody can change them."""
    marks = {name: "  (fixed)" if name.removesuffix("_ms") in fixed else "" for name in fields}
    print_sheet(cli, {_title(name): _shown(name, value) + marks[name] for name, value in fields.items()})


def print_rows(
    cli: CliContext,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    left: int = 1,
    spare: Sequence[str] = (),
) -> None:
    """Print a table of these fields of each row; all but the first `left` columns stand on the right."""
    titles = [_title(column) for column in columns]
    cells = [[_shown(column, row[column]) for column in columns] for row in rows]
    print_table(cli, titles, cells, right=titles[left:], spare=spare)


def print_each(
    cli: CliContext,
    things: Sequence[Thing],
    fields: Callable[[Thing], dict[str, Any]],
    columns: Mapping[str, Callable[[Thing], str]],
    **layout: Any,
) -> None:
    """Print a line of JSON for each thing; or a table, with `layout` as `print_table` takes it."""
    if cli.json:
        sys.stdout.writelines(json_line(fields(thing)) for thing in things)
        sys.stdout.flush()
    elif things:
        cells = [[text(thing) for text in columns.values()] for thing in things]
        print_table(cli, list(columns), cells, **layout)


class BodyPrinter(Generic[Content]):
    """Prints messages or records as they come: an object a line for `--json`, a body a line for pipes."""

    def __init__(
        self,
        cli: CliContext,
        fields: Callable[[Content], dict[str, Any]],
        about: Callable[[Content], list[str]],
    ) -> None:
        self._cli = cli
        self._fields = fields
        self._about = about

    def print(self, content: Content) -> None:
        """Print one; on a terminal after a dim line of what is known about it."""
        if self._cli.json:
            sys.stdout.write(json_line(self._fields(content)))
            return
        text, encoding = body_text(content.body)
        if not self._cli.console.is_terminal:
            sys.stdout.write(text + "\n")
            return
        parts = ["──", *self._about(content), *header_pairs(content.headers)]
        if encoding != "utf-8":
            parts.append(f"{len(content.body):,} bytes in {encoding}")
        self._cli.line(safe_for_terminal("  ".join(parts)), style="dim", fold=True)
        self._cli.line(safe_for_terminal(text))


def header_pairs(headers: Mapping[str, str]) -> list[str]:
    """Headers as `name=value` texts, in order of their names."""
    return [f"{name}={value}" for name, value in sorted(headers.items())]


def json_line(fields: Mapping[str, Any]) -> str:
    """The fields as one line of JSON."""
    return json.dumps(fields, ensure_ascii=False) + "\n"


def figure(value: object) -> str:
    """A number with its thousands apart; anything else as its text."""
    plain = isinstance(value, bool) or not isinstance(value, int | float)
    return str(value) if plain else f"{value:,}"


def _title(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _shown(name: str, value: Any) -> str:
    """A field's value for people."""
    if isinstance(value, dict):
        return ", ".join(f"{inner}={_shown('', one)}" for inner, one in value.items()) or NONE
    if isinstance(value, list):
        return "\n".join(map(str, value)) or NONE
    if value == "" or (name, value) in _WORDS:
        return _WORDS.get((name, value), NONE)
    if value is None or isinstance(value, datetime):
        return show_moment(value)
    if name.endswith("_ms"):
        return show_duration(timedelta(milliseconds=value))
    return f"{value:,.1f}" if isinstance(value, float) else str(value)
