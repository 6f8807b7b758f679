"""Tables as values: those that the migrations make, and those that Cassandra has.

`verify` compares the two. The parser below understands the definitions that migrations use and refuses all
others, so that no difference goes unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cqueue.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Column:
    """One column, in the terms of system_schema.

    Attributes:
        type: in Cassandra's notation: lower case, blanks only after commas.
        kind: partition_key, clustering, static or regular.
        position: place in the key; -1 for other columns.
        order: asc or desc for a clustering column; none for others.
    """

    type: str
    kind: str = "regular"
    position: int = -1
    order: str = "none"


@dataclass(frozen=True, slots=True)
class Table:
    """One table. `compaction` and `gc_grace_s` are None if nothing is prescribed."""

    columns: Mapping[str, Column]
    compaction: Mapping[str, str] | None = None
    gc_grace_s: int | None = None


_CREATE: Final = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)\s*(\(.*)", re.IGNORECASE)
_ALTER: Final = re.compile(r"ALTER TABLE (\w+) (?:ADD IF NOT EXISTS (.*)|WITH (.*))", re.IGNORECASE)
_ROWS: Final = re.compile(r"(INSERT INTO|UPDATE|DELETE FROM) .*", re.IGNORECASE)
"""Statements about rows change no structure."""


def tables_of(statements: Iterable[str], there: Mapping[str, Table] | None = None) -> dict[str, Table]:
    """Return the tables that these statements make of those that are there: by default of none.

    Raises:
        ConfigError: a statement has no known form; every known form can be repeated without harm.
    """
    tables = dict(there or {})
    for statement in statements:
        text = re.sub(r"\s+", " ", statement).strip()
        if match := _CREATE.fullmatch(text):
            body, options = _split_body(match[2])
            tables.setdefault(match[1], _with_options(Table(_columns(body, options)), options))
        elif match := _ALTER.fullmatch(text):
            if (table := tables.get(match[1])) is not None:  # somebody may have dropped it
                added = dict(map(_column, _split_top(match[2].strip("() ")))) if match[2] else {}
                altered = replace(table, columns={**table.columns, **added})
                tables[match[1]] = _with_options(altered, match[3] or "")
        elif not _ROWS.fullmatch(text):
            raise ConfigError(f"A migration cannot contain: {text[:80]}…")
    return tables


def normal_type(text: str) -> str:
    """Return a type in Cassandra's own spelling."""
    return re.sub(r"\s*([<>])\s*", r"\1", re.sub(r"\s*,\s*", ", ", text.strip().lower()))


def _columns(body: str, options: str) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    key: list[str] = []
    for part in _split_top(body):
        if match := re.fullmatch(r"PRIMARY KEY\s*\((.*)\)", part, re.IGNORECASE):
            key = _split_top(match[1])
        else:
            name, column = _column(re.sub(r" PRIMARY KEY$", "", part, flags=re.IGNORECASE))
            columns[name] = column
            key = [name] if part.upper().endswith(" PRIMARY KEY") else key
    return _with_key(columns, key, options)


def _column(text: str) -> tuple[str, Column]:
    name, _, rest = text.strip().partition(" ")
    kind = "static" if rest.lower().endswith(" static") else "regular"
    return name.lower(), Column(normal_type(re.sub(r" static$", "", rest, flags=re.IGNORECASE)), kind)


def _with_key(columns: dict[str, Column], key: list[str], options: str) -> dict[str, Column]:
    partition = _split_top(key[0].strip("()"))
    for position, name in enumerate(partition):
        columns[name] = replace(columns[name], kind="partition_key", position=position)
    for position, name in enumerate(key[1:]):
        descends = re.search(rf"[( ,]{name} DESC\b", options, re.IGNORECASE)
        order = "desc" if descends else "asc"
        columns[name] = replace(columns[name], kind="clustering", position=position, order=order)
    return columns


def _with_options(table: Table, options: str) -> Table:
    if match := re.search(r"gc_grace_seconds\s*=\s*(\d+)", options):
        table = replace(table, gc_grace_s=int(match[1]))
    if match := re.search(r"compaction\s*=\s*\{([^}]*)\}", options):
        table = replace(table, compaction=dict(re.findall(r"'([^']*)'\s*:\s*'([^']*)'", match[1])))
    return table


def _split_body(text: str) -> tuple[str, str]:
    """Return the definition in the first pair of brackets, and the text after it."""
    depth = 0
    for index, char in enumerate(text):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth == 0:
            return text[1:index], text[index + 1 :]
    raise ConfigError(f"Brackets do not match in: {text[:80]}…")


def _split_top(text: str) -> list[str]:
    """Return the parts between commas outside of brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, "<": 1, ")": -1, ">": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]
