"""A report as one HTML file with plots inside, which needs nothing else to be looked at or sent on."""

from __future__ import annotations

import base64
import importlib.util
import io
from html import escape
from pathlib import Path
from typing import Any

from cqueue.runtime.atomic_file import atomic_file
from cqueue.spark.jobs.report import Reported, Table

MAX_TICKS = 12
MAX_LABEL = 24
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; color: #222 }
table { border-collapse: collapse; margin: .5em 0 }
td, th { padding: .2em .8em; border-bottom: 1px solid #ddd }
th { text-align: left } td.n { text-align: right; font-variant-numeric: tabular-nums }
img { max-width: 100% }
"""


def write(report: Reported, file: Path) -> bool:
    """Write the page; return whether it has plots, which need matplotlib.

    Raises:
        BadInput: the file cannot be written.
    """
    plots = importlib.util.find_spec("matplotlib") is not None
    parts = [_section(table, plots=plots) for table in report.tables]
    page = (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(report.title)}</title>"
        f"<style>{_STYLE}</style><h1>{escape(report.title)}</h1>"
        f"<p>{report.read:,} rows were looked at in {report.seconds:,.1f} s.</p>{''.join(parts)}</html>\n"
    )
    with atomic_file(file) as part:
        part.write_text(page, encoding="utf-8")
    return plots


def shown(value: Any) -> str:
    """Return a cell's text: numbers with separators."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _section(table: Table, *, plots: bool) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in table.rows)
    plot = ""
    if plots and table.chart and len(table.rows) > 1:
        data = base64.b64encode(png(table)).decode()
        plot = f"<p><img alt='{escape(table.title, quote=True)}' src='data:image/png;base64,{data}'></p>"
    return f"<h2>{escape(table.title)}</h2>{plot}<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    kind = " class='n'" if isinstance(value, int | float) else ""
    return f"<td{kind}>{escape(shown(value))}</td>"


def png(table: Table) -> bytes:
    """The table's last column over its first one, as bars; needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    figure = Figure(figsize=(9, 3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = range(len(table.rows))
    axes.bar(places, [row[-1] for row in table.rows], width=0.85)
    step = -(-len(table.rows) // MAX_TICKS)
    axes.set_xticks(
        list(places)[::step],
        [str(row[0])[:MAX_LABEL].replace("$", r"\$") for row in table.rows][::step],  # $ begins a formula
        rotation=30,
        ha="right",
    )
    axes.set_ylabel(table.columns[-1])
    sink = io.BytesIO()
    figure.savefig(sink, format="png", dpi=110)
    return sink.getvalue()
