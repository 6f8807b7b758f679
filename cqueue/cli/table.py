"""Tables and sheets whose cells can be read and copied whole: only the last column of a table is ever cut.

Rich's own tables shrink all columns until the table fits, ids among them, and do so in a pipe as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cqueue.cli.context import CliContext
from cqueue.cli.values import safe_for_terminal

GAP = "  "
_AS_IT_IS: Any = {"markup": False, "emoji": False, "highlight": False, "soft_wrap": True}
LEAST = 8
"""Columns of a terminal that the last column gets, however long the lines become by it."""


def print_table(
    cli: CliContext, header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()
) -> None:
    """Print rows in columns as wide as they need. On a terminal the last column is cut to what is left.

    right: names of columns that stand on the right.
    """
    from rich.cells import cell_len  # noqa: PLC0415 - not needed for --help

    cells = [[one_line(text) for text in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(header, *cells, strict=True)]
    room = max(LEAST, cli.console.width - sum(widths[:-1]) - len(GAP) * (len(widths) - 1))
    numeric = {header.index(name) for name in right}
    for number, row in enumerate([header, *cells]):
        texts = [_padded(text, widths[at], right=at in numeric) for at, text in enumerate(row[:-1])]
        last = _cut(row[-1], room) if cli.console.is_terminal else row[-1]
        line = GAP.join([*texts, last]).rstrip()
        cli.console.print(line, style=None if number else "bold", **_AS_IT_IS)


def print_sheet(cli: CliContext, fields: Mapping[str, object]) -> None:
    """Print a line for each field that is known; what takes several lines stands below its name."""
    width = max(map(len, fields)) + len(GAP)
    for name, value in fields.items():
        text = safe_for_terminal(str(value)) if value is not None else ""
        if text:
            cli.console.print(name.ljust(width), style="bold", end="", **_AS_IT_IS)
            cli.console.print("\n" + text if "\n" in text else text, **_AS_IT_IS)


def one_line(text: str) -> str:
    """The text without control characters, in one line."""
    return safe_for_terminal(" ".join(text.split("\n")))


def _padded(text: str, width: int, *, right: bool) -> str:
    from rich.cells import cell_len  # noqa: PLC0415 - as above

    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _cut(text: str, room: int) -> str:
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - as above

    return text if cell_len(text) <= room else set_cell_size(text, room - 1).rstrip() + "…"
