"""Rows of the memory twin that are changed under a condition, and rows whose time ends."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, TypeVar

Row = TypeVar("Row")


def alter(rows: MutableMapping[Any, Any], key: Any, expect: Mapping[str, Any], /, **columns: Any) -> bool:
    """Set columns of a row, or delete it where none are given, if it has the columns that are expected."""
    stored = rows.get(key)
    if stored is None or any(getattr(stored, name) != value for name, value in expect.items()):
        return False
    if columns:
        rows[key] = stored._replace(**columns)
    else:
        del rows[key]
    return True


def alter_configured(rows: MutableMapping[Any, Any], op: Any) -> bool:
    """As a `ChangeQueue` or a `ChangeLog` wants it."""
    row = op.row
    expect = {"version": op.expect_version, "incarnation": row.incarnation}
    version = (op.expect_version or 0) + 1
    return alter(rows, row.name, expect, version=version, state=row.state, config=row.config)


def alive(rows: Mapping[str, tuple[Row, int]], now_us: int) -> list[Row]:
    """The rows that are not over, by their names."""
    return [row for _, (row, until_us) in sorted(rows.items()) if now_us < until_us]
