"""The renderer under all commands: fields for `--json`, a sheet for one thing, a table for several.

A command describes a thing once, as the fields that `--json` prints; people see the same fields. Messages and
records, which come one by one, are printed by `BodyPrinter`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from cqueue.cli.context import CliContext, json_line, output
from cqueue.cli.table import print_sheet, print_table
from cqueue.cli.values import body_text, shown
from cqueue.config import to_ms

_WORDS: Mapping[str, tuple[object, str]] = {"ttl_ms": (None, "for ever"), "max_attempts": (0, "no limit")}
"""Values that people would misread as figures."""
_MAY_BE_NONE = ("history", "ttl")
"""Settings that are durations, where they are not None."""


class _Content(Protocol):
    @property
    def body(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


Thing = TypeVar("Thing")
Content = TypeVar("Content", bound=_Content)


def emit_one(
    cli: CliContext, fields: Mapping[str, Any], told: Mapping[str, Any] = {}, *, fixed: Collection[str] = ()
) -> None:
    """Print one thing: with --json its fields, otherwise a line for each field that has a value.

    Args:
        cli: the command's.
        fields: of the thing.
        told: what people read in place of some of them; None: nothing.
        fixed: settings that are marked, as nobody can change them.
    """
    marks = {name: "  (fixed)" if name.removesuffix("_ms") in fixed else "" for name in fields}
    for_people = {**fields, **told}
    values = {name: _value(name, for_people) for name in for_people}
    lines = {_title(name): value and shown(value) + marks[name] for name, value in values.items()}
    cli.emit(fields, lambda: print_sheet(cli, lines))


def print_list(
    cli: CliContext,
    things: Sequence[Thing],
    fields: Callable[[Thing], Any],
    columns: Mapping[str, Callable[[Thing], Any]],
    *,
    none: str,
    lines: bool = False,
    **layout: Any,
) -> None:
    """Print a table of things, or `none` where there are none; with --json their fields.

    Args:
        cli: the command's.
        things: what is listed.
        fields: what --json shows of one.
        columns: the value of each column.
        none: a remark.
        lines: with --json, print an object a line instead of one list.
        layout: as `print_table` takes it.
    """
    if cli.json:
        found = [fields(thing) for thing in things]
        output().writelines(map(json_line, found if lines else [found]))
        output().flush()
    elif things:
        rows = [[value(thing) for value in columns.values()] for thing in things]
        print_table(cli, list(columns), rows, **layout)
    else:
        cli.remark(none)


def columns_of(*names: str) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    """Return the columns of a table that shows these fields."""
    return {_title(name): partial(_value, name) for name in names}


def in_ms(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as --json shows them: each duration in ms, under a name that says so."""
    return dict(
        (f"{name}_ms", None if value is None else to_ms(value))
        if isinstance(value, timedelta) or name in _MAY_BE_NONE
        else (name, value)
        for name, value in settings.items()
    )


def _title(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _value(name: str, fields: Mapping[str, Any]) -> Any:
    """Return a field's value for people."""
    value = fields[name]
    special, word = _WORDS.get(name, (None, None))
    if value == special:
        return word
    return timedelta(milliseconds=value) if name.endswith("_ms") else value


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
        self.printed = 0
        self.is_cut_off = False  # within a batch: nobody knows how much of it the output has taken
        self.last: Content | None = None

    def print_all(self, contents: Sequence[Content]) -> None:
        """Print some, and flush: what was not printed must not be taken for it."""
        self.is_cut_off = True
        for content in contents:
            self.print(content)
        output().flush()
        self.is_cut_off = False
        self.printed += len(contents)
        self.last = contents[-1] if contents else self.last

    def print(self, content: Content) -> None:
        """Print one; on a terminal after a dim line of what is known about it."""
        if self._cli.json:
            output().write(json_line(self._fields(content)))
            return
        text, encoding = body_text(content.body)
        if not self._cli.console.is_terminal:
            output().write(text + "\n")
            return
        parts = ["──", *self._about(content), *header_pairs(content.headers)]
        if encoding != "utf-8":
            parts.append(f"{len(content.body):,} bytes in {encoding}")
        self._cli.line("  ".join(parts), style="dim", fold=True)
        self._cli.line(text)


def header_pairs(headers: Mapping[str, str]) -> list[str]:
    """Headers as `name=value` texts, in order of their names."""
    return [f"{name}={value}" for name, value in sorted(headers.items())]
