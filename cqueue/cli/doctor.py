"""`cqueue doctor`: what is wrong with the cluster, the keyspace, the queues and their processes."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.options import duration
from cqueue.cli.table import one_line
from cqueue.errors import BadInput

if TYPE_CHECKING:
    from cqueue.doctor import Finding

app = typer.Typer()

INDENT: Final = 13
"""Columns before a finding's text: the longest severity, and a gap."""
ARROW: Final = "→ "
SHORTEST_S, LONGEST_S = 1.0, 3600.0
STYLES: Final = {
    "error": "bold red",
    "warning": "bold yellow",
    "not checked": "bold magenta",
    "info": "cyan",
    "ok": "green",
}
_NOUNS: Final = {
    "error": "errors",
    "warning": "warnings",
    "not checked": "not checked",
    "info": "info",
    "ok": "ok",
}


@command(app)
def doctor(
    cli: CliContext,
    *,
    timeout: Annotated[timedelta | None, duration("What each check may take; by default 10s.")] = None,
) -> None:
    """Look for what is wrong: nodes, clocks, settings, tables, queues, workers; say why, and what to do.

    Changes nothing. Exit code 1: there are warnings or errors. 3: some checks could not be made.
    """
    from cqueue.client import connect  # noqa: PLC0415 - keeps `cqueue --help` quick
    from cqueue.doctor import DEFAULT_LIMIT_S, examine, open_site  # noqa: PLC0415 - as above

    limit_s = DEFAULT_LIMIT_S if timeout is None else timeout.total_seconds()
    if not SHORTEST_S <= limit_s <= LONGEST_S:
        raise BadInput("--timeout goes from 1s to 1h.")
    settings = cli.settings()
    with cli.status("Connecting…") as show:
        make_client = partial(connect, cli.url)
        with open_site(settings, make_client, limit_s=limit_s) as site:
            show("Looking…")
            found = examine(site)
    _emit(cli, settings.address, found)


def _emit(cli: CliContext, address: str, found: Sequence[Finding]) -> None:
    from cqueue.cli.failures import ExitCode  # noqa: PLC0415 - as above

    counts = Counter(finding.severity.value for finding in found)
    code = ExitCode.DONE
    if counts["error"] or counts["warning"]:
        code = ExitCode.CHECK_FAILED
    elif counts["not checked"]:
        code = ExitCode.NOT_DONE
    if cli.json:
        numbers = {name.replace(" ", "_"): counts[name] for name in STYLES}
        findings = [_fields(finding) for finding in found]
        cli.emit({"cluster": address, "findings": findings, **numbers, "exit_code": int(code)})
    else:
        for finding in found:
            _print(cli, finding)
        room = cli.console.width if cli.console.is_terminal else sys.maxsize
        for line in _wrapped(f"{address}: {_summary(counts)}.", room):
            cli.line(line)
    raise typer.Exit(code)


def _fields(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "severity": finding.severity.value, "figures": dict(finding.figures)}


def _summary(counts: Counter[str]) -> str:
    parts = [
        f"{counts[name]} {name if counts[name] == 1 else plural}"
        for name, plural in _NOUNS.items()
        if counts[name]
    ]
    return ", ".join(parts) or "nothing found"


def _print(cli: CliContext, finding: Finding) -> None:
    """Print one finding: a paragraph on a terminal, a line in a pipe."""
    severity, texts = finding.severity.value, _texts(finding)
    if not cli.console.is_terminal:
        cli.line(f"{severity.ljust(INDENT)}{' '.join(texts)}")
        return
    cli.console.print(severity.ljust(INDENT), style=STYLES[severity], end="", markup=False, highlight=False)
    room = max(20, cli.console.width - INDENT)
    lines = [line for text in texts for line in _wrapped(text, room)]
    for number, line in enumerate(lines):
        cli.line(line if number == 0 else " " * INDENT + line)


def _texts(finding: Finding) -> list[str]:
    """Return what is said: what was found, why it matters, what to do."""
    what = f"{finding.subject}: {finding.found}"
    told = what if not finding.reason or what.endswith((".", "!")) else f"{what}."
    texts = [told, finding.reason, f"{ARROW}{finding.remedy}" if finding.remedy else ""]
    return [one_line(text) for text in texts if text]


def _wrapped(text: str, room: int) -> list[str]:
    """Break a text into lines; those after a remedy's first stand below its text."""
    later = " " * len(ARROW) if text.startswith(ARROW) else ""
    return textwrap.wrap(text, room, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)
