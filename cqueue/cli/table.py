"""Tables and sheets whose cells can be read and copied whole.

Rich's own tables shrink all columns until the table fits, ids among them, and do so in a pipe as well. Here a
narrow terminal does without the columns that a command can spare, and a last column of free text is cut. A
pipe gets all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta

from cqueue.cli.context import CliContext, safe_for_terminal
from cqueue.cli.values import shown

GAP = "  "
_NUMBERS = (int, float, timedelta)
LEAST = 8
"""Characters that the last column gets at least, even if lines become wider than the terminal."""


def print_table(
    cli: CliContext,
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Collection[str] = (),
    spare: Sequence[str] = (),
    cut: bool = False,
) -> None:
    """Print rows in columns as wide as they need.

    right: names of columns that are aligned to the right, besides those with numbers or durations.
    spare: names of columns to leave out on a terminal that is too narrow, in this order.
    cut: on a terminal, cut the last column to the space that is left.
    """
    from rich.cells import cell_len  # noqa: PLC0415 - not needed for --help

    values = {name: column for name, *column in zip(header, *rows, strict=True)}
    right = {*right, *(name for name in values if any(isinstance(one, _NUMBERS) for one in values[name]))}
    columns = {name: [name, *(one_line(shown(one)) for one in values[name])] for name in values}
    widths = {name: max(map(cell_len, column)) for name, column in columns.items()}
    if cli.console.is_terminal:
        _leave_out(widths, spare, cli.console.width, cut=cut)
    *names, last = widths
    room = max(LEAST, cli.console.width - _width([widths[name] for name in names]) - len(GAP))
    for number in range(len(columns[last])):
        texts = [_padded(columns[name][number], widths[name], right=name in right) for name in names]
        end = columns[last][number]
        if cli.console.is_terminal and cut:
            end = _cut(end, room)
        line = GAP.join([*texts, _padded(end, widths[last], right=True) if last in right else end]).rstrip()
        cli.console.print(line, style=None if number else "bold")


def _leave_out(widths: dict[str, int], spare: Sequence[str], room: int, *, cut: bool) -> None:
    """Leave out columns of `spare` that there are, one by one, until the others fit into `room`."""
    for name in filter(widths.__contains__, spare):
        *others, last = widths.values()
        if _width([*others, min(last, LEAST) if cut else last]) <= room:
            return
        del widths[name]


def _width(widths: Sequence[int]) -> int:
    """Return the width of a line with columns of these widths."""
    return sum(widths) + len(GAP) * max(0, len(widths) - 1)


def print_sheet(cli: CliContext, fields: Mapping[str, object]) -> None:
    """Print a line for each field that has a value; a value of several lines stands below its name."""
    width = max(map(len, fields)) + len(GAP)
    for name, value in fields.items():
        if value is not None and value != "":
            text = safe_for_terminal(shown(value))
            cli.console.print(name.ljust(width), style="bold", end="")
            cli.console.print("\n" + text if "\n" in text else text)


def one_line(text: str) -> str:
    """Return the text without control characters, in one line."""
    return safe_for_terminal(" ".join(text.split("\n")))


def _padded(text: str, width: int, *, right: bool) -> str:
    from rich.cells import cell_len  # noqa: PLC0415 - as above

    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _cut(text: str, room: int) -> str:
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - as above

    return text if cell_len(text) <= room else set_cell_size(text, room - 1).rstrip() + "…"
